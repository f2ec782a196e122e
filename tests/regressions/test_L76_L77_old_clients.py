"""L76, L77: an older client has written beside our index. The doctor says so, and a command adopts or leaves."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import time
from typing import Any

import pytest

from machines import SWAMP, Machine, Team
from swamp.index.root import ROOT_KEY

OLD = "files/old"


def shard(files: dict[str, int]) -> bytes:
    entries = {p: {"key": p, "size": size, "lastModified": ""} for p, size in files.items()}
    return json.dumps({"version": 1, "entries": entries}).encode()


def v2_writes(team: Team, files: dict[str, bytes], counter: int) -> None:
    """A client of version 2 writes files under plain keys, its shard and its counter."""
    store = team.place.open()
    for path, body in files.items():
        store.put(path, body)
    store.put("_index/files.json", shard({p: len(b) for p, b in files.items()}))
    meta = {"version": 2, "partitions": ["files"], "commitSeq": counter}
    store.put("_index/_meta.json", json.dumps(meta).encode())


def adopted_v2(team: Team) -> Machine:
    v2_writes(team, {OLD: b"old"}, 7)
    a = team.machine("a")
    a.put("web", "report", "1")
    return a


def checks(machine: Machine) -> dict[str, Any]:
    return {check["name"]: check for check in machine("datastore", "doctor").json["checks"]}


def states(document: dict[str, Any]) -> dict[str, str]:
    return {one["path"]: one["state"] for one in document["appeared"]}


def test_L76_an_old_v2_client_wrote_once_and_the_doctor_says_so_and_lets_pushes_go_on(team: Team):
    a = adopted_v2(team)
    v2_writes(team, {OLD: b"old", "files/more": b"more"}, 8)
    file = a.home / "input"
    told = a("data", "put", "web", "report", str(file)).failed(65)
    assert "doctor --repair" in told["hint"]
    assert not checks(a)["old client"]["ok"]
    done = a("datastore", "doctor", "--repair").ok()
    assert states(done) == {"files/more": "new"} and done["adopted"] == []
    assert done["repaired"] and done["ok"]
    a.put("web", "report", "2")
    fresh = team.machine("fresh")
    assert fresh.get("web", "report")["content"] in ("1", "2") and not (fresh.tree / "files/more").exists()


def test_L76_what_it_added_is_adopted_by_name_once_and_reaches_everybody(team: Team):
    a, b = adopted_v2(team), team.machine("b")
    v2_writes(team, {OLD: b"old", "files/more": b"more", "files/d/other": b"other"}, 8)
    done = a("datastore", "doctor", "--repair", "--adopt", "files/d").ok()
    assert done["adopted"] == ["files/d/other"] and states(done) == {"files/more": "new"}
    again = a("datastore", "doctor", "--repair", "--adopt-all").ok()
    assert again["adopted"] == ["files/more"] and again["appeared"] == []
    seq = team.place.root()["seq"]
    once_more = a("datastore", "doctor", "--repair", "--adopt-all").ok()
    assert once_more["adopted"] == once_more["appeared"] == [] and team.place.root()["seq"] == seq
    b.sync()
    assert (b.tree / "files/more").read_text() == "more" and (b.tree / "files/d/other").read_text() == "other"
    a("datastore", "doctor", "--repair", "--adopt", "files/none").failed(1)


def test_L76_a_file_that_it_rewrote_in_place_reaches_everybody_when_adopted(team: Team):
    a, b = adopted_v2(team), team.machine("b")
    time.sleep(1.1)  # the store's clock has whole seconds
    v2_writes(team, {OLD: b"NEW"}, 8)
    done = a("datastore", "doctor", "--repair", "--leave").ok()
    assert states(done) == {OLD: "changed"}
    assert a("datastore", "doctor", "--repair", "--adopt", OLD).ok()["adopted"] == [OLD]
    b.sync()
    assert (b.tree / OLD).read_text() == "NEW"
    assert team.machine("fresh")("datastore", "verify").ok()["corrupt"] == []
    assert a("datastore", "doctor", "--repair", "--leave").ok()["appeared"] == []


def test_L76_a_damaged_old_index_does_not_stop_every_push_for_good(team: Team):
    a = adopted_v2(team)
    team.place.open().put("_index/_meta.json", b"{")
    a("data", "put", "web", "report", str(a.home / "input")).failed(65)
    assert a("datastore", "doctor", "--repair", "--leave").ok()["ok"]
    a.put("web", "report", "2")


def test_L77_what_a_v1_client_added_is_listed_when_its_root_is_replaced_and_can_be_adopted(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "report", "1")
    store = team.place.open()
    store.put("files/by-v1", b"by the old one")
    old = {"version": 1, "lastPulled": "", "entries": {"files/by-v1": {"key": "files/by-v1", "size": 14}}}
    store.put(ROOT_KEY, json.dumps(old).encode())
    b("datastore", "sync").failed(65)
    done = a("datastore", "doctor", "--repair").ok()
    assert states(done) == {"files/by-v1": "new"} and team.place.root()["version"] >= 3
    assert a("datastore", "doctor", "--repair", "--adopt", "files/by-v1").ok()["adopted"] == ["files/by-v1"]
    b.sync()
    assert (b.tree / "files/by-v1").read_text() == "by the old one"
    assert b.get("web", "report")["content"] == "1"


@pytest.mark.parametrize(("answer", "adopted"), [("y", True), ("n", False)])
def test_L77_on_a_terminal_the_doctor_asks(team: Team, answer: str, adopted: bool):
    a = adopted_v2(team)
    v2_writes(team, {OLD: b"old", "files/more": b"more"}, 8)
    theirs, ours = pty.openpty()
    words = [str(SWAMP), "datastore", "doctor", "--repair"]
    child = subprocess.Popen(words, stdin=ours, stdout=subprocess.PIPE, stderr=ours, env=a.environment(), cwd=a.repo)
    os.close(ours)
    seen = b""
    while b"Adopt" not in seen:
        seen += os.read(theirs, 1000)
    os.write(theirs, f"{answer}\n".encode())
    child.communicate(timeout=60)
    os.close(theirs)
    assert child.returncode == 0 and b"files/more" in seen
    assert ("files/more" in team.place.root()["entries"]) == adopted


def test_L77_the_words_exclude_each_other_and_belong_to_repair(team: Team):
    a = team.machine("a")
    for words in (("--leave",), ("--adopt-all",), ("--adopt", "x"), ("--repair", "--leave", "--adopt-all"), ("stray",)):
        a("datastore", "doctor", *words).failed(2)
