"""A disk that is full, a cache that cannot be written, a clock that was set back: told clearly, and nothing is lost."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest

from machines import Team, read_tree
from peers import Peer, content, settled, version
from swamp.env import Env, SystemClock
from swamp.store.open import open_store

NOWHERE = Path("/proc/swamp-cannot-write-here")
"""Not even root can make a directory here."""


def unlocked(team: Team) -> dict[str, bytes]:
    return {key: body for key, body in team.place.objects().items() if not key.endswith(".lock")}


@pytest.mark.parametrize("home", [NOWHERE, "a file"], ids=["no permission", "a file in its place"])
def test_a_cache_that_cannot_be_made_is_told_and_changes_nothing(local_team: Team, tmp_path, home):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    before = unlocked(local_team)
    if home == "a file":
        home = tmp_path / "taken"
        home.write_text("not a directory")
    for words in (
        ("data", "list"),
        ("data", "put", "web", "report", str(a.repo / ".swamp.yaml")),
        ("datastore", "sync"),
    ):
        ran = a(*words, env={"SWAMP_HOME": str(home)})
        assert ran.code not in (0, 130) and "Traceback" not in ran.err, ran
        assert str(home) in ran.error["error"] + str(ran.error.get("hint")), ran.err
    assert unlocked(local_team) == before
    assert a.versions("web", "report") == [1]


def test_a_checkout_that_cannot_be_written_still_reads(local_team: Team):
    """Files and directories without write permission; as root, who may write everywhere, it reads all the same."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    places = [a.repo / ".swamp", *a.repo.rglob("*/")]
    for place in places:
        place.chmod(0o555)
    try:
        ran = a("data", "get", "web", "report")
        assert ran.ok()["content"] == "1"
    finally:
        for place in places:
            place.chmod(0o755)


class SetBack(SystemClock):
    """A clock that somebody may set."""

    def __init__(self) -> None:
        self.offset = dt.timedelta(0)

    def now(self) -> dt.datetime:
        return super().now() + self.offset


@pytest.mark.inv("lease.no-clock")
@pytest.mark.inv("hint.racy")
def test_a_clock_set_back_by_days_loses_and_hides_nothing(tmp_path, fresh_prefix):
    import random

    store = open_store((tmp_path / "bucket").as_uri())
    clock = SetBack()
    a = Peer(store=store, home=tmp_path, name="a", env=Env(clock, random.SystemRandom()))
    b = Peer(store=store, home=tmp_path, name="b")
    a.write("files/x", "today")
    a.write_version(version("out", 1), "one")
    a.push()
    b.pull()
    for days in (3, 400):
        clock.offset = -dt.timedelta(days=days)
        past = clock.now().timestamp()
        a.write("files/x", f"{days:05d}")  # of the same size, with a time from before the last one
        os.utime(a.tree / "files/x", (past, past))
        a.write_version(version("out", days), f"{days} back")
        assert a.push().files_pushed == 3
        b.pull()
        assert b.read("files/x") == f"{days:05d}" and b.read(f"{version('out', days)}/raw") == f"{days} back"
    a.delete("files/x")
    a.push()
    settled(a, b)
    assert "files/x" not in content(b.engine) and len(content(b.engine)) == 6
    assert read_tree(a.tree) == read_tree(b.tree)
    for one in (a, b):
        one.engine.close()
