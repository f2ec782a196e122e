"""What a transaction drops: exactly the rows that it was told to, whichever statement does it."""

from __future__ import annotations

import random
import sqlite3
import threading
from contextlib import closing

import pytest

from swamp.cache.rows import BaseRow, StagedRow
from swamp.cache.state import State


def test_a_new_file_that_another_process_is_just_making_is_waited_for(tmp_path):
    """Both would have it written through a log: SQLite refuses the second at once, whatever its patience is."""
    path = tmp_path / "state.db"
    opened: list[str] = []

    def open_too() -> None:
        with closing(State.open(path)) as state:
            opened.append(state.meta("storeId") or "open")

    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as making:
        making.execute("BEGIN IMMEDIATE")
        second = threading.Thread(target=open_too)
        second.start()
        second.join(0.2)
        assert second.is_alive(), "it did not wait"
        making.execute("COMMIT")
        second.join(30)
    assert opened == ["open"]


@pytest.fixture
def state(tmp_path):
    opened = State.open(tmp_path / "state.db", durable=False)
    yield opened
    opened.close()


def announced(state: State, count: int) -> list[int]:
    with state.transaction() as tx:
        tx.announce([f"files/{i:03}" for i in range(count)], "found")
    return [row.id for row in state.journal()]


@pytest.mark.inv("journal.survives")
@pytest.mark.parametrize("seed", range(8))
def test_only_the_named_rows_of_the_journal_go(state, seed):
    ids = announced(state, 200)
    kept = set(random.Random(seed).sample(ids, seed * 12))
    with state.transaction() as tx:
        tx.drop_journal([number for number in reversed(ids) if number not in kept])
    assert {row.id for row in state.journal()} == kept


@pytest.mark.inv("journal.survives")
def test_a_row_within_a_long_run_survives_when_it_is_not_named(state):
    ids = announced(state, 100)
    with state.transaction() as tx:
        tx.drop_journal(ids[:50] + ids[51:])
    assert [row.id for row in state.journal()] == [ids[50]]


def held(path: str) -> BaseRow:
    return BaseRow(path, f"{path}~key", 1, "0" * 64, 1, present=True)


@pytest.mark.parametrize("others", [(), ("files/b",), tuple(f"files/b{i}" for i in range(9))])
def test_holding_some_paths_leaves_the_uploads_and_debts_of_others(state, others):
    paths = ("files/a", *others)
    with state.transaction() as tx:
        tx.put_staged([StagedRow(f"{p}~{n}", p, "0" * 64, 1, 0) for p in paths for n in range(2)])
        for path in paths:
            tx.defer(path, None, "waits")
    with state.transaction() as tx:
        tx.hold([held("files/a")])
    assert state.staged_paths() == set(others) == set(state.deferred())
    with state.transaction() as tx:
        tx.hold([])
    assert state.staged_paths() == set(others) == set(state.deferred())
