"""The rows of state.db as values, and how each is read from a row of SQL and written to one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

from swamp.cache.files import Hint
from swamp.cache.paths import fold
from swamp.index.entry import Entry, Row, Tombstone

JournalKind = Literal["write", "delete", "found"]
Own = tuple[int, int]
"""A range of journal rows that the asking sync wrote itself."""

BASE_COLUMNS: Final = "path, key, size, sha256, seq, present, h_size, h_mtime, h_ctime, h_inode"
_NO_HINT: Final = (None,) * 4


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


def whole(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def journal_row(row: tuple[object, ...]) -> JournalRow:
    number, path, kind, confirmed = row
    return JournalRow(whole(number), str(path), kind, bool(confirmed))  # type: ignore[arg-type]


def base_values(row: BaseRow) -> tuple[object, ...]:
    h = row.hint
    hint = (h.size, h.mtime_ns, h.ctime_ns, h.inode) if h else _NO_HINT
    return (row.path, row.key, row.size, row.sha256, row.seq, int(row.present), *hint, fold(row.path))


def base_row(row: tuple[object, ...]) -> BaseRow:
    path, key, size, sha, seq, present, *hint = row
    known = None if hint[0] is None else Hint(*(whole(h) for h in hint))
    return BaseRow(str(path), str(key), whole(size), sha and str(sha), whole(seq), bool(present), known)  # type: ignore[arg-type]
