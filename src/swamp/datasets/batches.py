"""What tasks of the `swamp` format are given, and rows as the Arrow batches that Spark expects of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import InputPartition

from swamp.datasets.content import Piece
from swamp.datasets.parse import batch_of
from swamp.datasets.place import Bucket, Folder
from swamp.index.root import EVERYTHING, Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from swamp.datasets.stream import StreamStep

BATCH_ROWS: Final = 2_000


@dataclass
class Share(InputPartition):
    """What one task reads."""

    place: Bucket | Folder
    span: Span = EVERYTHING
    pieces: tuple[Piece, ...] = ()
    step: StreamStep | None = None


def arrow_target(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def as_batches(found: Iterator[dict[str, Any]], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow of exactly these columns, a page at a time."""
    import pyarrow as pa

    target = arrow_target(schema)
    while page := list(islice(found, BATCH_ROWS)):
        columns = [pa.array([row.get(f.name) for row in page], f.type) for f in target]
        yield batch_of(columns, target, len(page))
