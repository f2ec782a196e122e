"""Connections to the catalog: one per thread, closed when their thread has ended."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from swamp.cache.files import on_disk
from swamp.catalog import schema


class Connections:
    """The connections of one process to one catalog."""

    def __init__(self, path: Path, trace: Callable[[str], None] | None) -> None:
        self._path, self._trace = path, trace
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._opened: list[tuple[threading.Thread, int, sqlite3.Connection]] = []

    def mine(self) -> sqlite3.Connection:
        """This thread's connection."""
        owner = os.getpid()  # a connection must not be used on the other side of a fork
        if getattr(self._mine, "db", None) is None or self._mine.pid != owner:
            self._mine.db, self._mine.pid = _open(self._path, self._trace), owner
            self._close_what_threads_left(owner)
        db: sqlite3.Connection = self._mine.db
        return db

    def close(self) -> None:
        """Closes this thread's connection."""
        db = getattr(self._mine, "db", None)
        if db is not None:
            db.close()
        self._mine.db = None

    def _close_what_threads_left(self, owner: int) -> None:
        """A connection is in a circle with its statements: those of threads that ended, as a server's do all the time,
        would stay open until the garbage is collected."""
        with self._lock:
            known = [one for one in self._opened if one[1] == owner]
            for thread, _, db in known:
                if not thread.is_alive():
                    db.close()
            self._opened = [one for one in known if one[0].is_alive()]
            self._opened.append((threading.current_thread(), owner, self._mine.db))


def _open(path: Path, trace: Callable[[str], None] | None) -> sqlite3.Connection:
    with on_disk("create", str(path.parent)):
        path.parent.mkdir(parents=True, exist_ok=True)
    # A checkout that cannot be written is read all the same: the catalog is a copy, and is made again in memory.
    place = path if os.access(path.parent, os.W_OK) else ":memory:"
    db = sqlite3.connect(place, timeout=60, isolation_level=None, check_same_thread=False)
    if trace is not None:
        db.set_trace_callback(trace)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    if _schema_version(db) != schema.SCHEMA_VERSION:
        with immediate(db):
            if _schema_version(db) != schema.SCHEMA_VERSION:
                schema.create(db)
    return db


@contextmanager
def immediate(db: sqlite3.Connection) -> Iterator[None]:
    """A transaction that nobody else writes in."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _schema_version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])
