"""state.db: what this cache was proven to hold, and what it still owes the bucket. SQLite, WAL, full sync.

Everything here can be lost and costs one full comparison, never shared data. inv[cache.disposable]
Nothing here says "clean": that is computed from these tables and the store. inv[sync.derived]
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from swamp.cache.paths import ancestors, fold
from swamp.cache.rows import (
    BASE_COLUMNS,
    BaseRow,
    JournalKind,
    JournalRow,
    Pending,
    StagedRow,
    base_row,
    decode_row,
    journal_row,
    whole,
)
from swamp.cache.transact import Transaction
from swamp.errors import Failed
from swamp.index.entry import Entry, Row

SCHEMA_VERSION: Final = 1
Hook = Callable[[str], None]
"""Called as `begin`, `commit`, `done` around each transaction: the simulator's place to interleave and to crash."""

_BEHIND_ALL: Final = "\U0010ffff" * 2
"""Sorts behind every path."""
_PENDING: Final = "SELECT kind, COUNT(DISTINCT path) FROM journal GROUP BY kind"
_SCHEMA: Final = """
CREATE TABLE base (path TEXT PRIMARY KEY, key TEXT NOT NULL, size INTEGER NOT NULL, sha256 TEXT, seq INTEGER NOT NULL,
  present INTEGER NOT NULL, fold TEXT NOT NULL, h_size INTEGER, h_mtime INTEGER, h_ctime INTEGER, h_inode INTEGER)
  WITHOUT ROWID;
CREATE INDEX base_fold ON base (fold);
CREATE INDEX base_remote_only ON base (path) WHERE present = 0;
CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL, kind TEXT NOT NULL,
  confirmed INTEGER NOT NULL);
CREATE INDEX journal_path ON journal (path);
CREATE TABLE staged (key TEXT PRIMARY KEY, path TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
  gc_epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX staged_path ON staged (path);
CREATE TABLE deferred (path TEXT PRIMARY KEY, remote TEXT NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE touched (n INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL);
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


def _no_hook(point: str) -> None:
    del point


class State:
    """One connection to state.db, shared by the threads of a process."""

    def __init__(self, connection: sqlite3.Connection, hook: Hook = _no_hook) -> None:
        self._db = connection
        self._lock = threading.RLock()
        self._hook = hook

    @classmethod
    def open(cls, path: Path, hook: Hook = _no_hook, *, durable: bool = True) -> State:
        """Opens or creates; a file that is no readable database is set aside, which costs a full comparison."""
        try:
            return cls(_connect(path, durable), hook)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise _explained(error, path) from error
            for suffix in ("", "-wal", "-shm"):
                part = path.with_name(path.name + suffix)
                if part.exists():
                    part.replace(part.with_name(part.name + ".damaged"))
            return cls(_connect(path, durable), hook)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """All of the body or none of it, on disk when it returns."""
        self._hook("begin")
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield Transaction(self._db)
                    self._hook("commit")
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as error:
                raise _explained(error, None) from error
        self._hook("done")

    def _all(self, sql: str, args: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, args).fetchall()
            except sqlite3.OperationalError as error:
                raise _explained(error, None) from error

    def _stream(self, sql: str, args: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """Rows in small pages of one cursor, so that a million of them never stand in memory."""
        for page in self._pages(sql, args, 1000):
            yield from page

    def _pages(self, sql: str, args: Sequence[object], length: int) -> Iterator[list[tuple[object, ...]]]:
        with self._lock:
            cursor = self._db.cursor().execute(sql, args)
        while True:
            with self._lock:
                page = cursor.fetchmany(length)
            if not page:
                return
            yield page

    # -- announce

    def announce(self, paths: Iterable[str], kind: JournalKind, *, confirmed: bool = False) -> None:
        """Rows on disk; the cost does not grow with the journal. inv[journal.first]"""
        with self.transaction() as tx:
            tx.announce(paths, kind, confirmed=confirmed)

    # -- journal

    def journal(self) -> list[JournalRow]:
        return [journal_row(r) for r in self._all("SELECT id, path, kind, confirmed FROM journal ORDER BY id")]

    def journal_empty(self) -> bool:
        return not self._all("SELECT 1 FROM journal LIMIT 1")

    def pending(self) -> Pending:
        counts = {str(k): whole(n) for k, n in self._all(_PENDING)}
        return Pending(*(counts.get(k, 0) for k in ("write", "delete", "found")))

    # -- base

    def base(self, path: str) -> BaseRow | None:
        rows = self._all(f"SELECT {BASE_COLUMNS} FROM base WHERE path = ?", (path,))
        return base_row(rows[0]) if rows else None

    def base_below(self, prefix: str = "") -> Iterator[BaseRow]:
        """Rows at or below the directory `prefix`, in path order."""
        if not prefix:
            yield from self.base_between("")
            return
        yield from filter(None, (self.base(prefix),))
        yield from self.base_between(prefix + "/", prefix + "0")

    def base_between(self, start: str, stop: str | None = None) -> Iterator[BaseRow]:
        """Rows with `start <= path < stop`, in path order: how several readers share one table.

        Page by page, each by itself: a cursor that stays open would keep this connection in the past, and then no
        transaction of its own can begin once somebody else has written.
        """
        sql = f"SELECT {BASE_COLUMNS} FROM base WHERE path {{}} ? AND path < ? ORDER BY path LIMIT 1000"
        after, until = sql.format(">="), stop or _BEHIND_ALL
        while page := self._all(after, (start, until)):
            yield from map(base_row, page)
            after, start = sql.format(">"), str(page[-1][0])

    def base_columns(
        self, start: str, stop: str | None = None, length: int = 10_000
    ) -> Iterator[dict[str, tuple[object, ...]]]:
        """The same rows as `base_between`, as columns by name: no object per row, for who reads millions."""
        sql = f"SELECT {BASE_COLUMNS} FROM base WHERE path >= ? AND path < ? ORDER BY path"
        names = [name.strip() for name in BASE_COLUMNS.split(",")]
        for page in self._pages(sql, (start, stop or _BEHIND_ALL), length):
            yield dict(zip(names, zip(*page, strict=True), strict=True))

    def remote_only(self, prefix: str = "") -> Iterator[BaseRow]:
        """Files known and not held, in path order, less those whose deletion waits for a push."""
        gone = "EXISTS (SELECT 1 FROM journal WHERE journal.path = base.path AND kind = 'delete')"
        sql = f"SELECT {BASE_COLUMNS} FROM base WHERE present = 0 AND NOT {gone}"
        if not prefix:
            return map(base_row, self._stream(f"{sql} ORDER BY path"))
        below = f"{sql} AND (path = ? OR (path > ? AND path < ?)) ORDER BY path"
        return map(base_row, self._stream(below, (prefix, prefix + "/", prefix + "0")))

    def base_count(self) -> tuple[int, int, int]:
        """Files present, their bytes, files that are remote-only."""
        sql = "SELECT SUM(present), SUM(size * present), SUM(1 - present) FROM base"
        files, size, remote = self._all(sql)[0]
        return whole(files or 0), whole(size or 0), whole(remote or 0)

    def base_rows(self) -> int:
        return whole(self._all("SELECT COUNT(*) FROM base")[0][0])

    def has_base(self) -> bool:
        return bool(self._all("SELECT 1 FROM base LIMIT 1"))

    def tiers(self) -> list[tuple[str, bool]]:
        """Top names of base, and whether they are directories. Seeks, does not scan."""
        tiers: list[tuple[str, bool]] = []
        after = ""
        while rows := self._all("SELECT path FROM base WHERE path > ? ORDER BY path LIMIT 1", (after,)):
            tier, below, _ = str(rows[0][0]).partition("/")
            tiers.append((tier, bool(below)))
            after = tier + "0" if below else tier
        return tiers

    def holds(self, tier: str) -> bool:
        """Whether base calls anything present that is this top name, or lies below it."""
        sql = "SELECT 1 FROM base WHERE (path = ? OR (path > ? AND path < ?)) AND present = 1 LIMIT 1"
        return bool(self._all(sql, (tier, tier + "/", tier + "0")))

    def folded(self, path: str) -> list[str]:
        """Other paths that base knows and a case-insensitive file system cannot tell from `path`."""
        return [str(p) for (p,) in self._all("SELECT path FROM base WHERE fold = ? AND path <> ?", (fold(path), path))]

    def overlapping(self, path: str) -> list[str]:
        """Paths in base that are a directory above `path` or a file below it."""
        marks = ",".join("?" * len(ancestors(path)))
        below = "SELECT * FROM (SELECT path FROM base WHERE path > ? AND path < ? LIMIT 1)"
        sql = f"SELECT path FROM base WHERE path IN ({marks}) UNION ALL {below}"
        return [str(p) for (p,) in self._all(sql, (*ancestors(path), path + "/", path + "0"))]

    # -- staged, deferred

    def staged_for(self, path: str) -> list[StagedRow]:
        sql = "SELECT key, path, sha256, size, gc_epoch FROM staged WHERE path = ?"
        return [StagedRow(*r) for r in self._all(sql, (path,))]  # type: ignore[arg-type]

    def staged_paths(self) -> frozenset[str]:
        """Paths with an upload that no record has retired: usually none, so that nobody need ask for each path."""
        return frozenset(str(p) for (p,) in self._all("SELECT DISTINCT path FROM staged"))

    def staged_keys(self) -> frozenset[str]:
        return frozenset(str(k) for (k,) in self._all("SELECT key FROM staged"))

    def deferred(self) -> dict[str, Row | None]:
        """Paths that a pull could not bring, with what the root said of them then."""
        return {str(p): decode_row(str(p), str(r)) for p, r in self._all("SELECT path, remote FROM deferred")}

    def deferred_below(self, prefix: str) -> list[tuple[Entry, str]]:
        """Files below the directory `prefix` that a pull could not bring, in path order, each with the reason."""
        sql = "SELECT path, remote, reason FROM deferred WHERE path > ? AND path < ? ORDER BY path"
        rows = ((decode_row(str(p), str(r)), str(why)) for p, r, why in self._all(sql, (prefix + "/", prefix + "0")))
        return [(row, why) for row, why in rows if isinstance(row, Entry)]

    def deferred_empty(self) -> bool:
        return not self._all("SELECT 1 FROM deferred LIMIT 1")

    # -- meta, touched

    def meta(self, name: str) -> str | None:
        rows = self._all("SELECT value FROM meta WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def touched_since(self, mark: int) -> tuple[int, tuple[str, ...] | None]:
        newest = whole(self._all("SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'touched'), 0)")[0][0])
        oldest = whole(self._all("SELECT COALESCE(MIN(n), ?) FROM touched", (newest + 1,))[0][0])
        if mark > newest or mark + 1 < oldest:
            return newest, None
        paths = self._all("SELECT DISTINCT path FROM touched WHERE n > ?", (mark,))
        return newest, tuple(str(p) for (p,) in paths)


def _connect(path: Path, durable: bool) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL" if durable else "PRAGMA journal_mode = MEMORY")
    db.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = OFF")
    if _version(db) != SCHEMA_VERSION:
        db.execute("BEGIN IMMEDIATE")  # two processes may open a new cache at once: the second finds it made
        if _version(db) != SCHEMA_VERSION:
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                if not name.startswith("sqlite_"):
                    db.execute(f'DROP TABLE "{name}"')
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    return db


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _explained(error: sqlite3.OperationalError, path: Path | None) -> Failed:
    where = f" at {path}" if path else ""
    return Failed(
        f"the cache's state database{where} cannot be used: {error}",
        hint="check free space and permissions of the cache directory (swamp datastore status shows it)",
    )
