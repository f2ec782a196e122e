"""SQL over the tables of a repository: `data`, `versions`, `outputs`, `runs`, `commits`."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from swamp.errors import SwampError, UsageError
from swamp.pipeline.jobs import Jobs, translated
from swamp.pipeline.tables import TABLES
from swamp.sync.progress import Patience

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Format = Literal["table", "json", "csv", "parquet"]
FORMATS: Final = ("table", "json", "csv", "parquet")


def query(session: SparkSession, repo: Path, text: str) -> DataFrame:
    """The query as a DataFrame; nothing has run yet. Raises UsageError when Spark cannot make sense of it."""
    register_tables(session, repo, text)
    frame: DataFrame = _understood(lambda: session.sql(text))
    return frame


def register_tables(session: SparkSession, repo: Path, text: str) -> None:
    """Views for the tables that the text mentions: planning one costs a Python process, so only those."""
    for name in TABLES:
        if re.search(rf"\b{name}\b", text, re.IGNORECASE):
            reader = session.read.format("swamp").option("repo", str(repo)).option("table", name)
            _understood(reader.load).createOrReplaceTempView(name)


def _understood(make: Any) -> Any:
    from pyspark.errors import AnalysisException, ParseException

    try:
        return make()
    except (AnalysisException, ParseException) as error:
        ours = translated(error, "sql")
        if isinstance(ours, SwampError) and ours.kind != "failed":
            raise ours from error
        raise UsageError(_message(error), hint=f"tables: {', '.join(TABLES)}; DESCRIBE TABLE shows columns") from error


def _message(error: Any) -> str:
    """Spark's own sentence without its plan and call site."""
    text = str(error.getMessage() if hasattr(error, "getMessage") else error)
    return " ".join(text.split("\n\n")[0].split(";\n")[0].split())[:600]


def columns_of(frame: DataFrame) -> list[str]:
    return list(frame.columns)


def rows_of(frame: DataFrame, jobs: Jobs, patience: Patience) -> Iterator[dict[str, Any]]:
    """The result, row by row as plain values. It is whole, as columns, before the first row is asked for."""
    table = jobs.run("sql", frame.toArrow, patience)
    return (row for batch in table.to_batches(1000) for row in _plain_rows(batch))


def _plain_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    for row in batch.to_pylist(maps_as_pydicts="lossy"):  # an empty map is an empty object, not a list
        yield {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """A value that JSON can hold: times as text, maps as objects, bytes as hex."""
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def write_json(rows: Iterator[dict[str, Any]], out: IO[str]) -> int:
    """An array of row objects, written as it comes."""
    count = 0
    out.write("[")
    for row in rows:
        out.write(("\n" if not count else ",\n") + json.dumps(row, ensure_ascii=False))
        count += 1
    out.write("]\n" if not count else "\n]\n")
    return count


def write_csv(columns: list[str], rows: Iterator[dict[str, Any]], out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in rows:
        writer.writerow([_cell(row[name]) for name in columns])
        count += 1
    return count


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value


def write_parquet(frame: DataFrame, jobs: Jobs, patience: Patience, file: Path) -> int:
    import pyarrow.parquet as pq

    table = jobs.run("sql", frame.toArrow, patience)
    pq.write_table(table, file)
    return int(table.num_rows)
