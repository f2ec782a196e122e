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
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from swamp.cache.begin import (
    begun_again,
    closed_on_failure,
    connect,
    explained,
    inode_of,
    is_damage,
    is_sound,
    left_of,
    note_left,
)
from swamp.cache.paths import ancestors, fold
from swamp.cache.rows import (
    BASE_COLUMNS,
    META,
    BaseRow,
    JournalKind,
    JournalRow,
    Pending,
    StagedRow,
    Transaction,
    base_row,
    decode_row,
    journal_row,
    meta_value,
    whole,
)
from swamp.cache.second import BEHIND_ALL, REMEMBERED, Remembered
from swamp.errors import Failed, SwampError
from swamp.index.entry import Entry, Row

Hook = Callable[[str], None]
"""Called as `begin`, `commit`, `done` around each transaction: the simulator's place to interleave and to crash."""

_PENDING: Final = """SELECT CASE WHEN kind IN ('write', 'delete') THEN kind ELSE 'found' END AS kind,
COUNT(DISTINCT path) FROM journal GROUP BY 1"""


def _no_hook(point: str) -> None:
    del point


class StateRebuilt(Failed):
    """A statement met a damaged page: the file was set aside and begun again. Whoever asked asks once more, and what
    was concluded from earlier answers is concluded anew."""


T = TypeVar("T")
P = ParamSpec("P")


def once_more(work: Callable[P, T]) -> Callable[P, T]:
    """`work` that is done again, once, if it met damage: for what concludes everything from the state anew.

    inv[state.checked]
    """

    @wraps(work)
    def again(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return work(*args, **kwargs)
        except StateRebuilt:
            return work(*args, **kwargs)

    return again


class State:
    """One connection to state.db, shared by the threads of a process."""

    def __init__(self, connection: sqlite3.Connection, hook: Hook, path: Path, durable: bool) -> None:
        self.path = path
        self._db = connection
        self._lock = threading.RLock()
        self._hook = hook
        self._durable = durable
        self._file = inode_of(path)

    @classmethod
    def open(cls, path: Path, hook: Hook = _no_hook, *, durable: bool = True) -> State:
        """Opens or creates; a damaged file is set aside, which costs a full comparison. inv[state.checked]"""
        try:
            opened = connect(path, durable)
            with closed_on_failure(opened):
                if is_sound(opened, path):
                    return cls(opened, hook, path, durable)
            opened.close()
        except sqlite3.OperationalError as error:
            if not is_damage(error):
                raise explained(error, path) from error
        except sqlite3.DatabaseError:
            pass
        return cls(begun_again(path, durable), hook, path, durable)

    def close(self) -> None:
        """Closes it, and notes what the file looks like: who opens it next checks only one that was changed since."""
        self._db.close()
        note_left(self.path)

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
            except sqlite3.DatabaseError as error:
                raise self._told(error) from error
        self._hook("done")

    def _told(self, error: sqlite3.DatabaseError) -> Failed:
        """What to raise for it. A statement that shows damage has the file set aside and begun again at once, unless
        another process or thread has done that already. inv[state.checked]"""
        if not is_damage(error):
            return explained(error, self.path)
        with self._lock:
            self._db.close()  # first: closing removes a write-ahead log by its name
            if inode_of(self.path) == self._file:
                self._db = begun_again(self.path, self._durable)
            else:
                self._db = connect(self.path, self._durable)
            self._file = inode_of(self.path)
        left_of(self.path).unlink(missing_ok=True)
        return StateRebuilt(
            f"the cache's state database was damaged ({error}) and is begun again",
            hint="run it again: the next sync compares everything",
        )

    def _all(self, sql: str, args: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, args).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._told(error) from error

    def _read(self, values: Callable[[], T]) -> T:
        """What is made of cells; one that nobody of us wrote is damage like a page that is no page."""
        try:
            return values()
        except sqlite3.DatabaseError as error:
            raise self._told(error) from error

    def _stream(self, sql: str, args: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """Rows in small pages of one cursor, so that a million of them never stand in memory."""
        cursor = self._page(lambda: self._db.cursor().execute(sql, args))
        while page := self._page(lambda: cursor.fetchmany(1000)):
            yield from page

    def _page(self, step: Callable[[], T]) -> T:
        with self._lock:
            try:
                return step()
            except sqlite3.ProgrammingError as error:  # the connection it reads from was closed under it
                raise StateRebuilt("the cache's state database was begun again meanwhile") from error
            except sqlite3.DatabaseError as error:
                raise self._told(error) from error

    # -- announce

    def announce(self, paths: Iterable[str], kind: JournalKind, *, confirmed: bool = False) -> None:
        """Rows on disk; the cost does not grow with the journal. inv[journal.first]"""
        self._announce(list(paths), kind, confirmed)

    @once_more
    def _announce(self, paths: Sequence[str], kind: JournalKind, confirmed: bool) -> None:
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
        after, until = sql.format(">="), stop or BEHIND_ALL
        while page := self._all(after, (start, until)):
            yield from map(base_row, page)
            after, start = sql.format(">"), str(page[-1][0])

    def base_every(self, step: int) -> Iterator[str]:
        """The first path and every `step`-th after it, in order: where the table can be cut into equal parts."""
        sql = "SELECT path FROM base WHERE path >= ? ORDER BY path LIMIT 1 OFFSET ?"
        found = self._all(sql, ("", 0))
        while found:
            path = str(found[0][0])
            yield path
            found = self._all(sql, (path, step))

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

    def directories(self, prefix: str) -> list[Remembered]:
        """The directories at or below `prefix` that have held a file of base, with the stat that is remembered."""
        if not prefix:
            return self.directories_between("")
        sql = f"{REMEMBERED} WHERE path = ? OR (path > ? AND path < ?)"
        return self._all(sql, (prefix, prefix + "/", prefix + "0"))  # type: ignore[return-value]

    def directories_between(self, start: str, stop: str = BEHIND_ALL) -> list[Remembered]:
        """The same with `start <= path < stop`."""
        return self._all(f"{REMEMBERED} WHERE path >= ? AND path < ?", (start, stop))  # type: ignore[return-value]

    def last_directories(self, before: str, count: int) -> list[Remembered]:
        """The last so many before a path, backwards."""
        sql = f"{REMEMBERED} WHERE path < ? ORDER BY path DESC LIMIT ?"
        return self._all(sql, (before, count))  # type: ignore[return-value]

    def directories_among(self, paths: Sequence[str]) -> list[Remembered]:
        """The same, of these."""
        sql = f"{REMEMBERED} WHERE path IN (SELECT value FROM json_each(?))"
        return self._all(sql, (json.dumps(paths),)) if paths else []  # type: ignore[return-value]

    def present_in(self, directory: str) -> list[str]:
        """The files directly in a directory that base calls present."""
        start, stop = (directory + "/", directory + "0") if directory else ("", BEHIND_ALL)
        sql = "SELECT path FROM base WHERE path > ? AND path < ? AND present = 1 AND instr(substr(path, ?), '/') = 0"
        return [str(p) for (p,) in self._all(sql, (start, stop, len(start) + 1))]

    def deleted_among(self, paths: Sequence[str]) -> set[str]:
        """Those of these paths whose deletion was announced."""
        return {str(p) for (p,) in self._all("SELECT DISTINCT path FROM journal WHERE kind = 'delete'")} & set(paths)

    def base_keys(self) -> Iterator[str]:
        return (str(key) for (key,) in self._stream("SELECT key FROM base"))

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
        found = self._all("SELECT path, remote FROM deferred")
        return self._read(lambda: {str(p): decode_row(str(p), str(r)) for p, r in found})

    def deferred_below(self, prefix: str) -> list[tuple[Entry, str]]:
        """Files below the directory `prefix` that a pull could not bring, in path order, each with the reason."""
        sql = "SELECT path, remote, reason FROM deferred WHERE path > ? AND path < ? ORDER BY path"
        span = (prefix + "/", prefix + "0") if prefix else ("", BEHIND_ALL)
        found = self._all(sql, span)
        rows = self._read(lambda: [(decode_row(str(p), str(r)), str(why)) for p, r, why in found])
        return [(row, why) for row, why in rows if isinstance(row, Entry)]

    def deferred_empty(self) -> bool:
        return not self._all("SELECT 1 FROM deferred LIMIT 1")

    def faults(self) -> list[str]:
        """What a look at every page says is wrong; empty if nothing is."""
        try:
            found = self._all("PRAGMA integrity_check(5)")
        except SwampError as error:
            return [error.message]
        return [] if found == [("ok",)] else [" ".join(str(row[0]).split()) for row in found]

    # -- meta, touched

    def meta(self, name: str) -> str | None:
        return self._read(lambda: meta_value(name, self._all(META, (name,))))

    def touched_since(self, mark: int) -> tuple[int, tuple[str, ...] | None]:
        newest = whole(self._all("SELECT COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'touched'), 0)")[0][0])
        oldest = whole(self._all("SELECT COALESCE(MIN(n), ?) FROM touched", (newest + 1,))[0][0])
        if mark > newest or mark + 1 < oldest:
            return newest, None
        paths = self._all("SELECT DISTINCT path FROM touched WHERE n > ?", (mark,))
        return newest, tuple(str(p) for (p,) in paths)
