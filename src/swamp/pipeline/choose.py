"""Which engine does a piece of work: Spark as soon as the work is larger than what starting Spark costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from swamp.sync.bulk import Work
from swamp.sync.result import EngineName

EngineChoice = Literal["auto", "spark", "inline"]

BREAK_EVEN_SECONDS: Final = 15.0
"""What a cold session and its first Arrow job cost on this machine: bench/results/spark-breakeven.md."""
INLINE_FILES_PER_SECOND: Final = 900.0
INLINE_BYTES_PER_SECOND: Final = 150e6
INLINE_ROWS_PER_SECOND: Final = 60_000.0
SPARK_GAIN: Final = 0.5
"""The share of the in-process time that Spark saves once it runs, on two cores: measured beside the other."""


@dataclass(frozen=True, slots=True)
class Choice:
    engine: EngineName
    reason: str


def choose_engine(setting: EngineChoice, work: Work, *, live: bool, java: str | None = None) -> Choice:
    """`java` is why Spark cannot run, if it cannot. With a live session the bound is 0."""
    if setting == "inline":
        return Choice("inline", "--engine inline")
    if setting == "spark":
        return Choice("spark", "--engine spark")
    if live:
        return Choice("spark", "a Spark session is live")
    alone = inline_seconds(work)
    if alone * SPARK_GAIN <= BREAK_EVEN_SECONDS:
        return Choice("inline", f"about {alone:.0f} s of work: starting Spark would cost more than it saves")
    if java is not None:
        return Choice("inline", f"large enough for Spark, but {java}")
    return Choice("spark", f"about {alone:.0f} s of work for one process: more than starting Spark costs")


def inline_seconds(work: Work) -> float:
    """What the work would take in process: rows compared, or files moved."""
    if work.stage == "compare":
        return work.files / INLINE_ROWS_PER_SECOND
    return work.files / INLINE_FILES_PER_SECOND + work.size / INLINE_BYTES_PER_SECOND
