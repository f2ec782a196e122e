"""What a Parquet file claims, checked against its bytes before Arrow believes it. inv[segment.bounded]

Arrow makes room for whatever a header announces: 2 GiB for a page, as much for a list of counts, and a thousand copies
of one long value. A segment comes from a bucket into which others may write; so every page header of the groups that
are wanted is read here first, and a batch has as few rows as its longest possible value asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from swamp.index.footer import BYTE_ARRAY, ZSTD, Column, Group
from swamp.index.thrift import Reader, Struct
from swamp.values import value

if TYPE_CHECKING:
    import pyarrow as pa

MAX_PAGE: Final = 32 << 20
MAX_GROUP: Final = 256 << 20
MAX_BATCH: Final = 192 << 20
"""Bytes that the values of one column may take in a batch, if they are as long as the pages allow."""
MAX_TEXT: Final = 64 << 10
_HEADER: Final = 64 << 10
_DELTA_BYTE_ARRAY: Final = 7
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3


@value
class Claims:
    """What may be read: so many rows at once, and these columns as dictionaries (a value is not repeated in memory)."""

    batch_rows: int
    dictionaries: frozenset[str]


@value
class Page:
    kind: int
    unpacked: int
    packed: int
    values: int
    encoding: int
    start: int
    """Where its bytes begin, after the header."""
    levels: int
    """Bytes of levels in front of the values, never compressed (version 2 only)."""


def inspect(raw: Any, groups: Iterable[Group], rows: int) -> Claims:
    """Raises ValueError or LookupError if a page of these row groups claims what its bytes cannot hold."""
    longest, dictionaries = 1, set()
    for group in groups:
        for column in group.columns:
            for page in _pages(raw, group, column):
                if page.kind == _DICTIONARY and column.kind == BYTE_ARRAY:
                    dictionaries.add(column.name)
                if page.encoding == _DELTA_BYTE_ARRAY:
                    _check_counts(_values(raw, page, column), page.values)
                    longest = max(longest, page.unpacked)
    return Claims(max(1, min(rows, MAX_BATCH // longest)), frozenset(dictionaries))


def written_out(batch: pa.RecordBatch, dictionaries: Iterable[str]) -> pa.RecordBatch:
    """The batch without dictionaries. One with a very long value is refused: it would be repeated for each row."""
    import pyarrow.compute as pc

    for name in dictionaries:
        column = batch.column(name)
        longest = pc.max(pc.binary_length(column.dictionary)).as_py() or 0
        if longest > MAX_TEXT:
            raise ValueError("a text of impossible length")
        batch = batch.set_column(batch.schema.get_field_index(name), name, column.dictionary_decode())
    return batch


def _pages(raw: Any, group: Group, column: Column) -> Iterator[Page]:
    """Every page of a column chunk, by the headers that Arrow will read."""
    at, unpacked = column.start, 0
    if not 0 < at <= column.end <= raw.size():
        raise ValueError("a column outside its file")
    while at < column.end:
        page = _page(raw, at, column.end)
        _check(page, group.rows)
        at, unpacked = page.start + page.packed, unpacked + page.unpacked
        if at > column.end or unpacked > MAX_GROUP:
            raise ValueError("pages that are larger than their column")
        yield page


def _page(raw: Any, at: int, end: int) -> Page:
    for room in (256, _HEADER):
        reader = Reader(raw.read_at(min(room, end - at), at))
        try:
            return _page_of(reader.struct(), at + reader.at)
        except (IndexError, ValueError):  # cut off within a text: a longer look, and then it is no header
            if room == _HEADER:
                raise
    raise ValueError("a page without a header")


def _page_of(told: Struct, start: int) -> Page:
    kind = told.integer(1)
    more = told.struct({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}[kind])
    levels = more.integer(5) + more.integer(6) if kind == _DATA_V2 else 0
    encoding = more.integer(4 if kind == _DATA_V2 else 2)
    return Page(kind, told.integer(2), told.integer(3), more.integer(1), encoding, start, levels)


def _check(page: Page, rows: int) -> None:
    if page.packed < 0 or not 0 <= page.levels <= page.unpacked <= MAX_PAGE:
        raise ValueError("a page of impossible size")
    most = page.unpacked // 4 if page.kind == _DICTIONARY else rows  # a text takes four bytes for its length alone
    if not 0 <= page.values <= most:
        raise ValueError("a page with more values than it can hold")


def _values(raw: Any, page: Page, column: Column) -> Reader:
    """The bytes of a page of a required column: in version 1 there are no levels in front of them."""
    import pyarrow as pa

    if not column.required or column.codec not in (0, ZSTD):
        raise ValueError("a column that is packed as no segment is")
    body = raw.read_at(page.packed, page.start)[page.levels :]
    size = page.unpacked - page.levels
    return Reader(pa.decompress(body, size, codec="zstd", asbytes=True) if column.codec and size else body)


def _check_counts(reader: Reader, values: int) -> None:
    """Two lists of numbers, how much is shared with the value before and how much is new: neither claims too many."""
    for _ in range(2):
        block, parts, count = reader.varint(), reader.varint(), reader.varint()
        reader.varint()
        if not 0 < parts <= 512 or not 0 < block <= 65_536 or block % parts or count > values:
            raise ValueError("a page with more lengths than values")
        _skip_blocks(reader, parts, block // parts, count - 1)


def _skip_blocks(reader: Reader, parts: int, each: int, left: int) -> None:
    while left > 0:
        reader.varint()
        for width in reader.take(parts):
            if left > 0:
                reader.take(width * each // 8)
            left -= each
