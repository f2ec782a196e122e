"""The engine's file work on Spark: the same jobs and results as in process, moved by tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from swamp.commit.commit import Committer, RootRead
from swamp.pipeline import stages
from swamp.pipeline.balance import FILE_COST, bins_for, cost_of, pack
from swamp.pipeline.bulk import OnStore
from swamp.pipeline.executors import check_cache_visible, check_executors
from swamp.pipeline.jobs import Jobs, Running
from swamp.pipeline.kernels import download_rows, got_from, hashed_from, sent_from, upload_rows
from swamp.pipeline.schemas import DOWNLOADS, HASHES, UPLOADS
from swamp.pipeline.session import SparkSettings, live_session, of_session, open_session, stop_session
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.deal import firsts
from swamp.sync.progress import Patience, Progress
from swamp.sync.result import EngineName
from swamp.sync.transfer import Inline

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from swamp.cache.rows import BaseRow
    from swamp.cache.scan import Observed
    from swamp.index.entry import Row
    from swamp.store.open import StoreSpec
    from swamp.sync.gather import Gathered, Gatherer
    from swamp.sync.record import Parts

J = TypeVar("J", Upload, Download, Hash)
R = TypeVar("R")
BATCH_JOBS: Final = 50_000
BATCH_SECONDS: Final = 45.0
FIRST_COST: Final = 10_000 * FILE_COST


@dataclass
class OnSpark:
    """A `sync.bulk.Executor` whose threads are Spark tasks."""

    jobs: Jobs
    store: StoreSpec
    reason: str = "--engine spark"
    name: EngineName = "spark"
    reports_progress: bool = True
    here: Inline | None = None
    """How the driver itself uploads: with the user's limits, and counted."""

    def upload(self, jobs: Iterable[Upload], patience: Patience) -> Iterator[Sent]:
        def stage(batch: list[Upload], bins: int) -> DataFrame:
            rows = upload_rows(pack(batch, lambda job: job.size, bins))
            frame = stages.frame_of(self.jobs.session, UPLOADS, rows)
            return stages.transfer_up(frame, bins, self.store, self.jobs.beacon)

        if self.store.gentle:
            opening, jobs = firsts(jobs)
            yield from self._made(opening, patience)
        yield from self._batches("upload", jobs, stage, sent_from, patience)

    def _made(self, opening: list[Upload], patience: Patience) -> Iterator[Sent]:
        """One upload into every directory, from here and one at a time in each, before workers meet in them."""
        for sent in (self.here or Inline(self.store.open())).upload(opening, patience):
            self.jobs.progress.advance(1, sent.size)
            yield sent

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

    def on_store(self, committer: Committer, patience: Patience) -> OnStore:
        """Bulk commands on the same store: verify, mark, compact."""
        return OnStore(self.jobs, self.store, committer, patience)

    def discover(self, committer: Committer, patience: Patience) -> RootRead | None:
        """A first root over a bucket that something else has filled."""
        return self.on_store(committer, patience).discover()

    def compare(
        self, gatherer: Gatherer, out: Gathered, parts: Parts, patience: Patience
    ) -> Iterator[tuple[str, BaseRow | None, Observed | None, Row | None]]:
        """The full comparison; what comes back is what is not trivial."""
        from swamp.pipeline.compare import Comparison

        return Comparison(self.on_store(parts.committer, patience), gatherer, parts.cache, patience).run(out)

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
        """While the caller records what one batch has done, the next one is under way."""
        source, pace = iter(jobs), _Pace()

        def begin() -> Running[pa.Table] | None:
            batch = pace.take(source)
            if not batch:
                return None
            bins = bins_for(len(batch), sum(job.size for job in batch), self.jobs.parallelism)
            return self.jobs.begin(name, stage(batch, bins).toArrow)

        with self._bar(name):
            running = begin()
            try:
                while running is not None:
                    done, table, running = running, self.jobs.finish(running, patience), None
                    pace.learn(done.seconds)
                    running = begin()
                    for page in table.to_batches(1000):
                        yield from map(result, page.to_pylist())
            finally:
                if running is not None:
                    running.cancel()

    @contextmanager
    def _bar(self, name: str) -> Iterator[None]:
        """Hashing has a bar of its own; the others move the one that their caller has begun."""
        if name != "hash":
            yield
            return
        self.jobs.progress.begin(name)
        try:
            yield
        finally:
            self.jobs.progress.end()


@dataclass
class _Pace:
    """Batches of about a minute: what a kill costs, and what the driver holds of paths and sizes."""

    cost: float = FIRST_COST

    def take(self, source: Iterator[J]) -> list[J]:
        batch: list[J] = []
        cost = 0
        for job in source:
            batch.append(job)
            cost += cost_of(job.size)
            if cost >= self.cost or len(batch) >= BATCH_JOBS:
                break
        return batch

    def learn(self, seconds: float) -> None:
        """The next batch takes about a minute, as far as this one tells; never twice nor half as much at once."""
        self.cost *= min(2.0, max(0.5, BATCH_SECONDS / max(seconds, 0.1)))


def spark_executor(
    settings: SparkSettings, address: StoreSpec, cache: Path, progress: Progress
) -> tuple[OnSpark, bool]:
    """An executor on the live session or a new one, after it has shown that it can do the work; whether it is new."""
    own = live_session() is None
    session = open_session(settings)
    jobs = Jobs(session, progress)
    real = settings if own else of_session(session, settings)
    try:
        check_executors(jobs, real)
        check_cache_visible(jobs, real, cache)
    except BaseException:
        jobs.close()
        if own:
            stop_session(session)
        raise
    return OnSpark(jobs, address), own
