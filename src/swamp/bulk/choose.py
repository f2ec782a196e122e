"""Which engine does a piece of work: Spark as soon as the work is larger than what starting Spark costs.

Nothing here imports Spark before it is chosen: a small push must not pay for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from swamp.env import SYSTEM
from swamp.errors import MissingTool
from swamp.extras import has, install_line
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Executor, Work
from swamp.sync.inline import THREADS, Inline
from swamp.sync.progress import IdleTimeout, Progress
from swamp.sync.result import EngineName
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.bulk.transfer import OnSpark
    from swamp.store.open import StoreSpec

EngineChoice = Literal["auto", "spark", "inline"]
ANSWER_SECONDS: Final = 300.0
"""How long a cluster may take to bring up an executor, unless the caller says so."""

BREAK_EVEN_SECONDS: Final = 25.0
"""What Spark costs before it moves a file: session, first jobs, first plans: 42 s of CPU on two cores, partly at the
same time (bench/results/spark-breakeven.md)."""
FEW_CORES: Final = 2
"""Up to here a session of this machine does not pay for a transfer: 100,000 files were pushed in 7 s in process and in
11 s with one, pulled in 6 s and in 13 s (bench/results/hundred-thousand-packs.md, spark-files.md)."""
INLINE_FILES_PER_SECOND: Final = 8_000.0
"""Small files travel in packs: 100,000 of 2 KB took 7 to 13 s up and 6 to 19 s down, by the machine."""
INLINE_BYTES_PER_SECOND: Final = 150e6
INLINE_ROWS_PER_SECOND: Final = 60_000.0
HANDFUL: Final = 8
HANDFUL_BYTES: Final = 8 << 20
HANDFUL_ROWS: Final = 1_000
SPARK_GAIN: Final = 0.4
"""The share of the in-process time that Spark saves once it runs: 1.26 ms of CPU a file on two cores beside 1.06 ms on
one."""


@value
class Choice:
    engine: EngineName
    reason: str


def choose_engine(setting: EngineChoice, work: Work, *, live: bool) -> Choice:
    """With a live session the bound is 0."""
    if setting == "inline":
        return Choice("inline", "--engine inline")
    if setting == "spark":
        return Choice("spark", "--engine spark")
    if _is_handful(work):
        return Choice("inline", "a handful of files")
    if live:
        return Choice("spark", "a Spark session is live")
    alone = inline_seconds(work)
    if alone * SPARK_GAIN <= BREAK_EVEN_SECONDS:
        return Choice("inline", f"about {alone:.0f} s of work: starting Spark would cost more than it saves")
    return Choice("spark", f"about {alone:.0f} s of work for one process: more than starting Spark costs")


def _is_handful(work: Work) -> bool:
    """One file or a known few are done before a job could be planned, whatever is live."""
    if work.stage == "compare":
        return work.files <= HANDFUL_ROWS
    return work.stage in ("upload", "download", "hash") and work.files <= HANDFUL and work.size <= HANDFUL_BYTES


def inline_seconds(work: Work) -> float:
    """What the work would take in process: rows compared, or files moved."""
    if work.stage == "compare":
        return work.files / INLINE_ROWS_PER_SECOND
    return work.files / INLINE_FILES_PER_SECOND + work.size / INLINE_BYTES_PER_SECOND


@mutable
class Chooser:
    """A `sync.bulk.Pick`: in process or on Spark, with the reason; opens one session when Spark is first needed.

    Close it to end a session it has opened.
    """

    setting: EngineChoice
    block: Mapping[str, Any]
    address: StoreSpec
    store: ObjectStore
    cache: Path
    progress: Progress
    push_threads: int = THREADS
    pull_threads: int = THREADS
    idle_timeout: IdleTimeout = field(default_factory=lambda: IdleTimeout(SYSTEM, ANSWER_SECONDS))
    _spark: OnSpark | None = None
    _own: bool = False

    def __call__(self, work: Work) -> Executor:
        """Raises MissingTool when Spark was demanded and cannot run."""
        choice = self._choice(work)
        if choice.engine == "inline":
            threads = self.push_threads if work.stage == "upload" else self.pull_threads
            return Inline(self.store, threads=threads, reason=choice.reason)
        return self._on_spark(work, choice.reason)

    def on_spark(self, work: Work) -> OnSpark | None:
        """Who does this work on Spark, for what only Spark's executor can; None where it is done in process."""
        return self._spark if self(work) is self._spark else None

    def _choice(self, work: Work) -> Choice:
        live = (self._spark is not None and not self._spark.failed) or _is_live()
        choice = choose_engine(self.setting, work, live=live)
        if choice.engine == "spark" and self.setting == "auto":
            obstacle = self._obstacle(live, work)
            if obstacle is not None:
                return Choice("inline", f"large enough for Spark, but {obstacle}")
        return choice

    def expect(self, work: Work) -> None:
        """Downloads that will most likely come: Spark starts while they are being planned."""
        choice = self._choice(work)
        if choice.engine == "spark":
            self._on_spark(work, choice.reason)

    def close(self) -> None:
        """Ends a session that was started here; somebody else's stays."""
        if self._spark is not None:
            self._spark.close(own=self._own)
            self._spark = None

    def _obstacle(self, live: bool, work: Work) -> str | None:
        """Why Spark cannot do this, or not sooner, as far as that can be known without starting it."""
        from swamp.bulk.settings import find_java, resolve_settings

        settings = resolve_settings(self.block)
        if live:
            return None
        if not has("pyspark"):
            return f"Spark is not installed ({install_line('spark')})"
        if not settings.sees_cache:
            return f"executors of {settings.where} cannot see the cache"
        try:
            find_java(os.environ)
        except MissingTool as error:
            return error.message
        if settings.is_local and work.stage in ("upload", "download") and (os.cpu_count() or 1) <= FEW_CORES:
            return f"{os.cpu_count()} cores move files as fast without it"
        return None

    def _on_spark(self, work: Work, reason: str) -> OnSpark:
        if self._spark is None or self._spark.failed:
            from swamp.bulk.keep import with_server
            from swamp.bulk.settings import resolve_settings
            from swamp.bulk.transfer import spark_executor

            settings = with_server(resolve_settings(self.block), os.environ).for_work(work.files)
            self._spark, self._own = spark_executor(
                settings, self.address, self.cache, self.progress, self.idle_timeout
            )
            self._spark.here = Inline(self.store, threads=self.push_threads)
        if work.stage != "discover":  # a bucket without an index is mostly empty: then nobody lists it by tasks
            self._spark.get_ready()
        self._spark.reason = reason
        return self._spark


def _is_live() -> bool:
    """A session of this process, or a Spark Connect server that answers: then starting costs nothing."""
    if "pyspark" not in sys.modules and not os.environ.get("SPARK_REMOTE"):
        return False
    from swamp.bulk.session import live_spark, remote_answers

    return live_spark() is not None or remote_answers()
