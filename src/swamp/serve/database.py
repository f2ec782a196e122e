"""`.swamp/serve.db`: the queue, tokens and events of a server, in SQLite. One thread writes, many changes per commit.

Whoever waits for `write` to return has its change on disk: a delivery is answered only then. inv[serve.accepted]
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from swamp.cache.begin import keep_log
from swamp.errors import CorruptData, Failed

T = TypeVar("T")
FILE: Final = "serve.db"
SCHEMA_VERSION: Final = 1
BATCH: Final = 500
_SCHEMA: Final = """
CREATE TABLE deliveries (
  n INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, route TEXT NOT NULL, id TEXT NOT NULL,
  workflow TEXT NOT NULL, run_id TEXT NOT NULL, action TEXT NOT NULL, received_at TEXT NOT NULL, event TEXT NOT NULL,
  status TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0, not_before REAL NOT NULL DEFAULT 0,
  error TEXT, finished_at TEXT, UNIQUE (kind, route, id)
);
CREATE INDEX deliveries_by_status ON deliveries (status, n);
CREATE INDEX deliveries_by_run ON deliveries (run_id);
CREATE TABLE tokens (
  id TEXT PRIMARY KEY, kind TEXT NOT NULL, hash TEXT NOT NULL UNIQUE, role TEXT NOT NULL, name TEXT,
  created_at TEXT NOT NULL, expires REAL, revoked_at TEXT
);
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, run_id TEXT, data TEXT NOT NULL
);
CREATE TABLE followed (run_id TEXT PRIMARY KEY, place INTEGER NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)
"""


class Database:
    """The server's own file. Reads may come from any thread; changes are made one after the other by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._free: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._changes: queue.SimpleQueue[tuple[Callable[[sqlite3.Connection], Any], Future[Any]] | None]
        self._changes = queue.SimpleQueue()
        path.parent.mkdir(parents=True, exist_ok=True)
        _made(path)
        self._writer = threading.Thread(target=self._write_all, name="serve-db", daemon=True)
        self._writer.start()

    # -- reading

    def all(self, sql: str, args: Sequence[Any] = ()) -> list[sqlite3.Row]:
        try:
            with self._reader() as db:
                return db.execute(sql, args).fetchall()
        except sqlite3.DatabaseError as error:
            raise _explained(error, self.path) from error

    def one(self, sql: str, args: Sequence[Any] = ()) -> sqlite3.Row | None:
        rows = self.all(sql, args)
        return rows[0] if rows else None

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses now. Not one per thread: threads of requests come and go by the thousand,
        and each would leave its connection open."""
        with self._lock:
            db = self._free.pop() if self._free else None
        db = db or _connect(self.path)
        try:
            yield db
        finally:
            with self._lock:
                self._free.append(db)

    # -- writing

    def submit(self, change: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Asks for a change; the future is done when it is on disk. Several that wait share one commit."""
        done: Future[T] = Future()
        self._changes.put((change, done))
        return done

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Makes a change and returns when it is on disk."""
        return self.submit(change).result()

    def execute(self, sql: str, args: Sequence[Any] = ()) -> int:
        """Makes a change with one statement; how many rows it changed."""
        return self.write(lambda db: db.execute(sql, args).rowcount)

    def _write_all(self) -> None:
        db = _connect(self.path)
        ending = False
        while not ending:
            batch = [self._changes.get()]
            while len(batch) < BATCH and not self._changes.empty():
                batch.append(self._changes.get())
            ending = None in batch
            self._commit(db, [change for change in batch if change is not None])
        db.close()

    def _commit(
        self, db: sqlite3.Connection, batch: list[tuple[Callable[[sqlite3.Connection], Any], Future[Any]]]
    ) -> None:
        """All in one transaction; one that fails takes back its own part and not the others'."""
        answers: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            db.execute("BEGIN IMMEDIATE")
            for change, done in batch:
                db.execute("SAVEPOINT one")
                try:
                    answers.append((done, change(db), None))
                except Exception as error:  # noqa: BLE001 - handed to whoever asked for this change
                    db.execute("ROLLBACK TO one")
                    answers.append((done, None, error))
                db.execute("RELEASE one")
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            answers = [(done, None, _explained(error, self.path)) for _, done in batch]
        for done, value, failure in answers:
            if failure is None:
                done.set_result(value)
            else:
                done.set_exception(failure)

    def close(self) -> None:
        self._changes.put(None)
        self._writer.join(timeout=10)
        with self._lock:
            for db in self._free:
                db.close()
            self._free.clear()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    keep_log(db)
    db.execute("PRAGMA synchronous = FULL")
    return db


def _made(path: Path) -> None:
    """Creates the tables. A file of a newer version is refused: its queue would be misread."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # bodies of events and hashes: for nobody else
        with closing(_connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            found = int(db.execute("PRAGMA user_version").fetchone()[0])
            if found == 0:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            elif found != SCHEMA_VERSION:
                raise Failed(f"{path.name} was written by another version of swamp", hint="use that version, or newer")
            db.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise _explained(error, path) from error


def _explained(error: sqlite3.Error, path: Path) -> CorruptData | Failed:
    if isinstance(error, sqlite3.OperationalError):
        return Failed(f"{path.name} cannot be used: {error}", hint="check the disk and who else has it open")
    return CorruptData(
        f"{path.name} is damaged: {error}", hint="move .swamp/serve.db away; its queue and tokens are lost with it"
    )
