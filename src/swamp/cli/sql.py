"""`swamp sql`: SQL over the tables and datasets of a repository."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import typer

from swamp.cli.command import reading, session, single
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.cli.command import CommandSession
    from swamp.sql.answer import Answer

FORMATS: Final = ("table", "json", "csv", "parquet")

app = single("SQL over datasets and over data, versions, outputs, runs and commits.")


@reading(app, "sql")
def sql(
    query: str = typer.Argument(..., help="A query over data, versions, outputs, runs, commits and MODEL.NAME."),
    engine: str | None = typer.Option(
        None, "--engine", help="auto, duckdb or spark (auto: DuckDB unless the datasets are large)."
    ),
    format_: str | None = typer.Option(
        None, "--format", help="table, json, csv or parquet (default: table, in a file csv, with --json json)."
    ),
    output: str | None = typer.Option(None, "--output", help="Write the result to this file.", metavar="FILE"),
    master: str | None = typer.Option(None, "--master", help="Where Spark runs (default: .swamp.yaml, local[*])."),
) -> None:
    """Ask the repository with SQL.

    A dataset is MODEL.NAME, as in `SELECT * FROM web.orders`, an older version of it
    `web.orders FOR VERSION AS OF 3`; names with other characters are written in double quotes.
    """
    from swamp.sql.answer import answered

    with session(reading=True, sql_engine=engine) as s:
        chosen = _chosen(format_, to_file=bool(output), as_json=s.common.json)
        asked = s.repo.settings.sql_engine if master is None or engine is not None else "spark"
        with answered(s.repo, query, engine=asked, master=master, progress=s.out.progress(), warn=s.out.warn) as answer:
            s.out.detail(f"{answer.choice.engine}: {answer.choice.reason}")
            _deliver(s, answer, chosen, Path(output) if output else None)


def _chosen(asked: str | None, *, to_file: bool, as_json: bool) -> str:
    """The format of the rows. What was asked for wins; with `--json` stdout takes no other than JSON."""
    chosen = asked or ("json" if as_json else "table")
    if chosen not in FORMATS:
        raise UsageError(f"{chosen!r} is not a format", hint=f"use one of {', '.join(FORMATS)}")
    if to_file:
        return "csv" if chosen == "table" else chosen
    if chosen == "parquet":
        raise UsageError("Parquet is not something to print", hint="add --output FILE")
    if as_json and chosen != "json":
        raise UsageError(
            f"--json and --format {chosen} cannot both have stdout", hint="leave out one of them, or add --output FILE"
        )
    return chosen


def _deliver(s: CommandSession, answer: Answer, chosen: str, output: Path | None) -> None:
    if chosen == "parquet" and output is not None:
        count = answer.write_parquet(output)
    elif chosen == "table":
        s.out.table(answer.columns, plain_rows(answer.rows()))
        return
    else:
        # The answer is whole before the first byte of it is written, but never as Python values.
        count = _write(answer, chosen, output)
    if output is not None:
        s.out.info(f"{count} rows in {output}")
        who = {"engine": answer.choice.engine, "reason": answer.choice.reason}
        s.out.result({"output": str(output), "format": chosen, "rows": count, **who})


def _write(answer: Answer, chosen: str, output: Path | None) -> int:
    rows = answer.rows()
    out = output.open("w", encoding="utf-8", newline="") if output else sys.stdout
    try:
        return (write_json if chosen == "json" else write_csv)(answer.columns, rows, out)
    finally:
        if output:
            out.close()


def plain(value: Any) -> Any:
    """A value that JSON can hold: times as text, maps as objects, bytes as hex."""
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def plain_rows(rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    return ([plain(value) for value in row] for row in rows)


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> int:
    """An array of row objects, written as it comes."""
    count = 0
    out.write("[")
    for row in plain_rows(rows):
        text = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
        out.write(("\n" if not count else ",\n") + text)
        count += 1
    out.write("]\n" if not count else "\n]\n")
    return count


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in plain_rows(rows):
        writer.writerow([_cell(value) for value in row])
        count += 1
    return count


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value
