"""One task for each Arrow batch, and what the tasks answer: how lists of files reach executors.

A list of files is no relation, so it does not go through Spark's query planner: an RDD of Arrow bytes starts its first
job for 2.4 s of CPU, a DataFrame with `mapInArrow` for 15, its session included (docs/decisions/0011).
Spark Connect has no RDDs: there the same kernels run as `mapInArrow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swamp.bulk.schemas import Boundary

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Kernel = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


@dataclass(frozen=True)
class OnBytes:
    """A kernel as a function of a partition of an RDD: Arrow bytes in, Arrow bytes out."""

    kernel: Kernel

    def __call__(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        return map(as_bytes, self.kernel(batch for part in parts for batch in batches_of(part)))


def as_bytes(batch: pa.RecordBatch) -> bytes:
    """A batch with its schema, as an Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def batches_of(body: bytes) -> list[pa.RecordBatch]:
    import pyarrow as pa

    with pa.ipc.open_stream(body) as reader:
        return list(reader)


def on_context(context: SparkContext, batches: Sequence[pa.RecordBatch], kernel: Kernel, out: Boundary) -> pa.Table:
    """A task for each batch, by an RDD: no session is needed."""
    import pyarrow as pa

    work: Any = context.parallelize(map(as_bytes, batches), max(1, len(batches)))
    answers = work.mapPartitions(OnBytes(kernel)).collect()
    found = [batch for answer in answers for batch in batches_of(answer)]
    return pa.Table.from_batches(found, schema=out.arrow())


def on_session(session: SparkSession, batches: Sequence[pa.RecordBatch], kernel: Kernel, out: Boundary) -> pa.Table:
    """The same on a Spark Connect server."""
    import pyarrow as pa

    numbered = [batch.append_column("bin", _numbers(at, batch.num_rows)) for at, batch in enumerate(batches)]
    frame = session.createDataFrame(pa.Table.from_batches(numbered))
    shared = frame.repartitionById(max(1, len(batches)), "bin").drop("bin")
    return shared.mapInArrow(kernel, out.ddl).toArrow()


def _numbers(number: int, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(number, pa.int32()), rows)
