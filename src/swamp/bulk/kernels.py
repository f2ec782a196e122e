"""What tasks do: plain functions of an iterator of jobs (files, payloads, ranges of the index), testable without Spark.

Each kernel is a frozen value with what it needs (a store's address, the beacon). File bodies are streamed by the worker
and never enter Arrow; segments of the index are read and written through the store client, so that no Hadoop connector
is needed. Everything written has a key of its own and is harmless if nobody publishes it, so a task may run twice.
inv[object.key-once]
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.shares import Listed, pages_of
from swamp.bulk.spread import Address, Beat, Named, opened
from swamp.cache.places import can_flush_together, flush_together
from swamp.cache.scan import ScanProblem
from swamp.cache.state import State
from swamp.commit.bootstrap import LeftOut
from swamp.commit.build import put_segment
from swamp.commit.collect import UNCLAIMED, MarkTerms, ObjectClaim, both, claims, is_garbage
from swamp.commit.repack import PackCopier
from swamp.env import SYSTEM
from swamp.index.adopt import adopt_listing, own_objects
from swamp.index.entry import Entry, Row, object_of
from swamp.index.lookup import FetchSegment, merge_range, rows_between
from swamp.index.pack import newest_upload, propose_listed, propose_packed
from swamp.index.read import kept_segment
from swamp.index.root import Root, SegmentRef, Span
from swamp.index.segment import write_segment
from swamp.store.port import ObjectMeta
from swamp.sync import fetch
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.gather import Gatherer
from swamp.sync.inline import pooled
from swamp.sync.transfer import PACKS_AT_ONCE, hash_one, upload_group, upload_groups
from swamp.sync.verify import inspect_all
from swamp.sync.view import View

if TYPE_CHECKING:
    from swamp.store.open import StoreSpec

TASK_THREADS: Final = 16
FLUSHED_TOGETHER: Final = 500
SEGMENT_ROWS: Final = 250_000
Pages = Iterator[Sequence[ObjectMeta]]
Told = tuple[str, str, list[ScanProblem]]
"""Where a range starts, the file that holds its facts, and what could not be looked at there."""


@dataclass(frozen=True)
class SendFiles:
    """Uploads -> what was sent, in the order in which they end."""

    store: StoreSpec
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, jobs: Iterable[Upload]) -> Iterator[Sent]:
        store = opened(self.store)
        with Beat(self.beacon) as beat:

            def send(group: list[Upload]) -> list[Sent]:
                # The store bounds each request of an upload by itself and tells nobody of its bytes.
                with beat.at_work(), room if len(group) > 1 else nullcontext():
                    sent = upload_group(store, group)
                beat.add(len(sent), sum(one.size for one in sent))
                return sent

            room = threading.Semaphore(PACKS_AT_ONCE)
            yield from chain.from_iterable(pooled(upload_groups(jobs), send, self.threads))


@dataclass(frozen=True)
class FetchFiles:
    """Downloads -> verified files in staging, durable before they are reported."""

    store: StoreSpec
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, jobs: Iterable[Download]) -> Iterator[Got]:
        store = opened(self.store)
        together = cache(lambda staging: can_flush_together(Path(staging)))
        unflushed: set[str] = set()

        def relieved(job: Download) -> Download:
            """The job without its own flush, where this machine's file system keeps the promise of one for many."""
            if not together(job.staging):
                return job
            unflushed.add(job.staging)
            return replace(job, durable=False)

        with Beat(self.beacon) as beat:

            def bring(group: fetch.Group) -> list[Got]:
                with room if len(group) > 1 else nullcontext():
                    got = fetch.fetch_group(store, group, on_bytes=beat.sent)
                beat.add(len(got))
                return got

            room = threading.Semaphore(fetch.AT_ONCE)
            groups = pooled(fetch.groups(map(relieved, jobs)), bring, self.threads)
            found = chain.from_iterable(groups)
            while page := list(islice(found, FLUSHED_TOGETHER)):
                for staging in unflushed:
                    flush_together(Path(staging))
                yield from page


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

    store: StoreSpec
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

    store: StoreSpec
    beacon: Address | None = None

    def __call__(self, rows: Iterable[Row]) -> Iterator[tuple[Row, str]]:
        store = opened(self.store)
        with Beat(self.beacon) as beat, beat.at_work():
            copier = PackCopier(store, SYSTEM)
            for moved in copier.copy(rows, lambda: None):
                beat.add(1)
                yield moved


# -- the index, in ranges of paths


@dataclass(frozen=True)
class GatherRanges:
    """Path ranges -> for each a file of gathered facts, written where the cache is."""

    store: StoreSpec
    database: str
    folder: str
    view: dict[str, Any]
    gatherer: dict[str, Any]
    portion: int
    beacon: Address | None = None

    def __call__(self, ranges: Iterable[Span]) -> Iterator[Told]:
        state = State.open(Path(self.database))
        try:
            with Beat(self.beacon) as beat:
                view = View(store=opened(self.store), **self.view)
                gatherer = Gatherer(state=state, view=view, **self.gatherer)
                for span in ranges:
                    yield self._written(replace(gatherer, span=span), beat)
        finally:
            state.close()

    def _written(self, gatherer: Gatherer, beat: Beat) -> Told:
        """Under a name of its own: a task may run twice, and only the file that the driver is told of counts."""
        file = Path(self.folder) / SYSTEM.ulid()
        problems: list[ScanProblem] = []
        with file.open("wb") as out:
            for portion in gatherer.gathered(self.portion):
                problems = portion.problems
                pickle.dump((portion.facts, portion.hidden), out, pickle.HIGHEST_PROTOCOL)
                beat.add(len(portion.facts))
        return gatherer.span.start, file.name, problems


@dataclass(frozen=True)
class OfRanges:
    """Path ranges of one root -> what a function makes of the index in each."""

    store: StoreSpec
    root: Root
    made: Callable[[Root, FetchSegment, Span], Iterable[Any]]
    beacon: Address | None = None

    def __call__(self, ranges: Iterable[Span]) -> Iterator[Any]:
        fetch = partial(kept_segment, opened(self.store))  # wide segments meet many of a process's ranges
        with Beat(self.beacon) as beat, beat.at_work():
            for span in ranges:
                yield from self.made(self.root, fetch, span)


def live_entries(root: Root, fetch: FetchSegment, span: Span) -> Iterator[Named]:
    """The files that exist, by the objects that hold them."""
    for row in rows_between(root, fetch, span):
        if isinstance(row, Entry):
            yield object_of(row.key), row.size, row


def entries_of(packs: frozenset[str], root: Root, fetch: FetchSegment, span: Span) -> Iterator[Entry]:
    """What lives in these packs."""
    return (entry for name, _, entry in live_entries(root, fetch, span) if name in packs)


def object_claims(terms: MarkTerms, root: Root, fetch: FetchSegment, span: Span) -> Iterator[Named]:
    """`commit.collect.claims`, by object."""
    return ((name, 0, (name, claim)) for name, claim in claims(terms, root, fetch, span))


def merged(
    store: StoreSpec, inputs: Sequence[SegmentRef], horizon: int, root: Root, fetch: FetchSegment, span: Span
) -> Iterator[SegmentRef]:
    """The segment that a compaction writes for a range, if there is anything in it."""
    segment = merge_range(root, inputs, horizon, fetch, span)
    if segment.rows:
        yield put_segment(opened(store), SYSTEM, segment, max(ref.added_seq for ref in inputs))


@dataclass(frozen=True)
class OfListings:
    """Key ranges of a bucket -> what a function makes of the listing of each."""

    store: StoreSpec
    made: Callable[[Pages], Iterable[Any]]

    def __call__(self, ranges: Iterable[Listed]) -> Iterator[Any]:
        store = opened(self.store)
        for found in ranges:
            yield from self.made(pages_of(store, found))


def own_listed(pages: Pages) -> Iterator[Named]:
    """Objects that are ours, not another store's inside this one."""
    return ((meta.key, meta.size, (meta.key, meta)) for meta in own_objects(pages))


def adopted(pages: Pages) -> Iterator[Named]:
    """Entries by path of a bucket without an index; under no path, what was left out. Raises CorruptData at a name that
    only an index gives: publish nothing (L48)."""
    left = LeftOut()
    yield from ((entry.path, entry.size, entry) for entry in adopt_listing(pages, refused=left))
    if left.count:
        yield "", 0, (left.count, left.first)


def proposed(pages: Pages) -> Iterator[Named]:
    """Entries by path of a bucket whose index is lost, several for a path that was uploaded several times."""
    return ((entry.path, entry.size, entry) for entry in propose_listed(own_objects(pages)))


@dataclass(frozen=True)
class ProposePacked:
    """Packs -> an entry by path for every file that their footers tell, one ranged request each."""

    store: StoreSpec

    def __call__(self, packs: Iterable[ObjectMeta]) -> Iterator[Named]:
        store = opened(self.store)
        return ((entry.path, entry.size, entry) for meta in packs for entry in propose_packed(store, meta))


@dataclass(frozen=True)
class WriteSegments:
    """Entries in path order -> descriptors of segments of the newest of each path; they are nothing until published."""

    store: StoreSpec
    added_seq: int = 0

    def __call__(self, entries: Iterable[Entry]) -> Iterator[Named]:
        store = opened(self.store)
        newest = (newest_upload(group) for _, group in groupby(entries, attrgetter("path")))
        while rows := list(islice(newest, SEGMENT_ROWS)):
            yield "", 0, put_segment(store, SYSTEM, write_segment(rows, presorted=True), self.added_seq)


@dataclass(frozen=True)
class JudgeObjects:
    """Objects as they were listed and claims on them, by name -> the garbage, with what was held there."""

    terms: MarkTerms

    def __call__(self, told: Iterable[tuple[str, ObjectMeta | ObjectClaim]]) -> Iterator[Named]:
        for name, group in groupby(told, itemgetter(0)):
            meta, claim = None, UNCLAIMED
            for _, one in group:
                if isinstance(one, ObjectMeta):
                    meta = one
                else:
                    claim = both(name, claim, one)
            if meta is not None and is_garbage(meta, claim, self.terms):
                yield "", 0, (meta, claim.held)
