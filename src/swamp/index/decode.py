"""Decodes the pages and the values of a Parquet column: the encodings that segments are written in, and no others.

In Python on purpose (docs/decisions/0018-segments-without-pyarrow.md): Arrow's readers end the process, or fill the
memory, when a page contradicts itself. Here a lie is a ValueError or a LookupError, whatever it is about, and no room
is made for what a header only announces. inv[segment.bounded]
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice, repeat
from operator import add, gt
from typing import Any, AnyStr, Final

from swamp.index.footer import BOOLEAN, BYTE_ARRAY, INT64, ZSTD, Column, Raw, Reader, RowGroup, Struct
from swamp.index.pack import expand
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


def pages(raw: Raw, group: RowGroup, column: Column) -> Iterator[PageHeader]:
    """The headers of all pages of a column in a row group."""
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
        yield page


def unpacked(raw: Raw, column: Column, page: PageHeader) -> tuple[bytes, bytes]:
    """A page's levels (version 2 only) and its bytes as they were before they were compressed: as many as it says, or
    ValueError."""
    stored = raw.read_at(page.packed, page.start)
    levels, body, size = stored[: page.levels], stored[page.levels :], page.unpacked - page.levels
    if column.codec == ZSTD and page.compressed and body:
        return levels, expand(body, size)
    if len(body) != size:
        raise ValueError("a page of another size than it says")
    return levels, body


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
_TEXTS: Final = 512
_HALVES: Final = [(byte & 15, byte >> 4) for byte in range(256)]
_QUARTERS: Final = [(byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6) for byte in range(256)]
_PLAIN, _PLAIN_DICTIONARY, _RLE, _DELTA_BYTE_ARRAY, _RLE_DICTIONARY = 0, 2, 3, 7, 8


def values(raw: Raw, group: RowGroup, column: Column, first: int = 0) -> Iterator[Any]:
    """The values of a column in a row group from row `first` on, None where there is none; read as they are asked for.
    Pages before that row are not opened."""
    return chain.from_iterable(_pages(raw, group, column, first))


def _pages(raw: Raw, group: RowGroup, column: Column, first: int) -> Iterator[Iterable[Any]]:
    dictionary: list[Any] | None = None
    seen = 0
    for page in pages(raw, group, column):
        if page.kind == DICTIONARY:
            if dictionary is not None or page.encoding not in (_PLAIN, _PLAIN_DICTIONARY):
                raise ValueError("a dictionary that makes no sense")
            dictionary = list(_plain(unpacked(raw, column, page)[1], 0, page.values, column.kind))
            if column.kind == BYTE_ARRAY and max(map(len, dictionary), default=0) > MAX_TEXT:
                raise ValueError("a text of impossible length")
            continue
        seen += page.values
        if seen > first:
            skip = max(0, first - (seen - page.values))
            yield _page(page, unpacked(raw, column, page), column, dictionary, skip)
    if seen != group.rows:
        raise ValueError("a column with other rows than its group")


def values_naming(raw: Raw, group: RowGroup, column: Column, name: str) -> Iterator[Iterable[str]]:
    """The sorted texts of a column page by page, without pages that can hold no text with the directory `name` in it:
    to know that costs a thirtieth of making the texts."""
    for page in pages(raw, group, column):
        plain = column.required and page.encoding == _DELTA_BYTE_ARRAY and page.kind != DICTIONARY and page.values
        if not plain:
            yield values(raw, group, column)
            return
        found = unpacked(raw, column, page)
        if _may_name(found[1], page.values, name.encode()):
            yield _page(page, found, column, None)


def _may_name(body: bytes, count: int, name: bytes) -> bool:
    """Whether a page's texts can have the directory `name`.

    Of a run of texts that share `…/name`, the first has written the name's last byte itself, and behind it stands the
    `/` or something that sorts before it: its own, or the beginning of the next one's own bytes. Before it stands the
    rest of `/name`, or as much of it as the text before did not have: then its own bytes begin there.
    """
    second, third = _own(body, 0, count)
    if re.search(b"/" + re.escape(name) + rb"[\x00-/]", body[third:]):
        return True
    starts: frozenset[int] | None = None
    for pair in re.finditer(re.escape(name[-1:]) + rb"[\x00-/]", body[third:]):
        starts = starts or frozenset(accumulate(_numbers(Reader(body, second), count), initial=0))
        for length in range(1, len(name) + 1):
            first = pair.start() + 1 - length
            if first < 0 or body[third + first : third + pair.start() + 1] != name[-length:]:
                break
            if first in starts:
                return True
    return False


def _own(body: bytes, at: int, count: int) -> tuple[int, int]:
    """Where the lengths of what the texts of a page do not share with the one before begin, and where that itself."""
    second = _behind(body, at, count)
    return second, _behind(body, second, count)


def _behind(body: bytes, at: int, count: int) -> int:
    """Where a list of `count` numbers, each as the difference to the one before, ends."""
    reader = Reader(body, at)
    block, parts = _blocks(reader, count)
    reader.integer()
    at, each, have = reader.at, block // parts, 1
    while have < count:
        while body[at] >= 0x80:
            at += 1
        widths = body[at + 1 : at + 1 + parts]
        if count - have < block:  # the last block's parts without numbers take no room, whatever their widths
            widths = widths[: -((have - count) // each)]
        at, have = at + 1 + parts + sum(widths) * each // 8, have + block
    if at > len(body):
        raise IndexError("the end")
    return at


def _page(
    page: PageHeader, stored: tuple[bytes, bytes], column: Column, dictionary: list[Any] | None, skip: int = 0
) -> Iterable[Any]:
    """One page's values in their places, without the first `skip` of them."""
    levels, body = stored
    at, there, passed = 0, page.values, skip
    present: list[int] | None = None
    if not column.required:
        if page.kind == DATA_V2:
            present = hybrid(levels, 0, len(levels), 1, page.values)
        else:
            at = 4 + int.from_bytes(body[:4], "little")
            present = hybrid(body, 4, at, 1, page.values)
        there, passed = sum(present), sum(present[:skip])
    if not there:
        return repeat(None, page.values - skip)
    found = _encoded(page.encoding, body, at, there, column.kind, dictionary, passed)
    if present is None or there == page.values:
        return found
    following = iter(found)
    return (next(following) if here else None for here in present[skip:])


def _encoded(
    encoding: int, body: bytes, at: int, count: int, kind: int, dictionary: list[Any] | None, skip: int
) -> Iterable[Any]:
    """`count` values without the first `skip` of them."""
    if encoding == _PLAIN:
        return _plain(body, at, count, kind, skip)
    if encoding in (_RLE_DICTIONARY, _PLAIN_DICTIONARY) and dictionary is not None:
        return map(dictionary.__getitem__, hybrid(body, at + 1, len(body), body[at], count)[skip:])
    if encoding == _DELTA_BYTE_ARRAY and kind == BYTE_ARRAY:
        return _shared(body, at, count, skip)
    if encoding == _RLE and kind == BOOLEAN:
        end = at + 4 + int.from_bytes(body[at : at + 4], "little")
        return map(bool, hybrid(body, at + 4, end, 1, count)[skip:])
    raise ValueError("a column that is encoded as no segment is")


def _plain(body: bytes, at: int, count: int, kind: int, skip: int = 0) -> Iterable[Any]:
    if kind == INT64:
        if len(body) < at + 8 * count:
            raise ValueError("a page that ends too early")
        return struct.unpack_from(f"<{count - skip}q", body, at + 8 * skip)
    if kind == BOOLEAN:
        return map(bool, _unpacked(body[at : at + (count + 7) // 8], 1, count)[skip:])
    if kind == BYTE_ARRAY:
        return _texts(body, _after(body, at, skip), count - skip)
    raise ValueError("a column of another type")


def _texts(body: bytes, at: int, count: int) -> Iterator[str]:
    """Each with its length in front of it."""
    for _ in range(count):
        start = at + 4
        at = start + int.from_bytes(body[at:start], "little")
        if start > len(body) or at > len(body):
            raise ValueError("a page that ends too early")
        yield body[start:at].decode()


def _after(body: bytes, at: int, count: int) -> int:
    """Where the text with this number begins. Hashes are all of one length: if the first one is followed by the same
    length again and again, nobody has to go from each to the next."""
    length = body[at : at + 4]
    step = 4 + int.from_bytes(length, "little")
    if all(body[at + n : at + step * count : step].count(length[n]) == count for n in range(len(length))):
        return at + step * count
    for _ in range(count):
        at += 4 + int.from_bytes(body[at : at + 4], "little")
    return at


def _shared(body: bytes, at: int, count: int, skip: int) -> Iterator[str]:
    """Each as what it shares with the one before, and the rest: lengths first, then what is not shared. Of the first
    `skip` no text is made that nobody needs."""
    second, third = _own(body, at, count)
    rest = body[third:]
    lengths = _numbers(Reader(body, at), count), _numbers(Reader(body, second), count)
    if rest.isascii():
        return chain.from_iterable(_joined(*lengths, rest.decode(), skip))
    # A letter may be cut where two texts begin to differ.
    return map(bytes.decode, chain.from_iterable(_joined(*lengths, rest, skip)))


def _joined(shared: Iterator[int], own: Iterator[int], rest: AnyStr, skip: int) -> Iterator[list[AnyStr]]:
    """Texts by how much they share with the one before and how much they do not, some at a time."""
    last, at = rest[:0], 0
    while same := list(islice(shared, _TEXTS)):
        lengths = list(islice(own, _TEXTS))
        whole = list(map(add, same, lengths))
        if min(same) < 0 or min(lengths) < 0 or max(whole) > MAX_TEXT:
            raise ValueError("a text of impossible length")
        if same[0] > len(last) or any(map(gt, same[1:], whole)):
            raise ValueError("a text that shares more than there is")
        ends = list(accumulate(lengths, initial=at))
        at = ends[-1]
        if at > len(rest):
            raise ValueError("a page that ends too early")
        if skip >= len(same):
            last = _last(last, same, ends, rest)
        else:
            yield [last := last[:cut] + rest[a:b] for cut, a, b in zip(same, ends, ends[1:], strict=False)][skip:]
        skip = max(0, skip - len(same))


def _last(before: AnyStr, same: list[int], ends: list[int], rest: AnyStr) -> AnyStr:
    """The last of some texts, from behind: each piece of it is the own of the nearest text that shares less."""
    need, pieces = same[-1] + ends[-1] - ends[-2], list[AnyStr]()
    for number in range(len(same) - 1, -1, -1):
        if same[number] < need:
            pieces.append(rest[ends[number] : ends[number] + need - same[number]])
            need = same[number]
            if not need:
                break
    pieces.append(before[:need])
    return rest[:0].join(reversed(pieces))


def _blocks(reader: Reader, count: int) -> tuple[int, int]:
    """In how large blocks of how many parts the numbers here are written."""
    block, parts, told = reader.varint(), reader.varint(), reader.varint()
    if not 0 < parts <= 512 or not 0 < block <= 65_536 or block % (8 * parts) or told != count:
        raise ValueError("a page with other lengths than values")
    return block, parts


def _numbers(reader: Reader, count: int) -> Iterator[int]:
    """Numbers as the difference to the one before, in blocks whose parts have a common width; a block is unpacked when
    somebody comes to it."""
    return chain.from_iterable(_differences(reader, count))


def _differences(reader: Reader, count: int) -> Iterator[Iterable[int]]:
    block, parts = _blocks(reader, count)
    last, each, left = reader.integer(), block // parts, count - 1
    yield (last,)
    while left > 0:
        least, widths, steps = reader.integer(), reader.take(parts), [last]
        for width in widths[: -(-left // each)]:
            steps += _unpacked(reader.take(width * each // 8), width, each, least)
        found = list(accumulate(steps[: left + 1]))
        last, left = found[-1], left - len(found) + 1
        del found[0]
        yield found


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
    if width in (2, 4):  # most lengths
        table = _HALVES if width == 4 else _QUARTERS
        return [some + least for some in chain.from_iterable([table[byte] for byte in packed])][:count]
    mask, found = (1 << width) - 1, list[int]()
    shifts, each = range(0, 32 * width, width), 4 * width
    for at in range(0, (count * width + 7) // 8, each):  # 32 of them at a time: a number that is short to shift
        some = int.from_bytes(packed[at : at + each], "little")
        found += [(some >> shift & mask) + least for shift in shifts]
    return found[:count]
