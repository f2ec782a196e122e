"""A task's rows as Parquet parts: streamed to a local file, measured, then sent under a key of its own."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.files import hash_file
from swamp.env import SYSTEM, rfc3339
from swamp.errors import Unavailable
from swamp.pipeline.clients import opened
from swamp.pipeline.dataset import Target, WrittenPart
from swamp.sync.bulk import Upload
from swamp.sync.transfer import upload_one

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES: Final = 512 << 20
GROUP_ROWS: Final = 131_072


def write_parts(
    target: Target, partition: int, batches: Iterator[pa.RecordBatch], schema: pa.Schema, *, even_empty: bool = False
) -> list[WrittenPart]:
    """The parts of one task attempt. A second attempt writes others; only those that are reported are published."""
    written: list[WrittenPart] = []
    with tempfile.TemporaryDirectory(prefix="swamp-part-") as folder:
        for number, file in enumerate(_files(Path(folder), batches, schema, even_empty)):
            name = f"part-{partition:05d}.parquet" if not number else f"part-{partition:05d}-{number:03d}.parquet"
            written.append(_delivered(target, name, file))
            file.unlink(missing_ok=True)
    return written


def _files(folder: Path, batches: Iterator[pa.RecordBatch], schema: pa.Schema, even_empty: bool) -> Iterator[Path]:
    """Local files of at most about half a gigabyte; memory holds one row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pending = next(batches, None)
    if pending is None and even_empty:
        file = folder / "empty"
        pq.write_table(schema.empty_table(), file)
        yield file
    count = 0
    while pending is not None:
        file = folder / str(count)
        count += 1
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            rows: list[pa.RecordBatch] = []
            while pending is not None and file.stat().st_size < PART_BYTES:
                rows.append(pending)
                pending = next(batches, None)
                if sum(b.num_rows for b in rows) >= GROUP_ROWS:
                    writer.write_table(pa.Table.from_batches(rows).cast(schema))
                    rows = []
            if rows:
                writer.write_table(pa.Table.from_batches(rows).cast(schema))
        yield file


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
