"""`make soak`: eight machines on one bucket for minutes, the whole kill -9 matrix, 200 rounds of a bad network."""

from __future__ import annotations

import os
import time
from collections import Counter
from functools import partial

import pytest

from crowds import Crowd
from jobs import committed, parts_of, require_java, run_job
from kill_scenarios import SCENARIOS, run_matrix
from kills import Killer, assert_no_help_needed, whole
from machines import Place, Team
from networks import DEADLINE, KINDS, BadNetwork, Pair, place_behind, place_beside, run_rounds

MINUTES = float(os.environ.get("SWAMP_SOAK_MINUTES", "5"))
MACHINES = int(os.environ.get("SWAMP_SOAK_MACHINES", "8"))
ROUNDS = int(os.environ.get("SWAMP_SOAK_ROUNDS", "200"))
POINTS = int(os.environ.get("SWAMP_SOAK_POINTS", "22"))
KILLS = POINTS - 2
"""A command may end before its last moments come: at least so many are really killed."""


def test_many_machines_for_minutes(moto, tmp_path, fresh_prefix, report):
    with BadNetwork(moto.endpoint) as network:
        prefix = fresh_prefix()
        team = Team(tmp_path, place_behind(network, moto, prefix))
        crowd = Crowd.make(team, place_beside(moto, prefix), MACHINES, seed=int(time.time()))
        network.rage(crowd.seed, 0.03)
        began = time.monotonic()
        crowd.work(MINUTES * 60)
        took = time.monotonic() - began
        network.calm()
        lost = crowd.prove()
        commits = team.place.root()["seq"]
    commands = crowd.record.commands + crowd.kills
    report.add(
        f"{MACHINES} machines on one bucket for {MINUTES:g} minutes",
        f"load held: {commands} commands ({commands / took:.1f}/s), {commits} commits, "
        f"{sum(crowd.sizes.values()):,} bytes acknowledged in {len(crowd.record.acknowledged)} versions",
        f"commands: {dict(crowd.kinds.most_common())}",
        f"faults injected: {sum(network.faults.values())} {dict(sorted(network.faults.items()))}",
        f"killed: {crowd.kills}, at risk in {crowd.at_risk} of them",
        f"refused (exit code: times): {dict(crowd.record.refused)}; slowest command {crowd.record.slowest:.1f} s",
        f"bytes lost: {lost}",
    )
    assert lost == 0 and crowd.kills and crowd.record.acknowledged
    assert crowd.at_risk * 2 >= crowd.kills, "nothing was at risk in most of the kills"


def test_a_bad_network_two_hundred_times(moto, tmp_path, fresh_prefix, report):
    done, commands, slowest = 0, 0, 0.0
    faults, refused = Counter[str](), Counter[int]()
    for first in range(0, ROUNDS, 10):
        with BadNetwork(moto.endpoint) as network:
            team = Team(tmp_path / str(first), place_behind(network, moto, fresh_prefix()))
            pair = Pair.make(team)
            run_rounds(pair, network, range(first, min(first + 10, ROUNDS)))
        done += len(pair.record.acknowledged)
        faults += network.faults
        refused += pair.record.refused
        commands += pair.record.commands
        slowest = max(slowest, pair.record.slowest)
    report.add(
        f"{ROUNDS} rounds of two machines on a bad network",
        f"{commands} commands, {done} versions acknowledged, slowest command {slowest:.1f} s of {DEADLINE:g}",
        f"faults injected: {sum(faults.values())} {dict(sorted(faults.items()))}",
        f"refused (exit code: times): {dict(refused)}",
        "acknowledged and lost: 0",
    )
    assert set(faults) == set(KINDS), "a kind of fault that never came"


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_many_points(name, killer: Killer, new_place, tmp_path, report):
    tally = run_matrix(SCENARIOS[name](Team(tmp_path, new_place()), new_place), killer, POINTS)
    report.add(f"kill -9: {name} on {'moto' if killer.proxy else 'file'}", str(tally).partition(": ")[2])
    assert tally.killed >= KILLS and tally.at_risk * 2 >= tally.killed


def test_dataset_writes_killed_at_many_points(killer: Killer, new_place, tmp_path, report):
    """Killed when a part is there, when all are, when the commit has landed; in the end all are asked for once more."""
    require_java()
    team = Team(tmp_path, new_place())
    a, place = team.machine("a"), team.place
    killed = at_risk = acknowledged = 0
    for n in range(POINTS):
        name = f"events-{n}"
        moment = partial(committed, place, name) if n % 4 == 3 else partial(_parts, place, name, 1 + n % 4)
        if run_job(a, f"{name}={name}", until=moment) == 0:
            acknowledged += 1
            continue
        killed += 1
        at_risk += bool(parts_of(place, name))
    again = [f"events-{n}=events-{n}" for n in range(POINTS)]
    assert run_job(a, *again) == 0
    there = whole(team.machine("fresh").tree)
    assert sorted((name, v) for _, name, v in there) == sorted((f"events-{n}", 1) for n in range(POINTS))
    assert_no_help_needed(a)
    report.add(
        f"kill -9: dataset write on {'moto' if killer.proxy else 'file'}",
        f"killed {killed}, at risk {at_risk}, acknowledged {acknowledged + POINTS}, lost 0",
    )
    assert killed >= KILLS and at_risk * 2 >= killed


def _parts(place: Place, name: str, count: int) -> bool:
    return len(parts_of(place, name)) >= count
