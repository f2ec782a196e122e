"""DuckDB in this process, sealed: it sees the tables it is given and nothing else of this machine.

The parts of a Parquet dataset are read where they lie, and they are the only files it may open; every other format
comes as the rows that the Spark source makes of it, so that both engines see the same types. inv[sql.sealed]
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from swamp.datasets.content import Artifact, arrow_schema, format_of, pieces, read_pieces
from swamp.datasets.parse import PLAIN
from swamp.datasets.place import Folder, open_tables
from swamp.datasets.tables import TABLES, Row, Table, rows
from swamp.errors import CorruptData, Failed, SwampError, UsageError
from swamp.extras import needs
from swamp.sql.relations import EngineQuery, place_in, quoted
from swamp.values import value

if TYPE_CHECKING:
    import duckdb

    from swamp.repo.repository import Repo

MAP: Final = "map<string,string>"
BATCH: Final = 10_000
MEMORY_SHARE: Final = 0.5
SETTINGS: Final = (
    "default_null_order = 'nulls_first_on_asc_last_on_desc'",  # as Spark orders them
    "TimeZone = 'UTC'",
    "errors_as_json = true",
    "temp_directory = ''",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
_TYPES: Final = {"string": "VARCHAR", "bigint": "BIGINT", "boolean": "BOOLEAN", MAP: "MAP(VARCHAR, VARCHAR)"}
_PATTERN: Final = frozenset("*?[")


@value
class Dataset:
    """One version whose files are here; `view` is what the query calls it."""

    view: str
    place: Folder
    artifact: Artifact

    @property
    def files(self) -> list[str]:
        return [file.key for file in self.artifact.files if file.size]

    @property
    def in_place(self) -> bool:
        """Whether DuckDB opens the parts itself: Parquet, under names that it does not take for patterns."""
        return format_of(self.artifact) == "parquet" and not any(_PATTERN & set(name) for name in self.files)


@value
class Found:
    """What a query gave: whole, in the engine's memory, before its first row is asked for."""

    columns: list[str]
    relation: Any

    def rows(self) -> Iterator[Sequence[Any]]:
        return iter(self.relation.iter_rows())

    def write_parquet(self, file: Path) -> int:
        from arro3.core import Table as Columns
        from arro3.io import write_parquet

        whole = [quoted(name, "duckdb") for name in self.columns]
        for at, kind in enumerate(self.relation.types):
            if str(kind) == "HUGEINT":  # the sum of whole numbers: a long, as Spark gives it
                whole[at] = f"CAST({whole[at]} AS BIGINT) AS {whole[at]}"
        table = Columns.from_arrow(self.relation.project(", ".join(whole)))
        write_parquet(table, file)
        return int(table.num_rows)


class Duck:
    """One sealed connection. Use it as a context manager."""

    def __init__(self, *, seconds: float, files: Sequence[str] = (), memory: int | None = None) -> None:
        needs("duckdb", "SQL in this process", "duckdb")
        import duckdb

        self._seconds = seconds
        self._db: duckdb.DuckDBPyConnection = duckdb.connect(":memory:", config={"python_enable_replacements": "false"})
        limit = memory or int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
        self._db.execute(f"SET memory_limit = '{limit // 1024} KiB'")
        if files:
            self._db.execute(f"SET allowed_paths = {_texts(files)}")
        for setting in SETTINGS:  # the last of them locks all
            self._db.execute(f"SET {setting}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.close()

    def add_table(self, table: Table, rows: Iterator[Row]) -> None:
        """A metadata table under its own name."""
        self._db.register("~rows", arrow_reader(table, rows))
        columns = [
            f"CAST(CAST({here} AS JSON) AS {_TYPES[kind]}) AS {here}" if kind == MAP else here  # maps come as JSON text
            for here, kind in ((quoted(name, "duckdb"), kind) for name, kind in table.columns)
        ]
        self._db.execute(f'CREATE TABLE {quoted(table.name, "duckdb")} AS SELECT {", ".join(columns)} FROM "~rows"')
        self._db.unregister("~rows")

    def add_dataset(self, dataset: Dataset) -> None:
        view = quoted(dataset.view, "duckdb")
        if dataset.in_place and dataset.files:
            reading = f"read_parquet({_texts(dataset.files)}, union_by_name = true, hive_partitioning = false)"
            with self._bounded(), _of_parquet(dataset):
                self._db.execute(f"CREATE VIEW {view} AS SELECT * FROM {reading}")
            return
        needs("pyarrow", "reading JSON, CSV and text with SQL", "duckdb")
        import pyarrow as pa

        kind = format_of(dataset.artifact)
        schema = arrow_schema(dataset.place, dataset.artifact, kind, PLAIN)
        batches = read_pieces(dataset.place, pieces(dataset.place, dataset.artifact, kind), schema)
        if not schema.names:  # no rows, or empty ones: DuckDB has no table without a column
            rows = sum(batch.num_rows for batch in batches)
            self._db.execute(f"CREATE TABLE {view} AS SELECT NULL::VARCHAR AS value FROM range({rows})")
            return
        self._db.register("~rows", pa.RecordBatchReader.from_batches(schema, batches))
        with self._bounded():
            self._db.execute(f'CREATE TABLE {view} AS SELECT * FROM "~rows"')
        self._db.unregister("~rows")

    def run(self, query: EngineQuery, typed: str, known: Callable[[], Sequence[str]]) -> Found:
        """The answer, whole. Raises UsageError with the place of a mistake in what was `typed`, Failed at a bound."""
        import duckdb

        try:
            with self._bounded():
                statements = self._db.extract_statements(query.text)
                kinds = [str(one.type).rpartition(".")[2] for one in statements]
                if kinds not in (["SELECT"], ["EXPLAIN"]):
                    raise UsageError(f"`swamp sql` reads: {kinds[0]} is not run", hint="begin with SELECT or WITH")
                relation = self._db.sql(query.text).materialize()
        except duckdb.Error as error:
            raise explained(self._told(error, query), query, typed, (known(), self._columns())) from error
        return Found(list(relation.columns), relation)

    def _told(self, error: duckdb.Error, query: EngineQuery) -> duckdb.Error:
        """The same error with its place in the text: a relation leaves that out, a plain statement says it."""
        import duckdb

        if _details(error) or not isinstance(error, duckdb.ProgrammingError | duckdb.PermissionException):
            return error
        try:
            with self._bounded():
                self._db.execute(query.text)
            self._db.abort()
        except duckdb.Error as again:
            return again
        return error

    def _columns(self) -> list[str]:
        found = self._db.execute("SELECT DISTINCT column_name FROM duckdb_columns() WHERE NOT internal").fetchall()
        return [str(name) for (name,) in found]

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Ends what takes too long; DuckDB itself listens for Ctrl-C."""
        import duckdb

        late = threading.Event()

        def stop() -> None:
            late.set()
            self._db.interrupt()

        timer = threading.Timer(self._seconds, stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        except duckdb.InterruptException as error:
            if not late.is_set():
                raise KeyboardInterrupt from error
            raise Failed(
                f"the query took longer than {self._seconds:g} s",
                hint="SWAMP_QUERY_TIMEOUT_MS allows more; --engine spark has no such bound",
            ) from error
        finally:
            timer.cancel()
            timer.join()  # a thread that still knows the connection when Python ends makes DuckDB complain on stderr


@contextmanager
def _of_parquet(dataset: Dataset) -> Iterator[None]:
    """Bytes that are not the Parquet that they are called are told as other formats tell theirs."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.IOException | duckdb.InterruptException | duckdb.OutOfMemoryException):
            raise
        said = _details(error).get("exception_message") or str(error)
        raise CorruptData(
            f"{dataset.artifact.ref.path} is not Parquet: {_first(said)}",
            hint="`swamp data cat` writes its bytes as they are",
        ) from error


def _texts(values: Sequence[str]) -> str:
    return "[" + ", ".join("'" + value.replace("'", "''") + "'" for value in values) + "]"


def explained(
    error: duckdb.Error, query: EngineQuery, typed: str, known: tuple[Sequence[str], Sequence[str]]
) -> SwampError:
    """DuckDB's sentence, with the place in what the user typed and what was probably meant; `known` are tables and
    columns."""
    import duckdb

    said = _details(error)
    message = said.get("exception_message") or str(error)
    if isinstance(error, duckdb.PermissionException):
        return UsageError(
            f"`swamp sql` reads tables and datasets, not files{_where(said, query, typed)}",
            hint="`swamp data put` makes a file a dataset",
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return Failed("the query needs more memory than DuckDB may take here", hint="try --engine spark")
    if isinstance(error, duckdb.IOException):
        return Failed(f"DuckDB could not read: {_first(message)}", hint="`swamp datastore verify` looks for damage")
    if not isinstance(error, duckdb.ProgrammingError | duckdb.DataError | duckdb.NotSupportedError):
        return Failed(f"DuckDB failed: {_first(message)}", hint="try --engine spark")
    return UsageError(f"{_first(message)}{_where(said, query, typed)}", hint=_hint(said, message, *known))


def _details(error: BaseException) -> dict[str, str]:
    text = str(error)
    try:
        found = json.loads(text[text.index("{") :])
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()}


def _first(message: str) -> str:
    return " ".join(message.split("\n")[0].split())[:600]


def _where(said: dict[str, str], query: EngineQuery, typed: str) -> str:
    if not said.get("position", "").isdigit():
        return ""
    before = query.text.encode()[: int(said["position"])].decode(errors="ignore")  # DuckDB counts bytes
    return f" ({place_in(typed, query.origin(len(before)))})"


def _hint(said: dict[str, str], message: str, known: Sequence[str], columns: Sequence[str]) -> str:
    from swamp.data.names import meant

    tables = f"tables: {', '.join(TABLES)}; datasets: model.name; DESCRIBE shows columns"
    kind = said.get("type", "")
    if "Candidate bindings" in message or said.get("error_subtype") == "COLUMN_NOT_FOUND":
        first = message.partition("\n")[0]
        wanted = said.get("name") or [first, *first.split('"')[1::2]][-1]
        return f"{meant(wanted, columns)}DESCRIBE shows the columns of a table"
    if said.get("error_subtype") == "MISSING_ENTRY" and kind != "Table":
        return f"DuckDB has no such {kind.lower()}; Spark may have it: --engine spark"
    return (meant(said["name"], known) if "name" in said else "") + tables


def table_rows(repo: Repo, table: Table) -> Iterator[Row]:
    """The rows of a table as this machine knows them, after a read has asked the store (`Repo.freshen`)."""
    if table.name in ("data", "versions"):
        where = "isLatest = 1" if table.name == "data" else "1"
        return (
            {**row.fields, "modelId": row.ref.data.model_id, "checksum": row.checksum, "path": row.ref.path}
            for row in repo.catalog.select(where)
        )
    if table.name == "commits":
        asking = {"repo": str(repo.path), "fresh": "false" if repo.settings.fresh == "never" else "true"}
        return rows(table, open_tables(asking, table.name))
    return rows(table, Folder(str(repo.tree.root)))


def arrow_reader(table: Table, found: Iterable[Row]) -> Any:
    """The rows as a stream of Arrow batches, by way of arro3: nobody waits for pyarrow to load. Maps are JSON text."""
    from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema

    kinds = {"bigint": DataType.int64(), "boolean": DataType.bool()}
    fields = [Field(name, kinds.get(kind, DataType.string())) for name, kind in table.columns]
    schema = Schema(fields)

    def batch(page: list[Row]) -> Any:
        columns = [[row.get(name) for row in page] for name, _ in table.columns]
        for at, (_, kind) in enumerate(table.columns):
            if kind == MAP:
                columns[at] = [one if one is None else json.dumps(one, ensure_ascii=False) for one in columns[at]]
        arrays = [Array(values, field.type) for values, field in zip(columns, fields, strict=True)]
        return RecordBatch.from_arrays(arrays, schema=schema)

    source = iter(found)
    pages = iter(lambda: list(islice(source, BATCH)), [])
    return RecordBatchReader.from_batches(schema, [batch(page) for page in pages])
