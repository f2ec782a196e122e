"""L70: stores of other format versions than ours. Through the CLI, with the program that wrote version 3 where history
has it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from machines import Machine, Team
from old_client import BUCKET, downgraded, old_code
from swamp.errors import CorruptData, NewerFormat
from swamp.index import root as formats
from swamp.index.root import ROOT_KEY, decode

CONTENT = {"report-0": "text 0, second version", "report-1": "text 1", "report-2": "text 2", "theirs": None}


@pytest.fixture
def old_store(team: Team, tmp_path: Path) -> Team:
    """A bucket written by the swamp before this one."""
    shutil.copytree(BUCKET, tmp_path / "bucket")
    return team


@pytest.fixture(scope="session")
def old_swamp(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return old_code(tmp_path_factory.mktemp("old"))


def content(machine: Machine) -> dict[str, str]:
    return {name: machine.get("web", name)["content"] for _, name in machine.names()}


def make_newer(team: Team, place: str) -> None:
    """As a swamp of the year after next would leave it: its root, its record, or both."""
    store, doc = team.place.open(), {**team.place.root(), "version": 5, "galaxy": {"of": "things"}}
    doc |= {"seq": doc["seq"] + 1, "op": "0" * 26, "prevOp": doc["op"]}
    body = json.dumps(doc).encode()
    if place in ("root", "both"):
        store.put(ROOT_KEY, body)
    if place in ("record", "both"):
        store.put(f"_index/log/{doc['seq']:012d}-{doc['op']}.json", body)


COMMANDS = [
    ("datastore", "sync"),
    ("datastore", "sync", "--push"),
    ("datastore", "sync", "--pull"),
    ("datastore", "sync", "--full"),
    ("datastore", "sync", "--dry-run"),
    ("datastore", "gc"),
    ("datastore", "gc", "--dry-run"),
    ("datastore", "compact"),
    ("datastore", "undelete", "--since", "1d"),
    ("datastore", "verify", "--repair"),
    ("datastore", "doctor", "--repair"),
    ("datastore", "doctor", "--repair", "--from-listing", "--yes"),
    ("datastore", "upgrade", "--yes"),
    ("data", "delete", "web", "report", "--yes"),
]


@pytest.mark.inv("format.newer")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_L70_a_root_of_a_later_version_ends_every_command_that_would_write(team: Team, command: tuple[str, ...]):
    a = team.machine("a")
    a.put("web", "report", "1")
    make_newer(team, "both")
    before = {key: body for key, body in team.place.objects().items() if not key.endswith(".lock")}
    told = a(*command).failed(65)
    assert told["code"] == "newer-format" and "upgrade swamp" in told["hint"] and told["details"]["version"] == 5
    after = {key: body for key, body in team.place.objects().items() if not key.endswith((".lock", ".clock"))}
    assert after == before, "nothing was written, repaired, skipped or collected"


@pytest.mark.inv("format.newer")
@pytest.mark.parametrize("damage", [None, b"{", "ours"], ids=["lost", "damaged", "put back"])
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c[1] in ("sync", "doctor") and "--pull" not in c], ids=" ".join
)
def test_L70_a_record_of_a_later_version_is_not_skipped_for_an_older_one(
    team: Team, command: tuple[str, ...], damage: Any
):
    a = team.machine("a")
    a.put("web", "report", "1")
    make_newer(team, "record")
    store = team.place.open()
    if damage is None:
        store.delete([ROOT_KEY])
    elif damage != "ours":
        store.put(ROOT_KEY, damage)
    elif command[1] == "sync" or "--from-listing" in command:
        command = ("datastore", "gc")  # a sync would pay a listing of the log for it; what repairs and deletes looks
    before = {key: body for key, body in team.place.objects().items() if not key.endswith(".lock")}
    told = a(*command).failed(65)
    assert told["code"] == "newer-format" and "upgrade swamp" in told["hint"]
    after = {key: body for key, body in team.place.objects().items() if not key.endswith((".lock", ".clock"))}
    assert after == before


def test_L70_a_store_of_a_later_version_is_said_to_be_one(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    make_newer(team, "both")
    status = a("datastore", "status")
    assert status.code == 69 and "version 5" in status.json["message"]
    [root] = [c for c in a("datastore", "doctor").json["checks"] if c["name"] == "root"]
    assert not root["ok"] and "version 5" in root["detail"] and "upgrade swamp" in root["fix"]
    b = team.machine("b", joined=False)
    assert b("datastore", "setup", *team.place.setup_args).failed(65)["code"] == "newer-format"
    assert "type: filesystem" in (b.repo / ".swamp.yaml").read_text()


def test_L70_a_new_store_is_version_4_and_an_old_one_stays_3(team: Team, old_store: Team):
    a = old_store.machine("a")
    assert a.names() == [("web", name) for name in sorted(CONTENT)]
    a.put("web", "report-1", "written by the new one")
    assert old_store.place.root()["version"] == 3
    new = Team(team.directory / "new", type(team.place)((team.directory / "other").as_uri()))
    new.machine("b").put("web", "x", "1")
    assert new.place.root()["version"] == formats.NEWEST == 4


def test_L70_a_store_of_the_version_before_is_read_written_and_collected_without_loss(old_store: Team):
    a, b = old_store.machine("a"), old_store.machine("b", "--hydrate", "lazy")
    found = content(a)
    assert {name: text for name, text in found.items() if CONTENT[name]} == {k: v for k, v in CONTENT.items() if v}
    assert a.versions("web", "report-0") == [2, 1]
    a.put("web", "report-1", "1, changed")
    a("data", "delete", "web", "report-2", "--yes").ok()
    [gone] = {p.rpartition("/")[0] for p in old_store.place.root()["deleted"] if "/report-2/" in p}
    assert a("datastore", "undelete", gone).ok()["restored"]
    a("datastore", "gc", "--keep-days", "0", "--yes").ok()
    a("datastore", "compact").ok()
    b.sync()
    for machine in (a, b, old_store.machine("c")):
        assert content(machine) == {**found, "report-1": "1, changed"}
        assert machine("datastore", "verify").ok()["missing"] == []
    assert old_store.place.root()["version"] == 3


def test_L70_an_upgrade_names_who_wrote_asks_and_happens_once(old_store: Team):
    a = old_store.machine("a")
    a.put("web", "mine", "1")
    planned = a("datastore", "upgrade", "--dry-run").ok()
    assert (planned["from"], planned["to"], planned["upgraded"], planned["dryRun"]) == (3, 4, False, True)
    assert [w for w in planned["writers"] if w["user"] and w["host"] and w["commits"] >= 1 and w["swamp"]]
    assert a("datastore", "upgrade").failed(2)["hint"] == "add --yes"
    assert old_store.place.root()["version"] == 3
    done = a("datastore", "upgrade", "--yes").ok()
    assert (done["from"], done["to"], done["upgraded"]) == (3, 4, True)
    root = old_store.place.root()
    assert root["version"] == 4 and root["seq"] == done["seq"]
    again = a("datastore", "upgrade", "--yes").ok()
    assert (again["from"], again["upgraded"], again["writers"]) == (4, False, [])
    assert old_store.place.root() == root, "nothing left to do is no commit"
    b = old_store.machine("b")
    b.put("web", "theirs", "2")
    a.sync()
    assert content(a) == content(b) and old_store.place.root()["version"] == 4


@pytest.mark.inv("format.newer")
def test_L70_the_version_before_refuses_an_upgraded_store(old_store: Team, old_swamp: Path | None, monkeypatch):
    a = old_store.machine("a")
    a("datastore", "upgrade", "--yes").ok()
    before = old_store.place.objects()
    if old_swamp is None:
        monkeypatch.setattr(formats, "NEWEST", 3)
        with pytest.raises(NewerFormat):
            decode(before[ROOT_KEY])
        return
    old = downgraded(a, old_swamp)
    (a.home / "input").write_text("old")
    for command in (("datastore", "sync"), ("data", "put", "web", "x", str(a.home / "input")), ("datastore", "gc")):
        told = old(*command).failed(65)
        assert told["hint"] == "upgrade swamp"
    after = {k: v for k, v in old_store.place.objects().items() if not k.endswith(".lock")}
    assert after == {k: v for k, v in before.items() if not k.endswith(".lock")}


def put_back(team: Team, machine: Machine, code: Path | None) -> None:
    """`doctor --repair` of the old client: it takes what it cannot read for damage, and records it skips."""
    if code is not None:
        downgraded(machine, code)("datastore", "doctor", "--repair")
        return
    last = max(k for k, body in team.place.objects("_index/log/").items() if json.loads(body)["version"] == 3)
    doc = json.loads(team.place.objects(last)[last])
    doc |= {"seq": doc["seq"] + 2, "op": "0" * 26, "prevOp": doc["op"]}
    doc["recentOps"] = [[doc["op"], doc["seq"]], *doc["recentOps"]]
    team.place.open().put(ROOT_KEY, json.dumps(doc).encode())


@pytest.mark.inv("format.newer")
def test_L70_a_version_3_root_beside_version_4_records_stops_pushes_and_is_taken_back(
    old_store: Team, old_swamp: Path | None
):
    """What the old client does with `doctor --repair` to a store that it cannot read."""
    a, b = old_store.machine("a"), old_store.machine("b")
    a("datastore", "upgrade", "--yes").ok()
    for n in range(3):
        a.put("web", f"new-{n}", f"of version 4, {n}")
    put_back(old_store, b, old_swamp)
    assert old_store.place.root()["version"] == 3
    rolled_back = old_store.place.open().get(ROOT_KEY).body
    (b.home / "input").write_text("pushed onto it")
    for machine in (a, b, old_store.machine("c")):
        told = machine("data", "put", "web", "late", str(b.home / "input")).failed(65)
        assert "older client" in told["error"] and "doctor --repair" in told["hint"]
        assert machine("datastore", "gc", "--keep-days", "0", "--yes").code == 65
        [root] = [c for c in machine("datastore", "doctor").json["checks"] if c["name"] == "root"]
        assert not root["ok"] and "older client" in root["detail"]
    assert old_store.place.open().get(ROOT_KEY).body == rolled_back
    repaired = b("datastore", "doctor", "--repair").json["repaired"]
    assert any("older client" in line for line in repaired), repaired
    assert old_store.place.root()["version"] == 4
    for machine in (a, b, old_store.machine("d")):
        machine.sync()
        got = content(machine)
        assert {n: got[f"new-{n}"] for n in range(3)} == {n: f"of version 4, {n}" for n in range(3)}
    a.sync()
    assert content(a) == content(b)
    assert content(a)["late"] == "pushed onto it", "what was announced meanwhile was kept and is delivered"


def test_a_root_of_no_known_version_is_damage():
    for version in (0, -1, 2, "4", None, 4.0, True, [4]):
        with pytest.raises(CorruptData):
            formats.check_version(version)
    for version in (5, 6, 10**9):
        with pytest.raises(NewerFormat):
            formats.check_version(version)
    assert [formats.check_version(v) for v in (3, 4)] == [3, 4]
    assert formats.allows(4, "ignored") and not formats.allows(3, "ignored") and not formats.allows(3, "slices")
