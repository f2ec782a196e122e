"""The index inside tasks: segments as Arrow, rows merged per path, new segments, and listings that become entries.

No Hadoop connector is needed: executors read and write segments through the store client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened, put_patiently
from swamp.bulk.kernels import Batches, rows_of
from swamp.bulk.ranges import KeyRange, pages_of
from swamp.bulk.schemas import INDEX, OBJECTS, SEGMENTS
from swamp.commit.bootstrap import LeftOut
from swamp.commit.compact import merge_range
from swamp.env import SYSTEM, parse_rfc3339, rfc3339
from swamp.errors import CorruptData
from swamp.index.adopt import adopt_listing, own_objects
from swamp.index.columns import Columns, listed_columns, segment_schema
from swamp.index.entry import Entry, Tombstone, Unreferenced, path_of_key
from swamp.index.payload import propose_packed
from swamp.index.read import read_segment
from swamp.index.root import SEGMENT_PREFIX, Root, SegmentRef
from swamp.index.segment import AnyRow, RowSpan, Segment, write_batches
from swamp.store.port import ObjectMeta
from swamp.sync.view import usable

if TYPE_CHECKING:
    import pyarrow as pa

SEGMENT_ROWS: Final = 250_000
READ_ROWS: Final = 16_384
READ_BYTES: Final = 8 << 20
# Everything that `usable` could object to contains one of these; the rest passes without being asked.
_ODD: Final = (
    r"[\x00-\x1f\x7f-\x{9f}\\]|^[./_]|//|/$|^$|(^|/)\.|^[A-Za-z]:|~[0-9A-Z]{26}(/|$)|/latest|_catalog|"
    r"[^\x00-\x7f]"
)
PAYLOAD: Final = "~[0-9A-HJKMNP-TV-Z]{26}$"
UPLOADED: Final = "~[0-9A-HJKMNP-TV-Z]{26}$|^_packs/[0-9A-HJKMNP-TV-Z]{26}(@.*)?$"
"""What `index.entry.is_payload_key` knows by, as an expression for columns."""
ENTRY, DELETED, DROPPED = "entry", "deleted", "dropped"
LOST, REFUSED = "lost", "refused"
"""What a listing shows beside entries: a name that only an index gives, and names that no file can have."""


@dataclass(frozen=True)
class ReadSegments:
    """Segment descriptors -> index rows, verified, column by column: no Python object per row."""

    store: StoreAddress
    usable_only: bool = False

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        for row in rows_of(batches):
            ref = ref_from(row)
            for batch in _joined(listed_columns(ref, read_segment(store, ref), length=READ_ROWS)):
                found = _index_batch(batch)
                yield _without_unusable(found) if self.usable_only else found


def _joined(found: Iterable[Columns]) -> Iterator[pa.RecordBatch]:
    """For pyarrow, in pieces that are worth its calls: a segment is read in as few rows as its longest value allows."""
    import pyarrow as pa

    kept: list[pa.RecordBatch] = []
    for columns in found:
        kept.append(pa.record_batch(columns.batch()))
        if sum(b.num_rows for b in kept) >= READ_ROWS or sum(b.nbytes for b in kept) >= READ_BYTES:
            yield pa.concat_batches(kept)
            kept = []
    if kept:
        yield pa.concat_batches(kept)


def _without_unusable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Hostile and internal names out. Only names that look odd are worth a closer look in Python."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = batch.column("path")
    odd = pc.or_(pc.match_substring_regex(paths, _ODD), pc.greater(pc.utf8_length(paths), 200))
    if not pc.any(odd).as_py():
        return batch
    looked = [not strange or usable(path) for strange, path in zip(odd.to_pylist(), paths.to_pylist(), strict=True)]
    return batch.filter(pa.array(looked))


def _index_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A segment's columns as the index has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    named = {"last_modified": "lastModified", "id_seq": "idSeq"}
    schema = INDEX.arrow()
    columns = {f.name: batch.column(named.get(f.name, f.name)) for f in schema}
    columns["missing"] = pc.fill_null(columns["missing"], False)
    columns["extra"] = pc.fill_null(columns["extra"], "")
    return pa.RecordBatch.from_arrays([columns[f.name].cast(f.type) for f in schema], schema=schema)


@dataclass(frozen=True)
class WriteSegments:
    """Index rows, sorted within the partition -> uniquely named segments and their descriptors.

    A second attempt writes under another name; only what the driver publishes exists. inv[object.key-once]
    """

    store: StoreAddress
    added_seq: int = 0

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        for chunk in _chunks(batches, SEGMENT_ROWS):
            segment = write_columns(_segment_columns(chunk))
            ref = segment.ref(f"{SEGMENT_PREFIX}{SYSTEM.ulid()}.parquet", self.added_seq)
            put_patiently(store, ref.key, segment.data)
            yield SEGMENTS.batch([ref_row(ref)])


@dataclass(frozen=True)
class MergeRanges:
    """Path ranges -> for each the segment that a compaction writes for it (`commit.compact.merge_range`)."""

    store: StoreAddress
    root: Root
    inputs: tuple[SegmentRef, ...]
    horizon: int
    beacon: Address | None = None

    def __call__(self, batches: Batches) -> Batches:
        store, highest = opened(self.store), max(ref.added_seq for ref in self.inputs)
        with Beat(self.beacon) as beat:
            for row in rows_of(batches):
                with beat.at_work():
                    fetch = partial(read_segment, store)
                    segment = merge_range(self.root, self.inputs, self.horizon, fetch, row["start"], row["stop"])
                    ref = segment.ref(f"{SEGMENT_PREFIX}{SYSTEM.ulid()}.parquet", highest)
                    if segment.rows:
                        put_patiently(store, ref.key, segment.data)
                if segment.rows:
                    yield SEGMENTS.batch([ref_row(ref)])


def write_columns(batches: Iterable[pa.RecordBatch]) -> Segment:
    """A segment of batches that hold its columns, sorted by path: no Python object per row."""
    import pyarrow as pa
    from arro3.core import RecordBatch

    span, schema = RowSpan(), pa.schema(segment_schema())
    shaped = [_counted(batch, schema, span) for batch in batches if batch.num_rows]
    return write_batches([RecordBatch.from_arrow(batch) for batch in shaped], span)


def _counted(batch: pa.RecordBatch, schema: pa.Schema, span: RowSpan) -> pa.RecordBatch:
    """In a segment's own columns; raises CorruptData when its rows are not in order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = batch.column("path")
    if pc.any(pc.less(paths[1:], paths[:-1])).as_py():
        raise CorruptData("rows for an index segment are not sorted")
    deciding = paths.filter(pc.not_equal(batch.column("kind"), DROPPED))
    if len(deciding):
        if deciding[0].as_py() < span.highest:
            raise CorruptData("rows for an index segment are not sorted")
        span.lowest, span.highest = span.lowest or deciding[0].as_py(), deciding[-1].as_py()
    span.rows += batch.num_rows
    return pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in schema], schema=schema)


def _chunks(batches: Batches, length: int) -> Iterator[list[pa.RecordBatch]]:
    """Pieces of about `length` rows, never cut between two rows of one path."""
    chunk: list[pa.RecordBatch] = []
    rows, last = 0, None
    for batch in batches:
        if not batch.num_rows:
            continue
        same = _rows_of_path(batch, last) if rows >= length else 0
        if same:
            chunk.append(batch.slice(0, same))
        if rows >= length and same < batch.num_rows:
            yield chunk
            chunk, rows = [], 0
        if same < batch.num_rows:
            chunk.append(batch.slice(same))
        rows += batch.num_rows - same
        last = batch.column("path")[-1].as_py()
    if chunk:
        yield chunk


def _rows_of_path(batch: pa.RecordBatch, path: str | None) -> int:
    """How many rows at the beginning still belong to `path`."""
    paths = batch.column("path")
    return next((i for i in range(batch.num_rows) if paths[i].as_py() != path), batch.num_rows)


def _segment_columns(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the larger row groups that a segment has; defaults as nulls, as segments write them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = pa.Table.from_batches(batches).rename_columns({"last_modified": "lastModified", "id_seq": "idSeq"})
    none = {
        "missing": pc.if_else(table["missing"], True, None),
        "extra": pc.if_else(pc.equal(table["extra"], ""), None, table["extra"]),
    }
    for name, column in none.items():
        table = table.set_column(table.column_names.index(name), name, column)
    yield from table.combine_chunks().to_batches(READ_ROWS)


@dataclass(frozen=True)
class AdoptObjects:
    """Key ranges of a bucket without an index -> entries. A `~ulid` name is reported as `lost` (L48), what cannot be a
    file in one row for each range."""

    store: StoreAddress

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        for row in rows_of(batches):
            found = KeyRange(row["prefix"], row["after"], row["until"])
            yield from INDEX.batches(adopted_rows(pages_of(store, found)))


def adopted_rows(pages: Iterable[Sequence[ObjectMeta]]) -> Iterator[dict[str, Any]]:
    left = LeftOut()
    try:
        for entry in adopt_listing(pages, refused=left):
            yield index_row(entry)
    except CorruptData as lost:
        yield {"kind": LOST, "path": str(lost.details.get("key", "")), "key": "", "size": 0}
    if left.count:
        yield {"kind": REFUSED, "path": "", "key": json.dumps(left.first), "size": left.count}


@dataclass(frozen=True)
class ProposeEntries:
    """Key ranges of a bucket whose index is lost -> an entry for every object that could be a file's content."""

    store: StoreAddress

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        for row in rows_of(batches):
            found = KeyRange(row["prefix"], row["after"], row["until"])
            yield from INDEX.batches(proposed(own_objects(pages_of(store, found))))


def proposed(objects: Iterable[ObjectMeta]) -> Iterator[dict[str, Any]]:
    for meta in objects:
        path = path_of_key(meta.key)
        if usable(path):
            yield index_row(Entry(path, meta.key, meta.size, None, rfc3339(meta.last_modified)))


@dataclass(frozen=True)
class ProposePacked:
    """Packs -> an entry for every file that their footers tell, one ranged request each."""

    store: StoreAddress

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        for row in rows_of(batches):
            yield from INDEX.batches(map(index_row, propose_packed(store, object_from(row))))


@dataclass(frozen=True)
class ListOwn:
    """Key ranges -> objects that are ours, not another store's inside this one."""

    store: StoreAddress

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        for row in rows_of(batches):
            found = KeyRange(row["prefix"], row["after"], row["until"])
            own = own_objects(pages_of(store, found))
            yield from OBJECTS.batches(map(object_row, own))


def object_row(meta: ObjectMeta) -> dict[str, Any]:
    return {
        "key": meta.key,
        "size": meta.size,
        "last_modified": rfc3339(meta.last_modified),
        "token": meta.token,
    }


def object_from(row: dict[str, Any]) -> ObjectMeta:
    return ObjectMeta(row["key"], row["size"], row["token"] or "", parse_rfc3339(row["last_modified"]))


def index_row(row: AnyRow) -> dict[str, Any]:
    made: dict[str, Any] = {"path": row.path, "key": row.key, "seq": row.seq or None, "id": row.id or None}
    match row:
        case Entry():
            rest = {"last_modified": row.last_modified, "missing": row.missing, "extra": row.extra}
            return {**made, "kind": ENTRY, "size": row.size, "sha256": row.sha256, "id_seq": row.id_seq or None, **rest}
        case Tombstone():
            return {**made, "kind": DELETED, "size": row.size, "sha256": row.sha256, "id_seq": row.id_seq or None}
        case Unreferenced():
            known = {"size": row.size, "sha256": row.sha256} if row.sha256 is not None else {}
            return {**made, "kind": DROPPED, **known}


def row_from(row: dict[str, Any]) -> AnyRow:
    seq, first = row["seq"] or 0, row["id"] or ""
    if row["kind"] == DROPPED:
        return Unreferenced(row["key"], row["path"], seq, row["size"] or 0, row["sha256"], first)
    told, number = (row["path"], row["key"], row["size"], row["sha256"]), row["id_seq"] or 0
    if row["kind"] == ENTRY:
        return Entry(*told, row["last_modified"] or "", seq, bool(row["missing"]), row["extra"] or "", first, number)
    return Tombstone(*told, seq, first, number)


def ref_row(ref: SegmentRef) -> dict[str, Any]:
    return {name: getattr(ref, name) for name in SEGMENTS.columns}


def ref_from(row: dict[str, Any]) -> SegmentRef:
    return SegmentRef(**{name: row[name] for name in SEGMENTS.columns})


def layer_rows(root: Root) -> list[dict[str, Any]]:
    """The newest layer of a root as index rows: at most a few hundred."""
    rows: list[AnyRow] = [*root.entries.values(), *root.deleted.values(), *root.dropped.values()]
    return [index_row(row) for row in rows]
