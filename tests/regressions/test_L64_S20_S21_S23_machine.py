"""What lies on the machine is damaged: part of the tree, a backup under a current state, pages of state.db."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from kill_scenarios import write
from machines import Machine, Team, read_tree
from swamp.cache.begin import note_left
from swamp.index.entry import object_of


def raw_of(machine: Machine, name: str) -> Path:
    return max(p for p in (machine.tree / "data").rglob("raw") if p.parent.parent.name == name)


def filled(team: Team) -> Machine:
    a = team.machine("a")
    for name in ("one", "two"):
        for text in ("1", "2"):
            a.put("web", name, f"{name} {text}")
    a.sync()
    return a


DAMAGE = {
    "one raw": lambda tree: max((tree / "data").rglob("one/2/raw")).unlink(),
    "one metadata": lambda tree: max((tree / "data").rglob("one/2/metadata.yaml")).unlink(),
    "one version": lambda tree: shutil.rmtree(max((tree / "data").rglob("one/2"))),
    "a whole model": lambda tree: shutil.rmtree(tree / "data" / "manual"),
    "a record": lambda tree: [p.unlink() for p in (tree / "auto-definitions").rglob("*.yaml")],
}


@pytest.mark.inv("tree.damage")
@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("hydrate", ["full", "lazy"])
def test_S20_part_of_the_tree_that_is_removed_by_hand_comes_back(team: Team, what: str, hydrate: str):
    filled(team)
    b = team.machine("b", "--hydrate", hydrate)
    for name in ("one", "two"):
        b.get("web", name)
    tree = b.tree
    before = read_tree(tree)
    DAMAGE[what](tree)
    status = b.status()
    assert status["cache"]["gone"] > 0 and "vanished" in status["summary"]
    [check] = [c for c in b("datastore", "doctor").json["checks"] if c["name"] == "tree"]
    assert not check["ok"] and "gone" in check["detail"]
    found = b("datastore", "verify")
    assert found.code == 65 and found.json["gone"]
    assert b.names() == [("web", "one"), ("web", "two")]
    assert b.sync()["filesPulled"] > 0 or hydrate == "lazy"
    for name in ("one", "two"):
        b.get("web", name)
    assert read_tree(tree) == before
    assert b.status()["cache"]["gone"] == 0 and b.sync()["fastPath"]


@pytest.mark.inv("tree.damage")
@pytest.mark.parametrize("what", ["one raw", "one metadata", "one version", "a whole model"])
def test_S20_whoever_reads_what_was_removed_brings_it_back(team: Team, what: str):
    a = filled(team)
    DAMAGE[what](a.tree)
    assert a.names() == [("web", "one"), ("web", "two")]
    assert a.get("web", "one")["content"] == "one 2" and a.versions("web", "one") == [2, 1]
    (a.repo / ".swamp" / "_catalog.db").unlink()
    DAMAGE[what](a.tree)
    assert a.names() == [("web", "one"), ("web", "two")]
    assert a.put("web", "one", "one 3")["version"] == 3


@pytest.mark.inv("tree.damage")
def test_S20_what_the_user_deleted_does_not_come_back(team: Team):
    a = filled(team)
    a("data", "delete", "web", "one", "--yes").ok()
    assert a.status()["cache"]["gone"] == 0 and a.sync()["fastPath"]
    assert a.names() == [("web", "two")]


@pytest.mark.inv("full.view")
def test_L64_a_file_from_an_old_backup_does_not_rise_from_the_dead(team: Team, tmp_path: Path):
    a = team.machine("a")
    a.put("web", "old", "deleted long ago")
    a.put("web", "kept", "1")
    backup = tmp_path / "backup"
    shutil.copytree(a.tree, backup)
    a("data", "delete", "web", "old", "--yes").ok()
    for number in range(3):
        a.put("web", "kept", f"more {number}")
        a.sync()
    shutil.copytree(backup, a.tree, dirs_exist_ok=True)
    done = a("datastore", "sync", "--full")
    assert all("/old/" in c["path"] for c in done.json["conflicts"]) and done.json["conflicts"], done.out
    assert not [path for path in team.place.root()["entries"] if "/old/" in path]
    b = team.machine("b")
    assert b.names() == [("web", "kept")]


@pytest.mark.inv("tree.damage")
def test_S20_a_dry_run_shows_what_would_be_brought_back_and_brings_nothing(team: Team):
    a = filled(team)
    gone = raw_of(a, "one")
    gone.unlink()
    plan = a("datastore", "sync", "--dry-run").ok()
    assert [(row["action"], row["path"]) for row in plan["plan"]] == [("pull", str(gone.relative_to(a.tree)))]
    assert not gone.exists()
    assert a.sync()["filesPulled"] == 1 and gone.exists()
    assert a("datastore", "sync", "--dry-run").ok()["plan"] == []


def lose(team: Team, name: str, version: int) -> None:
    """The store has lost the content of a version."""
    store = team.place.open()
    entries = team.place.root()["entries"]
    gone = [e["key"] for p, e in entries.items() if f"/{name}/{version}/raw" in p]
    store.delete([object_of(key) for key in gone])


def test_S23_a_newer_version_that_could_not_be_fetched_is_shown_as_there_and_not_here(team: Team):
    a = team.machine("a")
    a.put("web", "report", "1" * 300_000)
    b = team.machine("b")
    assert b.versions("web", "report") == [1]
    a.put("web", "report", "2" * 300_000)
    lose(team, "report", 2)
    assert b("datastore", "sync").code != 0
    [item] = b("data", "list").ok()["items"]
    assert item["version"] == 2 and item["here"] is False and "lost" in item["reason"]
    newest, oldest = b("data", "versions", "web", "report").ok()["versions"]
    assert newest["version"] == 2 and newest["isLatest"] and newest["here"] is False and newest["reason"]
    assert oldest["version"] == 1 and not oldest["isLatest"] and "here" not in oldest
    asked = b("data", "query", "name == 'report'")
    assert [(i["version"], bool(i["reason"])) for i in asked.ok()["notHere"]] == [(2, True)] and "not here" in asked.err
    assert asked.json["items"] == [], "the older one is not the latest"
    [older] = b("data", "query", "version == 1").ok()["items"]
    assert older["isLatest"] is False
    assert b("data", "query", "isLatest").ok()["items"] == []
    assert [i["version"] for i in b("data", "query", "!isLatest").ok()["items"]] == [1]
    [found] = b("data", "search").ok()["items"]
    assert found["version"] == 2 and found["here"] is False
    for words in [(), ("--version", "2")]:
        refused = b("data", "get", "web", "report", *words).failed(1)
        assert "could not be brought here" in refused["error"] and "verify" in refused["hint"]
    status = b.status()
    assert status["cache"]["owed"] > 0 and status["cache"]["notHere"][0]["reason"]
    [check] = [c for c in b("datastore", "doctor").json["checks"] if c["name"] == "tree"]
    assert not check["ok"] and "could not be brought" in check["detail"]


PAGE = 4096


@pytest.mark.inv("state.checked")
def test_S21_a_damaged_page_of_state_db_is_set_aside_and_rebuilt_by_itself(team: Team):
    """Every page after another is zeroed or overwritten: the next commands work, and doctor says the truth."""
    a = team.machine("a")
    a.put("web", "report", "0")
    [cache] = a.caches
    state = cache / "state.db"
    whole = state.read_bytes()
    pages = len(whole) // PAGE
    assert pages >= 11
    for number in range(pages):
        damage = b"\0" * PAGE if number % 2 else b"\xff" * 64
        at = number * PAGE
        state.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
        for suffix in ("-wal", "-shm"):
            state.with_name(state.name + suffix).unlink(missing_ok=True)
        state.with_name("state.db.damaged").unlink(missing_ok=True)
        if number % 3 == 0:
            [check] = [c for c in a("datastore", "doctor").json["checks"] if c["name"] == "state"]
            assert not check["ok"] or not state.with_name("state.db.damaged").exists(), number
        assert a.put("web", "report", f"{number}")["version"] == number + 2, number
        whole = state.read_bytes()
    assert a.sync() is not None
    [check] = [c for c in a("datastore", "doctor").json["checks"] if c["name"] == "state"]
    assert check["ok"]
    b = team.machine("b")
    assert b.versions("web", "report") == list(range(pages + 1, 0, -1))


NONSENSE = "\0?{"
FLIPPED = {
    "pulledSeq": "UPDATE meta SET value = ? WHERE name = 'pulledSeq'",
    "seenFormat": "UPDATE meta SET value = ? WHERE name = 'seenFormat'",
    "seenToken": "UPDATE meta SET value = ? WHERE name = 'seenToken'",
    "lastSyncAt": "UPDATE meta SET value = ? WHERE name = 'lastSyncAt'",
    "readSeq": "INSERT OR REPLACE INTO meta VALUES ('readSeq', ?)",
    "readWaits": "INSERT OR REPLACE INTO meta VALUES ('readWaits', ?)",
    "deferred": "INSERT INTO deferred VALUES ('files/x', ?, 'a pull could not bring it')",
}


@pytest.mark.inv("state.checked")
def test_S21_a_value_in_a_form_that_we_never_write_is_damage_too(double_team: Team):
    """Every page is a page, and SQLite finds nothing wrong: what a flipped bit in a cell leaves."""
    a = double_team.machine("a")
    saved, met = a.put("web", "report", "1")["version"], 0
    for name, sql in FLIPPED.items():
        state = next(iter(a.caches)) / "state.db"
        with contextlib.closing(sqlite3.connect(state)) as db, db:
            db.execute(sql, (NONSENSE,))
        note_left(state)
        state.with_name("state.db.damaged").unlink(missing_ok=True)
        assert a("data", "list").ok()["total"] == 1, name
        assert a.sync()["conflicts"] == [], name
        saved += 1
        assert a.put("web", "report", str(saved))["version"] == saved, name
        met += state.with_name("state.db.damaged").exists()
    assert met >= len(FLIPPED) - 1, "most of them are needed by some command"
    assert double_team.machine("fresh").get("web", "report")["content"] == str(saved)
    assert a.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}


@pytest.mark.inv("state.checked")
@pytest.mark.inv("journal.survives")
def test_S21_an_announcement_whose_kind_cannot_be_read_is_still_looked_at(double_team: Team):
    a = double_team.machine("a")
    a.put("web", "report", "1")
    write(a, ["late"], b"never pushed")
    with contextlib.closing(sqlite3.connect(next(iter(a.caches)) / "state.db")) as db, db:
        assert db.execute("UPDATE journal SET kind = 'wriue'").rowcount
    assert sum(a.status()["pending"].values()) >= 1
    a.sync()
    assert double_team.machine("fresh").names() == [("ledger", "late"), ("web", "report")]


def _rot(state: Path, page: int) -> None:
    """Damage that no look at the file's times shows: the first statement that needs the page meets it."""
    whole = state.read_bytes()
    damage = b"\0" * PAGE if page % 2 else b"\xff" * 64
    state.write_bytes(whole[: page * PAGE] + damage + whole[page * PAGE + len(damage) :])
    state.with_name("state.db.damaged").unlink(missing_ok=True)
    note_left(state)


@pytest.mark.timeout(600)
@pytest.mark.inv("state.checked")
def test_S21_the_command_whose_statement_meets_a_damaged_page_recovers_by_itself(team: Team):
    a, b = team.machine("a"), team.machine("b")
    a("datastore", "setup", *team.place.setup_args, "--hydrate", "lazy").ok()
    b.put("web", "far", "of b")
    a.sync()
    a.put("web", "report", "1")
    [cache] = a.caches
    state, met, saved = cache / "state.db", 0, 1
    reads = [("data", "list"), ("data", "get", "web", "far"), ("datastore", "sync"), ("datastore", "status")]
    for page in range(11):
        _rot(state, page)
        if page % 2:
            saved += 1
            assert a.put("web", "report", str(saved))["version"] == saved, page
        else:
            found = a(*reads[page // 2 % 4]).ok()
            assert found.get("total", 2) == 2 and found.get("content", "of b") == "of b", (page, found)
        met += state.with_name("state.db.damaged").exists()
    assert met >= 6, "most pages are needed by some statement"
    a.sync()
    [check] = [c for c in a("datastore", "doctor").ok()["checks"] if c["name"] == "state"]
    b.sync()
    assert check["ok"] and b.versions("web", "report") == list(range(saved, 0, -1))
