"""state.db: what this cache was proven to hold, and what it still owes the bucket. SQLite, WAL, full sync.

Everything here can be lost and costs one full comparison, never shared data. inv[cache.disposable]
Nothing here says "clean": that is computed from these tables and the store. inv[sync.derived]
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from swamp.cache.files import Hint
from swamp.cache.paths import fold
from swamp.errors import Failed
from swamp.index.entry import Entry, Row, Tombstone

SCHEMA_VERSION: Final = 1
TOUCHED_KEPT: Final = 50_000
JournalKind = Literal["write", "delete", "found"]
Hook = Callable[[str], None]
"""Called as `begin`, `commit`, `done` around each transaction: the simulator's place to interleave and to crash."""

_SCHEMA = """
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


@dataclass(frozen=True, slots=True)
class BaseRow:
    """What this cache was proven to hold (`present`) or to know (remote-only) of one path."""

    path: str
    key: str
    size: int
    sha256: str | None
    seq: int
    present: bool
    hint: Hint | None = None


@dataclass(frozen=True, slots=True)
class JournalRow:
    id: int
    path: str
    kind: JournalKind
    confirmed: bool


@dataclass(frozen=True, slots=True)
class StagedRow:
    """A finished upload that no record has retired yet."""

    key: str
    path: str
    sha256: str
    size: int
    gc_epoch: int


@dataclass(frozen=True, slots=True)
class Pending:
    writes: int
    deletes: int
    found: int


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
        return [_journal_row(r) for r in self._all("SELECT id, path, kind, confirmed FROM journal ORDER BY id")]

    def journal_empty(self) -> bool:
        return not self._all("SELECT 1 FROM journal LIMIT 1")

    def pending(self) -> Pending:
        counts = {str(k): _int(n) for k, n in self._all(_PENDING)}
        return Pending(*(counts.get(k, 0) for k in ("write", "delete", "found")))

    # -- base

    def base(self, path: str) -> BaseRow | None:
        rows = self._all(f"SELECT {_BASE} FROM base WHERE path = ?", (path,))
        return _base_row(rows[0]) if rows else None

    def base_below(self, prefix: str = "") -> Iterator[BaseRow]:
        """Rows at or below the directory `prefix`, in path order."""
        if not prefix:
            rows = self._stream(f"SELECT {_BASE} FROM base ORDER BY path")
        else:
            sql = f"SELECT {_BASE} FROM base WHERE path = ? OR (path > ? AND path < ?) ORDER BY path"
            rows = self._stream(sql, (prefix, prefix + "/", prefix + "0"))
        return map(_base_row, rows)

    def base_between(self, start: str, stop: str | None = None) -> Iterator[BaseRow]:
        """Rows with `start <= path < stop`, in path order: how several readers share one table."""
        sql = f"SELECT {_BASE} FROM base WHERE path >= ? AND (? IS NULL OR path < ?) ORDER BY path"
        return map(_base_row, self._stream(sql, (start, stop, stop)))

    def base_columns(
        self, start: str, stop: str | None = None, length: int = 10_000
    ) -> Iterator[dict[str, tuple[object, ...]]]:
        """The same rows as `base_between`, as columns by name: no object per row, for who reads millions."""
        sql = f"SELECT {_BASE} FROM base WHERE path >= ? AND (? IS NULL OR path < ?) ORDER BY path"
        names = [name.strip() for name in _BASE.split(",")]
        for page in self._pages(sql, (start, stop, stop), length):
            yield dict(zip(names, zip(*page, strict=True), strict=True))

    def remote_only(self, prefix: str = "") -> Iterator[BaseRow]:
        """Files known and not held, in path order, less those whose deletion waits for a push."""
        gone = "EXISTS (SELECT 1 FROM journal WHERE journal.path = base.path AND kind = 'delete')"
        sql = f"SELECT {_BASE} FROM base WHERE present = 0 AND NOT {gone}"
        if not prefix:
            return map(_base_row, self._stream(f"{sql} ORDER BY path"))
        below = f"{sql} AND (path = ? OR (path > ? AND path < ?)) ORDER BY path"
        return map(_base_row, self._stream(below, (prefix, prefix + "/", prefix + "0")))

    def base_count(self) -> tuple[int, int, int]:
        """Files present, their bytes, files that are remote-only."""
        sql = "SELECT SUM(present), SUM(size * present), SUM(1 - present) FROM base"
        files, size, remote = self._all(sql)[0]
        return _int(files or 0), _int(size or 0), _int(remote or 0)

    def base_rows(self) -> int:
        return _int(self._all("SELECT COUNT(*) FROM base")[0][0])

    def has_base(self) -> bool:
        return bool(self._all("SELECT 1 FROM base LIMIT 1"))

    def present_tiers(self) -> list[str]:
        """Top names that are, or hold, a file which base calls present: they must exist. Seeks, does not scan."""
        tiers: list[str] = []
        after = ""
        while rows := self._all("SELECT path FROM base WHERE path > ? AND present = 1 ORDER BY path LIMIT 1", (after,)):
            tier, below, _ = str(rows[0][0]).partition("/")
            tiers.append(tier)
            after = tier + "0" if below else tier
        return tiers

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

    def deferred_empty(self) -> bool:
        return not self._all("SELECT 1 FROM deferred LIMIT 1")

    # -- meta, touched

    def meta(self, name: str) -> str | None:
        rows = self._all("SELECT value FROM meta WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def touched_since(self, mark: int) -> tuple[int, tuple[str, ...] | None]:
        newest = _int(self._all("SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'touched'), 0)")[0][0])
        oldest = _int(self._all("SELECT COALESCE(MIN(n), ?) FROM touched", (newest + 1,))[0][0])
        if mark > newest or mark + 1 < oldest:
            return newest, None
        paths = self._all("SELECT DISTINCT path FROM touched WHERE n > ?", (mark,))
        return newest, tuple(str(p) for (p,) in paths)


class Transaction:
    """Writes inside one `State.transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def announce(self, paths: Iterable[str], kind: JournalKind, *, confirmed: bool = False) -> None:
        rows = list(paths)
        sql = "INSERT INTO journal (path, kind, confirmed) VALUES (?, ?, ?)"
        self._db.executemany(sql, [(p, kind, int(confirmed)) for p in rows])
        self.touch(rows)

    def drop_journal(self, ids: Iterable[int]) -> None:
        self._db.executemany("DELETE FROM journal WHERE id = ?", [(i,) for i in ids])

    def drop_journal_of(self, paths: Iterable[str]) -> None:
        self._db.executemany("DELETE FROM journal WHERE path = ?", [(p,) for p in paths])

    def drop_all_deletes(self) -> None:
        self._db.execute("DELETE FROM journal WHERE kind = 'delete'")

    def confirm_deletes(self) -> None:
        self._db.execute("UPDATE journal SET confirmed = 1 WHERE kind = 'delete'")

    def newer_row_over(self, path: str, after: int, own: Own = (0, 0)) -> bool:
        """Whether a row later than `after`, and not my own, stands on `path`, above it or below it."""
        names = (path, *ancestors(path))
        marks = ",".join("?" * len(names))
        sql = f"SELECT 1 FROM journal WHERE {_LATER} AND (path IN ({marks}) OR (path > ? AND path < ?)) LIMIT 1"
        args = (after, *own, *names, path + "/", path + "0")
        return self._db.execute(sql, args).fetchone() is not None

    def is_deleted(self, path: str) -> bool:
        """Whether the user has deleted `path` here and no push has said so yet."""
        sql = "SELECT 1 FROM journal WHERE path = ? AND kind = 'delete' LIMIT 1"
        return self._db.execute(sql, (path,)).fetchone() is not None

    def rows_after(self, after: int, own: Own = (0, 0)) -> bool:
        """Whether anything at all was announced since, by somebody else."""
        row = self._db.execute(f"SELECT 1 FROM journal WHERE {_LATER} LIMIT 1", (after, *own)).fetchone()
        return row is not None

    def last_row(self) -> int:
        """The newest number that the journal ever gave."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
        return int(row[0]) if row else 0

    def base(self, path: str) -> BaseRow | None:
        row = self._db.execute(f"SELECT {_BASE} FROM base WHERE path = ?", (path,)).fetchone()
        return _base_row(row) if row else None

    def bases(self, paths: Sequence[str]) -> dict[str, BaseRow]:
        """The rows of these paths, asked for a few hundred at a time."""
        found: dict[str, BaseRow] = {}
        for start in range(0, len(paths), _ASKED_AT_ONCE):
            some = paths[start : start + _ASKED_AT_ONCE]
            sql = f"SELECT {_BASE} FROM base WHERE path IN ({','.join('?' * len(some))})"
            for row in map(_base_row, self._db.execute(sql, some).fetchall()):
                found[row.path] = row
        return found

    def put_base(self, row: BaseRow) -> None:
        self.put_bases((row,))

    def put_bases(self, rows: Iterable[BaseRow]) -> None:
        sql = f"INSERT OR REPLACE INTO base ({_BASE}, fold) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._db.executemany(sql, map(_base_values, rows))

    def hold(self, rows: Sequence[BaseRow]) -> None:
        """Base says so now: no upload of these paths is open any more, and nothing of them is owed."""
        self.put_bases(rows)
        paths = [(row.path,) for row in rows]
        self._db.executemany("DELETE FROM staged WHERE path = ?", paths)
        self._db.executemany("DELETE FROM deferred WHERE path = ?", paths)

    def drop_base(self, path: str) -> None:
        self._db.execute("DELETE FROM base WHERE path = ?", (path,))

    def void_base(self) -> None:
        """Another store's truth says nothing here. inv[state.bound]"""
        for table in ("base", "staged", "deferred"):
            self._db.execute(f"DELETE FROM {table}")

    def put_staged(self, rows: Iterable[StagedRow]) -> None:
        sql = "INSERT OR REPLACE INTO staged (key, path, sha256, size, gc_epoch) VALUES (?, ?, ?, ?, ?)"
        self._db.executemany(sql, [(r.key, r.path, r.sha256, r.size, r.gc_epoch) for r in rows])

    def drop_staged(self, key: str) -> None:
        self._db.execute("DELETE FROM staged WHERE key = ?", (key,))

    def drop_staged_for(self, path: str) -> None:
        self._db.execute("DELETE FROM staged WHERE path = ?", (path,))

    def defer(self, path: str, remote: Row | None, reason: str) -> None:
        sql = "INSERT OR REPLACE INTO deferred (path, remote, reason) VALUES (?, ?, ?)"
        self._db.execute(sql, (path, encode_row(remote), reason))

    def deferred_paths(self) -> list[str]:
        return [str(p) for (p,) in self._db.execute("SELECT path FROM deferred").fetchall()]

    def undefer(self, path: str) -> None:
        self._db.execute("DELETE FROM deferred WHERE path = ?", (path,))

    def set_meta(self, name: str, value: str | None) -> None:
        if value is None:
            self._db.execute("DELETE FROM meta WHERE name = ?", (name,))
        else:
            self._db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))

    def meta(self, name: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return str(row[0]) if row else None

    def touch(self, paths: Iterable[str]) -> None:
        """Tells the catalog. Old marks are forgotten: a catalog that is that far behind rebuilds itself."""
        before = self._last_touched()
        self._db.executemany("INSERT INTO touched (path) VALUES (?)", [(path,) for path in paths])
        last = self._last_touched()
        if last // 1000 > before // 1000:
            self._db.execute("DELETE FROM touched WHERE n <= ?", (last - TOUCHED_KEPT,))

    def _last_touched(self) -> int:
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'touched'").fetchone()
        return int(row[0]) if row else 0


Own = tuple[int, int]
"""A range of journal rows that the asking sync wrote itself."""
_ASKED_AT_ONCE = 500
_PENDING = "SELECT kind, COUNT(DISTINCT path) FROM journal GROUP BY kind"
_LATER = "id > ? AND NOT id BETWEEN ? AND ?"
_BASE = "path, key, size, sha256, seq, present, h_size, h_mtime, h_ctime, h_inode"


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


def ancestors(path: str) -> tuple[str, ...]:
    """The directories above `path`: `a/b/c` -> `a`, `a/b`."""
    parts = path.split("/")
    return tuple("/".join(parts[:i]) for i in range(1, len(parts)))


def encode_row(row: Row | None) -> str:
    match row:
        case None:
            return "null"
        case Entry():
            return json.dumps(["e", row.key, row.size, row.sha256, row.last_modified, row.seq, row.missing, row.extra])
        case Tombstone():
            return json.dumps(["t", row.key, row.size, row.sha256, row.seq])


def decode_row(path: str, text: str) -> Row | None:
    doc = json.loads(text)
    if doc is None:
        return None
    kind, *fields = doc
    return Entry(path, *fields) if kind == "e" else Tombstone(path, *fields)


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def _journal_row(row: tuple[object, ...]) -> JournalRow:
    number, path, kind, confirmed = row
    return JournalRow(_int(number), str(path), kind, bool(confirmed))  # type: ignore[arg-type]


def _base_values(row: BaseRow) -> tuple[object, ...]:
    h = row.hint
    hint = (h.size, h.mtime_ns, h.ctime_ns, h.inode) if h else _NO_HINT
    return (row.path, row.key, row.size, row.sha256, row.seq, int(row.present), *hint, fold(row.path))


_NO_HINT = (None,) * 4


def _base_row(row: tuple[object, ...]) -> BaseRow:
    path, key, size, sha, seq, present, *hint = row
    known = None if hint[0] is None else Hint(*(_int(h) for h in hint))
    return BaseRow(str(path), str(key), _int(size), sha and str(sha), _int(seq), bool(present), known)  # type: ignore[arg-type]
