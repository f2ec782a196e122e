"""A task's rows as Parquet parts: streamed to a local file, measured, then sent under a key of its own."""

from __future__ import annotations

import datetime as dt
import io
import math
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.spread import opened, spool_dir
from swamp.cache.files import hash_file
from swamp.datasets.dataset import Target, WrittenPart
from swamp.datasets.options import Layout
from swamp.env import SYSTEM, rfc3339
from swamp.errors import Unavailable
from swamp.sync.bulk import Upload
from swamp.sync.transfer import upload_one

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

GROUP_ROWS: Final = 131_072
SAMPLE_ROWS: Final = 8_192
FEW_ROWS: Final = 100
MOST_OPEN: Final = 32
"""Parts that a task fills at a time, with a row group of each in memory."""


def write_parts(
    target: Target, partition: int, batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, even_empty: bool = False
) -> list[WrittenPart]:
    """The parts of one task attempt. A second attempt writes others; only those that are reported are published."""
    written: list[WrittenPart] = []
    with tempfile.TemporaryDirectory(prefix="swamp-part-", dir=spool_dir(partition)) as folder:
        for number, file in enumerate(_files(Path(folder), batches, schema, target.layout, even_empty)):
            name = f"part-{partition:05d}-{number:03d}-{target.mark}.parquet"
            written.append(_delivered(target, name, file))
            file.unlink(missing_ok=True)
    return written


def _files(
    folder: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, layout: Layout, even_empty: bool
) -> Iterator[Path]:
    """Local files of at most about so many bytes, one at a time for each combination of `partitionBy`."""
    import pyarrow.parquet as pq

    growing: OrderedDict[tuple[Any, ...], _Growing] = OrderedDict()
    made = 0
    for batch in batches:
        for values, rows in layout.apart(batch):
            if values not in growing:
                if len(growing) >= MOST_OPEN:  # the one that has waited longest; more of it is another part
                    yield from growing.popitem(last=False)[1].close()
                growing[values] = _Growing(folder / str(made), schema)
                made += 1
            growing.move_to_end(values)
            if growing[values].add(rows) >= layout.part_bytes:
                yield from growing.pop(values).close()
    for rest in growing.values():
        yield from rest.close()
    if not made and even_empty:
        pq.write_table(schema.empty_table(), folder / "empty")
        yield folder / "empty"


class _Growing:
    """A file that rows are added to; memory holds one row group."""

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._file, self._schema = file, schema
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[pa.RecordBatch] = []
        self._waiting = 0

    def add(self, rows: pa.RecordBatch) -> int:
        """The size of the file so far, without what waits for its row group to be full."""
        self._rows.append(rows)
        self._waiting += rows.num_rows
        if self._waiting >= GROUP_ROWS:
            self._flush()
        return self._file.stat().st_size if self._writer is not None else 0

    def close(self) -> Iterator[Path]:
        self._flush()
        if self._writer is not None:
            self._writer.close()
            yield self._file

    def _flush(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._rows:
            table = pa.Table.from_batches(self._rows).cast(self._schema)
            if self._writer is None:
                listed = repeating(table.slice(0, SAMPLE_ROWS))
                self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd", use_dictionary=listed)
            self._writer.write_table(table)
        self._rows, self._waiting = [], 0


def repeating(rows: pa.Table) -> list[str]:
    """The columns, as Parquet names them, that are worth a dictionary: of values that hardly repeat one is begun and
    given up in every row group, which cost three times what writing them did."""
    import pyarrow.parquet as pq

    with io.BytesIO() as sink:
        pq.write_table(rows.schema.empty_table(), sink)
        leaves = pq.read_metadata(sink).schema
    unique = {field.name for at, field in enumerate(rows.schema) if _hardly_repeats(rows.column(at))}
    return [name for name in (leaves.column(at).path for at in range(len(leaves))) if name not in unique]


def _hardly_repeats(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    is_ = pa.types
    plain = (is_.is_integer, is_.is_floating, is_.is_string, is_.is_binary, is_.is_timestamp, is_.is_date)
    if len(column) < FEW_ROWS or not any(test(column.type) for test in plain):
        return False
    return bool(pc.count_distinct(column).as_py() > len(column) // 2)


def _delivered(target: Target, name: str, file: Path) -> WrittenPart:
    rows, columns = measured(file)
    if target.spec is None:
        return _staged(target, name, file, rows, columns)
    path = f"{target.raw_path}/{name}"
    sent = upload_one(opened(target.spec), Upload(path, str(file), file.stat().st_size))
    if sent.error is not None or sent.key is None or sent.sha256 is None:
        raise Unavailable(f"{name} could not be uploaded: {sent.error}", hint="the job can be run again")
    return WrittenPart(name, sent.key, sent.size, sent.sha256, sent.last_modified or "", rows, columns)


def _staged(target: Target, name: str, file: Path, rows: int, columns: Mapping[str, Any]) -> WrittenPart:
    """On a plain datastore parts wait beside the data, under names of their own, and are renamed by the commit."""
    import shutil

    target.staging.mkdir(parents=True, exist_ok=True)
    found = hash_file(file)
    waiting = target.staging / f"{name}~{SYSTEM.ulid()}"
    shutil.move(file, waiting)
    at = rfc3339(SYSTEM.clock.now())
    return WrittenPart(name, str(waiting), found.size, found.sha256, at, rows, columns)


def measured(file: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Rows, and per flat column its nulls and bounds, from the footer that was just written."""
    import pyarrow.parquet as pq

    footer = pq.read_metadata(file)
    columns: dict[str, dict[str, Any]] = {}
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            if "." not in column.path_in_schema:
                _fold(columns.setdefault(column.path_in_schema, {"nulls": 0}), column.statistics)
    return footer.num_rows, columns


def _fold(have: dict[str, Any], found: Any) -> None:
    if found is None:
        return
    have["nulls"] += found.null_count or 0
    if not found.has_min_max:
        return
    low, high = _plain(found.min), _plain(found.max)
    if low is not None and high is not None:
        have["min"] = min(have["min"], low) if "min" in have else low
        have["max"] = max(have["max"], high) if "max" in have else high


def _plain(value: Any) -> Any:
    """A bound that YAML and JSON can hold; None for one that would only be noise."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= 64 else None
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()  # sorts as time does, unlike the text of a decimal
    return None
