"""The rows of state.db as values, and how each is read from a row of SQL and written to one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final, Literal

from swamp.cache.files import Hint
from swamp.cache.paths import fold
from swamp.index.entry import Entry, Known, Row, Tombstone
from swamp.values import value

JournalKind = Literal["write", "delete", "found"]
Own = tuple[int, int]
"""A range of journal rows that the asking sync wrote itself."""

BASE_COLUMNS: Final = "path, key, size, sha256, seq, present, id, id_seq, h_size, h_mtime, h_ctime, h_inode"
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
    hint: Hint | None = None
    id: str = ""
    id_seq: int = 0

    @classmethod
    def of(cls, entry: Entry, sha256: str | None, present: bool, hint: Hint | None = None) -> BaseRow:
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
    doc = json.loads(text)
    if doc is None:
        return None
    kind, *fields = doc
    return Entry(path, *fields) if kind == "e" else Tombstone(path, *fields)


def whole(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def journal_row(row: tuple[object, ...]) -> JournalRow:
    number, path, kind, confirmed = row
    return JournalRow(whole(number), str(path), kind, bool(confirmed))  # type: ignore[arg-type]


def base_values(row: BaseRow) -> tuple[object, ...]:
    h = row.hint
    hint = (h.size, h.mtime_ns, h.ctime_ns, h.inode) if h else _NO_HINT
    identity = (row.id, row.id_seq)
    return (row.path, row.key, row.size, row.sha256, row.seq, int(row.present), *identity, *hint, fold(row.path))


def base_row(row: tuple[object, ...]) -> BaseRow:
    path, key, size, sha, seq, present, first, number, *hint = row
    known = None if hint[0] is None else Hint(*hint)  # type: ignore[arg-type]
    return BaseRow(path, key, size, sha, seq, bool(present), known, first, number)  # type: ignore[arg-type]
