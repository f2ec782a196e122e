"""The engine's file work on Spark: the same jobs and results as in process, moved by tasks.

A session that starts on this machine takes seconds, so nobody waits for it before it has work: what is little is
listed, compared and begun in process meanwhile (docs/decisions/0011-while-spark-starts.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from swamp.bulk.executors import check_cache_visible, check_executors, check_store
from swamp.bulk.jobs import POLL_SECONDS, Jobs, Running
from swamp.bulk.kernels import FetchFiles, HashFiles, SendFiles
from swamp.bulk.maintain import OnStore
from swamp.bulk.session import (
    Spark,
    begin_context,
    check_startable,
    end_context,
    live_spark,
    of_session,
    open_spark,
    stop_session,
)
from swamp.bulk.settings import SparkSettings
from swamp.bulk.shares import FILE_COST, bins_for, by_object, by_pack, by_size, cost_of
from swamp.bulk.spread import Kernel
from swamp.cache.scan import names_below
from swamp.commit.commit import Committer
from swamp.index.entry import PACK_PREFIX
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.inline import Inline
from swamp.sync.progress import IdleTimeout, Progress
from swamp.sync.result import EngineName
from swamp.sync.transfer import upload_groups

if TYPE_CHECKING:
    from swamp.commit.bootstrap import Bootstrapped
    from swamp.store.open import StoreSpec
    from swamp.sync.gather import Gathered, Gatherer
    from swamp.sync.record import EngineContext

J = TypeVar("J", Upload, Download, Hash)
M = TypeVar("M", Sent, Got)
BATCH_JOBS: Final = 50_000
BATCH_SECONDS: Final = 45.0
FIRST_COST: Final = 10_000 * FILE_COST
MANY_FILES: Final = 10_000
HELPER_THREADS: Final = 8
"""From so many files on the first ones are moved by so many threads until Spark is up: two cores were idle for 40 % of
the seconds of its start, in which packs move tens of thousands."""


@dataclass
class OnSpark:
    """A `sync.bulk.Executor` whose threads are Spark tasks."""

    begin: Callable[[], Future[Spark]]
    """Starts a context, or names the session there is."""
    store: StoreSpec
    progress: Progress = field(default_factory=Progress)
    compared_here: int = 0
    """Rows up to which a comparison is not worth waiting for the session."""
    reason: str = "--engine spark"
    name: EngineName = "spark"
    reports_progress: bool = True
    here: Inline | None = None
    """How the driver itself moves files: with the user's limits, and counted."""

    @cached_property
    def session(self) -> Future[Spark]:
        """Its session or context, which is starting from then on."""
        return self.begin()

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs of its session, which is up from then on. Raises what kept it from starting."""
        return Jobs(self.session.result(), self.progress)

    def get_ready(self) -> OnSpark:
        """This one, with its session starting; nobody waits for it yet."""
        _ = self.session
        return self

    @property
    def failed(self) -> bool:
        """Whether its session is known not to have come up."""
        return "session" in self.__dict__ and self.session.done() and self.session.exception() is not None

    def upload(self, jobs: Iterable[Upload], idle_timeout: IdleTimeout) -> Iterator[Sent]:
        if self.store.serialize_mkdir:
            # One upload into every directory, from here and one at a time in each, before workers meet in them.
            opening, jobs = firsts(jobs)
            yield from self._counted((self.here or Inline(self.store.open())).upload(opening, idle_timeout))
        left = yield from self._moved_here(jobs, lambda here, first: here.upload(first, idle_timeout))
        yield from self._batches("upload", left, by_pack, lambda: SendFiles(self.store, self.jobs.beacon), idle_timeout)

    def download(self, jobs: Iterable[Download], idle_timeout: IdleTimeout) -> Iterator[Got]:
        left = yield from self._moved_here(jobs, lambda here, first: here.download(first, idle_timeout))
        yield from self._batches(
            "download", left, by_object, lambda: FetchFiles(self.store, self.jobs.beacon), idle_timeout
        )

    def _moved_here(
        self, jobs: Iterable[J], move: Callable[[Inline, Iterator[J]], Iterator[M]]
    ) -> Generator[M, None, Iterator[J]]:
        """Moves the first of many files in process while the session starts, with few threads because it needs the
        cores too; says which are left for it. A few files are all Spark's, as the user has said."""
        source = iter(jobs)
        if self.here is not None and isinstance(jobs, Sized) and len(jobs) >= MANY_FILES:
            helper = replace(self.here, threads=min(self.here.threads, HELPER_THREADS))
            yield from self._counted(move(helper, self._until_up(source)))
            if not self.session.done():
                self.reason += "; moved in process before Spark was up"
        return source

    def _until_up(self, source: Iterator[J]) -> Iterator[J]:
        """Jobs, as long as the session is not up."""
        while not self.session.done() and (job := next(source, None)) is not None:
            yield job

    def _counted(self, results: Iterator[M]) -> Iterator[M]:
        for result in results:
            self.progress.advance(1, result.size)
            yield result

    def hash(self, jobs: Iterable[Hash], idle_timeout: IdleTimeout) -> Iterator[Hashed]:
        self.progress.begin("hash")  # the others move a bar that their caller has begun
        try:
            yield from self._batches("hash", jobs, by_size, lambda: HashFiles(self.jobs.beacon), idle_timeout)
        finally:
            self.progress.end()

    def on_store(self, committer: Committer, idle_timeout: IdleTimeout) -> OnStore:
        """Bulk commands on the same store: verify, mark, compact."""
        return OnStore(self.jobs, self.store, committer, idle_timeout)

    def discover(self, committer: Committer, idle_timeout: IdleTimeout) -> Bootstrapped:
        return self.on_store(committer, idle_timeout).discover()

    def compare(
        self, gatherer: Gatherer, most: int | None, context: EngineContext, idle_timeout: IdleTimeout
    ) -> Iterator[Gathered]:
        if self._is_little(gatherer):
            self.reason += "; compared in process meanwhile"
            return gatherer.gathered(most)
        return self.on_store(context.committer, idle_timeout).compare(gatherer, context.cache, most)

    def _is_little(self, gatherer: Gatherer) -> bool:
        known, most = gatherer.state.base_rows() + gatherer.view.root.files_at_most, self.compared_here
        if known > most or not most:
            return False
        files = chain.from_iterable(names_below(gatherer.tree, s, exclude=gatherer.exclude) for s in gatherer.starts())
        return known + sum(1 for _ in islice(files, most + 1)) <= most

    def report(self) -> dict[str, Any] | None:
        """None, if its session did not come up: whoever had work for it has been told why; or if all of its work was
        done before."""
        return self.jobs.report() if self.session.done() and not self.failed else None

    def close(self, *, own: bool) -> None:
        """Ends its jobs, and the session if it is its `own`; nobody waits for one that is not up yet."""
        if "jobs" in self.__dict__:
            self.jobs.close()
        if own and "session" in self.__dict__:
            end_context(self.session)

    def _batches(
        self,
        name: Literal["upload", "download", "hash"],
        jobs: Iterable[J],
        shared: Callable[[list[J], int], list[list[J]]],
        kernel: Callable[[], Kernel],
        idle_timeout: IdleTimeout,
    ) -> Iterator[Any]:
        """While the caller records what one batch has done, the next one is under way. `shared` says who gets which
        jobs; the kernel is made when the session is up."""
        source, pace = iter(jobs), _Pace()
        first = list(islice(source, 1))
        if not first:
            return  # nobody waits for a session without work for it
        source = chain(first, source)

        def begin() -> Running[list[Any]] | None:
            batch = pace.take(source)
            if not batch:
                return None
            bins = bins_for(len(batch), sum(job.size for job in batch), self.jobs.parallelism)
            shares, work = shared(batch, bins), kernel()
            return self.jobs.begin(name, lambda: self.jobs.spread(shares, work))

        self._await_session(idle_timeout)
        running = begin()
        try:
            while running is not None:
                done, results, running = running, self.jobs.finish(running, idle_timeout), None
                pace.learn(done.seconds)
                running = begin()
                yield from results
        finally:
            if running is not None:
                running.cancel()

    def _await_session(self, idle_timeout: IdleTimeout) -> None:
        """Its start is no standstill, and Ctrl-C is heard meanwhile: then nothing is sent any more."""
        while not wait([self.session], POLL_SECONDS).done:
            idle_timeout.cancel.check()
        idle_timeout.cancel.check()
        idle_timeout.progressed()


def firsts(jobs: Iterable[Upload]) -> tuple[list[Upload], list[Upload]]:
    """One upload of every directory, and all others: once those are done, no other has to make a directory. Packs all
    go to one."""
    first: dict[str, list[Upload]] = {}
    others: list[Upload] = []
    for group in upload_groups(jobs):
        place = PACK_PREFIX if group[0].packed else group[0].path.rpartition("/")[0]
        if first.setdefault(place, group) is not group:
            others += group
    return [job for group in first.values() for job in group], others


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
    settings: SparkSettings, address: StoreSpec, cache: Path, progress: Progress, idle_timeout: IdleTimeout
) -> tuple[OnSpark, bool]:
    """An executor on the live session or a new one; whether it is new. Raises at once what a moment's look can tell.

    Elsewhere it has shown before that it can do the work: nothing is to fail half-way for want of a package.
    """
    own = live_spark() is None
    if own and settings.is_local:
        check_startable(settings)
        return OnSpark(lambda: begin_context(settings), address, progress, settings.compared_here), True
    session = open_spark(settings)
    real = settings if own else of_session(session, settings)
    try:
        with closing(Jobs(session, progress)) as jobs:
            check_executors(jobs, real, idle_timeout, address.plugin)
            check_store(jobs, real, address, idle_timeout)
            check_cache_visible(jobs, real, cache, idle_timeout)
    except BaseException:
        if own:
            stop_session(session)
        raise
    return OnSpark(lambda: at_hand(session), address, progress).get_ready(), own


def at_hand(spark: Spark) -> Future[Spark]:
    """A session that nobody has to wait for."""
    up: Future[Spark] = Future()
    up.set_result(spark)
    return up
