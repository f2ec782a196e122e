"""The rows of index segments as checked columns: the one way in which anybody reads a segment.

A segment comes from a bucket into which others may write. What it claims of its size is checked before anybody believes
it (`pages`, `decode`), and its rows before anyone acts on them; in process and in a Spark task: both come through here.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

from swamp.cache.files import on_disk
from swamp.errors import CorruptData
from swamp.index.decode import MAX_GROUP, values, values_naming
from swamp.index.footer import BOOLEAN, BYTE_ARRAY, INT64, Footer, Proven, Raw, RowGroup, Source, footer_of
from swamp.index.root import EVERYTHING, REPAIR_HINT, SegmentRef, Span

ROW_GROUP: Final = 16_384
BATCH: Final = 1_024  # measured: a quarter of the memory of 4,096 for a wide merge, and no slower
FORMAT: Final = {b"swamp.segment": b"1"}
FIRST_COLUMNS: Final = ("path", "kind", "key", "size", "sha256", "lastModified", "seq", "missing", "extra")
COLUMNS: Final = (*FIRST_COLUMNS, "id", "idSeq")
"""Segments of format version 3 have the first nine: their rows' identity is their key."""
NEEDED: Final = ("path", "kind", "key")
DROPPED: Final = "dropped"
KINDS: Final = frozenset({"entry", "deleted", DROPPED})
_KINDS: Final = {"size": INT64, "seq": INT64, "idSeq": INT64, "missing": BOOLEAN}
_DAMAGE: Final = (ValueError, OSError, LookupError, TypeError, MemoryError, OverflowError, struct.error)


def segment_schema() -> Any:
    """What a segment's file says of its columns, as an arro3 schema: pyarrow is not part of a slim install."""
    from arro3.core import DataType, Field, Schema

    types = {name: DataType.int64() for name in ("size", "seq", "idSeq")} | {"missing": DataType.bool()}
    fields = [Field(n, types.get(n, DataType.utf8()), nullable=n not in NEEDED) for n in COLUMNS]
    return Schema(fields, metadata=FORMAT)


Columns = dict[str, list[Any]]
"""Some rows of a segment: a list of Python values for each column, by its name."""


def check_segment(ref: SegmentRef, source: Source) -> None:
    """Raises CorruptData unless these are the very bytes that the root names."""
    with on_disk("read", str(source) if isinstance(source, Path) else ref.key):
        if isinstance(source, Path):
            size = source.stat().st_size
            with source.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest() if size == ref.bytes else ""
        else:
            known = source if isinstance(source, Proven) else Proven(source)
            size, sha256 = len(known.data), known.sha256
        same = size == ref.bytes and sha256 == ref.sha256
    if not same:
        raise damaged(f"{ref.key} is not the segment that the root names: {size} bytes, or another hash")


def listed_columns(
    ref: SegmentRef, source: Source, span: Span = EVERYTHING, paths: Collection[str] | None = None
) -> Iterator[Columns]:
    """As `read_columns`, for a segment that a root names: it is what the root says, in bytes, rows and range."""
    check_segment(ref, source)
    for columns in read_columns(source, ref.added_seq, span, paths, ref.rows):
        # A segment may not claim a range that its deciding rows leave: lookups would pass them by.
        found, kinds = columns["path"], columns["kind"]
        deciding = found if DROPPED not in kinds else [p for p, k in zip(found, kinds, strict=True) if k != DROPPED]
        if deciding and not (ref.covers(deciding[0]) and ref.covers(deciding[-1])):
            raise damaged(f"{ref.key} holds rows outside of the range that the root names")
        yield columns


def listed_paths(ref: SegmentRef, source: Source, span: Span, naming: str | None) -> Iterator[list[str]]:
    """The paths alone that a segment may hold of a span, overruled and dropped ones too, a row group at a time:
    all of them, or for who looks for the directory `naming` all that have it, and some others."""
    check_segment(ref, source)
    with guarded():
        raw = Raw(source)
    with closing(raw), guarded():
        _, groups = _groups(source, raw, span, None, ref.rows)
        for group in groups:
            if naming is None:
                yield list(_paths_between(raw, group, span))
                continue
            paths = list(chain.from_iterable(values_naming(raw, group, group.columns[0], naming)))
            if None in paths:
                raise ValueError("a row without a path")
            yield paths


def _paths_between(raw: Raw, group: RowGroup, span: Span) -> Iterator[str]:
    for _, found in _paths(raw, group):
        last = len(found) if span.stop is None else bisect_left(found, span.stop)
        yield from found[bisect_left(found, span.start) : last]
        if last < len(found):
            return


def read_columns(
    source: Source,
    added_seq: int,
    span: Span = EVERYTHING,
    paths: Collection[str] | None = None,
    rows: int | None = None,
) -> Iterator[Columns]:
    """The rows with paths in `span` (and in `paths`), in path order and checked, some at a time.

    Every row has a number. Row groups that cannot hold such a path are not read. Raises CorruptData on damaged or
    hostile bytes, and unless there are `rows` rows where that is known.
    """
    last = ""
    wanted = None if paths is None else frozenset(paths)
    with guarded():
        raw = Raw(source)
    with closing(raw):
        batches = _batches(source, raw, span, wanted, rows)
        while True:
            with guarded():
                columns = next(batches, None)
                if columns is None:
                    return
                _check_rows(columns, added_seq, last)
                last = columns["path"][-1]
                found = _numbered(columns, added_seq)
                if wanted is not None:
                    rows_at = [row for row, path in enumerate(found["path"]) if path in wanted]
                    found = {name: [held[row] for row in rows_at] for name, held in found.items()}
            if found["path"]:
                yield found


def _groups(
    source: Source, raw: Raw, span: Span, asked: Sequence[bytes] | None, rows: int | None
) -> tuple[tuple[str, ...], list[RowGroup]]:
    """The columns of a segment of ours, and its groups that may hold what is wanted."""
    footer = footer_of(source, raw)
    names = _check_shape(footer)
    _check_sizes(footer, rows)
    return names, [group for group in footer.groups if group.rows and _may_hold(group, span, asked)]


def _batches(
    source: Source, raw: Raw, span: Span, paths: Collection[str] | None, rows: int | None
) -> Iterator[Columns]:
    """The rows of the groups that may hold what is wanted."""
    asked = None if paths is None else sorted(path.encode() for path in paths)
    if paths:  # between the first and the last of them
        last = max(paths) + "\0"
        span = Span(max(span.start, min(paths)), last if span.stop is None else min(span.stop, last))
    names, groups = _groups(source, raw, span, asked, rows)
    for group in groups:
        yield from _pieces(raw, group, names, span)


def _pieces(raw: Raw, group: RowGroup, names: Sequence[str], span: Span) -> Iterator[Columns]:
    """The rows of the group with paths in `span`, so many at a time: a merge of many segments holds that much of each,
    and their pages. Paths are read first: of the other columns only what belongs to the wanted ones is decoded."""
    streams: dict[str, Iterator[Any]] = {}
    for at, found in _paths(raw, group):
        first = bisect_left(found, span.start)
        if first == len(found):
            continue
        last = len(found) if span.stop is None else bisect_left(found, span.stop)
        streams = streams or {
            name: values(raw, group, column, at + first)
            for name, column in zip(names[1:], group.columns[1:], strict=False)
        }
        if first < last:
            yield _columns(found[first:last], streams)
        if last < len(found):
            return  # sorted: nothing of what follows was asked for
    for stream in streams.values():
        if next(stream, stream) is not stream:
            raise ValueError("a column with other rows than its group")


def _paths(raw: Raw, group: RowGroup) -> Iterator[tuple[int, list[str]]]:
    """The group's paths in their order, and the number of the first of each list."""
    stream, before = values(raw, group, group.columns[0]), ""
    for at in range(0, group.rows, BATCH):
        found = list(islice(stream, BATCH))
        if len(found) != min(BATCH, group.rows - at):
            raise ValueError("a column with other rows than its group")
        if None in found:
            raise ValueError("a row without a path, a kind or a key")
        if found[0] < before or found != sorted(found):
            raise ValueError("it is not sorted")
        before = found[-1]
        yield at, found
    if next(stream, stream) is not stream:
        raise ValueError("a column with other rows than its group")


def _columns(paths: list[str], streams: dict[str, Iterator[Any]]) -> Columns:
    count = len(paths)
    lists = {"path": paths} | {name: list(islice(stream, count)) for name, stream in streams.items()}
    if any(len(found) != count for found in lists.values()):
        raise ValueError("a column with other rows than its group")
    return {name: lists.get(name) or [None] * count for name in COLUMNS}


def _check_shape(footer: Footer) -> tuple[str, ...]:
    """The footer must describe a segment of ours; which columns it has. More of them may follow."""
    names = tuple(column.name for column in footer.schema)
    ours = COLUMNS if names[: len(COLUMNS)] == COLUMNS else FIRST_COLUMNS
    if footer.metadata.get(b"swamp.segment") != b"1" or names[: len(ours)] != ours:
        raise damaged("this is not an index segment that this swamp can read")
    for column in footer.schema[: len(ours)]:
        if column.kind != _KINDS.get(column.name, BYTE_ARRAY) or column.text != (column.kind == BYTE_ARRAY):
            raise damaged("an index segment has columns of other types")
    return ours


def _check_sizes(footer: Footer, rows: int | None) -> None:
    """Groups that fit into memory, and as many rows as the root has announced."""
    for group in footer.groups:
        unpacked = max(group.unpacked, sum(column.unpacked for column in group.columns))
        if not 0 <= unpacked <= MAX_GROUP or not 0 <= group.rows <= 64 * ROW_GROUP:
            raise damaged("an index segment claims row groups of impossible size")
    counted = sum(group.rows for group in footer.groups)
    if rows is not None and counted != rows:
        raise damaged(f"an index segment has {counted} rows where the root names {rows}")


def _may_hold(group: RowGroup, span: Span, paths: Sequence[bytes] | None) -> bool:
    """UTF-8 sorts as its characters do."""
    lowest, highest = group.columns[0].lowest, group.columns[0].highest
    if lowest is None or highest is None:
        return True
    if highest < span.start.encode() or (span.stop is not None and lowest >= span.stop.encode()):
        return False
    return paths is None or bisect_left(paths, lowest) < bisect_right(paths, highest)


def _check_rows(columns: Columns, added_seq: int, last: str) -> None:
    """Rows that could be: a kind that is known, sizes, numbers, and paths in their order."""
    if any(None in columns[name] for name in NEEDED):
        raise ValueError("a row without a path, a kind or a key")
    kinds, sizes = columns["kind"], columns["size"]
    if not set(kinds) <= KINDS:
        raise ValueError("a row of a kind that is not known")
    unsized = None in sizes and any(size is None and kind != DROPPED for size, kind in zip(sizes, kinds, strict=True))
    if unsized or not _within(sizes, 0, None):
        raise ValueError("a row without a size")
    # inv[segment.added-seq]: no row is younger than the commit that listed its segment.
    if not _within(columns["seq"], 1, added_seq) or not _within(columns["idSeq"], 1, added_seq):
        raise ValueError(f"a row with an impossible number in a segment of number {added_seq}")
    if columns["path"][0] < last:  # within a group they have been compared
        raise ValueError("it is not sorted")


def _within(numbers: list[int | None], lowest: int, highest: int | None) -> bool:
    """Whether those that there are lie between the two."""
    there = {number for number in numbers if number is not None}
    return not there or (lowest <= min(there) and (highest is None or max(there) <= highest))


def _numbered(columns: Columns, added_seq: int) -> Columns:
    """inv[segment.added-seq]: a numberless row is as old as the commit that listed its segment."""
    if None not in columns["seq"]:
        return columns
    return columns | {"seq": [number or added_seq for number in columns["seq"]]}


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever a damaged file is refused for, it is CorruptData."""
    try:
        yield
    except _DAMAGE as error:
        said = " ".join(str(error).split())
        raise damaged(f"an index segment cannot be read: {said[:200]}") from error


def damaged(message: str) -> CorruptData:
    return CorruptData(message, hint=REPAIR_HINT)
