"""Fewer, larger segments: what was overruled goes, numbers stay, and no tombstone leaves an older row uncovered."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from swamp.commit.build import put_segment, survive
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import names
from swamp.index.entry import Unreferenced
from swamp.index.lookup import FetchSegment, forgettable, merge_segments, within
from swamp.index.root import EVERYTHING, Root, SegmentRef, Span
from swamp.index.segment import Segment, listed_rows, write_segment
from swamp.locks.decide import store_now
from swamp.values import value

TOMBSTONE_AGE: Final = dt.timedelta(days=365)


@value
class Compacted:
    segments_before: int
    segments_after: int
    rows: int


Merge = Callable[[Root, Sequence[SegmentRef], int], Sequence[SegmentRef]]
"""Writes these segments of a root as fewer ones, and forgets tombstones up to a number."""


def compact(
    committer: Committer, pace: Pace, *, keys: frozenset[str] | None = None, merge: Merge | None = None
) -> Compacted:
    """Merges all segments (or those in `keys`) into one, or into what a `merge` in bulk makes of them; starts over when
    an input is no longer listed."""
    while True:
        read = committer.read()
        if read.root is None:
            return Compacted(0, 0, 0)
        done = _once(committer, pace, read.root, keys, merge or partial(_merged, committer))
        if done is not None:
            return done


def _once(committer: Committer, pace: Pace, root: Root, keys: frozenset[str] | None, merge: Merge) -> Compacted | None:
    inputs = [s for s in root.segments if keys is None or s.key in keys]
    before = len(root.segments)
    if len(inputs) < 2:
        return Compacted(before, before, sum(s.rows for s in inputs))
    horizon = horizon_of(committer)
    merged = tuple(merge(root, inputs, horizon))
    taken = frozenset(s.key for s in inputs)

    def propose(now: Root) -> Changes | None:
        if not taken <= {s.key for s in now.segments}:
            return None
        if not survive(committer.store, now, [ref.key for ref in merged], root.gc_epoch):
            return None
        dropped = tuple(Unreferenced(key, "") for key in sorted(taken))
        return Changes(segments=merged, unlisted=taken, dropped=dropped, horizon_seq=horizon)

    done = committer.commit(propose, pace)
    return None if done is None else Compacted(before, len(done.root.segments), sum(ref.rows for ref in merged))


def _merged(committer: Committer, root: Root, inputs: Sequence[SegmentRef], horizon: int) -> list[SegmentRef]:
    """The inputs as one uploaded segment under the highest number among them: no reader takes it for news."""
    segment = merge_range(root, inputs, horizon, committer.fetch)
    return [put_segment(committer.store, committer.env, segment, max(s.added_seq for s in inputs))]


def merge_range(
    root: Root, inputs: Sequence[SegmentRef], horizon: int, fetch: FetchSegment, span: Span = EVERYTHING
) -> Segment:
    """What a compaction of `inputs` writes for the paths of a span: in process all, in a task its own. Of all spans
    together every row is read once."""
    streams = [(ref, listed_rows(ref, fetch(ref), part)) for ref, part in within(inputs, span)]
    return write_segment(merge_segments(streams, forgettable(root, inputs, horizon)), presorted=True)


def horizon_of(committer: Committer) -> int:
    """The newest commit that is older than a year: tombstones up to it may be forgotten."""
    now = store_now(committer.store)
    horizon = 0
    for record in names(committer.store):
        if now - record.meta.last_modified < TOMBSTONE_AGE:
            break
        horizon = record.seq
    return horizon
