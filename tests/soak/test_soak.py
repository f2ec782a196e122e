"""`make soak`: eight machines on one bucket for minutes, the whole kill -9 matrix, 200 rounds of a bad network."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from crowds import Crowd
from jobs import committed, parts_of, require_java, run_job
from kill_scenarios import SCENARIOS, run_matrix
from kills import Killer, assert_no_help_needed, whole
from machines import Place, Team
from networks import BadNetwork, Pair, place_behind, run_rounds
from swamp.testing.proxy import FaultProxy

MINUTES = float(os.environ.get("SWAMP_SOAK_MINUTES", "5"))
MACHINES = int(os.environ.get("SWAMP_SOAK_MACHINES", "8"))
ROUNDS = int(os.environ.get("SWAMP_SOAK_ROUNDS", "200"))
POINTS = int(os.environ.get("SWAMP_SOAK_POINTS", "20"))


def test_many_machines_for_minutes(moto, tmp_path, fresh_prefix, report):
    with BadNetwork(moto.endpoint) as network:
        team = Team(tmp_path, place_behind(network, moto, fresh_prefix()))
        crowd = Crowd.make(team, MACHINES, seed=int(time.time()))
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


def test_a_bad_network_two_hundred_times(moto, tmp_path, fresh_prefix, report):
    done, faults, refused, commands, slowest = 0, 0, 0, 0, 0.0
    for first in range(0, ROUNDS, 10):
        with BadNetwork(moto.endpoint) as network:
            team = Team(tmp_path / str(first), place_behind(network, moto, fresh_prefix()))
            pair = Pair.make(team)
            run_rounds(pair, network, range(first, min(first + 10, ROUNDS)))
        done += len(pair.record.acknowledged)
        faults += sum(network.faults.values())
        refused += sum(pair.record.refused.values())
        commands += pair.record.commands
        slowest = max(slowest, pair.record.slowest)
    report.add(
        f"{ROUNDS} rounds of two machines on a bad network",
        f"{commands} commands, {faults} faults, {done} acknowledged, {refused} refused, slowest {slowest:.1f} s",
        "acknowledged and lost: 0",
    )


@pytest.mark.parametrize("backend", ["file", "moto"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_many_points(name, backend, servers, tmp_path, fresh_prefix, report):
    proxy = None if backend == "file" else FaultProxy(servers["moto"].endpoint)
    if proxy is not None:
        proxy.__enter__()

    def new_place() -> Place:
        if proxy is None:
            return Place((tmp_path / fresh_prefix()).as_uri())
        moto = servers["moto"]
        return Place(f"{moto.url}/{fresh_prefix()}", {**moto.config, "endpoint": proxy.endpoint}, dict(moto.environ))

    try:
        tally = run_matrix(SCENARIOS[name](Team(tmp_path, new_place()), new_place), Killer(tmp_path, proxy), POINTS)
    finally:
        if proxy is not None:
            proxy.__exit__()
    report.add(f"kill -9: {name} on {backend}", str(tally).partition(": ")[2])
    assert tally.killed >= POINTS * 0.8 and tally.at_risk * 2 >= tally.killed


def _parts_more_than(bucket: Path, name: str, count: int) -> bool:
    return len(parts_of(bucket, name)) > count


def test_dataset_writes_killed_at_many_points(tmp_path, report):
    """Each write is killed at a later moment than the one before, and restarted until it is acknowledged."""
    require_java()
    bucket = tmp_path / "bucket"
    team = Team(tmp_path, Place(bucket.as_uri()))
    a = team.machine("a")
    killed = at_risk = 0
    for n in range(POINTS):
        name = f"events-{n}"
        parts = partial(_parts_more_than, bucket, name, n % 3)
        until = parts if n % 2 == 0 else partial(committed, team.place, bucket, name)
        if run_job(a, name, name, until=until) != 0:
            killed += 1
            at_risk += bool(parts_of(bucket, name))
        assert run_job(a, name, name) == 0
    there = whole(team.machine("fresh").tree)
    assert sorted((name, v) for _, name, v in there) == sorted((f"events-{n}", 1) for n in range(POINTS))
    assert_no_help_needed(a)
    report.add("kill -9: dataset write on file", f"killed {killed}, at risk {at_risk}, acknowledged {POINTS}, lost 0")
    assert at_risk * 2 >= killed > 0
