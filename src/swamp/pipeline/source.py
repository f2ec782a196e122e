"""`spark.read`, `df.write` and `spark.readStream` with `.format("swamp")`.

    spark.read.format("swamp").option("repo", R).option("table", "versions").load()
    spark.read.format("swamp").option("repo", R).option("model", M).option("name", N)[.option("version", 3)].load()
    df.write.format("swamp").mode("append").option("repo", R).option("model", M).option("name", N).save()
    spark.readStream.format("swamp").option("repo", R)[.option("model", M).option("name", N)].load()

`.option("columns", "a,b")` (or `.schema(…)`) reads only those columns of Parquet content. Spark's Python data sources
have no automatic column pruning; filters on metadata columns are pushed down where the session allows it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from swamp.errors import Failed, NotFound, UsageError
from swamp.pipeline.content import (
    Artifact,
    Piece,
    arrow_schema,
    artifact_of,
    find_artifact,
    format_of,
    pieces,
    read_piece,
    shaped,
)
from swamp.pipeline.dataset import Target, WrittenPart, commit_to_bucket, commit_to_folder, landed, make_target
from swamp.pipeline.filters import Tests, split
from swamp.pipeline.place import Bucket, Folder, Span, namespace_of, open_place
from swamp.pipeline.publish import ensure_root
from swamp.pipeline.tables import READERS, TABLES, Table, read_metadata, rows, version_row
from swamp.sync.pool import pooled

if TYPE_CHECKING:
    import pyarrow as pa

    from swamp.data.names import VersionRef
    from swamp.pipeline.stream import NewVersion, Step

BATCH_ROWS: Final = 2_000
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class SwampDataSource(DataSource):
    """The `swamp` format. Register it with `spark.dataSource.register(SwampDataSource)`."""

    @classmethod
    def name(cls) -> str:
        return "swamp"

    def schema(self) -> StructType | str:
        table = _table_of(self.options)
        if table is not None:
            return table.ddl
        return content_schema(open_place(self.options), self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        table = _table_of(self.options)
        if table is None:
            place = open_place(self.options)
            return ContentReader(place, _artifact(place, self.options), self.options.get("contentformat"), schema)
        plain = TableReader(table, self.options, schema)
        # Spark refuses a reader that can take filters in a session that does not push them; it asks for one only in
        # the worker that pushes.
        return PushingTableReader(plain) if _PUSHDOWN_WORKER in sys.modules else plain

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        if overwrite:
            raise _refused(
                "a version is never overwritten",
                'use .mode("append"): it makes a new version and older ones stay readable',
            )
        if self.options.get("table"):
            raise _refused("tables are read-only", 'write an artifact: .option("model", …).option("name", …)')
        return DatasetWriter(_target(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        place = open_place(self.options, empty=True)
        if isinstance(place, Folder):
            raise _refused(
                "a plain directory has no commits to follow",
                "streams need a datastore with an index: swamp datastore setup file:///… or s3://…",
            )
        return CommitStream(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise _refused(
            "a stream cannot be written directly: every batch would be a version",
            "use foreachBatch and df.write with .option('writeId', f'{query}-{batch_id}')",
        )


def _refused(what: str, instead: str) -> UsageError:
    """Spark shows an error's text and nothing else, so the next step stands in it."""
    return UsageError(f"{what}; {instead}", hint=instead)


def _table_of(options: Mapping[str, str]) -> Table | None:
    name = options.get("table")
    if name is None and options.get("model"):
        return None
    name = name or "versions"
    if name not in TABLES:
        raise _refused(f"there is no table {name!r}", f"there are: {', '.join(TABLES)}")
    return TABLES[name]


def _artifact(place: Bucket | Folder, options: Mapping[str, str]) -> Artifact:
    model, name = options.get("model"), options.get("name")
    if not model or not name:
        raise _refused("which artifact?", 'add .option("model", …) and .option("name", …)')
    text = options.get("version")
    if text is not None and not text.isdigit():
        raise _refused(f"{text!r} is not a version", "versions are whole numbers from 1")
    return find_artifact(place, model, name, int(text) if text else None, options.get("type"))


def content_schema(place: Bucket | Folder, options: Mapping[str, str]) -> StructType:
    """The columns of an artifact: as its writer described them, else as its first part shows them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    artifact = _artifact(place, options)
    described = artifact.meta.extra.get("schema")
    kind = format_of(artifact, options.get("contentformat"))
    if isinstance(described, dict) and kind == "parquet":
        found = StructType.fromJson(described)
    else:
        found = from_arrow_schema(arrow_schema(place, artifact, kind))
    wanted = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
    missing = [name for name in wanted if name not in found.names]
    if missing:
        raise _refused(f"there is no column {missing[0]!r}", f"there are: {', '.join(found.names)}")
    kept = [found[name] for name in wanted] if wanted else list(found.fields)
    for column in kept:
        column.nullable = True
    return StructType(kept)


def arrow_target(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


@dataclass
class _Part(InputPartition):
    """What one task reads."""

    place: Bucket | Folder
    span: Span = field(default_factory=Span)
    piece: Piece | None = None
    step: Step | None = None


class TableReader(DataSourceReader):
    """Rows of a table, by executors: each reads its part of the index and the files it names."""

    def __init__(self, table: Table, options: Mapping[str, str], schema: StructType) -> None:
        self.table, self.schema = table, schema
        self.namespace = namespace_of(options)
        self.place = open_place(options, empty=True)
        self.tests = Tests()

    def partitions(self) -> Sequence[InputPartition]:
        spans = [Span()] if self.table.name == "commits" else self.place.spans(self.table.prefix)
        if self.table.name == "commits":
            return [_Part(self.place)]
        return [_Part(self.place.within(self.table.prefix, span), span) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        found = rows(self.table, partition.place, partition.span, self.tests, self.namespace)
        return as_batches(found, self.schema)


class PushingTableReader(TableReader):
    """The same, with filters on metadata columns evaluated where the rows are made."""

    def __init__(self, plain: TableReader) -> None:
        self.__dict__.update(plain.__dict__)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        self.tests, rest = split(filters, self.table.filterable)
        return iter(rest)


class ContentReader(DataSourceReader):
    """An artifact's content; version and parts were resolved on the driver. inv[read.snapshot]"""

    def __init__(self, place: Bucket | Folder, artifact: Artifact, asked: str | None, schema: StructType) -> None:
        self.kind = format_of(artifact, asked)
        self.schema = schema
        self.place = place.keys_only()
        self.pieces = pieces(place, artifact, self.kind)

    def partitions(self) -> Sequence[InputPartition]:
        return [_Part(self.place, piece=piece) for piece in self.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        target = arrow_target(self.schema)
        if partition.piece is None:
            return
        for batch in read_piece(partition.place, partition.piece, target.names):
            yield shaped(batch, target)


def as_batches(found: Iterator[dict[str, Any]], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow of exactly these columns, a page at a time."""
    import pyarrow as pa

    target = arrow_target(schema)
    page: list[dict[str, Any]] = []

    def batch() -> pa.RecordBatch:
        columns = [pa.array([row.get(f.name) for row in page], f.type) for f in target]
        return pa.RecordBatch.from_arrays(columns, schema=target)

    for row in found:
        page.append(row)
        if len(page) >= BATCH_ROWS:
            yield batch()
            page = []
    if page:
        yield batch()


@dataclass
class _Message(WriterCommitMessage):
    parts: list[WrittenPart]


def _target(options: Mapping[str, str], schema: StructType) -> Target:
    try:
        place = open_place(options)
    except NotFound:
        ensure_root(options)
        place = open_place(options)
    return make_target(place, options, schema.jsonValue())


class DatasetWriter(DataSourceArrowWriter):
    """A new version. Made on the driver, where its op is chosen; pickled to the tasks and to the commit."""

    def __init__(self, target: Target, schema: StructType) -> None:
        self.target = target
        self.schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        from swamp.pipeline.parts import write_parts

        task = TaskContext.get()
        partition = task.partitionId() if task is not None else 0
        # The first task always leaves a part, so that a dataset without rows still has its columns.
        return _Message(
            write_parts(self.target, partition, iterator, arrow_target(self.schema), even_empty=partition == 0)
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        parts = [part for message in messages if isinstance(message, _Message) for part in message.parts]
        ordered = sorted(parts, key=lambda part: part.name)
        if self.target.spec is None:
            commit_to_folder(self.target, ordered)
        else:
            commit_to_bucket(self.target, ordered)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes nothing: what nobody publishes is garbage, and a commit may have landed after all."""
        if landed(self.target):
            raise Failed(
                f"the job failed, but its version of {self.target.data.name} has been committed",
                hint="do not run it again; with option writeId running it again would be harmless",
                details={"op": self.target.op},
            )


class CommitStream(DataSourceStreamReader):
    """New versions, commit by commit: their metadata, or with `model` and `name` their content."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options, self.schema = dict(options), schema
        self.namespace = namespace_of(options)

    def initialOffset(self) -> dict[str, Any]:
        from swamp.pipeline.stream import BEGINNING, offset_of

        if self.options.get("startingfrom", "beginning") == "latest":
            return offset_of(self._bucket().root)
        return dict(BEGINNING)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        from swamp.pipeline.stream import offset_of

        return offset_of(self._bucket().root)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from swamp.pipeline.stream import VERSIONS_PER_TASK, step_between

        bucket = self._bucket()
        step = step_between(bucket, start, end)
        if step is None:
            return []
        if not self.options.get("model"):
            return [_Part(part.after, step=part) for part in step.parts(VERSIONS_PER_TASK)]
        found = (v for v in step.versions(self._named) if self._is_model(bucket, v))
        narrow = bucket.keys_only()
        return [part for version in found for part in self._content(step.after, narrow, version)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        if partition.piece is not None:
            target = arrow_target(self.schema)
            batches = read_piece(partition.place, partition.piece, target.names)
            return (shaped(batch, target) for batch in batches)
        assert partition.step is not None
        return as_batches(self._described(partition.step), self.schema)

    def _described(self, step: Step) -> Iterator[dict[str, Any]]:
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

    def _is_model(self, bucket: Bucket, version: NewVersion) -> bool:
        model = self.options["model"]
        if version.ref.data.model_id == model:
            return True
        meta = read_metadata(bucket, version.metadata)
        return meta is not None and meta.tags.get("modelName") == model

    def _content(self, at_end: Bucket, narrow: Bucket, version: NewVersion) -> Iterator[_Part]:
        files = list(at_end.files(version.ref.path, Span()))
        meta = read_metadata(at_end, version.metadata)
        if meta is None or not meta.active:
            return
        artifact = artifact_of(at_end, version.ref, files)
        for piece in pieces(at_end, artifact, format_of(artifact, self.options.get("contentformat"))):
            yield _Part(narrow, piece=piece)

    def _bucket(self) -> Bucket:
        place = open_place(self.options, empty=True)
        assert isinstance(place, Bucket)
        return place
