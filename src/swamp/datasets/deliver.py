"""`df.write` and `df.writeStream` with `.format("swamp")`: tasks upload parts, one commit makes a version of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from swamp.datasets.batches import arrow_target
from swamp.datasets.dataset import Target, WrittenPart, commit_to_bucket, commit_to_folder, landed, make_target
from swamp.datasets.place import open_place
from swamp.datasets.publish import ensure_root
from swamp.env import SYSTEM
from swamp.errors import Failed, NotFound

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""What Spark tells the tasks of a streaming query about it. The query's id is kept in its checkpoint."""


@dataclass
class _Message(WriterCommitMessage):
    parts: list[WrittenPart]


def target_of(options: Mapping[str, str], schema: StructType) -> Target:
    try:
        place = open_place(options)
    except NotFound:
        ensure_root(options)
        place = open_place(options)
    return make_target(place, options, schema.jsonValue())


def publish(target: Target, parts: list[WrittenPart]) -> int:
    """Makes the version true and gives its number."""
    return commit_to_folder(target, parts) if target.spec is None else commit_to_bucket(target, parts)


class DatasetWriter(DataSourceArrowWriter):
    """A new version. Made on the driver, where its op is chosen; pickled to the tasks and to the commit."""

    def __init__(self, target: Target, schema: StructType) -> None:
        self.target = target
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        from swamp.datasets.parts import write_parts

        task = TaskContext.get()
        partition = task.partitionId() if task is not None else 0
        # The first task always leaves a part, so that a dataset without rows still has its columns.
        return _Message(
            write_parts(self.target, partition, iterator, arrow_target(self.schema), even_empty=partition == 0)
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [part for message in messages if isinstance(message, _Message) for part in message.parts]
        publish(self.target, sorted(parts, key=lambda part: part.name))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes nothing: what nobody publishes is garbage, and a commit may have landed after all."""
        if landed(self.target):
            raise Failed(
                f"the job failed, but its version of {self.target.data.name} has been committed",
                hint="do not run it again; with option writeId running it again would be harmless",
                details={"op": self.target.op},
            )


@dataclass
class _Batch(WriterCommitMessage):
    """Parts of a micro-batch, and the query that they belong to."""

    query: str
    parts: list[WrittenPart]


class VersionSink(DataSourceStreamArrowWriter):
    """Every micro-batch with rows is a version, made once: a batch that runs again after a restart finds the version
    that it has made, by query and number. inv[stream.once]"""

    def __init__(self, target: Target, schema: StructType) -> None:
        self.target, self.schema = target, schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        from swamp.datasets.parts import write_parts

        task = TaskContext.get()
        query = (task.getLocalProperty(QUERY_ID) if task is not None else None) or ""
        batch = (task.getLocalProperty(BATCH_ID) if task is not None else None) or ""
        number = task.partitionId() if task is not None else 0
        target = self._of_batch(query, batch)
        return _Batch(query, write_parts(target, number, iterator, arrow_target(self.schema)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = [message for message in messages if isinstance(message, _Batch)]
        parts = sorted((part for message in found for part in message.parts), key=lambda part: part.name)
        if parts:
            publish(self._of_batch(found[0].query, str(batchId)), parts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes nothing: the batch runs again, and what nobody has published is garbage."""

    def _of_batch(self, query: str, batch: str) -> Target:
        """Where this batch goes: a commit of its own, known by the batch."""
        identity = self.target.draft.write_id or query
        if not identity or not batch:
            raise Failed(
                "Spark did not say which query and batch this is, so a restart could write it twice",
                hint="set option writeId to a name that only this query has",
            )
        draft = replace(self.target.draft, write_id=f"{identity}-{batch}")
        return replace(self.target, op=SYSTEM.ulid(), draft=draft)
