"""The executor without Spark: a pool of threads in this process that sends, fetches and hashes files."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, takewhile
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from swamp.env import SYSTEM, Env
from swamp.store.port import ObjectStore
from swamp.sync import fetch
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.progress import IdleTimeout
from swamp.sync.result import EngineName
from swamp.sync.second import second_writer
from swamp.sync.transfer import LARGE, PACKS_AT_ONCE, hash_one, upload_group, upload_groups
from swamp.values import mutable

if TYPE_CHECKING:
    from swamp.commit.bootstrap import Bootstrapped
    from swamp.commit.commit import Committer
    from swamp.sync.gather import Gathered, Gatherer
    from swamp.sync.record import EngineContext

THREADS: Final = 16
IN_HAND: Final = 64
"""Per thread: the caller may be busy placing a batch while the others go on."""
TICK_SECONDS: Final = 0.5
HASHED_ALONE: Final = 64 << 10
"""Files that are smaller than this on average are hashed by one thread: more of them only wait for each other."""

J = TypeVar("J")
R = TypeVar("R")


@mutable
class Inline:
    """Sends small files in packs and fetches them by object (one thread: the caller's own)."""

    store: ObjectStore
    env: Env = SYSTEM
    threads: int = THREADS
    reason: str = ""
    name: EngineName = "inline"
    reports_progress: bool = False

    def upload(self, jobs: Iterable[Upload], idle_timeout: IdleTimeout) -> Iterator[Sent]:
        moving: set[int] = set()
        room, turn = threading.Semaphore(PACKS_AT_ONCE), threading.Lock()

        def send(group: list[Upload]) -> list[Sent]:
            if len(group) == 1 and group[0].size < LARGE:
                return upload_group(self.store, group, self.env, idle_timeout)
            moving.add(id(group))
            try:
                if len(group) == 1:
                    return upload_group(self.store, group, self.env, idle_timeout)
                with room:
                    return upload_group(self.store, group, self.env, idle_timeout, turn)
            finally:
                moving.discard(id(group))

        def tick() -> None:
            # The store bounds each request of a large upload by itself; between requests it tells nobody.
            if moving and not lost:
                idle_timeout.progressed()
            idle_timeout.check()

        lost: list[Sent] = []  # the last group, where nothing of it came through: then nothing is known to move

        def arrived(group: list[Sent]) -> bool:
            lost[:] = [] if _arrived(group) else group
            return not lost

        found = self._each(upload_groups(jobs), send, tick, idle_timeout, counts=arrived)
        return chain.from_iterable(found)

    def download(self, jobs: Iterable[Download], idle_timeout: IdleTimeout) -> Iterator[Got]:
        room, turn = threading.Semaphore(fetch.AT_ONCE), threading.Lock()

        def moved(size: int) -> None:
            if size:
                idle_timeout.progressed()

        def bring(group: fetch.Group) -> list[Got]:
            if len(group) == 1:
                return fetch.fetch_group(self.store, group, self.env, idle_timeout, moved)
            with room:
                return fetch.fetch_group(self.store, group, self.env, idle_timeout, moved, turn, second)

        check = idle_timeout.check
        with second_writer(jobs if self.threads > 1 else ()) as second:
            found = self._each(fetch.groups(jobs), bring, check, idle_timeout, discard=_unwanted, counts=_arrived)
            yield from chain.from_iterable(found)

    def hash(self, jobs: Iterable[Hash], idle_timeout: IdleTimeout) -> Iterator[Hashed]:
        known = list(jobs)
        small = sum(job.size for job in known) < HASHED_ALONE * len(known)
        threads = 1 if small else min(self.threads, os.cpu_count() or 1)
        return self._each(known, hash_one, idle_timeout.cancel.check, idle_timeout, threads=threads)

    def compare(
        self, gatherer: Gatherer, most: int | None, context: EngineContext, idle_timeout: IdleTimeout
    ) -> Iterator[Gathered]:
        return gatherer.gathered(most)

    def discover(self, committer: Committer, idle_timeout: IdleTimeout) -> Bootstrapped:
        from swamp.commit.bootstrap import adopted

        return adopted(committer, idle_timeout.check)

    def report(self) -> dict[str, Any] | None:
        return None

    def _each(
        self,
        jobs: Iterable[J],
        work: Callable[[J], R],
        tick: Callable[[], None],
        idle_timeout: IdleTimeout,
        discard: Callable[[R], None] | None = None,
        *,
        threads: int | None = None,
        counts: Callable[[R], bool] = lambda _: True,
    ) -> Iterator[R]:
        """Results as they come; those that `counts` are progress, and without any the work ends by `tick`. C09"""
        # Stop starting work when asked to; what has begun ends by itself.
        feed = takewhile(lambda _: not idle_timeout.cancel.requested, jobs)
        for result in pooled(feed, work, threads or self.threads, tick, discard):
            if counts(result):
                idle_timeout.progressed()
            else:
                tick()
            yield result
            idle_timeout.cancel.check()
        idle_timeout.cancel.check()


def _arrived(results: Sequence[Sent | Got]) -> bool:
    """Whether the store had anything to do with it: files that it did not take or give are no progress."""
    return any(one.cause != "away" for one in results)


def _unwanted(results: list[Got]) -> None:
    """Files that nobody will place do not stay in staging."""
    for got in results:
        if got.file is not None:
            Path(got.file).unlink(missing_ok=True)


def pooled(
    jobs: Iterable[J],
    work: Callable[[J], R],
    threads: int = THREADS,
    tick: Callable[[], None] | None = None,
    discard: Callable[[R], None] | None = None,
) -> Iterator[R]:
    """Results as they are ready; a slow job holds up nobody and at most `IN_HAND` per thread are in hand (P08, P09).

    One thread means the caller's own, in order. `tick` is called whenever no result is ready, at least every half
    second then, and may raise to stop. What is ready when the caller goes away is handed to `discard`.
    """
    if threads <= 1:
        yield from map(work, jobs)
        return
    feed = iter(jobs)
    pool = WorkerPool(work, threads)
    try:
        for job in islice(feed, threads * IN_HAND):
            pool.submit(job)
        while pool.in_hand:
            result = pool.result(tick)
            for job in islice(feed, 1):
                pool.submit(job)
            yield result
    finally:
        for left in pool.stop():
            if discard is not None:
                discard(left)


class WorkerPool(Generic[J, R]):
    """Up to `threads` workers between two queues. Plain queues: futures cost more than a small file's upload."""

    def __init__(self, work: Callable[[J], R], threads: int) -> None:
        self.in_hand = 0
        self.threads = threads
        self._work = work
        self._workers: list[threading.Thread] = []
        self._todo: SimpleQueue[Any] = SimpleQueue()
        self._done: SimpleQueue[tuple[R | None, BaseException | None]] = SimpleQueue()
        self._ready: deque[tuple[R | None, BaseException | None]] = deque()

    def submit(self, job: J) -> None:
        self.in_hand += 1
        self._todo.put(job)
        if len(self._workers) < self.threads:
            worker = threading.Thread(target=self._work_through, name=f"transfer-{len(self._workers)}")
            self._workers.append(worker)
            worker.start()

    def result(self, tick: Callable[[], None] | None) -> R:
        """The next result, or what its job raised. `tick` is called whenever it had to look for more."""
        if not self._ready:
            self._gather(tick)
        result, error = self._ready.popleft()
        self.in_hand -= 1
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _gather(self, tick: Callable[[], None] | None) -> None:
        """All that is ready; waits for the first."""
        while not self._ready:
            with suppress(Empty):
                self._ready.append(self._done.get(timeout=TICK_SECONDS))
            if tick is not None:
                tick()
        with suppress(Empty):
            while True:
                self._ready.append(self._done.get_nowait())

    def stop(self) -> list[R]:
        """What nobody has begun is dropped; what has begun ends by itself, and its results are handed over."""
        with suppress(Empty):
            while True:
                self._todo.get_nowait()
        for _ in self._workers:
            self._todo.put(_STOP)
        for worker in self._workers:
            worker.join()
        with suppress(Empty):
            while True:
                self._ready.append(self._done.get_nowait())
        return [result for result, error in self._ready if error is None]  # type: ignore[misc]

    def _work_through(self) -> None:
        while (job := self._todo.get()) is not _STOP:
            try:
                self._done.put((self._work(job), None))
            except BaseException as error:  # noqa: BLE001  (raised again where the result is taken)
                self._done.put((None, error))


_STOP: Final = object()
