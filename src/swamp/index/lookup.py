"""Finds the rows that decide paths: a root's newest layer and its segments as one sorted stream, in bounded memory.

Per path the highest number wins, wherever it lies. inv[index.highest-seq] Compaction writes what wins into one segment;
`commit_stats` counts what one commit did.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from swamp.cache.paths import is_below
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.columns import listed_paths
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced
from swamp.index.footer import Source
from swamp.index.root import EVERYTHING, Root, SegmentRef, Span
from swamp.index.segment import AnyRow, Segment, listed_rows, write_segment
from swamp.values import value

Forget = Callable[[Tombstone], bool]


def newer(one: Row, other: Row) -> Row:
    """Which of two rows of a path is true; with equal numbers they are the same row, or the live one stays."""
    if one.seq != other.seq:
        return one if one.seq > other.seq else other
    return other if isinstance(one, Tombstone) else one


def winner(rows: Iterable[Row]) -> Row:
    """The row that decides, out of all rows of one path."""
    return reduce(newer, rows)


def merge_segments(inputs: Sequence[tuple[SegmentRef, Iterable[AnyRow]]], forget: Forget) -> Iterator[AnyRow]:
    """What a compaction writes: the inputs' rows, numbered, without those that an input has overruled.

    `forget` says which tombstones may go. A tombstone that lost to a newer row becomes a dropped key, so that its
    payload's undo window still counts from the deletion (L33).
    """
    streams = [_numbered(ref, rows) for ref, rows in inputs]
    for _, group in groupby(heapq.merge(*streams, key=attrgetter("path")), key=attrgetter("path")):
        rows = list(group)
        deciding = [row for row in rows if not isinstance(row, Unreferenced)]
        best = winner(deciding) if deciding else None
        if best is not None and not (isinstance(best, Tombstone) and forget(best)):
            yield best
        yield from _dropped(rows, best)


def _numbered(ref: SegmentRef, rows: Iterable[AnyRow]) -> Iterator[AnyRow]:
    """Numberless rows take *their* segment's number, never that of the output. inv[segment.added-seq]"""
    return (row if row.seq else row.at(ref.added_seq) for row in rows)


def _dropped(rows: list[AnyRow], best: Row | None) -> list[Unreferenced]:
    """One row per dropped key, from its newest drop; a key that came back to life later is not dropped."""
    found: dict[str, Unreferenced] = {}
    for row in rows:
        if isinstance(row, Entry) or (isinstance(row, Tombstone) and best is not None and row.key == best.key):
            continue
        drop = Unreferenced.of(row)
        if row.key not in found or _told(drop) > _told(found[row.key]):
            found[row.key] = drop
    if isinstance(best, Entry) and best.key in found and found[best.key].seq < best.seq:
        del found[best.key]
    return [found[key] for key in sorted(found)]


def _told(drop: Unreferenced) -> tuple[int, str, int, str]:
    """Which of two drops of one key stays: the newer one, then the one that knows its hash.

    One drop can lie in two segments as two rows: a flush that was overtaken wrote the tombstone, and who overtook it
    dropped its key under the same number. In whatever order they are merged, the same one stays.
    """
    return drop.seq, drop.sha256 or "", drop.size, drop.id


def forgettable(root: Root, inputs: Sequence[SegmentRef], horizon_seq: int) -> Forget:
    """A tombstone may go when it is beyond the horizon *and* nothing outside the inputs can hold an older row.

    Every other segment that covers the path counts as older: a compacted one keeps old rows under a high number.
    """
    taken = {ref.key for ref in inputs}
    others = [ref for ref in root.segments if ref.key not in taken]

    def forget(tomb: Tombstone) -> bool:
        if tomb.seq > horizon_seq or any(ref.covers(tomb.path) for ref in others):
            return False
        above = root.row(tomb.path)
        return above is None or above.seq > tomb.seq

    return forget


FetchSegment = Callable[[SegmentRef], Source]
"""Brings a segment's bytes or a local file of them; they are verified here."""


def merge_range(
    root: Root, inputs: Sequence[SegmentRef], horizon: int, fetch: FetchSegment, span: Span = EVERYTHING
) -> Segment:
    """What a compaction of `inputs` writes for the paths of a span: in process all, in a task its own. Of all spans
    together every row is read once."""
    streams = [(ref, listed_rows(ref, fetch(ref), part)) for ref, part in within(inputs, span)]
    return write_segment(merge_segments(streams, forgettable(root, inputs, horizon)), presorted=True)


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
            for row in _read(ref, fetch, EVERYTHING, open_):
                found[row.path] = newer(found[row.path], row) if row.path in found else row
    return found


def winning_rows(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[Row]:
    """One row per path at or below the directory `prefix`, entries and tombstones, in path order."""
    return (row for row in rows_between(root, fetch, Span.below(prefix)) if is_below(row.path, prefix))


def rows_between(root: Root, fetch: FetchSegment, span: Span = EVERYTHING) -> Iterator[Row]:
    """One row per path of a span."""
    refs = [ref for ref in root.segments if span.meets(ref)]
    return _winners((row for row in _layer(root) if span.holds(row.path)), refs, fetch, span)


def live_rows(root: Root, fetch: FetchSegment, prefix: str = "") -> Iterator[Entry]:
    """The files that exist at or below the directory `prefix`, in path order."""
    return (row for row in winning_rows(root, fetch, prefix) if isinstance(row, Entry))


def rows_since(root: Root, seq: int, fetch: FetchSegment, span: Span = EVERYTHING) -> Iterator[Row]:
    """What changed after commit `seq`, in path order: only later segments are read."""
    later = [ref for ref in root.segments if ref.added_seq > seq and span.meets(ref)]  # inv[segment.added-seq]
    changed = _winners((row for row in _layer(root) if row.seq > seq and span.holds(row.path)), later, fetch, span)
    return (row for row in changed if row.seq > seq)  # a compacted segment repeats what was known


def mentioned_paths(root: Root, fetch: FetchSegment, prefix: str, naming: str | None) -> Iterator[list[str]]:
    """Every path below the directory `prefix` (with a directory `naming`) that a row mentions, deleted and overruled
    ones too, in no order, perhaps more than once; others as well. For who looks for names and asks about those it
    found."""
    span = Span.below(prefix)
    yield [path for path in (*root.entries, *root.deleted) if span.holds(path)]
    for ref in root.segments:
        if span.meets(ref):
            yield from listed_paths(ref, fetch(ref), span, naming)


def all_rows(root: Root, fetch: FetchSegment, span: Span = EVERYTHING) -> Iterator[AnyRow]:
    """Every row of the layer and of every segment, overruled and dropped ones too, in no order: for collection. Of all
    ranges together every row is read once."""
    yield from (row for row in (*_layer(root), *root.dropped.values()) if span.holds(row.path))
    for ref, part in within(root.segments, span):
        yield from listed_rows(ref, fetch(ref), part)


def within(refs: Iterable[SegmentRef], span: Span) -> Iterator[tuple[SegmentRef, Span]]:
    """The segments that one of several readers reads, and what of them. A segment's dropped rows may lie outside of the
    range that its descriptor names: they go with its first or last deciding row."""
    for ref in filter(span.meets, refs):
        first, last = span.start <= ref.min_path, span.stop is None or ref.max_path < span.stop
        yield ref, Span("" if first else span.start, None if last else span.stop)


def _layer(root: Root) -> list[Row]:
    rows: list[Row] = [*root.entries.values(), *root.deleted.values()]
    return sorted(rows, key=attrgetter("path"))


def _winners(layer: Iterable[Row], refs: Iterable[SegmentRef], fetch: FetchSegment, span: Span) -> Iterator[Row]:
    best: Row | None = None
    for row in _merged(layer, refs, fetch, span):
        if best is None or row.path != best.path:
            if best is not None:
                yield best
            best = row
        else:
            best = newer(best, row)
    if best is not None:
        yield best


def _merged(layer: Iterable[Row], refs: Iterable[SegmentRef], fetch: FetchSegment, span: Span) -> Iterator[Row]:
    """A k-way merge that opens a segment only when the walk has come to its range, and lets it go after."""
    streams = [("", iter(layer)), *((max(r.min_path, span.start), _read(r, fetch, span)) for r in refs)]
    heap: list[tuple[str, int, Row | None, Iterator[Row]]]
    heap = [(first, order, None, stream) for order, (first, stream) in enumerate(streams)]
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


def _read(ref: SegmentRef, fetch: FetchSegment, span: Span, paths: Collection[str] | None = None) -> Iterator[Row]:
    """A segment's deciding rows, after it was verified."""
    for row in listed_rows(ref, fetch(ref), span, paths=paths, dropped=False):
        assert not isinstance(row, Unreferenced)
        yield row


MOST_PATHS: Final = 1000
FileChange = Literal["added", "changed", "deleted"]


@value
class CommitStats:
    """Files that a commit added, changed and deleted."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    paths: tuple[str, ...] = ()
    """The first of them, in the order of their names."""


def commit_stats(root: Root, fetch: FetchSegment) -> CommitStats:
    """What the commit did that published `root`; nothing where the segment that told it is gone."""
    counted: Counter[FileChange] = Counter()
    paths: list[str] = []
    try:
        for path, change in file_changes(root, fetch):
            counted[change] += 1
            if len(paths) < MOST_PATHS:
                paths.append(path)
    except (ObjectMissing, CorruptData):
        return CommitStats()  # it was compacted away since: the commit itself is still told
    return CommitStats(counted["added"], counted["changed"], counted["deleted"], tuple(sorted(paths)))


def file_changes(root: Root, fetch: FetchSegment) -> Iterator[tuple[str, FileChange]]:
    """What the commit that published `root` did, path by path. Raises where its segment is gone."""
    for rows in _places(root, fetch):
        for path, group in groupby((row for row in rows if row.seq == root.seq), key=attrgetter("path")):
            change = _change(list(group))
            if change is not None:
                yield path, change


def _places(root: Root, fetch: FetchSegment) -> Iterator[Iterable[AnyRow]]:
    """Where rows of the newest commit lie, each in path order. Those of one path are never in two of them: a commit
    leaves all of its rows in the layer, or flushes all of them into one segment."""
    layer: list[AnyRow] = [*root.entries.values(), *root.deleted.values(), *root.dropped.values()]
    yield sorted(layer, key=attrgetter("path"))
    for ref in root.segments:
        if ref.added_seq == root.seq:
            yield listed_rows(ref, fetch(ref))


def _change(rows: list[AnyRow]) -> FileChange | None:
    """What one commit's rows of one path say; None for a segment that it took out of the index, and for content that
    it only moved, healed or marked: changes are counted by identity.

    A payload in place of a dropped one is a change.
    """
    for row in rows:
        if isinstance(row, Entry):
            if row.number != row.seq:
                return None
            return "changed" if any(isinstance(other, Unreferenced) for other in rows) else "added"
    return "deleted" if any(isinstance(row, Tombstone) and row.number == row.seq for row in rows) else None
