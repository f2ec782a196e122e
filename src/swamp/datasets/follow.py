"""`spark.readStream.format("swamp")`: new versions, commit by commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from swamp.data.names import version_of
from swamp.datasets.batches import Share, arrow_target, as_batches
from swamp.datasets.content import artifact_of, format_of, pieces, read_pieces, tasks_of
from swamp.datasets.place import Bucket, FileRef, namespace_of, open_place
from swamp.datasets.stream import (
    BEGINNING,
    VERSIONS_PER_TASK,
    NewVersion,
    Offset,
    StreamStep,
    admitted,
    finished,
    offset_of,
    root_at,
    step_between,
)
from swamp.datasets.tables import READERS, read_metadata, version_row
from swamp.errors import UsageError
from swamp.sync.inline import pooled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from swamp.data.metadata import Metadata
    from swamp.data.names import DataName, VersionRef


class CommitStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """New versions, commit by commit: their metadata, or with `model` and `name` their content.

    `maxVersionsPerTrigger` bounds what one micro-batch brings.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options, self.schema = dict(options), schema
        self.namespace = namespace_of(options)
        self.most = _most(options.get("maxversionspertrigger"))
        self.until: Offset | None = None

    def initialOffset(self) -> Offset:
        if self.options.get("startingfrom", "beginning") == "latest":
            return offset_of(self._bucket().root)
        return dict(BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.most is None else ReadMaxFiles(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is all that this run reads."""
        self.until = offset_of(self._bucket().root)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        bucket = self._bucket()
        if self.until is not None:
            last = root_at(bucket, self.until)
            if last is None:
                return start
            bucket = Bucket(bucket.spec, last)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        return finished(bucket, start) if most is None else admitted(bucket, start, most, self._named)

    def reportLatestOffset(self) -> Offset:
        return offset_of(self._bucket().root)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        step = step_between(self._bucket(), start, end)
        if step is None:
            return []
        if not self.options.get("model"):
            return [Share(part.after, step=part) for part in step.parts(VERSIONS_PER_TASK)]
        narrow = step.after.keys_only()
        return [Share(narrow, pieces=found) for found in self._content(step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        if partition.step is None:
            return read_pieces(partition.place, partition.pieces, arrow_target(self.schema))
        return as_batches(self._described(partition.step), self.schema)

    def _described(self, step: StreamStep) -> Iterator[dict[str, Any]]:
        def described(version: NewVersion) -> dict[str, Any] | None:
            meta = read_metadata(step.after, version.metadata)
            return None if meta is None or not meta.active else version_row(version.ref, meta, False, self.namespace)

        for row in pooled(step.versions(self._named), described, READERS):
            if row is not None:
                # Which one is the latest depends on when one looks: a stream cannot say.
                yield {**row, "isLatest": None}

    def _named(self, ref: VersionRef) -> bool:
        name = self.options.get("name")
        return name is None or ref.data.name == name

    def _content(self, step: StreamStep) -> Iterator[tuple[Any, ...]]:
        """What tasks read: metadata of each version once and several at a time, the index once for each name."""

        def described(version: NewVersion) -> tuple[NewVersion, Metadata | None]:
            return version, read_metadata(step.after, version.metadata)

        files: dict[DataName, dict[VersionRef, list[FileRef]]] = {}
        found = pooled(step.versions(self._named), described, READERS)
        for version, meta in sorted(found, key=lambda pair: pair[0].ref):
            if meta is None or not meta.active or not self._is_model(version.ref, meta):
                continue
            data = version.ref.data
            if data not in files:
                files[data] = _by_version(step.after, data)
            artifact = artifact_of(step.after, version.ref, files[data][version.ref], meta)
            kind = format_of(artifact, self.options.get("contentformat"))
            yield from tasks_of(pieces(step.after, artifact, kind))

    def _is_model(self, ref: VersionRef, meta: Metadata) -> bool:
        return self.options["model"] in (ref.data.model_id, meta.tags.get("modelName"))

    def _bucket(self) -> Bucket:
        place = open_place(self.options, empty=True)
        assert isinstance(place, Bucket)
        return place


def _by_version(bucket: Bucket, data: DataName) -> dict[VersionRef, list[FileRef]]:
    found: dict[VersionRef, list[FileRef]] = {}
    for file in bucket.files(data.path):
        ref = version_of(file.path)
        if ref is not None:
            found.setdefault(ref, []).append(file)
    return found


def _most(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"maxVersionsPerTrigger is {text!r}; use a whole number from 1", hint="e.g. 100")
    return int(text)
