"""Packs from the command line: how many requests a command makes, how many objects, and what reads them."""

from __future__ import annotations

import pytest

from machines import Machine, Place, Team
from proxies import Proxy, proxy_to
from swamp.index.entry import is_pack, slice_of
from whole_packs import read_pack


@pytest.fixture
def proxy(moto):
    with proxy_to(moto.config["endpoint"]) as found:
        yield found


@pytest.fixture
def far_team(proxy: Proxy, moto, tmp_path, fresh_prefix) -> Team:
    config = {**moto.config, "endpoint": proxy.endpoint}
    return Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))


def asked(proxy: Proxy, machine: Machine, *args: str) -> int:
    before = len(proxy.seen)
    machine(*args).ok()
    return len(proxy.seen) - before


def test_a_command_makes_few_requests(far_team: Team, proxy: Proxy, tmp_path):
    """On a store that enforces conditions."""
    a = far_team.machine("a")
    file = tmp_path / "x"
    file.write_text("x")
    assert asked(proxy, a, "data", "put", "m", "first", str(file)) <= 16
    assert asked(proxy, a, "data", "put", "m", "second", str(file)) <= 10
    a("model", "create", "command/shell", "sh").ok()
    assert asked(proxy, a, "model", "method", "run", "sh", "execute", "--input", "run=echo hi") <= 10
    assert asked(proxy, a, "datastore", "sync") == 1
    payloads = [key for key in far_team.place.objects() if is_pack(key)]
    assert len(payloads) == 3, "one object for the payload of each command"
    assert not [key for key in far_team.place.objects() if "~" in key]


def test_packs_off_keeps_one_object_for_each_file_and_both_read_each_other(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    settings = a.repo / ".swamp.yaml"
    settings.write_text(settings.read_text() + "packs: off\n")
    a.put("web", "plain", "one object each")
    assert not [key for key in local_team.place.objects() if is_pack(key)]
    b.sync()
    b.put("web", "packed", "in a pack")
    assert len([key for key in local_team.place.objects() if is_pack(key)]) == 1
    a.sync()
    assert a.get("web", "packed")["content"] == "in a pack"
    assert b.get("web", "plain")["content"] == "one object each"
    for machine in (a, b):
        assert machine("datastore", "verify").ok()["missing"] == []


def test_L57_a_delete_of_a_packed_version_is_undone_and_stays_done(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    a.put("web", "x", "1")
    a.put("web", "y", "2")
    b.sync()
    b("data", "delete", "web", "x", "--yes").ok()
    a.sync()
    assert a.names() == [("web", "y")]
    path = next(p for p in local_team.place.root()["deleted"] if p.endswith("/raw"))
    assert a("datastore", "undelete", path).ok()["restored"]
    b.sync()
    assert sorted(b.names()) == [("web", "x"), ("web", "y")]
    assert b.get("web", "x")["content"] == "1"


def test_status_and_doctor_tell_packs_and_what_lives_and_is_dead_in_them(local_team: Team):
    a, b = local_team.machine("a"), local_team.machine("b")
    content = "".join(f"{n:x}" for n in range(2000))
    a.put("web", "x", content)
    a.put("web", "y", content[::-1])
    files = local_team.place.root()["entries"]
    live = sum(cut.length for cut in map(slice_of, (row["key"] for row in files.values())) if cut is not None)
    stored = {key for key in local_team.place.objects() if is_pack(key)}
    assert a("datastore", "status").ok()["packs"] == {"count": len(stored), "liveBytes": live}
    store = local_team.place.open()
    held = sum(file.length for key in stored for file in read_pack(store.get(key).body))
    told = a("datastore", "doctor").ok()
    assert told["packs"] == {"count": len(stored), "liveBytes": live, "deadBytes": held - live}, "a footer is not dead"
    a("data", "delete", "web", "x", "--yes").ok()
    b.sync()
    after = b("datastore", "doctor").ok()["packs"]
    assert 0 < after["liveBytes"] < live and after["deadBytes"] >= live - after["liveBytes"]
    assert b("datastore", "status").ok()["packs"]["liveBytes"] == after["liveBytes"]


def test_doctor_names_a_pack_that_is_gone(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "x", "1")
    gone = next(key for key in local_team.place.objects() if is_pack(key))
    local_team.place.open().delete([gone])
    told = a("datastore", "doctor")
    assert told.code == 1
    wrong = {c["name"]: c for c in told.json["checks"] if not c["ok"]}
    assert gone in wrong["packs"]["detail"] and "verify --repair" in wrong["packs"]["fix"]
    a("datastore", "verify", "--repair").ok()
    assert a("datastore", "doctor").ok()["ok"] is True


def test_L56_gc_tells_and_makes_room_and_nobody_notices(local_team: Team):
    """What lives in packs that are mostly dead moves out of them, no more files than somebody asks for."""
    a, b = local_team.machine("a"), local_team.machine("b")
    b.put("web", "z", "stays")
    a("model", "create", "command/shell", "sh").ok()
    for _ in range(2):  # a run's files share a pack: its log, which goes, and its record, which stays
        a("model", "method", "run", "sh", "execute", "--input", "run=seq 1 3000").ok()
    for item in a("data", "list", "sh").ok()["items"]:
        a("data", "delete", "sh", item["name"], "--yes").ok()
    a.sync()
    b.sync()
    packs = {key for key in local_team.place.objects() if is_pack(key)}
    now = ("datastore", "gc", "--keep-days", "0", "--yes")
    told = a(*now, "--dry-run").ok()["repacked"]
    assert told["packs"] >= 1 and told["bytes"] > 1000
    assert a(*now, "--dry-run", "--repack-files", "1").ok()["repacked"]["packs"] == 1
    assert {key for key in local_team.place.objects() if is_pack(key)} == packs, "a dry run changes nothing"
    done = a(*now).ok()["repacked"]
    assert done["packs"] >= told["packs"]
    a(*now).ok()
    left = {key for key in local_team.place.objects() if is_pack(key)}
    assert len(left) < len(packs)
    assert b.sync()["filesPulled"] <= 2, "the audit records of gc, and nothing that was only moved"
    fresh = local_team.machine("c")
    fresh.sync()
    for machine in (a, b, fresh):
        assert machine.get("web", "z")["content"] == "stays"
        assert machine("datastore", "verify").ok()["missing"] == []
