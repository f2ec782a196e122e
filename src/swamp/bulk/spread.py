"""How work reaches tasks: shares of Python values, and what the tasks answer; or a table of named values, to be sorted.

A list of files is no relation, so it does not go through Spark's query planner: an RDD starts its first job for 2.4 s
of CPU, a DataFrame with `mapInArrow` for 15, its session included (docs/decisions/0011). Spark Connect has no RDDs:
there the same kernels run as `mapInArrow`. What has to be brought together first (rows of one path, claims on one
object) is a table of a name, a size and a pickled value: Spark sorts it, and a task works on what is in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import CorruptData
from swamp.index.root import REPAIR_HINT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

Kernel = Callable[[Iterator[Any]], Iterable[Any]]
"""What a task does: jobs in, results out, each as it is ready. Testable without Spark."""
Named = tuple[str, int, Any]
"""A value with the name by which it is brought together with others, and the size by which it is shared out."""
COLUMNS: Final = "name string, size bigint, value binary"
PAGE_ROWS: Final = 2_000


@dataclass(frozen=True)
class OnShares:
    """A kernel as a function of a partition of shares; `named`, where its results have to be rows of a table."""

    kernel: Kernel
    named: bool = False

    def __call__(self, shares: Iterable[Iterable[Any]]) -> Iterator[Any]:
        found = self.kernel(chain.from_iterable(shares))
        return (("", 0, one) for one in found) if self.named else iter(found)


@dataclass(frozen=True)
class InArrow:
    """A kernel that makes named values, as `mapInArrow` wants it."""

    kernel: Kernel

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = iter(self.kernel(value for batch in batches for value in values_of(batch)))
        while page := list(islice(found, PAGE_ROWS)):
            yield named_batch(page)


def values_of(table: pa.RecordBatch | pa.Table) -> Iterator[Any]:
    """The values of a table that tasks of ours have made."""
    return map(pickle.loads, table.column("value").to_pylist())


def named_batch(rows: Sequence[Named]) -> pa.RecordBatch:
    """Named values as Arrow. JSON can hold text that is no Unicode; a table cannot."""
    import pyarrow as pa

    schema = pa.schema([("name", pa.string()), ("size", pa.int64()), ("value", pa.binary())])
    values = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for _, _, value in rows]
    try:
        columns = [[name for name, _, _ in rows], [size for _, size, _ in rows], values]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    except UnicodeEncodeError as error:
        raise CorruptData("the index holds text that is not Unicode", hint=REPAIR_HINT) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def frame_of(session: SparkSession, rows: Sequence[Named]) -> DataFrame:
    """What the driver has at hand as a table: addresses of work, never an index."""
    import pyarrow as pa

    return session.createDataFrame(pa.Table.from_batches([named_batch(rows)]), COLUMNS)


def named_frame(session: SparkSession, shares: Sequence[Sequence[Any]], kernel: Kernel) -> DataFrame:
    """A task for each share, whose kernel makes named values: their table. Nothing runs before somebody asks for it."""
    numbered = frame_of(session, [("", number, share) for number, share in enumerate(shares)])
    shared = numbered.repartitionById(max(1, len(shares)), numbered["size"].cast("int"))
    return shared.mapInArrow(InArrow(OnShares(kernel)), COLUMNS)


def on_context(context: SparkContext, shares: Sequence[Sequence[Any]], kernel: Kernel) -> list[Any]:
    """A task for each share, by an RDD: no session is needed."""
    work: Any = context.parallelize(shares, max(1, len(shares)))
    return list(work.mapPartitions(OnShares(kernel)).collect())


def on_session(session: SparkSession, shares: Sequence[Sequence[Any]], kernel: Kernel) -> list[Any]:
    """The same on a Spark Connect server."""
    numbered = frame_of(session, [("", number, share) for number, share in enumerate(shares)])
    shared = numbered.repartitionById(max(1, len(shares)), numbered["size"].cast("int"))
    return list(values_of(shared.mapInArrow(InArrow(OnShares(kernel, named=True)), COLUMNS).toArrow()))
