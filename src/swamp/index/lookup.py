"""What a root says of paths: its newest layer and its segments as one sorted stream, in bounded memory."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from swamp.cache.paths import is_below
from swamp.index.columns import Source
from swamp.index.entry import Dropped, Entry, Row
from swamp.index.merge import newer, winner
from swamp.index.root import Root, SegmentRef
from swamp.index.segment import AnyRow, listed_rows

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
            for row in _read(ref, fetch, paths=open_):
                found[row.path] = newer(found[row.path], row) if row.path in found else row
    return found


def winning_rows(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[Row]:
    """One row per path at or below the directory `prefix`, entries and tombstones, in path order."""
    refs = [ref for ref in root.segments if _overlaps(ref, prefix)]
    return _winners((row for row in _layer(root) if is_below(row.path, prefix)), refs, fetch, prefix)


def live_rows(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[Entry]:
    """The files that exist at or below the directory `prefix`, in path order."""
    return (row for row in winning_rows(root, fetch, prefix) if isinstance(row, Entry))


def rows_since(root: Root, seq: int, fetch: FetchSegment) -> Iterator[Row]:
    """What changed after commit `seq`, in path order: only segments that were added later are read."""
    later = [ref for ref in root.segments if ref.added_seq > seq]  # inv[segment.added-seq]
    changed = _winners((row for row in _layer(root) if row.seq > seq), later, fetch)
    return (row for row in changed if row.seq > seq)  # a compacted segment repeats what was known


def all_rows(root: Root, fetch: FetchSegment) -> Iterator[AnyRow]:
    """Every row of the layer and of every segment, overruled and dropped ones too, in no order: for collection."""
    yield from _layer(root)
    yield from root.dropped.values()
    for ref in root.segments:
        yield from listed_rows(ref, fetch(ref))


def _layer(root: Root) -> list[Row]:
    rows: list[Row] = [*root.entries.values(), *root.deleted.values()]
    return sorted(rows, key=attrgetter("path"))


def _overlaps(ref: SegmentRef, prefix: str) -> bool:
    return not prefix or (ref.max_path >= prefix and ref.min_path < prefix + "0")  # "0" follows "/"


def _winners(layer: Iterable[Row], refs: Iterable[SegmentRef], fetch: FetchSegment, prefix: str = "") -> Iterator[Row]:
    for _, rows in groupby(_merged(layer, refs, fetch, prefix), key=attrgetter("path")):
        yield winner(rows)


def _merged(layer: Iterable[Row], refs: Iterable[SegmentRef], fetch: FetchSegment, prefix: str) -> Iterator[Row]:
    """A k-way merge that opens a segment only when the walk has come to its range, and lets it go after."""
    heap: list[tuple[str, int, Row | None, Iterator[Row]]] = []
    streams = [("", iter(layer)), *((max(r.min_path, prefix), _read(r, fetch, prefix)) for r in refs)]
    for order, (first, stream) in enumerate(streams):
        heap.append((first, order, None, stream))
    heapq.heapify(heap)
    while heap:
        _, order, row, stream = heap[0]
        if row is not None:
            yield row
        following = next(stream, None)
        if following is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (following.path, order, following, stream))


def _read(
    ref: SegmentRef, fetch: FetchSegment, prefix: str = "", paths: Collection[str] | None = None
) -> Iterator[Row]:
    """A segment's deciding rows, after it was verified."""
    stop = prefix + "0" if prefix else None
    for row in listed_rows(ref, fetch(ref), start=prefix, stop=stop, paths=paths, dropped=False):
        assert not isinstance(row, Dropped)
        if is_below(row.path, prefix):
            yield row
