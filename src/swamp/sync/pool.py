"""Works through a stream of jobs with threads: results as they are ready, no barrier, a bounded number in hand."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

THREADS: Final = 16
IN_HAND: Final = 64
"""Per thread: the caller may be busy placing a batch while the others go on."""
TICK_SECONDS: Final = 0.5

J = TypeVar("J")
R = TypeVar("R")


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
