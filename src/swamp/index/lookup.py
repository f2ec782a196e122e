"""What a root says of paths: its newest layer and its segments as one sorted stream, in bounded memory."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from swamp.cache.paths import is_below
from swamp.index.columns import listed_paths
from swamp.index.entry import Entry, Row, Unreferenced
from swamp.index.merge import newer, winner
from swamp.index.root import Root, SegmentRef
from swamp.index.segment import AnyRow, listed_rows
from swamp.index.source import Source
from swamp.values import value

FetchSegment = Callable[[SegmentRef], Source]
"""Brings a segment's bytes or a local file of them; they are verified here."""


def lookup(root: Root, paths: Iterable[str], fetch: FetchSegment) -> dict[str, Row]:
    """The row that decides each of `paths`; a path that the index never knew is not in the result.

    Newest segments first, and none is fetched that could not overrule what is already known.
    """
    wanted = sorted(set(paths))
    found = {path: row for path in wanted if (row := root.row(path)) is not None}
    for ref in sorted(root.segments, key=attrgetter("added_seq"), reverse=True):
        inside = wanted[bisect_left(wanted, ref.min_path) : bisect_left(wanted, ref.max_path + "\0")]
        open_ = [p for p in inside if p not in found or found[p].seq < ref.added_seq]
        if open_:
            for row in _read(ref, fetch, _Span(), open_):
                found[row.path] = newer(found[row.path], row) if row.path in found else row
    return found


def winning_rows(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[Row]:
    """One row per path at or below the directory `prefix`, entries and tombstones, in path order."""
    span = _Span.below(prefix)
    refs = [ref for ref in root.segments if span.meets(ref)]
    found = _winners((row for row in _layer(root) if span.holds(row.path)), refs, fetch, span)
    return (row for row in found if is_below(row.path, prefix))


def live_rows(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[Entry]:
    """The files that exist at or below the directory `prefix`, in path order."""
    return (row for row in winning_rows(root, fetch, prefix) if isinstance(row, Entry))


def rows_since(root: Root, seq: int, fetch: FetchSegment, *, start: str = "", stop: str | None = None) -> Iterator[Row]:
    """What changed after commit `seq`, in path order from `start` up to `stop`: only later segments are read."""
    span = _Span(start, stop)
    later = [ref for ref in root.segments if ref.added_seq > seq and span.meets(ref)]  # inv[segment.added-seq]
    changed = _winners((row for row in _layer(root) if row.seq > seq and span.holds(row.path)), later, fetch, span)
    return (row for row in changed if row.seq > seq)  # a compacted segment repeats what was known


def mentioned_paths(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[list[str]]:
    """Every path at or below the directory `prefix` that a row mentions, deleted and overruled ones too, in no order,
    perhaps more than once; some beside it as well. For who looks for names and asks about those that it has found."""
    span = _Span.below(prefix)
    yield [path for path in (*root.entries, *root.deleted) if span.holds(path)]
    for ref in root.segments:
        if span.meets(ref):
            yield from listed_paths(ref, fetch(ref), start=span.start, stop=span.stop)


def all_rows(root: Root, fetch: FetchSegment) -> Iterator[AnyRow]:
    """Every row of the layer and of every segment, overruled and dropped ones too, in no order: for collection."""
    yield from _layer(root)
    yield from root.dropped.values()
    for ref in root.segments:
        yield from listed_rows(ref, fetch(ref))


def _layer(root: Root) -> list[Row]:
    rows: list[Row] = [*root.entries.values(), *root.deleted.values()]
    return sorted(rows, key=attrgetter("path"))


@value
class _Span:
    """Paths from `start` up to, not including, `stop`."""

    start: str = ""
    stop: str | None = None

    @classmethod
    def below(cls, prefix: str) -> _Span:
        return cls(prefix, prefix + "0") if prefix else cls()  # "0" follows "/"

    def holds(self, path: str) -> bool:
        return self.start <= path and (self.stop is None or path < self.stop)

    def meets(self, ref: SegmentRef) -> bool:
        return ref.max_path >= self.start and (self.stop is None or ref.min_path < self.stop)


def _winners(layer: Iterable[Row], refs: Iterable[SegmentRef], fetch: FetchSegment, span: _Span) -> Iterator[Row]:
    for _, rows in groupby(_merged(layer, refs, fetch, span), key=attrgetter("path")):
        yield winner(rows)


def _merged(layer: Iterable[Row], refs: Iterable[SegmentRef], fetch: FetchSegment, span: _Span) -> Iterator[Row]:
    """A k-way merge that opens a segment only when the walk has come to its range, and lets it go after."""
    heap: list[tuple[str, int, Row | None, Iterator[Row]]] = []
    streams = [("", iter(layer)), *((max(r.min_path, span.start), _read(r, fetch, span)) for r in refs)]
    for order, (first, stream) in enumerate(streams):
        heap.append((first, order, None, stream))
    heapq.heapify(heap)
    while heap:
        _, order, row, stream = heap[0]
        if row is not None:
            yield row
        if len(heap) == 1:
            yield from stream
            return
        following = next(stream, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.path, order, following, stream))


def _read(ref: SegmentRef, fetch: FetchSegment, span: _Span, paths: Collection[str] | None = None) -> Iterator[Row]:
    """A segment's deciding rows, after it was verified."""
    for row in listed_rows(ref, fetch(ref), start=span.start, stop=span.stop, paths=paths, dropped=False):
        assert not isinstance(row, Unreferenced)
        yield row
