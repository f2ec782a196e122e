"""L54: a scheduler restarts a job that had died, before or after its commit. With a `writeId` there is one version."""

from __future__ import annotations

import signal

import pytest

from jobs import committed, parts_of, require_java, run_job
from kills import assert_no_help_needed, whole
from machines import Team


@pytest.mark.inv("spark.publish-once")
@pytest.mark.timeout(900)
def test_L54_a_job_killed_before_and_after_its_commit_makes_one_version(team: Team, capsys):
    require_java()
    a, place, write = team.machine("a"), team.place, "events=2026-11-15"
    hold = team.directory / "hold"
    hold.touch()
    first = run_job(a, write, until=lambda: bool(parts_of(place, "events")), env={"SWAMP_TEST_HOLD": str(hold)})
    uploaded, landed = len(parts_of(place, "events")), committed(place, "events")
    hold.unlink()
    second = run_job(a, write, until=lambda: committed(place, "events"), env={"SWAMP_TEST_STAY": "yes"})
    assert committed(place, "events")
    last = run_job(a, write)
    with capsys.disabled():
        codes = [first, second, last]
        print(f"\ndataset write: killed {codes.count(-9)}, acknowledged {codes.count(0)}, at risk {uploaded} parts")
    assert (first, second, last) == (-signal.SIGKILL, -signal.SIGKILL, 0) and uploaded and not landed
    fresh = team.machine("fresh")
    there = whole(fresh.tree)
    assert [(name, version) for _, name, version in there] == [("events", 1)]
    assert fresh.get("nightly", "events")["version"] == 1
    assert_no_help_needed(fresh)
