"""S: stale or wrong, through the CLI on a bucket in a directory."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from machines import Machine, Team, read_tree
from swamp.index.root import ROOT_KEY


def write_by_hand(machine: Machine, path: str, text: str) -> None:
    target = machine.tree / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def latest_of(machine: Machine, name: str) -> str:
    [marker] = (machine.tree / "data").rglob(f"{name}/latest")
    return marker.read_text().strip()


def test_S01_S02_the_latest_marker_follows_every_pull(team: Team):
    """2 -> 3 has the same size; a scoped pull before a put must bring it too."""
    a, b = team.machine("a"), team.machine("b")
    for text in ("1", "2"):
        a.put("web", "report", text)
    b.sync()
    assert latest_of(b, "report") == "2"
    a.put("web", "report", "3")
    b.sync("--pull")
    assert latest_of(b, "report") == "3"
    a.put("web", "report", "4")
    b.put("web", "report", "5")
    assert latest_of(b, "report") == "5" and b.versions("web", "report") == [5, 4, 3, 2, 1]
    a.sync()
    assert latest_of(a, "report") == "5"


def test_S03_S07_a_same_size_edit_within_one_tick_is_pushed(team: Team):
    a, b = team.machine("a"), team.machine("b")
    write_by_hand(a, "files/note", "aaaa")
    a.sync("--full")
    stamp = (a.tree / "files" / "note").stat().st_mtime_ns
    write_by_hand(a, "files/note", "bbbb")
    import os

    os.utime(a.tree / "files" / "note", ns=(stamp, stamp))
    assert a.sync("--full")["filesPushed"] == 1
    b.sync()
    assert (b.tree / "files" / "note").read_text() == "bbbb"


def test_S04_S05_a_lazy_cache_deletes_and_becomes_full(team: Team):
    a = team.machine("a")
    a.put("web", "one", "1")
    a.put("web", "two", "2")
    b = team.machine("b", "--hydrate", "lazy")
    assert b.status()["cache"]["remoteOnly"] == 2
    b("data", "delete", "web", "one", "--yes").ok()
    a.sync()
    assert a.names() == b.names() == [("web", "two")]
    full = b.setup(*team.place.setup_args, "--hydrate", "full")
    assert full["filesPulled"] == 1
    assert [p.read_text() for p in (b.tree / "data").rglob("raw")] == ["2"]


@pytest.mark.usefixtures("one_object_each")
def test_S06_a_payload_that_is_gone_is_reported_kept_healed_or_dropped(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    store = team.place.open()
    [(path, entry)] = [(p, e) for p, e in team.place.root()["entries"].items() if p.endswith("/raw")]
    store.delete([entry["key"]])
    found = a("datastore", "verify")
    assert found.code == 65 and found.json["missing"] == [path]
    assert path in team.place.root()["entries"]
    healed = a("datastore", "verify", "--repair").ok()
    assert healed["healed"] == [path]
    assert a("datastore", "verify").ok()["missing"] == []
    store.delete([e["key"] for p, e in team.place.root()["entries"].items() if p == path])
    stranger = team.machine("stranger", joined=False)
    shutil.copy(a.repo / ".swamp.yaml", stranger.repo / ".swamp.yaml")
    assert stranger("datastore", "verify", "--repair").code == 65
    dropped = stranger("datastore", "verify", "--repair", "--drop", path)
    assert dropped.code == 0 and dropped.json["dropped"] == [path]


def test_S08_after_a_pull_nothing_is_uploaded_again(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    b = team.machine("b")
    for file in (b.tree / "data").rglob("*"):
        if file.is_file():
            file.touch()
    done = b.sync("--full")
    assert (done["filesPushed"], done["filesPulled"]) == (0, 0)


def test_S09_a_second_process_sees_the_newest_index_at_once(team: Team):
    a, b = team.machine("a"), team.machine("b")
    for n in range(3):
        a.put("web", "report", str(n))
        b.sync()
        assert b.get("web", "report")["content"] == str(n)


@pytest.mark.usefixtures("one_object_each")
def test_S10_a_payload_with_other_bytes_is_never_handed_out(team: Team):
    a = team.machine("a")
    a.put("web", "report", "right")
    store = team.place.open()
    [key] = [e["key"] for p, e in team.place.root()["entries"].items() if p.endswith("/raw")]
    store.put(key, b"wrong")
    b = team.machine("b", joined=False)
    joined = b("datastore", "setup", *team.place.setup_args)
    assert joined.code == 1 and joined.json["errors"]
    held = [f for f in (b.home / ".swamp").rglob("*") if f.is_file() and f.read_bytes() == b"wrong"]
    assert held == [], "wrong bytes are in the cache"
    verified = a("datastore", "verify")
    assert verified.code == 65 and len(verified.json["corrupt"]) == 1


def test_S13_a_namespace_that_is_set_has_a_name(team: Team):
    """An empty variable in a script does not move everything out of the namespace."""
    a = team.machine("a", "--namespace", "blue")
    assert "''" in a("datastore", "namespace", "set", "").failed(2)["error"]
    assert a("datastore", "namespace", "list").ok()["current"] == "blue"


def test_S13_a_namespace_is_not_called_like_a_directory(team: Team):
    a = team.machine("a", joined=False)
    for name in ("data", "outputs", "audit", "a/b", "..", "_index"):
        a("datastore", "setup", *team.place.setup_args, "--namespace", name).failed(2)
    assert team.place.objects() == {}


def test_S14_names_that_differ_only_in_case_are_a_conflict_for_the_later(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "Report", "A")
    file = b.home / "f"
    file.write_text("B")
    later = b("data", "put", "web", "report", str(file))
    assert later.code == 1
    assert "did not reach the datastore" in later.error["error"] and "report/1/raw" in json.dumps(later.error)
    assert b"B" in read_tree(b.caches[0] / "conflicts").values()
    a.sync()
    assert a.get("web", "Report")["content"] == "A"


ODD = ("with space", "100%", "a+b", "#1", "größe", "日本語", "~tilde", "quote'\"", "x" * 200)


def test_S15_odd_names_travel(team: Team):
    a, b = team.machine("a"), team.machine("b")
    for name in ODD:
        a.put("web", name, f"content of {name}")
    b.sync()
    assert {name for _, name in b.names()} == set(ODD)
    for name in ODD[:3]:
        assert b.get("web", name)["content"] == f"content of {name}"


@pytest.mark.parametrize("path", ["../escape", "data/../../escape", "/etc/escape", "C:/escape", "data/a\u0000b"])
def test_S16_an_attackers_index_writes_nothing_outside(team: Team, path: str):
    a = team.machine("a")
    a.put("web", "report", "1")
    root = team.place.root()
    [good] = [e for p, e in root["entries"].items() if p.endswith("/raw")]
    root["entries"][path] = good
    root["seq"] += 1
    root["prevOp"], root["op"] = root["op"], "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    root["recentOps"].append([root["op"], root["seq"]])
    team.place.open().put(ROOT_KEY, json.dumps(root).encode())
    b = team.machine("b", joined=False)
    joined = b("datastore", "setup", *team.place.setup_args)
    assert joined.code in (0, 1) and "Traceback" not in joined.err, joined
    assert b.get("web", "report")["content"] == "1", "the rest is not held up"
    assert not list(team.directory.rglob("escape*")) and not Path("/etc/escape").exists()
    assert {f.name for f in team.directory.iterdir()} == {"a", "b", "bucket"}


def test_S17_a_symlink_that_leaves_the_tree_is_not_followed(team: Team):
    a = team.machine("a")
    secret = a.home / "secret"
    secret.write_text("hush")
    write_by_hand(a, "files/plain", "x")
    (a.tree / "files" / "link").symlink_to(secret)
    done = a("datastore", "sync", "--full")
    assert done.code == 1 and done.json["filesPushed"] == 1
    assert b"hush" not in b"".join(team.place.objects().values())


def test_S18_the_catalog_heals_itself(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1")
    catalog = a.repo / ".swamp" / "_catalog.db"
    for damage in (b"not a database", b""):
        for suffix in ("-wal", "-shm"):
            catalog.with_name(catalog.name + suffix).unlink(missing_ok=True)
        catalog.write_bytes(damage)
        assert a.names() == [("web", "report")]
    catalog.unlink()
    assert a.names() == [("web", "report")]
    shutil.rmtree(a.tree / "data")
    time.sleep(0.1)
    a("datastore", "doctor", "--repair")
    assert a.names() == [("web", "report")], "what was removed by hand is damage and comes back (S20)"
    a.sync()
    assert a.names() == [("web", "report")]
    assert read_tree(a.tree)
