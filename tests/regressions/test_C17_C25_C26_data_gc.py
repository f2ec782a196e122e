"""C17, C25, C26, L75: what `data gc` and `prune` delete is shown, agreed to, old by the store's clock, and complete."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from machines import SWAMP, Machine, Place, Team
from swamp.index.root import ROOT_KEY

SHIFTED = """
import datetime as dt
import swamp.env

real = swamp.env.SystemClock.now
swamp.env.SystemClock.now = lambda self: real(self) + dt.timedelta(seconds={seconds})
"""


def with_clock(machine: Machine, seconds: float) -> dict[str, str]:
    """The environment of a machine whose clock is so far ahead (or behind)."""
    place = machine.home / f"clock{seconds}"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(SHIFTED.format(seconds=seconds))
    return {"PYTHONPATH": str(place)}


DAY = 86_400.0


@pytest.fixture
def shared(moto, tmp_path, fresh_prefix) -> Team:
    """Machines on a store with a clock of its own: a bucket in a directory has only that of its machine."""
    return Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", dict(moto.config), dict(moto.environ)))


@pytest.mark.inv("age.store-clock")
@pytest.mark.parametrize("ahead", [400 * DAY, 3600.0, -3600.0], ids=["400 days", "an hour", "an hour behind"])
@pytest.mark.parametrize("verb", ["gc", "prune"])
def test_C25_a_machine_whose_clock_is_wrong_deletes_nothing_by_age(shared: Team, ahead: float, verb: str):
    a = shared.machine("a")
    a.put("web", "report", "1", "--lifetime", "30d")
    before = shared.place.objects("data/")
    for words in (("data", verb, "--yes"), ("data", verb, "--dry-run")):
        told = a(*words, env=with_clock(a, ahead)).failed(1)
        assert "clock" in told["error"] and "doctor" in told["hint"]
    assert shared.place.objects("data/") == before and a.versions("web", "report") == [1]


@pytest.mark.inv("age.store-clock")
def test_C25_what_a_machine_with_a_slow_clock_wrote_is_as_old_as_the_store_says(shared: Team):
    a, b = shared.machine("a"), shared.machine("b")
    file = a.home / "input"
    file.write_text("new")
    words = ("data", "put", "web", "report", str(file), "--lifetime", "30d")
    assert a(*words, env=with_clock(a, -400 * DAY)).ok()["createdAt"] < "2026-01"
    assert b("data", "gc", "--yes").ok()["versionsDeleted"] == 0
    assert b.get("web", "report")["content"] == "new"


def test_C25_undelete_since_counts_back_from_the_stores_now(shared: Team):
    a = shared.machine("a")
    a.put("web", "report", "precious")
    a("data", "delete", "web", "report", "--yes").ok()
    done = a("datastore", "undelete", "--since", "1h", env=with_clock(a, 400 * DAY)).ok()
    assert any(path.endswith("report/1/raw") for path in done["restored"])


def test_C26_a_dry_run_looks_at_the_store_first_and_says_what_the_real_run_deletes(team: Team):
    a, b = team.machine("a"), team.machine("b")
    for n in range(3):
        a.put("web", "report", f"{n}", "--keep", "1")
    b.sync()
    for n in range(2):
        a.put("web", "report", f"more {n}")
    planned = b("data", "gc", "--dry-run").ok()
    assert planned["versionsDeleted"] == 4 and planned["dryRun"]
    assert [one["version"] for one in planned["versions"]] == [4, 3, 2, 1]
    done = b("data", "gc", "--yes").ok()
    assert (done["versionsDeleted"], done["versions"]) == (4, planned["versions"])
    assert a.sync() and a.versions("web", "report") == [5]


def test_C17_retention_is_shown_can_be_set_and_stays_set(team: Team):
    a = team.machine("a")
    assert a.put("web", "report", "1")["retention"] == 10 == a.get("web", "report")["retention"]
    assert a.put("web", "report", "2", "--keep", "30d")["retention"] == "30d"
    assert a.put("web", "report", "3")["retention"] == "30d", "a put that says nothing changes nothing"
    assert a.put("web", "other", "1", "--keep", "25")["retention"] == 25
    said = a("data", "put", "web", "other", str(a.home / "input"), json=False)
    assert said.code == 0 and "keeps the newest 25 versions" in said.out
    a("data", "put", "web", "other", str(a.home / "input"), "--keep", "0").failed(2)


def many(machine: Machine, count: int = 12) -> None:
    for n in range(count):
        machine.put("web", "report", f"{n}")


def test_C17_gc_needs_consent_and_says_which_versions(team: Team):
    a = team.machine("a")
    many(a)
    told = a("data", "gc").failed(2)
    assert "2 versions" in told["error"] and "--yes" in told["hint"]
    assert len(a.versions("web", "report")) == 12, "infinite data is not cut without being asked"
    plain = a("data", "gc", "--dry-run", json=False)
    assert "web report version 2: only the newest 10 are kept" in plain.out
    done = a("data", "gc", "--yes").ok()
    assert [(one["name"], one["version"]) for one in done["versions"]] == [("report", 2), ("report", 1)]
    assert a("data", "gc").ok()["versionsDeleted"] == 0, "with nothing to delete there is nothing to ask"


@pytest.mark.parametrize(("answer", "left"), [("y", 10), ("n", 12)])
def test_C17_on_a_terminal_gc_lists_and_asks(team: Team, answer: str, left: int):
    a = team.machine("a")
    many(a)
    theirs, ours = pty.openpty()
    words = [str(SWAMP), "data", "gc"]
    child = subprocess.Popen(words, stdin=ours, stdout=subprocess.PIPE, stderr=ours, env=a.environment(), cwd=a.repo)
    os.close(ours)
    seen = b""
    while b"for everybody?" not in seen:
        seen += os.read(theirs, 4000)
    assert b"version 2" in seen and b"version 1" in seen
    os.write(theirs, f"{answer}\n".encode())
    child.communicate(timeout=60)
    os.close(theirs)
    assert len(a.versions("web", "report")) == left


def ruin(team: Team, name: str) -> None:
    """The metadata of a name, as a client of another kind might have left it: it cannot be read."""
    root = team.place.root()
    path = next(p for p in root["entries"] if f"/{name}/1/metadata.yaml" in p)
    body = b": {not yaml"
    entry: dict[str, Any] = root["entries"][path]
    entry["size"], entry["sha256"] = len(body), __import__("hashlib").sha256(body).hexdigest()
    team.place.open().put(entry["key"], body)
    root["op"] = root["op"][:-4] + "ZZZZ"
    root["seq"] += 1
    entry["seq"] = root["seq"]
    root["recentOps"].insert(0, [root["op"], root["seq"]])
    team.place.open().put(ROOT_KEY, json.dumps(root).encode())


@pytest.mark.usefixtures("one_object_each")
@pytest.mark.parametrize("verb", ["gc", "prune"])
def test_L75_one_bad_name_stops_no_other(team: Team, verb: str, tmp_path: Path):
    a = team.machine("a")
    for n in range(3):
        a.put("web", "good", f"{n}", "--keep", "1")
    a.put("web", "bad", "1", "--keep", "1")
    ruin(team, "bad")
    b = team.machine("b")
    done = b("data", verb, "--yes").ok()
    assert done["versionsDeleted"] == (2 if verb == "gc" else 0)
    assert ["/bad/" in one for one in done["unreadable"]] == [True]
    assert any("/bad/" in key for key in team.place.objects("data/")), "what cannot be read is not deleted"
