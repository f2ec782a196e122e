"""Index segments: immutable, sorted Parquet files, so that a large index costs O(change) per commit.

A row without a number (seq 0 in memory, null in the file) takes the `added_seq` of the descriptor that names its
segment, because a segment is staged before anyone can know its commit's number. inv[segment.added-seq]
"""

from __future__ import annotations

import hashlib
import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.files import on_disk
from swamp.errors import CorruptData
from swamp.index.entry import Dropped, Entry, Row, Tombstone
from swamp.index.footer import Footer, Group, read_footer
from swamp.index.inspect import MAX_BATCH, MAX_GROUP, inspect, written_out
from swamp.index.root import REPAIR_HINT, SegmentRef

if TYPE_CHECKING:
    import pyarrow as pa

AnyRow = Row | Dropped
Source = bytes | Path
"""A segment's bytes, or a local file that holds them."""

ROW_GROUP: Final = 16_384
BATCH: Final = 1_024  # measured: a quarter of the memory of 4,096 for a wide merge, and no slower
_FORMAT: Final = {b"swamp.segment": b"1"}
_KINDS: Final = {Entry: "entry", Tombstone: "deleted", Dropped: "dropped"}
# pyarrow's own errors are subclasses of these.
_DAMAGE: Final = (ValueError, OSError, LookupError, TypeError, NotImplementedError, MemoryError, OverflowError)
_NEEDED: Final = frozenset({"path", "kind", "key"})
_COLUMNS: Final = ("path", "kind", "key", "size", "sha256", "lastModified", "seq", "missing", "extra")


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment before it has a place. The range is that of the rows that decide paths, not of dropped keys."""

    data: bytes
    rows: int
    min_path: str
    max_path: str

    def ref(self, key: str, added_seq: int = 0) -> SegmentRef:
        """Its descriptor, once it lies under `key`."""
        digest = hashlib.sha256(self.data).hexdigest()
        return SegmentRef(key, self.rows, len(self.data), digest, self.min_path, self.max_path, added_seq)


def write_segment(rows: Iterable[AnyRow], *, presorted: bool = False) -> Segment:
    """The rows as Parquet, sorted by path; `presorted` rows are taken as they come and never held as Python objects.

    Written by arro3: a push that flushes its layer must not wait for pyarrow (and the pandas it looks for) to load.
    """
    from arro3.core import RecordBatchReader
    from arro3.io import write_parquet

    out, schema, span = io.BytesIO(), _arro3_schema(), _Span()
    ordered = rows if presorted else sorted(rows, key=_order)
    try:
        batches = [_batch(group, schema, span) for group in _groups(ordered)]
        write_parquet(RecordBatchReader.from_batches(schema, batches), out, **_WRITER)
    except (ValueError, OverflowError, OSError) as error:
        raise CorruptData(f"a row cannot be written into an index segment: {error}") from error
    return Segment(out.getvalue(), span.rows, span.lowest, span.highest)


@dataclass
class _Span:
    """How many rows went by, and the range of those that decide paths."""

    rows: int = 0
    lowest: str = ""
    highest: str = ""

    def count(self, group: list[AnyRow]) -> None:
        self.rows += len(group)
        deciding = [row.path for row in group if not isinstance(row, Dropped)]
        self.lowest = self.lowest or min(deciding, default="")
        self.highest = max(deciding, default=self.highest)


def _batch(group: list[AnyRow], schema: Any, span: _Span) -> Any:
    from arro3.core import Array, RecordBatch

    span.count(group)
    columns = _columns(group)
    arrays = [Array(columns[field.name], type=field.type) for field in schema]
    return RecordBatch.from_arrays(arrays, schema=schema)


def _arro3_schema() -> Any:
    from arro3.core import DataType, Field, Schema

    types = {"size": DataType.int64(), "seq": DataType.int64(), "missing": DataType.bool()}
    fields = [Field(n, types.get(n, DataType.utf8()), nullable=n not in _NEEDED) for n in _COLUMNS]
    return Schema(fields, metadata=_FORMAT)


def write_segment_columns(batches: Iterable[pa.RecordBatch]) -> Segment:
    """The same from Arrow batches that hold a segment's columns, sorted by path: no Python object per row."""
    from arro3.core import RecordBatch, RecordBatchReader
    from arro3.io import write_parquet

    out, schema, span = io.BytesIO(), _schema(), _Span()
    shaped = [_counted(batch, schema, span) for batch in batches if batch.num_rows]
    ours = [RecordBatch.from_arrow(batch) for batch in shaped]
    write_parquet(RecordBatchReader.from_batches(_arro3_schema(), ours), out, **_WRITER)
    return Segment(out.getvalue(), span.rows, span.lowest, span.highest)


def _counted(batch: pa.RecordBatch, schema: pa.Schema, span: _Span) -> pa.RecordBatch:
    """In a segment's own columns; raises CorruptData when its rows are not in order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = batch.column("path")
    if pc.any(pc.less(paths[1:], paths[:-1])).as_py():
        raise CorruptData("rows for an index segment are not sorted")
    deciding = paths.filter(pc.not_equal(batch.column("kind"), "dropped"))
    if len(deciding):
        if deciding[0].as_py() < span.highest:
            raise CorruptData("rows for an index segment are not sorted")
        span.lowest, span.highest = span.lowest or deciding[0].as_py(), deciding[-1].as_py()
    span.rows += batch.num_rows
    return pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in schema], schema=schema)


def _order(row: AnyRow) -> tuple[str, bool, int, str]:
    return row.path, isinstance(row, Dropped), row.seq, row.key


_WRITER: Final[dict[str, Any]] = {
    "compression": "zstd(6)",
    "max_row_group_size": ROW_GROUP,
    # Neighbours in path order share long beginnings: these encodings write only what differs.
    "column_encoding": {"path": "delta_byte_array", "key": "delta_byte_array"},
    "column_dictionary_enabled": {"path": False, "key": False, "sha256": False, "size": False, "extra": False},
}


def _schema() -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    types = (text, text, text, pa.int64(), text, text, pa.int64(), pa.bool_(), text)
    fields = [pa.field(n, t, nullable=n not in _NEEDED) for n, t in zip(_COLUMNS, types, strict=True)]
    return pa.schema(fields, metadata=_FORMAT)


def _groups(rows: Iterable[AnyRow]) -> Iterator[list[AnyRow]]:
    group: list[AnyRow] = []
    for row in rows:
        group.append(row)
        if len(group) == ROW_GROUP:
            yield group
            group = []
    if group:
        yield group


def _columns(rows: list[AnyRow]) -> dict[str, list[Any]]:
    return {
        "path": [r.path for r in rows],
        "kind": [_KINDS[type(r)] for r in rows],
        "key": [r.key for r in rows],
        "size": [None if isinstance(r, Dropped) else r.size for r in rows],
        "sha256": [None if isinstance(r, Dropped) else r.sha256 for r in rows],
        "lastModified": [r.last_modified if isinstance(r, Entry) else None for r in rows],
        "seq": [r.seq or None for r in rows],
        "missing": [(r.missing or None) if isinstance(r, Entry) else None for r in rows],
        "extra": [(r.extra or None) if isinstance(r, Entry) else None for r in rows],
    }


def check_segment(ref: SegmentRef, source: Source) -> None:
    """Raises CorruptData unless these are the very bytes that the root names."""
    with on_disk("read", str(source) if isinstance(source, Path) else ref.key):
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        same = size == ref.bytes and _digest(source) == ref.sha256
    if not same:
        raise _damaged(f"{ref.key} is not the segment that the root names: {size} bytes, or another hash")


def _digest(source: Source) -> str:
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest()
    with source.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_segment(
    source: Source,
    added_seq: int,
    *,
    start: str = "",
    stop: str | None = None,
    paths: Collection[str] | None = None,
    dropped: bool = True,
) -> Iterator[AnyRow]:
    """The rows with `start <= path < stop` (and in `paths`), in path order, a batch at a time.

    Row groups that cannot hold such a path are not read. Damaged or hostile bytes raise CorruptData.
    """
    last = ""
    for batch in _batches(source, start, stop, paths):
        for row in _rows(batch, added_seq):
            if row.path < last:
                raise _damaged("an index segment is not sorted")
            last = row.path
            if start <= last and (stop is None or last < stop) and (dropped or not isinstance(row, Dropped)):
                yield row


def _batches(source: Source, start: str, stop: str | None, paths: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    with _guarded():
        import pyarrow as pa
        import pyarrow.parquet as pq

        raw = pa.BufferReader(source) if isinstance(source, bytes) else pa.OSFile(str(source))
        footer = read_footer(raw)
        _check_sizes(footer)
        # No text and no list in a footer is longer than the footer itself.
        limits = dict.fromkeys(("thrift_string_size_limit", "thrift_container_size_limit"), footer.length)
        asked = None if paths is None else sorted(path.encode() for path in paths)
        wanted = [i for i, group in enumerate(footer.groups) if _may_hold(group, start, stop, asked)]
        claims = inspect(raw, [footer.groups[i] for i in wanted], BATCH)
        file = pq.ParquetFile(raw, read_dictionary=list(claims.dictionaries), pre_buffer=False, **limits)
        _check_shape(file.schema_arrow)
        size, columns = claims.batch_rows, list(_COLUMNS)
        found = file.iter_batches(size, wanted, columns=columns, use_threads=False) if wanted else iter(())
    while True:
        with _guarded():
            batch = next(found, None)
            if batch is not None:
                batch = written_out(batch, claims.dictionaries)
                if batch.nbytes > MAX_BATCH:  # before every value of it becomes a Python object
                    raise ValueError("rows of impossible length")
            if batch is not None and paths is not None:
                batch = batch.filter(_is_in(batch.column("path"), paths))
        if batch is None:
            return
        yield batch


def _check_shape(schema: pa.Schema) -> None:
    """The footer must describe a segment of ours."""
    kept = schema.metadata or {}
    if kept.get(b"swamp.segment") != b"1" or tuple(schema.names[: len(_COLUMNS)]) != _COLUMNS:
        raise _damaged("this is not an index segment that this swamp can read")
    expected = _schema()
    if any(_plain(schema.field(name).type) != expected.field(name).type for name in _COLUMNS):
        raise _damaged("an index segment has columns of other types")


def _plain(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _check_sizes(footer: Footer) -> None:
    """Groups that fit into memory."""
    for group in footer.groups:
        unpacked = max(group.unpacked, sum(column.unpacked for column in group.columns))
        if not 0 <= unpacked <= MAX_GROUP or not 0 <= group.rows <= 64 * ROW_GROUP:
            raise _damaged("an index segment claims row groups of impossible size")


def _may_hold(group: Group, start: str, stop: str | None, paths: Sequence[bytes] | None) -> bool:
    """UTF-8 sorts as its characters do."""
    lowest, highest = group.columns[0].lowest, group.columns[0].highest
    if lowest is None or highest is None:
        return True
    if highest < start.encode() or (stop is not None and lowest >= stop.encode()):
        return False
    return paths is None or bisect_left(paths, lowest) < bisect_right(paths, highest)


def _is_in(column: Any, paths: Collection[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(column, value_set=pa.array(list(paths), pa.string()))


def _rows(batch: pa.RecordBatch, added_seq: int) -> list[AnyRow]:
    with _guarded():
        if any(batch.column(name).null_count for name in _COLUMNS[:3]):
            raise ValueError("a row without a path, a kind or a key")
        columns = [batch.column(name).to_pylist() for name in _COLUMNS]
        return [_MAKE[kind](added_seq, path, *rest) for path, kind, *rest in zip(*columns, strict=True)]


def _entry(
    added: int, path: str, key: str, size: int, sha: str | None, at: str | None, seq: int | None, gone: Any, extra: Any
) -> AnyRow:
    return Entry(path, key, _size(size), sha, at or "", _seq(seq, added), bool(gone), extra or "")


def _deleted(added: int, path: str, key: str, size: int, sha: str | None, at: Any, seq: int | None, *_: Any) -> AnyRow:
    return Tombstone(path, key, _size(size), sha, _seq(seq, added))


def _dropped(added: int, path: str, key: str, size: Any, sha: Any, at: Any, seq: int | None, *_: Any) -> AnyRow:
    return Dropped(key, path, _seq(seq, added))


_MAKE: Final[dict[str, Callable[..., AnyRow]]] = {"entry": _entry, "deleted": _deleted, "dropped": _dropped}


def _size(size: int | None) -> int:
    if size is None or size < 0:
        raise ValueError("a row without a size")
    return size


def _seq(seq: int | None, added: int) -> int:
    """inv[segment.added-seq]: a numberless row is as old as the commit that listed its segment, none is younger."""
    if seq is None:
        return added
    if not 0 < seq <= added:
        raise ValueError(f"a row with number {seq} in a segment of number {added}")
    return seq


@contextmanager
def _guarded() -> Iterator[None]:
    """Whatever a damaged file makes the Parquet reader say, it is CorruptData."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(f"an index segment cannot be read: {str(error)[:200]}") from error


def _damaged(message: str) -> CorruptData:
    return CorruptData(message, hint=REPAIR_HINT)
