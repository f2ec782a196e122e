"""S18: the catalog is a copy. From another version or behind the files, the next command says what is true."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from machines import Team


@pytest.mark.inv("catalog.local")
@pytest.mark.parametrize("damage", ["older version", "newer version"])
def test_S18_a_catalog_that_cannot_be_used_is_made_again(team: Team, damage):
    a = team.machine("a")
    a.put("web", "report", "1")
    a.put("web", "report", "2")
    before = a("data", "list").ok()
    catalog = a.repo / ".swamp" / "_catalog.db"
    for side in ("-wal", "-shm"):
        catalog.with_name(catalog.name + side).unlink(missing_ok=True)
    with sqlite3.connect(catalog) as db:
        number = 1 if damage == "older version" else 999
        db.executescript(f"PRAGMA user_version = {number}; DROP TABLE data; CREATE TABLE data (x)")
    assert a("data", "list").ok() == before
    assert a.versions("web", "report") == [2, 1]


def test_S18_rows_of_files_that_are_gone_are_not_listed(team: Team):
    """Gone by another machine's delete, by a collection, and by hand with the whole cache."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "one", "1")
    a.put("web", "two", "2")
    b.sync()
    assert b.names() == [("web", "one"), ("web", "two")]
    a("data", "delete", "web", "one", "--yes").ok()
    b.sync()
    assert b.names() == [("web", "two")]
    shutil.rmtree(b.home / ".swamp")
    assert b("data", "list").code in (0, 69)
    b.sync()
    assert b.names() == [("web", "two")]
    assert b.get("web", "two")["content"] == "2"
