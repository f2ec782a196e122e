"""The rows of state.db as values, and the one transaction that writes them: all of it or none."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Final, Literal

from swamp.cache.files import StatFingerprint
from swamp.cache.paths import ancestors, fold
from swamp.cache.second import Remembered
from swamp.index.entry import Entry, Known, Row, Tombstone
from swamp.values import value

JournalKind = Literal["write", "delete", "found"]
Own = tuple[int, int]
"""A range of journal rows that the asking sync wrote itself."""

BASE_COLUMNS: Final = "path, key, size, sha256, seq, present, id, id_seq, h_size, h_mtime, h_ctime, h_inode"
META: Final = "SELECT value FROM meta WHERE name = ?"
_NO_HINT: Final = (None,) * 4


@value
class BaseRow(Known):
    """What this cache was proven to hold (`present`) or to know (remote-only) of one path.

    `id` and `id_seq` as in an index row: which content it is, where its place does not say so. inv[pack.identity]
    """

    path: str
    key: str
    size: int
    sha256: str | None
    seq: int
    present: bool
    hint: StatFingerprint | None = None
    id: str = ""
    id_seq: int = 0

    @classmethod
    def of(cls, entry: Entry, sha256: str | None, present: bool, hint: StatFingerprint | None = None) -> BaseRow:
        """What the cache knows of `entry` once it holds it (`present`) or has left it in the bucket."""
        place = (entry.path, entry.key, entry.size, sha256, entry.seq)
        return cls(*place, present, hint, entry.id, entry.id_seq)

    def moved(self, entry: Entry) -> BaseRow:
        """The same content in the place that `entry` names. inv[pack.place-now]"""
        return replace(self, key=entry.key, seq=entry.seq, id=entry.id, id_seq=entry.id_seq)


@value
class JournalRow:
    id: int
    path: str
    kind: JournalKind
    confirmed: bool


@value
class StagedRow:
    """A finished upload that no record has retired yet."""

    key: str
    path: str
    sha256: str
    size: int
    gc_epoch: int


@value
class Pending:
    writes: int
    deletes: int
    found: int


def encode_row(row: Row | None) -> str:
    match row:
        case None:
            return "null"
        case Entry():
            told = (row.key, row.size, row.sha256, row.last_modified, row.seq, row.missing, row.extra)
            return json.dumps(["e", *told, row.id, row.id_seq])
        case Tombstone():
            return json.dumps(["t", row.key, row.size, row.sha256, row.seq, row.id, row.id_seq])


def decode_row(path: str, text: str) -> Row | None:
    """The row that `encode_row` wrote. Raises sqlite3.DatabaseError for anything else."""
    try:
        doc = json.loads(text)
        if doc is None:
            return None
        kind, *fields = doc
        return Entry(path, *fields) if kind == "e" else Tombstone(path, *fields)
    except (ValueError, TypeError) as error:
        raise sqlite3.DatabaseError(f"what is deferred of {path} is malformed") from error


_NUMBER: Final = re.compile("[0-9]{1,18}")
_FORMS: Final = {
    **dict.fromkeys(("pulledSeq", "readSeq", "readWaits", "seenFormat"), _NUMBER),
    "lastSyncAt": re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{3}Z"),
    "seenToken": re.compile("[^\\x00-\\x1f\\x7f]*"),
}


def meta_value(name: str, rows: Sequence[tuple[object, ...]]) -> str | None:
    """The one value that was selected. A form that we never write is damage that no page shows: raises
    sqlite3.DatabaseError. inv[state.checked]"""
    found = str(rows[0][0]) if rows else None
    if found is not None and name in _FORMS and not _FORMS[name].fullmatch(found):
        raise sqlite3.DatabaseError(f"{name} is malformed")
    return found


def whole(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def journal_row(row: tuple[object, ...]) -> JournalRow:
    """Of a kind that cannot be read only the path is known: somebody has to look there. inv[journal.survives]"""
    number, path, kind, confirmed = row
    known: JournalKind = kind if kind in ("write", "delete", "found") else "found"
    return JournalRow(whole(number), str(path), known, bool(confirmed))


def base_values(row: BaseRow) -> tuple[object, ...]:
    h = row.hint
    hint = (h.size, h.mtime_ns, h.ctime_ns, h.inode) if h else _NO_HINT
    identity = (row.id, row.id_seq)
    return (row.path, row.key, row.size, row.sha256, row.seq, int(row.present), *identity, *hint, fold(row.path))


def base_row(row: tuple[object, ...]) -> BaseRow:
    path, key, size, sha, seq, present, first, number, *hint = row
    known = None if hint[0] is None else StatFingerprint(*hint)  # type: ignore[arg-type]
    return BaseRow(path, key, size, sha, seq, bool(present), known, first, number)  # type: ignore[arg-type]


TOUCHED_KEPT: Final = 50_000
_ASKED_AT_ONCE: Final = 500
_INSERTED_AT_ONCE: Final = 64
_RUN: Final = 8
"""So many numbers in a row are worth a statement of their own."""
_LATER: Final = "id > ? AND NOT id BETWEEN ? AND ?"


class Transaction:
    """Writes inside one `State.transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def announce(self, paths: Iterable[str], kind: JournalKind, *, confirmed: bool = False) -> None:
        rows = list(paths)
        self._insert("INSERT INTO journal (path, kind, confirmed)", ((p, kind, int(confirmed)) for p in rows))
        self.touch(rows)

    def begin_again(self, rows: Iterable[JournalRow], mark: int) -> None:
        """A new state after a damaged one: with its announcements, and with marks that no catalog has seen yet."""
        values = ((r.path, r.kind, int(r.confirmed)) for r in rows)
        self._insert("INSERT INTO journal (path, kind, confirmed)", values)
        self._db.execute("INSERT INTO touched (n, path) VALUES (?, '')", (mark,))

    def drop_journal(self, ids: Iterable[int]) -> None:
        """These very rows: what one sync announced is numbered without a gap, and goes with one statement."""
        alone: list[int] = []
        for first, last in _runs(ids):
            if last - first < _RUN:
                alone += range(first, last + 1)
            else:
                self._db.execute("DELETE FROM journal WHERE id BETWEEN ? AND ?", (first, last))
        self._delete("journal", "id", alone)

    def drop_all_deletes(self) -> None:
        self._db.execute("DELETE FROM journal WHERE kind = 'delete'")

    def newer_row_over(self, path: str, after: int, own: Own = (0, 0)) -> bool:
        """Whether a row later than `after`, and not my own, stands on `path`, above it or below it."""
        names = (path, *ancestors(path))
        marks = ",".join("?" * len(names))
        sql = f"SELECT 1 FROM journal WHERE {_LATER} AND (path IN ({marks}) OR (path > ? AND path < ?)) LIMIT 1"
        return self._any(sql, (after, *own, *names, path + "/", path + "0"))

    def is_deleted(self, path: str) -> bool:
        """Whether the user has deleted `path` here and no push has said so yet."""
        return self._any("SELECT 1 FROM journal WHERE path = ? AND kind = 'delete' LIMIT 1", (path,))

    def rows_after(self, after: int, own: Own = (0, 0)) -> bool:
        """Whether anything at all was announced since, by somebody else."""
        return self._any(f"SELECT 1 FROM journal WHERE {_LATER} LIMIT 1", (after, *own))

    def _any(self, sql: str, args: Sequence[object]) -> bool:
        return self._db.execute(sql, args).fetchone() is not None

    def last_row(self, table: str = "journal") -> int:
        """The newest number that the journal, or another table, ever gave."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()
        return int(row[0]) if row else 0

    def base(self, path: str) -> BaseRow | None:
        return self.bases((path,)).get(path)

    def bases(self, paths: Sequence[str]) -> dict[str, BaseRow]:
        """The rows of these paths, asked for a few hundred at a time."""
        found: dict[str, BaseRow] = {}
        for start in range(0, len(paths), _ASKED_AT_ONCE):
            some = paths[start : start + _ASKED_AT_ONCE]
            sql = f"SELECT {BASE_COLUMNS} FROM base WHERE path IN ({','.join('?' * len(some))})"
            for row in map(base_row, self._db.execute(sql, some).fetchall()):
                found[row.path] = row
        return found

    def put_base(self, row: BaseRow) -> None:
        self.put_bases((row,))

    def put_bases(self, rows: Iterable[BaseRow]) -> None:
        self._insert(f"INSERT OR REPLACE INTO base ({BASE_COLUMNS}, fold)", map(base_values, rows))

    def _insert(self, into: str, rows: Iterable[Sequence[object]]) -> None:
        """Many rows to a statement: each one is a moment in which every other thread asks for the interpreter."""
        feed = iter(rows)
        while some := list(islice(feed, _INSERTED_AT_ONCE)):
            mark = f"({','.join('?' * len(some[0]))})"
            self._db.execute(f"{into} VALUES {','.join([mark] * len(some))}", list(chain.from_iterable(some)))

    def _delete(self, table: str, column: str, values: Iterable[object]) -> None:
        """Many rows to a statement, too."""
        feed = iter(values)
        while some := list(islice(feed, _ASKED_AT_ONCE)):
            self._db.execute(f"DELETE FROM {table} WHERE {column} IN ({','.join('?' * len(some))})", some)

    def hold(self, rows: Sequence[BaseRow]) -> None:
        """Base says so now: no upload of these paths is open any more, and nothing of them is owed."""
        self.put_bases(rows)
        held = {row.path for row in rows}
        for table in ("staged", "deferred"):
            listed = self._db.execute(f"SELECT path FROM {table} LIMIT ?", (len(held) * 2 + 1,)).fetchall()
            if not listed:
                continue
            if len(listed) <= len(held) * 2 and held.issuperset(path for (path,) in listed):
                self._db.execute(f"DELETE FROM {table}")  # SQLite empties a whole table without visiting its rows
            else:
                self._delete(table, "path", held)

    def drop_base(self, path: str) -> None:
        self._db.execute("DELETE FROM base WHERE path = ?", (path,))

    def void_base(self) -> None:
        """Another store's truth says nothing here. inv[state.bound]"""
        for table in ("base", "staged", "deferred"):
            self._db.execute(f"DELETE FROM {table}")

    def put_staged(self, rows: Iterable[StagedRow]) -> None:
        values = ((r.key, r.path, r.sha256, r.size, r.gc_epoch) for r in rows)
        self._insert("INSERT OR REPLACE INTO staged (key, path, sha256, size, gc_epoch)", values)

    def drop_staged(self, key: str) -> None:
        self._db.execute("DELETE FROM staged WHERE key = ?", (key,))

    def drop_staged_for(self, path: str) -> None:
        self._db.execute("DELETE FROM staged WHERE path = ?", (path,))

    def defer(self, path: str, remote: Row | None, reason: str) -> None:
        sql = "INSERT OR REPLACE INTO deferred (path, remote, reason) VALUES (?, ?, ?)"
        self._db.execute(sql, (path, encode_row(remote), reason))

    def is_deferred(self, path: str) -> bool:
        return self._any("SELECT 1 FROM deferred WHERE path = ?", (path,))

    def deferred_paths(self) -> list[str]:
        return [str(p) for (p,) in self._db.execute("SELECT path FROM deferred").fetchall()]

    def undefer(self, path: str) -> None:
        self._db.execute("DELETE FROM deferred WHERE path = ?", (path,))

    def remember_directories(self, rows: Iterable[Remembered]) -> None:
        self._insert("INSERT OR REPLACE INTO dirs (path, mtime, ctime, inode)", rows)

    def forget_directories(self, paths: Iterable[str]) -> None:
        self._delete("dirs", "path", paths)

    def set_meta(self, name: str, value: str | None) -> None:
        if value is None:
            self._db.execute("DELETE FROM meta WHERE name = ?", (name,))
        else:
            self._db.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value))

    def meta(self, name: str) -> str | None:
        return meta_value(name, self._db.execute(META, (name,)).fetchall())

    def touch(self, paths: Iterable[str]) -> None:
        """Tells the catalog. Old marks are forgotten: a catalog that is that far behind rebuilds itself."""
        before = self.last_row("touched")
        self._insert("INSERT INTO touched (path)", ((path,) for path in paths))
        last = self.last_row("touched")
        if last // 1000 > before // 1000:
            self._db.execute("DELETE FROM touched WHERE n <= ?", (last - TOUCHED_KEPT,))


def _runs(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of the numbers that follow each other without a gap."""
    ordered, first = sorted(set(ids)), 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] != ordered[end - 1] + 1:
            yield ordered[first], ordered[end - 1]
            first = end
