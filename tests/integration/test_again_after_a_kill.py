"""C02: a command that was killed before its push, run again, completes what it began: no exit 0 while it waits here."""

from __future__ import annotations

import pytest

from kills import Killer, assert_no_help_needed
from machines import Team


def test_C02_a_rename_that_was_killed_is_completed_by_the_same_command(local_team: Team):
    a, killer = local_team.machine("a"), Killer(local_team.directory)
    a.put("web", "old", "bytes")
    ran, steps = killer.count(a, "data", "rename", "web", "old", "new")
    ran.ok()
    where = [n for n, step in enumerate(steps) if "/tree/data/" in step or "/bucket/" in step][::4]
    killed = 0
    for at in where:
        a.put("web", f"old{at}", f"bytes {at}")
        killed += killer.kill(a, at, "data", "rename", "web", f"old{at}", f"new{at}").killed
        again = a("data", "rename", "web", f"old{at}", f"new{at}")
        assert again.code == 0, (steps[at], again)
        waiting = a.status()["pending"]
        assert waiting["writes"] == waiting["deletes"] == 0, (steps[at], waiting)
    assert killed > 4, steps
    b = local_team.machine("b")
    for at in where:
        for name in ("new", "old"):
            assert b.get("web", f"{name}{at}")["content"] == f"bytes {at}", steps[at]
    assert_no_help_needed(a)


def test_C02_a_killed_rename_to_a_name_that_somebody_else_took_meanwhile_is_refused(local_team: Team):
    """Its pointer would lead to their bytes, with exit 0."""
    a, b, killer = local_team.machine("a"), local_team.machine("b"), Killer(local_team.directory)
    a.put("web", "first", "bytes")
    ran, steps = killer.count(a, "data", "rename", "web", "first", "second")
    ran.ok()
    a.put("web", "old", "bytes")
    pushed = next(n for n, step in enumerate(steps) if "/bucket/_" in step)
    assert killer.kill(a, pushed, "data", "rename", "web", "old", "new").killed
    local_team.place.shorten_leases()
    b.put("web", "new", "others")
    assert "already" in a("data", "rename", "web", "old", "new").failed(2)["error"]
    a("datastore", "sync").ok()
    b.sync()
    for machine in (a, b):
        assert machine.get("web", "old")["content"] == "bytes"
        assert machine.get("web", "new")["content"] == "others"


def test_C02_a_name_that_somebody_else_gave_is_still_taken(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "old", "bytes")
    a.put("web", "new", "others")
    assert "already" in a("data", "rename", "web", "old", "new").failed(2)["error"]


@pytest.mark.parametrize("verb", ["gc", "prune"])
def test_C02_deletes_of_a_collection_that_was_killed_are_pushed_by_the_next(local_team: Team, verb: str):
    a, killer = local_team.machine("a"), Killer(local_team.directory)

    def litter(name: str) -> None:
        for content in "12":
            a.put("web", name, content, "--keep", "1")
        if verb == "prune":
            a("data", "rename", "web", name, f"{name}-new").ok()
            a("data", "delete", "web", f"{name}-new", "--yes").ok()

    litter("first")
    ran, steps = killer.count(a, "data", verb, "--yes")
    assert ran.ok()["versionsDeleted"], ran
    shared = [n for n, step in enumerate(steps) if "/bucket/" in step and ".lock" not in step]
    locally = [n for n, step in enumerate(steps) if "/tree/data/" in step and n < shared[-1]]
    died = waited = 0
    for at in (locally[-1], *shared[::3]):
        litter(f"name{at}")
        died += killer.kill(a, at, "data", verb, "--yes").killed
        waited += a.status()["pending"]["deletes"] > 0
        again = a("data", verb, "--yes")
        assert again.code == 0, (steps[at], again)
        assert a.status()["pending"]["deletes"] == 0, (steps[at], again)
    assert died > 1 and waited > 0, (died, waited)
    assert_no_help_needed(a)


def test_C02_a_delete_that_was_killed_is_completed_by_the_same_command(local_team: Team):
    a, killer = local_team.machine("a"), Killer(local_team.directory)
    a.put("web", "kept", "bytes")
    a.put("web", "gone", "bytes")
    ran, steps = killer.count(a, "data", "delete", "web", "gone", "--yes")
    ran.ok()
    shared = [n for n, step in enumerate(steps) if "/bucket/" in step and ".lock" not in step]
    locally = [n for n, step in enumerate(steps) if "/tree/data/" in step and n < shared[-1]]
    delivered = 0
    for at in (locally[-1], *shared[::3]):
        a.put("web", f"gone{at}", "bytes")
        killer.kill(a, at, "data", "delete", "web", f"gone{at}", "--yes")
        again = a("data", "delete", "web", f"gone{at}", "--yes")
        delivered += again.code == 0
        assert again.code in (0, 1), (steps[at], again)  # 1: it was shared before it was killed, so nothing is there
        assert a.status()["pending"]["deletes"] == 0, (steps[at], again)
    assert delivered > 0, steps
    assert a("data", "delete", "web", "never", "--yes").failed(1)
    assert {row["name"] for row in local_team.machine("b")("data", "list", "web").ok()["items"]} == {"kept"}
    assert_no_help_needed(a)
