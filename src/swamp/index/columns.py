"""The rows of index segments as checked columns: the one way in which anybody reads a segment.

A segment comes from a bucket into which others may write. What it claims of its size is checked before Arrow believes
it (`inspect`), and its rows before anyone acts on them; in process and in a Spark task, because both come through here.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.files import on_disk
from swamp.errors import CorruptData
from swamp.index.footer import Footer, Group, read_footer
from swamp.index.inspect import MAX_BATCH, MAX_GROUP, inspect, written_out
from swamp.index.root import REPAIR_HINT, SegmentRef

if TYPE_CHECKING:
    import pyarrow as pa

Source = bytes | Path
"""A segment's bytes, or a local file that holds them."""

ROW_GROUP: Final = 16_384
BATCH: Final = 1_024  # measured: a quarter of the memory of 4,096 for a wide merge, and no slower
BATCH_BYTES: Final = 8 << 20
FORMAT: Final = {b"swamp.segment": b"1"}
FIRST_COLUMNS: Final = ("path", "kind", "key", "size", "sha256", "lastModified", "seq", "missing", "extra")
COLUMNS: Final = (*FIRST_COLUMNS, "id", "idSeq")
"""Segments of format version 3 have the first nine: their rows' identity is their key."""
NEEDED: Final = ("path", "kind", "key")
DROPPED: Final = "dropped"
KINDS: Final = frozenset({"entry", "deleted", DROPPED})
# pyarrow's own errors are subclasses of these.
_DAMAGE: Final = (ValueError, OSError, LookupError, TypeError, NotImplementedError, MemoryError, OverflowError)


def segment_schema() -> pa.Schema:
    """What a segment's file says of its columns."""
    import pyarrow as pa

    text = pa.string()
    types = (text, text, text, pa.int64(), text, text, pa.int64(), pa.bool_(), text, text, pa.int64())
    fields = [pa.field(n, t, nullable=n not in NEEDED) for n, t in zip(COLUMNS, types, strict=True)]
    return pa.schema(fields, metadata=FORMAT)


def load_arrow() -> None:
    """Loads what reads a segment, a quarter of a second: for who will read one and waits for something before."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401


def texts(values: Iterable[str]) -> pa.Array:
    """Texts for Arrow, by way of arro3: `pa.array` and `pa.scalar` load pandas, a third of a second, to see whether
    that is where a value comes from."""
    import pyarrow as pa
    from arro3.core import Array, DataType

    return pa.array(Array(list(values), type=DataType.utf8()))


@cache
def constant(value: str) -> pa.Scalar:
    """A text to compare a column with."""
    return texts([value])[0]


def check_segment(ref: SegmentRef, source: Source) -> None:
    """Raises CorruptData unless these are the very bytes that the root names."""
    with on_disk("read", str(source) if isinstance(source, Path) else ref.key):
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        same = size == ref.bytes and _digest(source) == ref.sha256
    if not same:
        raise damaged(f"{ref.key} is not the segment that the root names: {size} bytes, or another hash")


def _digest(source: Source) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed_columns(
    ref: SegmentRef,
    source: Source,
    *,
    start: str = "",
    stop: str | None = None,
    paths: Collection[str] | None = None,
    length: int = BATCH,
) -> Iterator[pa.RecordBatch]:
    """As `read_columns`, for a segment that a root names: it is what the root says, in bytes, rows and range."""
    check_segment(ref, source)
    wanted: dict[str, Any] = {"start": start, "stop": stop, "paths": paths, "length": length}
    for batch in read_columns(source, ref.added_seq, rows=ref.rows, **wanted):
        _check_range(batch, ref)
        yield batch


def read_columns(
    source: Source,
    added_seq: int,
    *,
    start: str = "",
    stop: str | None = None,
    paths: Collection[str] | None = None,
    rows: int | None = None,
    length: int = BATCH,
) -> Iterator[pa.RecordBatch]:
    """The rows with `start <= path < stop` (and in `paths`), in path order and checked, about `length` at a time.

    Every row has a number. Row groups that cannot hold such a path are not read. Raises CorruptData on damaged or
    hostile bytes, and unless there are `rows` rows where that is known.
    """
    last = ""
    for batch in _joined(_batches(source, start, stop, paths, rows), length):
        with guarded():
            _check_rows(batch, added_seq, last)
            last = batch.column("path")[-1].as_py()
            found = _chosen(_numbered(batch, added_seq), start, stop, paths)
        if found.num_rows:
            yield found


def _batches(
    source: Source, start: str, stop: str | None, paths: Collection[str] | None, rows: int | None
) -> Iterator[pa.RecordBatch]:
    with guarded():
        import pyarrow as pa
        import pyarrow.parquet as pq

        raw = pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source))
        footer = read_footer(raw)
        _check_sizes(footer, rows)
        # No text and no list in a footer is longer than the footer itself.
        limits = dict.fromkeys(("thrift_string_size_limit", "thrift_container_size_limit"), footer.length)
        asked = None if paths is None else sorted(path.encode() for path in paths)
        wanted = [i for i, group in enumerate(footer.groups) if _may_hold(group, start, stop, asked)]
        claims = inspect(raw, [footer.groups[i] for i in wanted], BATCH)
        file = pq.ParquetFile(raw, read_dictionary=list(claims.dictionaries), pre_buffer=False, **limits)
        size, columns = claims.batch_rows, list(_check_shape(file.schema_arrow))
        found = file.iter_batches(size, wanted, columns=columns, use_threads=False) if wanted else iter(())
    while True:
        with guarded():
            batch = next(found, None)
            if batch is not None:
                batch = _with_identity(written_out(batch, claims.dictionaries))
                if batch.nbytes > MAX_BATCH:  # before every value of it becomes a Python object
                    raise ValueError("rows of impossible length")
        if batch is None:
            return
        if batch.num_rows:
            yield batch


def _joined(batches: Iterator[pa.RecordBatch], length: int) -> Iterator[pa.RecordBatch]:
    """Checks cost per batch, and Arrow must be given few rows at once: so they are put together again."""
    import pyarrow as pa

    kept: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        kept.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= length or size >= BATCH_BYTES:
            yield pa.Table.from_batches(kept).combine_chunks().to_batches()[0]
            kept, rows, size = [], 0, 0
    if kept:
        yield pa.Table.from_batches(kept).combine_chunks().to_batches()[0]


def _check_shape(schema: pa.Schema) -> tuple[str, ...]:
    """The footer must describe a segment of ours; which columns it has."""
    kept = schema.metadata or {}
    names = tuple(schema.names)
    ours = COLUMNS if names[: len(COLUMNS)] == COLUMNS else FIRST_COLUMNS
    if kept.get(b"swamp.segment") != b"1" or names[: len(ours)] != ours:
        raise damaged("this is not an index segment that this swamp can read")
    expected = segment_schema()
    if any(_plain(schema.field(name).type) != expected.field(name).type for name in ours):
        raise damaged("an index segment has columns of other types")
    return ours


def _with_identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    """With the columns that version 3 did not have."""
    import pyarrow as pa

    for name in COLUMNS[batch.num_columns :]:
        kind = segment_schema().field(name).type
        batch = batch.append_column(pa.field(name, kind), pa.nulls(batch.num_rows, kind))
    return batch


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_sizes(footer: Footer, rows: int | None) -> None:
    """Groups that fit into memory, and as many rows as the root has announced."""
    for group in footer.groups:
        unpacked = max(group.unpacked, sum(column.unpacked for column in group.columns))
        if not 0 <= unpacked <= MAX_GROUP or not 0 <= group.rows <= 64 * ROW_GROUP:
            raise damaged("an index segment claims row groups of impossible size")
    counted = sum(group.rows for group in footer.groups)
    if rows is not None and counted != rows:
        raise damaged(f"an index segment has {counted} rows where the root names {rows}")


def _may_hold(group: Group, start: str, stop: str | None, paths: Sequence[bytes] | None) -> bool:
    """UTF-8 sorts as its characters do."""
    lowest, highest = group.columns[0].lowest, group.columns[0].highest
    if lowest is None or highest is None:
        return True
    if highest < start.encode() or (stop is not None and lowest >= stop.encode()):
        return False
    return paths is None or bisect_left(paths, lowest) < bisect_right(paths, highest)


def _check_rows(batch: pa.RecordBatch, added_seq: int, last: str) -> None:
    """Rows that could be: text that is text, a kind that is known, sizes, numbers, and paths in their order."""
    import pyarrow.compute as pc

    batch.validate(full=True)  # Arrow passes bytes on that are no UTF-8
    if any(batch.column(name).null_count for name in NEEDED):
        raise ValueError("a row without a path, a kind or a key")
    path, kind, size = batch.column("path"), batch.column("kind"), batch.column("size")
    if not set(pc.unique(kind).to_pylist()) <= KINDS:
        raise ValueError("a row of a kind that is not known")
    unsized = size.null_count and pc.any(pc.and_(pc.is_null(size), pc.not_equal(kind, constant(DROPPED)))).as_py()
    if unsized or not _within(size, 0, None):
        raise ValueError("a row without a size")
    # inv[segment.added-seq]: no row is younger than the commit that listed its segment.
    if not _within(batch.column("seq"), 1, added_seq) or not _within(batch.column("idSeq"), 1, added_seq):
        raise ValueError(f"a row with an impossible number in a segment of number {added_seq}")
    if path[0].as_py() < last or pc.any(pc.less(path[1:], path[:-1])).as_py():
        raise ValueError("it is not sorted")


def _within(numbers: Any, lowest: int, highest: int | None) -> bool:
    """Whether those that there are lie between the two."""
    import pyarrow.compute as pc

    found = pc.min_max(numbers).as_py()
    return found["min"] is None or (lowest <= found["min"] and (highest is None or found["max"] <= highest))


def _check_range(batch: pa.RecordBatch, ref: SegmentRef) -> None:
    """A segment may not claim a range that its deciding rows leave: lookups would pass them by."""
    import pyarrow.compute as pc

    deciding = batch.column("path").filter(pc.not_equal(batch.column("kind"), constant(DROPPED)))
    if len(deciding) and not (ref.covers(deciding[0].as_py()) and ref.covers(deciding[-1].as_py())):
        raise damaged(f"{ref.key} holds rows outside of the range that the root names")


def _numbered(batch: pa.RecordBatch, added_seq: int) -> pa.RecordBatch:
    """inv[segment.added-seq]: a numberless row is as old as the commit that listed its segment."""
    import pyarrow.compute as pc

    at = batch.schema.get_field_index("seq")
    if not batch.column(at).null_count:
        return batch
    return batch.set_column(at, batch.schema.field(at), pc.fill_null(batch.column(at), _number(added_seq)))


def _number(value: int) -> pa.Scalar:
    import pyarrow as pa
    from arro3.core import Array, DataType

    return pa.array(Array([value], type=DataType.int64()))[0]


def _chosen(batch: pa.RecordBatch, start: str, stop: str | None, paths: Collection[str] | None) -> pa.RecordBatch:
    import pyarrow.compute as pc

    if start:
        batch = batch.filter(pc.greater_equal(batch.column("path"), texts([start])[0]))
    if stop is not None:
        batch = batch.filter(pc.less(batch.column("path"), texts([stop])[0]))
    if paths is not None:
        batch = batch.filter(pc.is_in(batch.column("path"), value_set=texts(paths)))
    return batch


@contextmanager
def guarded() -> Iterator[None]:
    """Whatever a damaged file makes the Parquet reader say, it is CorruptData."""
    try:
        yield
    except _DAMAGE as error:
        said = " ".join(str(error).split())
        raise damaged(f"an index segment cannot be read: {said[:200]}") from error


def damaged(message: str) -> CorruptData:
    return CorruptData(message, hint=REPAIR_HINT)
