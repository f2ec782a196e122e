"""Index segments: immutable, sorted Parquet files, so that a large index costs O(change) per commit.

A row without a number (seq 0 in memory, null in the file) takes the `added_seq` of the descriptor that names its
segment, because a segment is staged before anyone can know its commit's number. inv[segment.added-seq]
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from swamp.errors import CorruptData
from swamp.index.columns import (
    COLUMNS,
    ROW_GROUP,
    Columns,
    guarded,
    listed_columns,
    segment_schema,
)
from swamp.index.columns import check_segment as check_segment
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced
from swamp.index.footer import Source
from swamp.index.root import EVERYTHING, SegmentRef, Span
from swamp.values import value

AnyRow = Row | Unreferenced
_KINDS: Final = {Entry: "entry", Tombstone: "deleted", Unreferenced: "dropped"}


@value
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
    """The rows as Parquet, sorted by path; `presorted` rows are taken as they come and never held as Python objects."""
    ordered = (
        rows if presorted else sorted(rows, key=lambda row: (row.path, isinstance(row, Unreferenced), row.seq, row.key))
    )
    feed, out, batches = iter(ordered), io.BytesIO(), list[Any]()
    count, lowest, highest = 0, "", ""
    try:
        while group := list(islice(feed, ROW_GROUP)):
            deciding = [row.path for row in group if not isinstance(row, Unreferenced)]
            lowest, highest = lowest or min(deciding, default=""), max(deciding, default=highest)
            count += len(group)
            batches.append(batch_of(group))
        write_file(batches, out)
    except (ValueError, OverflowError, OSError) as error:
        raise CorruptData(f"a row cannot be written into an index segment: {error}") from error
    return Segment(out.getvalue(), count, lowest, highest)


def write_file(batches: Iterable[Any], out: io.BytesIO | Path) -> None:
    """A file of segment rows as they come, a row group at a time: nobody holds all of them."""
    from arro3.core import RecordBatchReader
    from arro3.io import write_parquet

    write_parquet(RecordBatchReader.from_batches(segment_schema(), batches), out, **_WRITER)


def batch_of(rows: list[AnyRow]) -> Any:
    """Rows as one Arrow batch in a segment's columns."""
    from arro3.core import Array, RecordBatch

    schema, columns = segment_schema(), _columns(rows)
    arrays = [Array(columns[field.name], type=field.type) for field in schema]
    return RecordBatch.from_arrays(arrays, schema=schema)


_WRITER: Final[dict[str, Any]] = {
    "compression": "zstd(6)",
    "max_row_group_size": ROW_GROUP,
    # Neighbours in path order share long beginnings: these encodings write only what differs.
    "column_encoding": {"path": "delta_byte_array", "key": "delta_byte_array"},
    "column_dictionary_enabled": dict.fromkeys(("path", "key", "sha256", "size", "extra", "id"), False),
}


def _columns(rows: list[AnyRow]) -> dict[str, list[Any]]:
    return {
        "path": [r.path for r in rows],
        "kind": [_KINDS[type(r)] for r in rows],
        "key": [r.key for r in rows],
        "size": [None if isinstance(r, Unreferenced) and r.sha256 is None else r.size for r in rows],
        "sha256": [r.sha256 for r in rows],
        "lastModified": [r.last_modified if isinstance(r, Entry) else None for r in rows],
        "seq": [r.seq or None for r in rows],
        "missing": [(r.missing or None) if isinstance(r, Entry) else None for r in rows],
        "extra": [(r.extra or None) if isinstance(r, Entry) else None for r in rows],
        "id": [r.id or None for r in rows],
        "idSeq": [None if isinstance(r, Unreferenced) else r.id_seq or None for r in rows],
    }


def listed_rows(
    ref: SegmentRef,
    source: Source,
    span: Span = EVERYTHING,
    *,
    paths: Collection[str] | None = None,
    dropped: bool = True,
) -> Iterator[AnyRow]:
    """The rows with paths in `span` (and in `paths`) of a segment that a root names, in path order, a batch at a
    time. Row groups that cannot hold such a path are not read. Damaged or hostile bytes raise CorruptData, and so does
    what is not what the root says of it.
    """
    return rows_of(listed_columns(ref, source, span, paths), dropped)


def rows_of(found: Iterator[Columns], dropped: bool) -> Iterator[AnyRow]:
    for columns in found:
        with guarded():
            values = [columns[name] for name in COLUMNS]
            made = [_MAKE[kind](path, *rest) for path, kind, *rest in zip(*values, strict=True)]
        yield from made if dropped else (row for row in made if not isinstance(row, Unreferenced))


def _entry(path: str, key: str, size: int, sha: str | None, at: str | None, seq: int, *more: Any) -> AnyRow:
    gone, extra, first, number = more
    return Entry(path, key, size, sha, at or "", seq, bool(gone), extra or "", first or "", number or 0)


def _deleted(path: str, key: str, size: int, sha: str | None, at: Any, seq: int, *more: Any) -> AnyRow:
    *_, first, number = more
    return Tombstone(path, key, size, sha, seq, first or "", number or 0)


def _dropped(path: str, key: str, size: Any, sha: Any, at: Any, seq: int, *more: Any) -> AnyRow:
    return Unreferenced(key, path, seq, size or 0, sha, more[-2] or "")


_MAKE: Final[dict[str, Callable[..., AnyRow]]] = {"entry": _entry, "deleted": _deleted, "dropped": _dropped}
