"""The values of a Parquet column, a few at a time: the encodings that segments are written in, and no others.

In Python on purpose (docs/decisions/0018-segments-without-pyarrow.md): Arrow's readers end the process, or fill the
memory, when a page contradicts itself. Here a lie is a ValueError or a LookupError, whatever it is about.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, repeat
from operator import add, gt
from typing import Any, Final

from swamp.index.footer import BOOLEAN, BYTE_ARRAY, INT64, Column, RowGroup
from swamp.index.pages import DATA_V2, DICTIONARY, PageHeader, pages
from swamp.index.source import Raw
from swamp.index.thrift import Reader

MAX_TEXT: Final = 64 << 10
"""Of a text that is written once for many rows: in a dictionary, or as a beginning that others share."""
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 0, 2, 3, 7, 8


def values(raw: Raw, group: RowGroup, column: Column) -> Iterator[Any]:
    """The values of a column in a row group, None where there is none; read as they are asked for."""
    return chain.from_iterable(_pages(raw, group, column))


def _pages(raw: Raw, group: RowGroup, column: Column) -> Iterator[Iterable[Any]]:
    dictionary: list[Any] | None = None
    left = group.rows
    for page, levels, body in pages(raw, group, column):
        if page.kind == DICTIONARY:
            if dictionary is not None or page.encoding not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ValueError("a dictionary that makes no sense")
            dictionary = list(_plain(body, 0, page.values, column.kind))
            if column.kind == BYTE_ARRAY and max(map(len, dictionary), default=0) > MAX_TEXT:
                raise ValueError("a text of impossible length")
            continue
        left -= page.values
        yield _page(page, levels, body, column, dictionary)
    if left:
        raise ValueError("a column with other rows than its group")


def _page(page: PageHeader, levels: bytes, body: bytes, column: Column, dictionary: list[Any] | None) -> Iterable[Any]:
    """One page's values in their places."""
    at, there = 0, page.values
    present: list[int] | None = None
    if not column.required:
        if page.kind == DATA_V2:
            present = hybrid(levels, 0, len(levels), 1, page.values)
        else:
            at = 4 + int.from_bytes(body[:4], "little")
            present = hybrid(body, 4, at, 1, page.values)
        there = sum(present)
    if not there:
        return repeat(None, page.values)
    found = _encoded(page.encoding, body, at, there, column.kind, dictionary)
    return found if present is None or there == page.values else _placed(present, iter(found))


def _placed(present: list[int], found: Iterator[Any]) -> Iterator[Any]:
    return (next(found) if here else None for here in present)


def _encoded(encoding: int, body: bytes, at: int, count: int, kind: int, dictionary: list[Any] | None) -> Iterable[Any]:
    if encoding == _PLAIN:
        return _plain(body, at, count, kind)
    if encoding in (_RLE_DICTIONARY, _PLAIN_DICTIONARY) and dictionary is not None:
        return map(dictionary.__getitem__, hybrid(body, at + 1, len(body), body[at], count))
    if encoding == _DELTA_BYTE_ARRAY and kind == BYTE_ARRAY:
        return _shared(body, at, count)
    if encoding == _RLE and kind == BOOLEAN:
        end = at + 4 + int.from_bytes(body[at : at + 4], "little")
        return map(bool, hybrid(body, at + 4, end, 1, count))
    raise ValueError("a column that is encoded as no segment is")


def _plain(body: bytes, at: int, count: int, kind: int) -> Iterable[Any]:
    if kind == INT64:
        return struct.unpack_from(f"<{count}q", body, at) if len(body) >= at + 8 * count else _short()
    if kind == BOOLEAN:
        return map(bool, _unpacked(body[at : at + (count + 7) // 8], 1, count))
    if kind == BYTE_ARRAY:
        return _texts(body, at, count)
    raise ValueError("a column of another type")


def _short() -> Any:
    raise ValueError("a page that ends too early")


def _texts(body: bytes, at: int, count: int) -> Iterator[str]:
    """Each with its length in front of it."""
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "little")
        if start > len(body) or at > len(body):
            raise ValueError("a page that ends too early")
        yield body[start:at].decode()


def _shared(body: bytes, at: int, count: int) -> Iterator[str]:
    """Each as what it shares with the one before, and the rest: lengths first, then what is not shared."""
    reader = Reader(body, at)
    shared, own = _deltas(reader, count), _deltas(reader, count)
    whole = list(map(add, shared, own))
    if min(shared) < 0 or min(own) < 0 or max(whole) > MAX_TEXT:
        raise ValueError("a text of impossible length")
    if shared[0] or any(map(gt, shared[1:], whole)):
        raise ValueError("a text that shares more than there is")
    rest = body[reader.at :]
    if sum(own) > len(rest):
        raise ValueError("a page that ends too early")
    ends = zip(shared, accumulate(own, initial=0), accumulate(own), strict=False)
    return _told(ends, rest.decode()) if rest.isascii() else _decoded(ends, rest)


def _told(ends: Iterable[tuple[int, int, int]], rest: str) -> Iterator[str]:
    last = ""
    for same, start, end in ends:
        last = last[:same] + rest[start:end]
        yield last


def _decoded(ends: Iterable[tuple[int, int, int]], rest: bytes) -> Iterator[str]:
    """The same for what is not ASCII: a letter may be cut where two texts begin to differ."""
    last = b""
    for same, start, end in ends:
        last = last[:same] + rest[start:end]
        yield last.decode()


def _deltas(reader: Reader, count: int) -> list[int]:
    """Numbers as the difference to the one before, in blocks of a common width."""
    block, parts, told = reader.varint(), reader.varint(), reader.varint()
    first = reader.integer()
    if not 0 < parts <= 512 or not 0 < block <= 65_536 or block % (8 * parts) or told != count:
        raise ValueError("a page with other lengths than values")
    found, each = [first], block // parts
    while len(found) < count:
        least, widths = reader.integer(), reader.take(parts)
        for width in widths[: -((len(found) - count) // each)]:
            steps = _unpacked(reader.take(width * each // 8), width, min(each, count - len(found)))
            found += accumulate((step + least for step in steps[1:]), initial=found[-1] + steps[0] + least)
    return found


def hybrid(body: bytes, at: int, end: int, width: int, count: int) -> list[int]:
    """Small numbers as runs of one of them, and as rows of bits between the runs."""
    if end > len(body) or not 0 <= width <= 32:
        raise ValueError("a page that ends too early")
    reader, found = Reader(body[:end], at), list[int]()
    while len(found) < count:
        head = reader.varint()
        if not head >> 1:
            raise ValueError("a run of nothing")
        most = count - len(found)
        if head & 1:
            packed = reader.take(min((head >> 1) * width, end - reader.at))
            found += _unpacked(packed, width, min((head >> 1) * 8, most))
        else:
            found += repeat(int.from_bytes(reader.take((width + 7) // 8), "little"), min(head >> 1, most))
    return found


def _unpacked(packed: bytes, width: int, count: int) -> list[int]:
    """`count` numbers of `width` bits each, the lowest bits first."""
    if not width:
        return [0] * count
    if len(packed) * 8 < count * width or width > 64:
        raise ValueError("a page that ends too early")
    if width == 8:
        return list(packed[:count])
    mask, found = (1 << width) - 1, list[int]()
    shifts, each = range(0, 32 * width, width), 4 * width
    for at in range(0, (count * width + 7) // 8, each):  # 32 of them at a time: a number that is short to shift
        some = int.from_bytes(packed[at : at + each], "little")
        found += [some >> shift & mask for shift in shifts]
    return found[:count]
