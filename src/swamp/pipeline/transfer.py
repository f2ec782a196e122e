"""The engine's file work on Spark: the same jobs and results as in process, moved by tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from swamp.errors import MissingTool, SwampError
from swamp.pipeline import stages
from swamp.pipeline.balance import bins_for, pack
from swamp.pipeline.choose import EngineChoice, choose_engine
from swamp.pipeline.executors import check_cache_visible, check_executors
from swamp.pipeline.java import find_java
from swamp.pipeline.jobs import Jobs
from swamp.pipeline.kernels import StoreAddress, download_rows, got_from, hashed_from, sent_from, upload_rows
from swamp.pipeline.schemas import DOWNLOADS, HASHES, UPLOADS
from swamp.pipeline.session import SparkSettings, live_session, open_session, remote_answers, stop_session
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Download, Executor, Got, Hash, Hashed, Sent, Upload, Work
from swamp.sync.progress import Patience, Progress
from swamp.sync.result import EngineName
from swamp.sync.transfer import Inline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

J = TypeVar("J", Upload, Download, Hash)
R = TypeVar("R")
BATCH_JOBS: Final = 50_000
"""Jobs given to one Spark job: what the driver holds of them is paths and sizes, a few tens of MB."""


@dataclass
class OnSpark:
    """A `sync.bulk.Executor` whose threads are Spark tasks."""

    jobs: Jobs
    store: StoreAddress
    reason: str = "--engine spark"
    name: EngineName = "spark"
    reports_progress: bool = True

    def upload(self, jobs: Iterable[Upload], patience: Patience) -> Iterator[Sent]:
        def stage(batch: list[Upload], bins: int) -> DataFrame:
            rows = upload_rows(pack(batch, lambda job: job.size, bins))
            frame = stages.frame_of(self.jobs.session, UPLOADS, rows)
            return stages.transfer_up(frame, bins, self.store, self.jobs.beacon)

        return self._batches("upload", jobs, stage, sent_from, patience)

    def download(self, jobs: Iterable[Download], patience: Patience) -> Iterator[Got]:
        def stage(batch: list[Download], bins: int) -> DataFrame:
            rows = download_rows(pack(batch, lambda job: job.size, bins))
            frame = stages.frame_of(self.jobs.session, DOWNLOADS, rows)
            return stages.transfer_down(frame, bins, self.store, self.jobs.beacon)

        return self._batches("download", jobs, stage, got_from, patience)

    def hash(self, jobs: Iterable[Hash], patience: Patience) -> Iterator[Hashed]:
        def stage(batch: list[Hash], bins: int) -> DataFrame:
            rows = upload_rows(pack(batch, lambda job: job.size, bins))
            return stages.fingerprint(stages.frame_of(self.jobs.session, HASHES, rows), bins, self.jobs.beacon)

        return self._batches("hash", jobs, stage, hashed_from, patience)

    def report(self) -> dict[str, Any] | None:
        return self.jobs.report()

    def _batches(
        self,
        name: Literal["upload", "download", "hash"],
        jobs: Iterable[J],
        stage: Callable[[list[J], int], DataFrame],
        result: Callable[[dict[str, Any]], R],
        patience: Patience,
    ) -> Iterator[R]:
        source = iter(jobs)
        while batch := list(islice(source, BATCH_JOBS)):
            bins = bins_for(len(batch), sum(job.size for job in batch), self.jobs.parallelism)
            frame = stage(batch, bins)
            table = self.jobs.run(name, frame.toArrow, patience, files=len(batch))
            for page in table.to_batches(1000):
                yield from map(result, page.to_pylist())


@dataclass
class Chooser:
    """`Pick` for an engine: asks once what is live, opens one session when Spark is first needed, closes it."""

    setting: EngineChoice
    settings: SparkSettings
    address: StoreAddress
    store: ObjectStore
    cache: Path
    progress: Progress
    threads: int = 16

    def __post_init__(self) -> None:
        self._spark: OnSpark | None = None
        self._own = False
        self.reason = ""

    def __call__(self, work: Work) -> Executor:
        """In process or on Spark, with the reason. Raises MissingTool when Spark was demanded and cannot run."""
        live = self._spark is not None or live_session() is not None or remote_answers()
        choice = choose_engine(self.setting, work, live=live, java=self._obstacle(live))
        self.reason = choice.reason
        if choice.engine == "inline":
            return Inline(self.store, threads=self.threads, reason=choice.reason)
        return self._on_spark(choice.reason)

    def close(self) -> None:
        """Ends a session that was opened here; somebody else's stays."""
        if self._spark is not None:
            self._spark.jobs.close()
            if self._own:
                stop_session(self._spark.jobs.session)
            self._spark = None

    def _obstacle(self, live: bool) -> str | None:
        if live or self.setting != "auto" or self.settings.remote is not None:
            return None
        if not self.settings.sees_cache:
            return f"executors of {self.settings.where} cannot see the cache"
        try:
            find_java(os.environ)
        except MissingTool as error:
            return error.message
        return None

    def _on_spark(self, reason: str) -> OnSpark:
        if self._spark is None:
            self._own = live_session() is None
            session = open_session(self.settings)
            jobs = Jobs(session, self.progress)
            self._spark = OnSpark(jobs, self.address)
            try:
                check_executors(jobs, self.settings)
                check_cache_visible(jobs, self.settings, self.cache)
            except SwampError:
                self.close()
                raise
        self._spark.reason = reason
        return self._spark
