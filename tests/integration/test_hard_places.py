"""A cache or a bucket that cannot be written, names as long as they get, a clock that was set back: nothing is lost."""

from __future__ import annotations

import ctypes
import datetime as dt
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kills import assert_no_help_needed, whole
from machines import SWAMP, Machine, Place, Ran, Team, read_tree
from peers import Peer, content, settled, version
from swamp.env import Env, SystemClock
from swamp.store.open import open_store

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
NOWHERE = Path("/proc/swamp-cannot-write-here")
"""Not even root can make a directory here."""


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """A disk has permissions, long names and clocks of its own."""
    return disk_path


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


def without_rights() -> None:
    """Root obeys the bits of a file like anybody else from here on (CI runs as root, who may write everywhere)."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for override in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, override, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "cannot give up a right")


def unprivileged(machine: Machine, *args: str) -> Ran:
    done = subprocess.run(
        [str(SWAMP), *args, "--json"],
        env=machine.environment(),
        cwd=machine.repo,
        preexec_fn=without_rights,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return Ran(args, done.returncode, done.stdout, done.stderr)


@contextmanager
def frozen(*tops: Path) -> Iterator[None]:
    """Nothing below can be changed by somebody without special rights."""
    places = [p for top in tops for p in (top, *top.rglob("*")) if not p.is_symlink()]
    modes = {place: place.stat().st_mode for place in places}
    for place, mode in modes.items():
        place.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for place, mode in modes.items():
            place.chmod(mode)


def test_a_checkout_that_cannot_be_written_is_read(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    with frozen(a.repo):
        assert unprivileged(a, "data", "get", "web", "report").ok()["content"] == "1"
        assert unprivileged(a, "repo", "init", str(a.repo / "inner")).code in (1, 2), "it is frozen indeed"


def test_a_cache_that_cannot_be_written_is_told_and_nothing_is_lost(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    before = unlocked(local_team)
    put = ("data", "put", "web", "report", str(a.repo / ".swamp.yaml"))
    with frozen(a.home / ".swamp"):
        for words in (put, ("datastore", "sync"), ("datastore", "sync", "--full"), ("data", "get", "web", "report")):
            ran = unprivileged(a, *words)
            assert ran.code in (1, 69) and "Traceback" not in ran.err, ran
            assert "ermission" in ran.err or "read-only" in ran.err or "readonly" in ran.err, ran.err
    assert unlocked(local_team) == before and a.versions("web", "report") == [1]
    a.put("web", "report", "2")
    assert_no_help_needed(a)


@contextmanager
def a_file_in_its_place(home: Path) -> Iterator[None]:
    """Where the cache's directories should be, a file stands: what not even root can write into."""
    aside = home.with_name("aside")
    home.rename(aside)
    home.write_text("")
    try:
        yield
    finally:
        home.unlink()
        aside.rename(home)


@contextmanager
def closed(home: Path) -> Iterator[None]:
    """As another user's, who lets nobody look."""
    home.chmod(0)
    try:
        yield
    finally:
        home.chmod(0o700)


@pytest.mark.parametrize("spoiled", [frozen, closed, a_file_in_its_place])
def test_L30_status_and_doctor_of_a_cache_that_cannot_be_written_answer_with_a_document(
    local_team: Team, spoiled: Callable[[Path], AbstractContextManager[None]]
):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    with spoiled(a.home / ".swamp"):
        for words in (("datastore", "status"), ("status",)):
            told = unprivileged(a, *words)
            assert told.code == 69 and told.json["healthy"] is False and "Traceback" not in told.err, told
            assert "cache" in told.json["message"] and str(a.home / ".swamp") in told.json["message"], told.json
            assert told.json["hint"] and told.json["seq"] == 2, "the store answers, and that is told, too"
            assert told.json["pending"] is None, "what waits here is not known"
            assert told.json["message"] in told.json["summary"]
        checked = unprivileged(a, "datastore", "doctor")
        assert checked.code == 1 and "Traceback" not in checked.err, checked
        checks = {check["name"]: check for check in checked.json["checks"]}
        assert not checks["state"]["ok"] and checks["state"]["fix"], checked.json
        assert checks["reachability"]["ok"], checked.json
    assert a("datastore", "status").ok()["healthy"]
    assert_no_help_needed(a)


def test_a_bucket_without_rights_is_told_as_such_and_waits(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    with frozen(local_team.directory / "bucket"):
        error = unprivileged(a, "data", "put", "web", "report", str(a.repo / ".swamp.yaml")).failed(69)
        assert error["hint"] and "right" in error["error"] + error["hint"], error
    assert a.versions("web", "report") == [1]
    a.put("web", "report", "2")
    assert whole(local_team.machine("b").tree) == whole(a.tree)


@pytest.mark.parametrize("letter", ["x", "é"], ids=["ascii", "two bytes"])
def test_the_longest_name_that_a_store_can_hold_arrives_and_a_longer_one_is_told(
    moto, tmp_path, fresh_prefix, letter: str
):
    """1,024 bytes are a key's limit on S3; 27 of them are the mark of the upload."""
    team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", dict(moto.config), dict(moto.environ)))
    a = team.machine("a")
    width = len(letter.encode())
    folder = "files/" + "/".join([letter * (198 // width)] * 4)
    room = 997 - len(team.place.url.partition("//")[2].partition("/")[2].encode()) - 1 - len(folder.encode()) - 1
    good = f"{folder}/{letter * (room // width)}"
    bad = f"{folder}/y{letter * (998 // width - len(folder.encode()) // width)}"
    for path in (good, bad):
        (a.tree / path).parent.mkdir(parents=True, exist_ok=True)
        (a.tree / path).write_text("far")
    done = a("datastore", "sync", "--full")
    assert done.code == 1 and done.json["filesPushed"] == 1, done.out
    assert [f["path"] for f in done.json["failed"]] == [bad]
    assert read_tree(team.machine("b").tree) == {good: b"far"}


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
