"""What tasks do with files and payloads: plain functions of an iterator of jobs, testable without Spark.

Each kernel is a frozen value with what it needs (a store's address, the beacon). File bodies are streamed by the worker
and never enter Arrow. Everything written has a key of its own and is harmless if nobody publishes it, so a task may run
twice. inv[object.key-once]
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened
from swamp.bulk.spread import Named
from swamp.cache.places import can_flush_together, flush_together
from swamp.commit.repack import PackCopier
from swamp.env import SYSTEM
from swamp.index.entry import Entry, Row
from swamp.sync import fetch, pack
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.inline import pooled
from swamp.sync.transfer import hash_one
from swamp.sync.verify import inspect_all

TASK_THREADS: Final = 16
FLUSHED_TOGETHER: Final = 500


@dataclass(frozen=True)
class SendFiles:
    """Uploads -> what was sent, in the order in which they end."""

    store: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, jobs: Iterable[Upload]) -> Iterator[Sent]:
        store = opened(self.store)
        with Beat(self.beacon) as beat:

            def send(group: list[Upload]) -> list[Sent]:
                # The store bounds each request of an upload by itself and tells nobody of its bytes.
                with beat.at_work(), room if len(group) > 1 else nullcontext():
                    sent = pack.upload_group(store, group)
                beat.add(len(sent), sum(one.size for one in sent))
                return sent

            room = threading.Semaphore(pack.AT_ONCE)
            yield from chain.from_iterable(pooled(pack.groups(jobs), send, self.threads))


@dataclass(frozen=True)
class FetchFiles:
    """Downloads -> verified files in staging, durable before they are reported."""

    store: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, jobs: Iterable[Download]) -> Iterator[Got]:
        store = opened(self.store)
        flush = _Flush()
        with Beat(self.beacon) as beat:

            def bring(group: fetch.Group) -> list[Got]:
                with room if len(group) > 1 else nullcontext():
                    got = fetch.fetch_group(store, group, on_bytes=beat.sent)
                beat.add(len(got))
                return got

            room = threading.Semaphore(fetch.AT_ONCE)
            groups = pooled(fetch.groups(map(flush.later, jobs)), bring, self.threads)
            found = chain.from_iterable(groups)
            while page := list(islice(found, FLUSHED_TOGETHER)):
                flush.now()
                yield from page


@dataclass
class _Flush:
    """One flush for a page of downloads, where this machine's file system keeps that promise."""

    directory: Path | None = None

    def later(self, job: Download) -> Download:
        """The job, relieved of its own flush if `now` will do it."""
        if self.directory is None or str(self.directory) != job.staging:
            if not can_flush_together(Path(job.staging)):
                return job
            self.directory = Path(job.staging)
        return replace(job, durable=False)

    def now(self) -> None:
        if self.directory is not None:
            flush_together(self.directory)


@dataclass(frozen=True)
class HashFiles:
    """Candidates -> hashed: only files whose hint did not prove equality come here."""

    beacon: Address | None = None
    threads: int = 2  # hashing is bound by the core of the task, reading ahead is all that a second thread brings

    def __call__(self, jobs: Iterable[Hash]) -> Iterator[Hashed]:
        with Beat(self.beacon) as beat:

            def read(job: Hash) -> Hashed:
                with beat.at_work():
                    hashed = hash_one(job)
                beat.add(1, hashed.size)
                return hashed

            yield from pooled(jobs, read, self.threads)


@dataclass(frozen=True)
class VerifyEntries:
    """Entries -> findings that are not good (`sync.verify.inspect_all`)."""

    store: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, entries: Iterable[Entry]) -> Iterator[Named]:
        with Beat(self.beacon) as beat:
            for finding in inspect_all(opened(self.store), entries, self.threads, beat.sent):
                beat.add(1)
                if finding.verdict != "good":
                    yield "", 0, finding


@dataclass(frozen=True)
class CopySlices:
    """Rows of packs, those of one pack together -> the same rows with the place of their copy.

    A second attempt copies under other names; what nobody commits is an orphan. inv[object.key-once]
    """

    store: StoreAddress
    beacon: Address | None = None

    def __call__(self, rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
        store = opened(self.store)
        with Beat(self.beacon) as beat, beat.at_work():
            copier = PackCopier(store, SYSTEM)
            for moved in copier.copy(rows, lambda: None):
                beat.add(1)
                yield moved
