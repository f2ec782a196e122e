"""The command line against a store that lies: whatever it is told, exit 0 is true and everything else says so."""

from __future__ import annotations

import pytest

from kills import assert_no_help_needed, whole
from machines import Team
from serving import add_workflow
from swamp.index.root import ROOT_KEY
from swamp.testing.s3_bucket import Manners
from swamp.testing.s3_lies import Lie, fits

QUICK = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "20000", "SWAMP_LOCK_TIMEOUT_MS": "20000"}
REQUEST_MS = 5000  # long enough for a second try on a machine with other work
WRITES = ("refuse", "refuse after", "cut", "cut after", "delay", "late", "duplicate", "again", "html")
READS = ("refuse", "cut", "delay", "wrong", "truncate", "short", "html")
WRITTEN = {"root": ("PUT", f"*/{ROOT_KEY}"), "payload": ("PUT", "*/_packs/*"), "log": ("PUT", "*/_index/log/*")}
WRITTEN |= {"lease": ("PUT", "*.lock")}
READ = {"root": ("GET", f"*/{ROOT_KEY}"), "payload": ("GET", "*/_packs/*")}


@pytest.fixture
def team(lying_place, tmp_path):
    lying_place.config["requestTimeoutMs"] = REQUEST_MS
    return Team(tmp_path, lying_place)


def told(lying, kind, what):
    """One lie of that kind to the next such request."""
    lying.told.clear()
    method, key = what
    assert fits(kind, method)
    lying.add(Lie(kind, method, key, seconds=1.5 * REQUEST_MS / 1000))


def put(machine, name):
    file = machine.home / "input"
    file.write_text(f"content of {name}")
    return machine("data", "put", "m", name, str(file), env=QUICK)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", WRITTEN)
@pytest.mark.inv("commit.unknown-is-not-failure")
def test_puts_of_which_one_request_was_lied_to(team, lying, what):
    a, b = team.machine("a"), team.machine("b")
    acknowledged = set()
    for number, kind in enumerate(WRITES):
        told(lying, kind, WRITTEN[what])
        machine = (a, b)[number % 2]
        ran = put(machine, kind.replace(" ", "-"))
        assert lying.counts() == {kind: 1}, f"the lie was never told: {kind}"
        assert ran.code in (0, 69, 75), ran
        assert ran.code == 0 or (ran.error["code"] and ran.error["hint"]), ran.err
        lying.calm()
        if ran.code == 0:
            acknowledged.add(kind.replace(" ", "-"))
        else:
            machine.sync()
    fresh = team.machine("fresh")
    there = whole(fresh.tree)
    assert acknowledged <= {name for _, name, _ in there}, "acknowledged, and gone"
    assert {version for _, _, version in there} == {1}, "saved twice"
    for _, name, _ in there:
        assert fresh.get("m", name)["content"] == f"content of {name}"
    assert len(acknowledged) >= len(WRITES) // 2, "a lie stops everything"
    for machine in (a, b):
        assert_no_help_needed(machine)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", READ)
def test_a_reader_that_was_lied_to_shows_the_truth_or_fails(team, lying, what):
    a, b = team.machine("a"), team.machine("b")
    for kind in READS:
        a.put("m", kind, f"content of {kind}" * 100)
        told(lying, kind, READ[what])
        pulled = b("datastore", "sync", "--pull", env=QUICK)
        assert lying.counts() == {kind: 1}, f"the lie was never told: {kind}"
        assert pulled.code in (0, 1, 69), pulled
        assert pulled.code == 0 or kind not in ("refuse", "cut", "delay", "truncate"), "one bad answer is tried again"
        lying.calm()
        if pulled.code != 0:
            b.sync()
        assert b.get("m", kind)["content"] == f"content of {kind}" * 100
    assert b.status()["cache"]["conflicts"] == 0
    assert_no_help_needed(b)


COMMANDS = (("sync",), ("gc",), ("compact",), ("verify", "--engine", "inline"), ("doctor",), ("doctor", "--repair"))


@pytest.mark.parametrize("kind", ["wrong", "short", "html"])
@pytest.mark.inv("read.twice")
def test_one_bad_reading_of_the_root_is_no_damage(team, lying, kind):
    """A commit has landed and its record has not been written yet: who now repairs a sound root would undo it."""
    a, b = team.machine("a"), team.machine("b")
    a.put("m", "n", "content")
    prefix = team.place.url.partition("://")[2].partition("/")[2]
    before = team.place.root()
    for words in COMMANDS:
        if words == ("doctor", "--repair"):
            lying.bucket().lose(lying.bucket().keys(f"{prefix}/_index/log/")[-1])
        lying.told.clear()
        lying.add(Lie(kind, "GET", f"{prefix}/{ROOT_KEY}"))
        ran = b("datastore", *words, env=QUICK)
        assert lying.counts() == {kind: 1}, words
        assert ran.code in (0, 69), ran
        lying.calm()
    root = team.place.root()
    assert before["op"] in [root["op"], *(op for op, _ in root["recentOps"])], "an acknowledged commit was undone"
    assert not lying.bucket().keys(f"{prefix}/_index/corrupt-"), "a sound root was taken for a damaged one"
    assert team.machine("fresh").get("m", "n")["content"] == "content"


# --- listings ------------------------------------------------------------------------------------------------------


def filled(team, lying, count=5):
    """Objects that another tool has put into the bucket, under plain keys."""
    prefix = team.place.url.partition("://")[2].partition("/")[2]
    for number in range(count):
        lying.bucket().write(f"{prefix}/data/command/x/file-{number}/1/raw", f"body {number}".encode())
    return prefix


@pytest.mark.parametrize("skip", [0, 1, 2, 3])
@pytest.mark.inv("store.whole-listing")
def test_a_page_of_html_is_not_an_empty_bucket(team, lying, skip):
    """A listing of which one page was something else is asked for again: discovery publishes all or nothing."""
    lying.manners = Manners(page=2)
    prefix = filled(team, lying)
    machine = team.machine("a", joined=False)
    lying.add(Lie("html", "GET", f"{prefix}/data*", skip=skip))
    machine("datastore", "setup", *team.place.setup_args, env=QUICK)
    assert lying.counts() == {"html": 1}
    lying.calm()
    machine.setup(*team.place.setup_args)
    paths = [path for path in team.place.root()["entries"] if path.startswith("data/")]
    assert len(paths) == 5, paths


@pytest.mark.parametrize("skip", [0, 1, 2, 3])
def test_a_lost_root_is_not_rebuilt_from_half_of_the_log(team, lying, skip):
    """The newest record of the log is the newest of all of them, also if a page of their listing was HTML."""
    lying.manners = Manners(page=2)
    a = team.machine("a")
    for number in range(5):
        a.put("m", f"n{number}", "x")
    prefix = team.place.url.partition("://")[2].partition("/")[2]
    before = team.place.root()["seq"]
    lying.bucket().lose(f"{prefix}/{ROOT_KEY}")
    lying.add(Lie("html", "GET", f"{prefix}/_index/*", skip=skip))
    a("datastore", "doctor", "--repair", env=QUICK)
    lying.calm()
    a("datastore", "doctor", "--repair")
    assert team.place.root()["seq"] >= before
    assert len(team.machine("fresh").names()) == 5


def test_what_was_not_kept_is_said_once(team, lying):
    """A command that delivers a kept put first fails within that delivery: its error names the end of both, once."""
    a, env = team.machine("a"), {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "3000"}
    a.put("m", "first", "x")
    (a.home / "input").write_text("y")
    lying.add(Lie("refuse", "PUT", "*/_index/log/*", times=None))
    for name in ("unlogged", "kept"):
        a("data", "put", "m", name, str(a.home / "input"), env=env).failed(69)
    error = a("data", "gc", "--yes", env=env).failed(69)["error"]
    assert error.count("nothing ran and nothing was kept") == 1, error


@pytest.mark.inv("read.twice")
@pytest.mark.parametrize("kind", ["short", "wrong"])
def test_one_bad_reading_of_a_log_record_is_no_damage(team, lying, kind):
    a = team.machine("a")
    a.put("m", "n", "content")
    lying.told.clear()
    lying.add(Lie(kind, "GET", "*/_index/log/*.json"))
    assert len(a("datastore", "log").ok()["commits"]) >= 1
    assert lying.counts() == {kind: 1}


@pytest.mark.inv("read.twice")
@pytest.mark.parametrize("kind", ["wrong", "refuse"])
def test_one_bad_reading_of_a_payload_is_nothing_that_verify_tells_or_lets_drop(team, lying, kind):
    """With --drop a sound file would be gone for everybody."""
    a = team.machine("a")
    a.put("m", "large", b"large " * 1_000_000)
    [path] = [p.relative_to(a.tree).as_posix() for p in a.tree.rglob("large/1/raw")]
    for words in ((), ("--repair",), ("--repair", "--drop", path)):
        lying.told.clear()
        lying.add(Lie(kind, "GET", "*~*", status=404, code="NoSuchKey"))
        ran = a("datastore", "verify", "--engine", "inline", *words, env=QUICK)
        assert lying.counts() == {kind: 1} and ran.code == (1 if "--drop" in words else 0), ran
    assert path in team.place.root()["entries"]


def test_C18_a_run_whose_store_is_lost_after_its_last_step_was_shared_has_succeeded(team, lying):
    a = team.machine("a")
    add_workflow(a, "w", run="echo ran")
    gone = lambda: lying.add(Lie("refuse", times=None))  # noqa: E731
    lying.add(Lie("delay", "PUT", "*/data/command/shell/*/.lock", skip=1, seconds=0.0, then=gone))  # its release
    short = {"SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "2000", "SWAMP_REQUEST_TIMEOUT_MS": "1000"}
    error = a("workflow", "run", "w", env=short).failed(69)
    assert "succeeded here, not shared yet" in error["error"], error
    told = a("workflow", "history", "get", "latest", "--cached").ok()
    assert (told["status"], told["shared"]) == ("succeeded", False) and told["completedAt"], told
    lying.calm()
    a.sync()
    b = team.machine("b")
    told = b("workflow", "history", "get", "latest").ok()
    assert told["status"] == "succeeded" and told["completedAt"] and "ran" in b("workflow", "logs", "latest").out
