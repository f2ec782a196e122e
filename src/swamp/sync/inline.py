"""The executor without Spark: a pool of threads in this process that sends, fetches and hashes files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from swamp.env import SYSTEM, Env
from swamp.store.port import ObjectStore
from swamp.sync import fetch, pack
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.pool import THREADS, pooled
from swamp.sync.progress import Cancel, IdleTimeout
from swamp.sync.result import EngineName
from swamp.sync.transfer import LARGE, hash_one, unwanted
from swamp.values import mutable

if TYPE_CHECKING:
    from swamp.commit.bootstrap import Bootstrapped
    from swamp.commit.commit import Committer
    from swamp.sync.gather import Gathered, Gatherer
    from swamp.sync.record import EngineContext

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
        room, turn = threading.Semaphore(pack.AT_ONCE), threading.Lock()

        def send(group: list[Upload]) -> list[Sent]:
            if len(group) == 1 and group[0].size < LARGE:
                return pack.upload_group(self.store, group, self.env, idle_timeout)
            moving.add(id(group))
            try:
                if len(group) == 1:
                    return pack.upload_group(self.store, group, self.env, idle_timeout)
                with room:
                    return pack.upload_group(self.store, group, self.env, idle_timeout, turn)
            finally:
                moving.discard(id(group))

        def tick() -> None:
            # The store bounds each request of a large upload by itself; between requests it tells nobody.
            if moving:
                idle_timeout.progressed()
            idle_timeout.check()

        return chain.from_iterable(self._each(pack.groups(jobs), send, tick, idle_timeout))

    def download(self, jobs: Iterable[Download], idle_timeout: IdleTimeout) -> Iterator[Got]:
        room, turn = threading.Semaphore(fetch.AT_ONCE), threading.Lock()

        def moved(size: int) -> None:
            del size
            idle_timeout.progressed()

        def bring(group: fetch.Group) -> list[Got]:
            if len(group) == 1:
                return fetch.fetch_group(self.store, group, self.env, idle_timeout, moved)
            with room:
                return fetch.fetch_group(self.store, group, self.env, idle_timeout, moved, turn)

        found = self._each(fetch.groups(jobs), bring, idle_timeout.check, idle_timeout, discard=_unwanted)
        return chain.from_iterable(found)

    def hash(self, jobs: Iterable[Hash], idle_timeout: IdleTimeout) -> Iterator[Hashed]:
        known = list(jobs)
        small = sum(job.size for job in known) < HASHED_ALONE * len(known)
        threads = 1 if small else min(self.threads, os.cpu_count() or 1)
        return self._each(known, hash_one, idle_timeout.cancel.check, idle_timeout, threads=threads)

    def compare(
        self, gatherer: Gatherer, most: int | None, context: EngineContext, idle_timeout: IdleTimeout
    ) -> Iterator[Gathered]:
        del context, idle_timeout
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
    ) -> Iterator[R]:
        feed = _until_cancelled(jobs, idle_timeout.cancel)
        for result in pooled(feed, work, threads or self.threads, tick, discard):
            idle_timeout.progressed()
            yield result
            idle_timeout.cancel.check()
        idle_timeout.cancel.check()


def _unwanted(results: list[Got]) -> None:
    for got in results:
        unwanted(got)


def _until_cancelled(jobs: Iterable[J], cancel: Cancel) -> Iterator[J]:
    """Stop starting work when asked to; what has begun ends by itself."""
    for job in jobs:
        if cancel.requested:
            return
        yield job
