"""Which engine answers a query: DuckDB in this process, Spark where the datasets are larger than that is good for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from swamp.errors import MissingTool, SwampError
from swamp.extras import has, missing
from swamp.values import value

SqlEngine = Literal["duckdb", "spark"]
SqlChoice = Literal["auto", "duckdb", "spark"]
CHOICES: Final = ("auto", "duckdb", "spark")

BYTES_PER_SECOND: Final[Mapping[str, float]] = {"parquet": 50e6, "csv": 16e6, "jsonl": 2e6, "json": 2e6, "text": 24e6}
"""What DuckDB is given in a second, by format. This and what follows: bench/results/sql.md."""
FETCH_PER_SECOND: Final = 50e6
"""What has to come from the store first."""
SPARK_SECONDS: Final = 17.0
"""What Spark costs before it reads a row: 17 s for a count over 64 rows, as issue 20 tells it; not timed again."""
SPARK_GAIN: Final = 0.4
"""The share of the time in process that Spark saves once it runs, as with transfers (bulk/choose.py)."""


@value
class Load:
    """What one dataset of a query weighs: all of it is counted, whatever columns are asked for."""

    format: str
    size: int
    here: bool


@value
class SqlEngineChoice:
    engine: SqlEngine
    reason: str


def duck_seconds(loads: Sequence[Load]) -> float:
    """What reading the datasets takes in this process. Metadata tables weigh nothing: they are in the catalog."""
    fetching = sum(load.size / FETCH_PER_SECOND for load in loads if not load.here)
    return fetching + sum(load.size / BYTES_PER_SECOND.get(load.format, 20e6) for load in loads)


def choose_sql_engine(asked: SqlChoice, loads: Sequence[Load], *, live: bool = False) -> SqlEngineChoice:
    """Raises MissingTool when neither is installed, or the one that was asked for is not."""
    if asked == "duckdb":
        return SqlEngineChoice("duckdb", "--engine duckdb")
    if asked == "spark":
        return SqlEngineChoice("spark", "--engine spark")
    if not has("duckdb"):
        obstacle = spark_obstacle()
        if obstacle is not None:
            raise missing("`swamp sql`", "duckdb") from obstacle
        return SqlEngineChoice("spark", "DuckDB is not installed")
    alone = duck_seconds(loads)
    if alone * SPARK_GAIN <= (0 if live else SPARK_SECONDS) or alone < 1:
        return SqlEngineChoice("duckdb", f"about {alone:.1f} s of reading: Spark would cost more than it saves")
    obstacle = spark_obstacle()
    if obstacle is not None:
        return SqlEngineChoice("duckdb", f"about {alone:.0f} s of reading, but {obstacle.message}")
    return SqlEngineChoice("spark", f"about {alone:.0f} s of reading for one process: more than Spark costs")


def spark_obstacle() -> SwampError | None:
    """Why Spark cannot run here, as far as that can be known without starting it."""
    if not has("pyspark"):
        return missing("Spark", "spark")
    from swamp.bulk.java import find_java

    try:
        if not os.environ.get("SPARK_REMOTE"):
            find_java(os.environ)
    except MissingTool as error:
        return error
    return None
