"""`spark.read`, `df.write` and `spark.readStream` with `.format("swamp")`.

    spark.read.format("swamp").option("repo", R).option("table", "versions").load()
    spark.read.format("swamp").option("repo", R).option("model", M).option("name", N)[.option("version", 3)].load()
    df.write.format("swamp").mode("append").option("repo", R).option("model", M).option("name", N).save()
    spark.readStream.format("swamp").option("repo", R)[.option("model", M).option("name", N)].load()

`.option("columns", "a,b")` (or `.schema(…)`) reads only those columns of Parquet content. Spark's Python data sources
have no automatic column pruning, and they take no filters: Spark gives a reader that took one to other scans of the
same relation too, which then miss rows (Spark 4.3). inv[source.whole]

After `swamp.spark.register` reads of Parquet do not come here where Spark's own reader can be used (`compile`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from swamp.data.records import file_of_run, note
from swamp.data.versions import DataVersion
from swamp.datasets.batches import Share, arrow_target, as_batches
from swamp.datasets.content import (
    Artifact,
    arrow_schema,
    find_artifact,
    format_of,
    pieces,
    read_pieces,
    tasks_of,
)
from swamp.datasets.options import (
    asked_version,
    check_content_options,
    check_sink_options,
    check_stream_options,
    check_table_options,
    check_write_options,
)
from swamp.datasets.parse import Dialect
from swamp.datasets.place import Bucket, Folder, namespace_of, open_place, open_tables
from swamp.datasets.resolve import known_places
from swamp.datasets.tables import TABLES, VERSIONS, Row, Table, rows
from swamp.errors import UsageError
from swamp.index.root import Span

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class SwampDataSource(DataSource):
    """The `swamp` format. Register it with `swamp.spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        return "swamp"

    reads_file: str | None = None
    """Where a method's session notes what was read with it, for the record of its run."""
    _found: Bucket | Folder | None = None

    def schema(self) -> StructType | str:
        """The columns, and with them the state of the repository that every scan of this relation reads: Spark keeps
        this object with the relation. inv[read.snapshot]"""
        table = _table_of(self.options)
        if table is not None:
            check_table_options(self.options, maybe_stream=True)
            self._found = open_tables(self.options, table.name)
            return table.ddl
        self._found = open_place(self.options)
        return content_schema(self._found, self.options, self.reads_file)

    def reader(self, schema: StructType) -> DataSourceReader:
        table = _table_of(self.options)
        if table is None:
            place = self._found or open_place(self.options)
            artifact = find_asked(place, self.options)
            note_read(artifact, self.reads_file)
            return ContentReader(place, artifact, self.options, schema)
        check_table_options(self.options)
        place = self._found or open_tables(self.options, table.name)
        return TableReader(table, place, namespace_of(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A new version, which replaces the one before for whoever asks for the latest: `append` and `overwrite` are
        the same here, and older versions stay readable."""
        del overwrite
        if self.options.get("table"):
            raise _refused("tables are read-only", 'write an artifact: .option("model", …).option("name", …)')
        check_write_options(self.options)
        from swamp.datasets.deliver import DatasetWriter, target_of  # here: every read is planned in two processes

        return DatasetWriter(target_of(self.options, schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        check_stream_options(self.options)
        from swamp.datasets.follow import CommitStream

        place = open_place(self.options, empty=True)
        if isinstance(place, Folder):
            raise _refused(
                "a plain directory has no commits to follow",
                "streams need a datastore with an index: swamp datastore setup file:///… or s3://…",
            )
        return CommitStream(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Every micro-batch is a version: with output mode `complete` the whole result, with `append` what is new."""
        del overwrite
        check_sink_options(self.options)
        from swamp.datasets.deliver import VersionSink, target_of

        return VersionSink(target_of(self.options, schema), schema)


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


def find_asked(place: Bucket | Folder, options: Mapping[str, str]) -> Artifact:
    """The version of an artifact that the options (their names in lower case) ask for."""
    model, name = options.get("model"), options.get("name")
    if not model or not name:
        raise _refused("which artifact?", 'add .option("model", …) and .option("name", …)')
    number, moment = asked_version(options)
    as_of = _moment(moment) if moment else None
    place = place.keeping()
    known = known_places(place, options, model)
    return find_artifact(place, model, name, number, options.get("type"), as_of=as_of, known=known)


def versions_of(options: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Rows of the table `versions` for the artifact that the options name, as tuples of its columns, newest
    first; found without going through the whole index."""
    place = open_place(options).keeping()
    known = known_places(place, options, options["model"])
    data = find_artifact(place, options["model"], options["name"], None, options.get("type"), known=known).ref.data
    span = Span(f"{data.path}/", f"{data.path}0")  # `0` follows `/`: all below the name and nothing else
    found: list[Row] = sorted(rows(VERSIONS, place, span, namespace_of(options)), key=lambda r: -int(r["version"]))
    return (tuple(row.get(column) for column in VERSIONS.names) for row in found)


def register(session: SparkSession) -> SparkSession:
    """Makes the format known to a session that swamp has opened; `swamp.spark.register` does it for a user's own."""
    session.dataSource.register(SwampDataSource)
    return session


def data_source() -> type[SwampDataSource]:
    """The format for sessions of this thread. Spark resolves relations in a process of its own: part of a run, that
    process notes for it what was read."""
    file = file_of_run()
    return SwampDataSource if file is None else type("SwampDataSource", (SwampDataSource,), {"reads_file": file})


def note_read(artifact: Artifact, file: str | None = None) -> None:
    """The run that this is part of, if any, has read it."""
    note(DataVersion(artifact.ref, artifact.meta).artifact(), file)


def _moment(text: str) -> dt.datetime:
    """A time as Delta takes it: a date, or a date and a time, in UTC unless it says otherwise."""
    try:
        found = dt.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError as error:
        raise _refused(f"timestampAsOf {text!r} is not a time", "e.g. 2026-11-15 or 2026-11-15T10:00:00Z") from error
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def content_schema(place: Bucket | Folder, options: Mapping[str, str], reads: str | None = None) -> StructType:
    """The columns of an artifact: as its writer described them, else as its content shows them.

    Asked for when the relation is made, so that this is when it is noted in the file `reads`.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    check_content_options(options, None, maybe_stream=True)
    artifact = find_asked(place, options)
    note_read(artifact, reads)
    described = artifact.meta.extra.get("schema")
    kind = format_of(artifact, options.get("contentformat"))
    check_content_options(options, kind, maybe_stream=True)
    if isinstance(described, dict) and kind == "parquet":
        found = StructType.fromJson(described)
    else:
        found = from_arrow_schema(arrow_schema(place, artifact, kind, Dialect.of(options)))
    wanted = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
    missing = [name for name in wanted if name not in found.names]
    if missing:
        raise _refused(f"there is no column {missing[0]!r}", f"there are: {', '.join(found.names)}")
    kept = [found[name] for name in wanted] if wanted else list(found.fields)
    for column in kept:
        column.nullable = True
    return StructType(kept)


class TableReader(DataSourceReader):
    """Rows of a table, by executors: each reads its part of the index and the files it names."""

    def __init__(self, table: Table, place: Bucket | Folder, namespace: str, schema: StructType) -> None:
        self.table, self.place, self.namespace, self.schema = table, place, namespace, schema

    def partitions(self) -> Sequence[InputPartition]:
        if self.table.name == "commits":
            return [Share(self.place)]
        prefix = self.table.prefix
        return [Share(self.place.within(prefix, span), span) for span in self.place.spans(prefix)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        found = rows(self.table, partition.place, partition.span, self.namespace)
        return as_batches(found, self.schema)


class ContentReader(DataSourceReader):
    """An artifact's content; version and parts were resolved on the driver. inv[read.snapshot]"""

    def __init__(
        self, place: Bucket | Folder, artifact: Artifact, options: Mapping[str, str], schema: StructType
    ) -> None:
        kind = format_of(artifact, options.get("contentformat"))
        check_content_options(options, kind)
        self.schema = schema
        self.place = place.keys_only()
        self.tasks = tasks_of(pieces(place, artifact, kind, Dialect.of(options)))

    def partitions(self) -> Sequence[InputPartition]:
        return [Share(self.place, pieces=found) for found in self.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        return read_pieces(partition.place, partition.pieces, arrow_target(self.schema))
