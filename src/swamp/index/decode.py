"""Decodes the pages and the values of a Parquet column: the encodings that segments are written in, and no others.

In Python on purpose (docs/decisions/0018-segments-without-pyarrow.md): Arrow's readers end the process, or fill the
memory, when a page contradicts itself. Here a lie is a ValueError or a LookupError, whatever it is about, and no room
is made for what a header only announces. inv[segment.bounded]
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, repeat
from operator import add, gt
from typing import Any, Final

from swamp.index.footer import BOOLEAN, BYTE_ARRAY, INT64, ZSTD, Column, Raw, Reader, RowGroup, Struct
from swamp.index.frames import expand
from swamp.values import value

MAX_PAGE: Final = 32 << 20
MAX_GROUP: Final = 256 << 20
DATA, DICTIONARY, DATA_V2 = 0, 2, 3
_HEADER: Final = 64 << 10


@value
class PageHeader:
    """What stands before a page's bytes."""

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
        page = _header(raw, at, column.end)
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


def _header(raw: Raw, at: int, end: int) -> PageHeader:
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


def values_naming(raw: Raw, group: RowGroup, column: Column, name: str) -> Iterator[str]:
    """The sorted texts of a column, without pages that can hold no text with the directory `name` in it.

    Of a run of texts that share `…/name`, the first has written the name's last byte itself, and behind it stands the
    `/` or something that sorts before it: its own, or the beginning of the next one's own bytes. A page that has no
    such pair in what its texts do not share is passed over, which costs a thirtieth of making the texts.
    """
    pair = re.compile(re.escape(name.encode()[-1:]) + rb"[\x00-/]")
    for page, levels, body in pages(raw, group, column):
        plain = column.required and page.encoding == _DELTA_BYTE_ARRAY and page.kind != DICTIONARY and page.values
        if not plain:
            yield from values(raw, group, column)
            return
        if pair.search(_own(body, page.values)):
            yield from _page(page, levels, body, column, None)


def _own(body: bytes, count: int) -> bytes:
    """What the texts of a page do not share with the one before, behind two lists of lengths."""
    reader = Reader(body, 0)
    for _ in range(2):
        block, parts, told = reader.varint(), reader.varint(), reader.varint()
        if not 0 < parts <= 512 or not 0 < block <= 65_536 or block % (8 * parts) or told != count:
            raise ValueError("a page with other lengths than values")
        reader.integer()
        each, have = block // parts, 1
        while have < count:
            reader.integer()
            widths = reader.take(parts)[: -((have - count) // each)]
            reader.take(sum(widths) * each // 8)
            have += each * len(widths)
    return body[reader.at :]


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
    if present is None or there == page.values:
        return found
    following = iter(found)
    return (next(following) if here else None for here in present)


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
        if len(body) < at + 8 * count:
            raise ValueError("a page that ends too early")
        return struct.unpack_from(f"<{count}q", body, at)
    if kind == BOOLEAN:
        return map(bool, _unpacked(body[at : at + (count + 7) // 8], 1, count))
    if kind == BYTE_ARRAY:
        return _texts(body, at, count)
    raise ValueError("a column of another type")


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
            steps = _unpacked(reader.take(width * each // 8), width, min(each, count - len(found)), least)
            steps[0] += found[-1]
            found += accumulate(steps)
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


def _unpacked(packed: bytes, width: int, count: int, least: int = 0) -> list[int]:
    """`count` numbers of `width` bits each, the lowest bits first, and `least` more."""
    if not width:
        return [least] * count
    if len(packed) * 8 < count * width or width > 64:
        raise ValueError("a page that ends too early")
    if width == 8 and not least:
        return list(packed[:count])
    mask, found = (1 << width) - 1, list[int]()
    shifts, each = range(0, 32 * width, width), 4 * width
    for at in range(0, (count * width + 7) // 8, each):  # 32 of them at a time: a number that is short to shift
        some = int.from_bytes(packed[at : at + each], "little")
        found += [(some >> shift & mask) + least for shift in shifts]
    return found[:count]
