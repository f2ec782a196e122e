"""Several sorted segments as one: per path the highest number wins, wherever it lies. inv[index.highest-seq]"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from swamp.index.entry import Entry, Row, Tombstone, Unreferenced
from swamp.index.root import Root, SegmentRef
from swamp.index.segment import AnyRow

Forget = Callable[[Tombstone], bool]
Keep = Callable[[Unreferenced], bool]


def newer(one: Row, other: Row) -> Row:
    """Which of two rows of a path is true; with equal numbers they are the same row, or the live one stays."""
    if one.seq != other.seq:
        return one if one.seq > other.seq else other
    return other if isinstance(one, Tombstone) else one


def winner(rows: Iterable[Row]) -> Row:
    """The row that decides, out of all rows of one path."""
    found = iter(rows)
    best = next(found)
    for row in found:
        best = newer(best, row)
    return best


def merge_segments(
    inputs: Sequence[tuple[SegmentRef, Iterable[AnyRow]]], forget: Forget, keep: Keep = lambda _: True
) -> Iterator[AnyRow]:
    """What a compaction writes: the inputs' rows, numbered, without those that an input has overruled.

    `forget` says which tombstones may go, `keep` which dropped keys must stay. A tombstone that lost to a newer row
    becomes a dropped key, so that its payload's undo window still counts from the deletion (L33).
    """
    streams = [_numbered(ref, rows) for ref, rows in inputs]
    for _, rows in groupby(heapq.merge(*streams, key=attrgetter("path")), key=attrgetter("path")):
        yield from _merged(list(rows), forget, keep)


def _numbered(ref: SegmentRef, rows: Iterable[AnyRow]) -> Iterator[AnyRow]:
    """Numberless rows take *their* segment's number, never that of the output. inv[segment.added-seq]"""
    return (row if row.seq else row.at(ref.added_seq) for row in rows)


def _merged(rows: list[AnyRow], forget: Forget, keep: Keep) -> Iterator[AnyRow]:
    deciding = [row for row in rows if not isinstance(row, Unreferenced)]
    best = winner(deciding) if deciding else None
    if best is not None and not (isinstance(best, Tombstone) and forget(best)):
        yield best
    yield from (d for d in _dropped(rows, best) if keep(d))


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
    dropped its key under the same number. Whatever merges them must choose alike (`pipeline.stages.merge`).
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
