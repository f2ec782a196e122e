"""SQL in a Spark session: tables of a repository and versions of its datasets as views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.bulk.jobs import Jobs, translated
from swamp.datasets.tables import TABLES
from swamp.errors import SwampError, UsageError
from swamp.sync.progress import IdleTimeout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from swamp.data.names import VersionRef

Place = Callable[[int], str]
"""Says in words where a place of the text is in what the user typed."""


def query(session: SparkSession, text: str, place: Place) -> DataFrame:
    """The query as a DataFrame; nothing has run yet. Raises UsageError when Spark cannot make sense of it."""
    return _understood(lambda: session.sql(text), text, place)


def register_tables(session: SparkSession, repo: Path, names: Iterable[str], *, fresh: bool = True) -> None:
    """Views for metadata tables: planning one costs a Python process, so only those that are asked for."""
    for name in names:
        reader = session.read.format("swamp").option("repo", str(repo)).option("table", name)
        reader = reader.option("fresh", fresh)
        _understood(reader.load).createOrReplaceTempView(name)


def register_dataset(session: SparkSession, repo: Path, view: str, ref: VersionRef) -> None:
    """One version as a view, read by Spark's own readers wherever the JVM can open its parts."""
    from swamp.datasets.native import read_version

    data = ref.data
    asked = {"repo": str(repo), "model": data.model_id, "name": data.name, "version": str(ref.version)}
    frame = _understood(lambda: read_version(session, {**asked, "type": data.type}, {}))
    frame.createOrReplaceTempView(view)


def _understood(make: Callable[[], DataFrame], text: str = "", place: Place | None = None) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return make()
    except (AnalysisException, ParseException) as error:
        ours = translated(error, "sql")
        if isinstance(ours, SwampError) and ours.kind != "failed":
            raise ours from error
        at = _offset(error, text) if place is not None else None
        where = f" ({place(at)})" if place is not None and at is not None else ""
        hint = f"tables: {', '.join(TABLES)}; datasets: model.name; DESCRIBE shows columns"
        raise UsageError(_message(error) + where, hint=hint) from error


def _offset(error: Any, text: str) -> int | None:
    """Where Spark points at: by its query context, else by the line and position in its sentence."""
    for context in error.getQueryContext() if hasattr(error, "getQueryContext") else ():
        start = context.startIndex()
        if 0 <= start < len(text):
            return int(start)
    found = re.search(r"\(line (\d+), pos (\d+)\)", str(error))
    if found is None:
        return None
    lines = text.split("\n")[: int(found[1]) - 1]
    return sum(len(line) + 1 for line in lines) + int(found[2])


def _message(error: Any) -> str:
    """Spark's own sentence without its plan and call site."""
    text = str(error.getMessage() if hasattr(error, "getMessage") else error)
    return " ".join(text.split("\n\n")[0].split(";\n")[0].split())[:600]


def rows_of(frame: DataFrame, jobs: Jobs, idle_timeout: IdleTimeout) -> Iterator[Sequence[Any]]:
    """The result, row by row. It is whole, as columns, before the first row is asked for."""
    table = jobs.run("sql", frame.toArrow, idle_timeout)
    return (row for batch in table.to_batches(1000) for row in _rows(batch))


def _rows(batch: pa.RecordBatch) -> Iterator[Sequence[Any]]:
    # An empty map is an empty object, not a list.
    return zip(*(column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns), strict=True)


def write_parquet(frame: DataFrame, jobs: Jobs, idle_timeout: IdleTimeout, file: Path) -> int:
    import pyarrow.parquet as pq

    table = jobs.run("sql", frame.toArrow, idle_timeout)
    pq.write_table(table, file)
    return int(table.num_rows)
