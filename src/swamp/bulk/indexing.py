"""The index inside tasks: the functions that work on ranges of it in process, run on a range each.

No Hadoop connector is needed: executors read and write segments through the store client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened
from swamp.bulk.shares import Listed, pages_of
from swamp.bulk.spread import Named
from swamp.commit.bootstrap import LeftOut
from swamp.commit.build import put_segment
from swamp.commit.collect import UNCLAIMED, MarkTerms, ObjectClaim, both, claims, is_garbage
from swamp.commit.compact import merge_range
from swamp.env import SYSTEM
from swamp.index.adopt import adopt_listing, own_objects
from swamp.index.entry import Entry
from swamp.index.keys import object_of
from swamp.index.lookup import FetchSegment, rows_between
from swamp.index.pack import newest_upload, propose_listed, propose_packed
from swamp.index.read import kept_segment
from swamp.index.root import Root, SegmentRef, Span
from swamp.index.segment import write_segment
from swamp.store.port import ObjectMeta

SEGMENT_ROWS: Final = 250_000
Pages = Iterator[Sequence[ObjectMeta]]


@dataclass(frozen=True)
class OfRanges:
    """Path ranges of one root -> what a function makes of the index in each."""

    store: StoreAddress
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
    store: StoreAddress, inputs: Sequence[SegmentRef], horizon: int, root: Root, fetch: FetchSegment, span: Span
) -> Iterator[SegmentRef]:
    """The segment that a compaction writes for a range, if there is anything in it."""
    segment = merge_range(root, inputs, horizon, fetch, span)
    if segment.rows:
        yield put_segment(opened(store), SYSTEM, segment, max(ref.added_seq for ref in inputs))


@dataclass(frozen=True)
class OfListings:
    """Key ranges of a bucket -> what a function makes of the listing of each."""

    store: StoreAddress
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

    store: StoreAddress

    def __call__(self, packs: Iterable[ObjectMeta]) -> Iterator[Named]:
        store = opened(self.store)
        return ((entry.path, entry.size, entry) for meta in packs for entry in propose_packed(store, meta))


@dataclass(frozen=True)
class WriteSegments:
    """Entries in path order -> descriptors of segments of the newest of each path; they are nothing until published."""

    store: StoreAddress
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
