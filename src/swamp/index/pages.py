"""The pages of a Parquet column, unpacked. What a page claims is compared with its bytes first. inv[segment.bounded]

A segment comes from a bucket into which others may write: no room is made for what a header only announces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from swamp.index.footer import ZSTD, Column, RowGroup
from swamp.index.frames import expand
from swamp.index.source import Raw
from swamp.index.thrift import Reader, Struct
from swamp.values import value

MAX_PAGE: Final = 32 << 20
MAX_GROUP: Final = 256 << 20
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
_HEADER: Final = 64 << 10


@value
class PageHeader:
    """A page's header."""

    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int
    start: int
    """Where its bytes begin, after the header."""
    levels: int
    """Bytes of levels in front of the values, never compressed (version 2 only)."""
    compressed: bool


def pages(raw: Raw, group: RowGroup, column: Column) -> Iterator[tuple[PageHeader, bytes, bytes]]:
    """Every page of a column in a row group, with its levels (version 2 only) and its bytes."""
    if column.codec not in (0, ZSTD):
        raise ValueError("a column that is packed as no segment is")
    at, unpacked = column.start, 0
    if not 0 < at <= column.end <= raw.size:
        raise ValueError("a column outside its file")
    while at < column.end:
        page = _page(raw, at, column.end)
        _check(page, group.rows)
        at, unpacked = page.start + page.packed, unpacked + page.unpacked
        if at > column.end or unpacked > MAX_GROUP:
            raise ValueError("pages that are larger than their column")
        stored = raw.read_at(page.packed, page.start)
        yield page, stored[: page.levels], _body(page, column, stored[page.levels :])


def _body(page: PageHeader, column: Column, stored: bytes) -> bytes:
    """As it was before it was compressed: as many bytes as it says, or ValueError."""
    size = page.unpacked - page.levels
    if column.codec == ZSTD and page.compressed and stored:
        return expand(stored, size)
    if len(stored) != size:
        raise ValueError("a page of another size than it says")
    return stored


def _page(raw: Raw, at: int, end: int) -> PageHeader:
    for room in (256, _HEADER):
        reader = Reader(raw.read_at(min(room, end - at), at))
        try:
            return _page_of(reader.struct(), at + reader.at)
        except (IndexError, ValueError):  # cut off within a text: a longer look, and then it is no header
            if room == _HEADER:
                raise
    raise ValueError("a page without a header")


def _page_of(told: Struct, start: int) -> PageHeader:
    kind = told.integer(1)
    more = told.struct({DATA: 5, DICTIONARY: 7, DATA_V2: 8}[kind])
    levels = more.integer(5) + more.integer(6) if kind == DATA_V2 else 0
    encoding = more.integer(4 if kind == DATA_V2 else 2)
    compressed = kind != DATA_V2 or more.get(7, True) is True
    return PageHeader(kind, told.integer(2), told.integer(3), more.integer(1), encoding, start, levels, compressed)


def _check(page: PageHeader, rows: int) -> None:
    if page.packed < 0 or not 0 <= page.levels <= page.unpacked <= MAX_PAGE:
        raise ValueError("a page of impossible size")
    most = page.unpacked // 4 if page.kind == DICTIONARY else rows  # a text takes four bytes for its length alone
    if not 0 <= page.values <= most:
        raise ValueError("a page with more values than it can hold")
