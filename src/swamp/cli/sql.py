"""`swamp sql`: Spark SQL over the tables of a repository."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from swamp.cli.command import session, single
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.cli.command import Session

app = single("SQL over data, versions, outputs, runs and commits.")


@app.command("sql")
def sql(
    query: str = typer.Argument(..., help="A query over data, versions, outputs, runs and commits."),
    format_: str | None = typer.Option(
        None, "--format", help="table, json, csv or parquet (default: table, in a file csv, with --json json)."
    ),
    output: str | None = typer.Option(None, "--output", help="Write the result to this file.", metavar="FILE"),
    master: str | None = typer.Option(None, "--master", help="Where Spark runs (default: .swamp.yaml, local[*])."),
) -> None:
    """Ask the repository with SQL."""
    with session() as s:
        chosen = _chosen(format_, to_file=bool(output), as_json=s.common.json)
        _answer(s, query, chosen, Path(output) if output else None, master)


def _chosen(asked: str | None, *, to_file: bool, as_json: bool) -> str:
    """The format of the rows. What was asked for wins; with `--json` stdout takes no other than JSON."""
    from swamp.pipeline.sql import FORMATS

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


def _answer(s: Session, text: str, chosen: str, output: Path | None, master: str | None) -> None:
    from swamp.env import SYSTEM
    from swamp.pipeline import sql as pipeline
    from swamp.pipeline.jobs import Jobs
    from swamp.pipeline.session import live_session, open_session, stop_session
    from swamp.pipeline.settings import resolve_settings
    from swamp.sync.progress import Patience

    own = live_session() is None
    spark = open_session(resolve_settings(s.repo.settings.spark, master=master))
    jobs = Jobs(spark, s.out.progress())
    patience = Patience(SYSTEM, s.repo.settings.sync_timeout, s.cancel)
    try:
        frame = pipeline.query(spark, s.repo.path, text)
        _deliver(s, frame, jobs, patience, chosen, output)
    finally:
        jobs.close()
        if own:
            stop_session(spark)


def _deliver(s: Session, frame: Any, jobs: Any, patience: Any, chosen: str, output: Path | None) -> None:
    from swamp.pipeline import sql as pipeline

    if chosen == "parquet" and output is not None:
        count = pipeline.write_parquet(frame, jobs, patience, output)
    elif chosen == "table":
        columns = pipeline.columns_of(frame)
        rows = pipeline.rows_of(frame, jobs, patience)
        s.out.table(columns, ([row[name] for name in columns] for row in rows))
        return
    else:
        # The answer is whole before the first byte of it is written, but never as Python values.
        count = _write(frame, pipeline.rows_of(frame, jobs, patience), chosen, output)
    if output is not None:
        s.out.info(f"{count} rows in {output}")
        s.out.result({"output": str(output), "format": chosen, "rows": count})


def _write(frame: Any, rows: Iterator[dict[str, Any]], chosen: str, output: Path | None) -> int:
    from swamp.pipeline import sql as pipeline

    out = output.open("w", encoding="utf-8", newline="") if output else sys.stdout
    try:
        if chosen == "json":
            return pipeline.write_json(rows, out)
        return pipeline.write_csv(pipeline.columns_of(frame), rows, out)
    finally:
        if output:
            out.close()
