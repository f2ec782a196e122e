"""Makes the root that follows a commit, and says whether it may name what was uploaded for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from swamp.env import Env, rfc3339
from swamp.errors import ObjectMissing
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced, object_of
from swamp.index.root import IGNORED, NEEDS, SEGMENT_PREFIX, Root, SegmentRef, Writer, successor
from swamp.store.port import ObjectStore
from swamp.store.retry import put_again
from swamp.values import value

if TYPE_CHECKING:
    from swamp.index.segment import Segment

_ROW_BYTES: Final = 190  # what a row costs in the root besides its path and key, measured on real roots


REBUILT_FROM: Final = "rebuiltFrom"
"""In a root that was rebuilt without its newest records: the number up to which the log was followed, 0 for none."""
PLACED_AGAIN: Final = "placedAgain"
"""In a root's extra after that: what `rebuiltFrom` was, and the number of the commit that took it away."""


@value
class Changes:
    """What one commit does to the root. Rows take the commit's number when it wins."""

    puts: tuple[Entry, ...] = ()
    deletes: tuple[Tombstone, ...] = ()
    dropped: tuple[Unreferenced, ...] = ()
    segments: tuple[SegmentRef, ...] = ()
    unlisted: frozenset[str] = frozenset()
    collecting: tuple[str, ...] | None = None
    gc_epoch_step: int = 0
    horizon_seq: int = 0
    version: int = 0
    """The format version that the store has from now on, where that is higher than its own."""
    conditions: str = ""
    """The word about conditions that the root says from now on; the commit is named as `conditionsOp`."""
    forgotten: frozenset[str] = frozenset()
    swept: frozenset[str] = frozenset()
    """Keys that a collector has deleted: their rows in the layer have served."""
    learned: tuple[Entry, ...] = ()
    """Rows of the newest layer whose hash is now known: same key, same number, so nobody takes them for a change."""

    placed: bool = False
    """Every live row of this very root was seen to have its object: what a rebuild kept for them has served."""

    @property
    def rows(self) -> int:
        return len(self.puts) + len(self.deletes) + len(self.dropped)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset([e.path for e in self.puts] + [t.path for t in self.deletes])


@value
class Flush:
    """A staged segment and the layer rows that it holds: only rows identical to these leave the layer."""

    changes: Changes
    ref: SegmentRef
    rows: frozenset[Row]
    dropped: frozenset[Unreferenced]
    epoch: int = 0
    """The collection after which it was uploaded."""


def rebuilt(recorded: Root, env: Env, writer: Writer, step: int = 2) -> Root:
    """A recorded root under a number and an epoch that nobody can have seen: seq + 2, gcEpoch + 2."""
    root = successor(recorded, env.ulid(), rfc3339(env.clock.now()), writer, step=step)
    return replace(root, gc_epoch=recorded.gc_epoch + 2)


def numberless(changes: Changes) -> list[Row | Unreferenced]:
    """Its rows, which take the number of the commit that lists their segment. inv[segment.added-seq]"""
    rows: list[Row | Unreferenced] = [*changes.puts, *changes.deletes, *changes.dropped]
    return [row.at(0) for row in rows]


def layer_bytes(root: Root, changes: Changes) -> int:
    """About how much of the root its layer takes with these changes."""
    rows: list[Row | Unreferenced] = [*root.entries.values(), *root.deleted.values(), *root.dropped.values()]
    rows += [*changes.puts, *changes.deletes, *changes.dropped]
    return sum(len(row.path) + len(row.key) + _ROW_BYTES for row in rows)


def build(root: Root, changes: Changes, op: str, at: str, writer: Writer, flush: Flush | None = None) -> Root:
    """The root that follows `root` when `changes` happen to it. Pure."""
    new = successor(root, op, at, writer)
    seq = new.seq
    entries, deleted, dropped = dict(root.entries), dict(root.deleted), dict(root.dropped)
    for path in changes.forgotten:
        entries.pop(path, None)
        deleted.pop(path, None)
    for known in changes.learned:
        if known.path in entries and entries[known.path].identity == known.identity:
            entries[known.path] = replace(entries[known.path], sha256=known.sha256)
    entries |= {} if flush else {put.path: put.at(seq) for put in changes.puts}  # a flushed one never gets to the layer
    for put in changes.puts:
        tomb = deleted.pop(put.path, None)
        dropped.pop(put.key, None)  # undelete: what is live again is not garbage
        if tomb is not None and tomb.key != put.key:
            dropped[tomb.key] = Unreferenced.of(tomb)
    if changes.swept:
        dropped = {k: d for k, d in dropped.items() if object_of(k) not in changes.swept}
    for gone in changes.deletes:
        entries.pop(gone.path, None)
        deleted[gone.path] = gone.at(seq)
    for drop in changes.dropped:
        dropped[drop.key] = drop.at(seq)
    if flush is not None:
        own = changes.paths
        own_keys = {d.key for d in changes.dropped}
        entries = {p: e for p, e in entries.items() if p not in own and e not in flush.rows}
        deleted = {p: t for p, t in deleted.items() if p not in own and t not in flush.rows}
        dropped = {k: d for k, d in dropped.items() if k not in own_keys and d not in flush.dropped}
    return replace(
        new,
        entries=entries,
        deleted=deleted,
        dropped=dropped,
        segments=_segments(root, changes, flush, seq),
        collecting=root.collecting if changes.collecting is None else changes.collecting,
        gc_epoch=root.gc_epoch + changes.gc_epoch_step,
        horizon_seq=max(root.horizon_seq, changes.horizon_seq),
        version=max(root.version, changes.version, NEEDS["ignored"] if changes.conditions == IGNORED else 0),
        conditions=changes.conditions or root.conditions,
        conditions_op=op if changes.conditions else root.conditions_op,
        extra=_seen_whole(new.extra, seq) if changes.placed else new.extra,
    )


def _seen_whole(extra: Mapping[str, Any], seq: int) -> dict[str, Any]:
    """After a rebuild every live file has its object: from here on, by its number, runs the undo window of what only
    lost commits named."""
    since = extra.get(REBUILT_FROM)
    return {**{k: v for k, v in extra.items() if k != REBUILT_FROM}, PLACED_AGAIN: [since, seq]}


def _segments(root: Root, changes: Changes, flush: Flush | None, seq: int) -> tuple[SegmentRef, ...]:
    """Those that stay, and those that this commit lists, under its number."""
    stay = [s for s in root.segments if s.key not in changes.unlisted]
    listed = [*changes.segments, *((replace(flush.ref, added_seq=seq),) if flush else ())]
    return (*stay, *(s if s.added_seq else replace(s, added_seq=seq) for s in listed))


def put_segment(store: ObjectStore, env: Env, segment: Segment, added_seq: int = 0) -> SegmentRef:
    """Uploads a segment before anything names it. inv[commit.root-last] Its name is new, so sending it twice is
    harmless, and who does it again uses another: only what a root lists exists. inv[object.key-once]"""
    ref = segment.ref(f"{SEGMENT_PREFIX}{env.ulid()}.parquet", added_seq)
    put_again(store, env, ref.key, segment.data)
    return ref


def survive(store: ObjectStore, root: Root, names: Iterable[str], epoch: int) -> bool:
    """Whether a commit on `root` may name these objects, uploaded when the collections had come to `epoch`: none is
    condemned, and after another collection each is still there. inv[gc.uploads-survive]

    Until a root names it an upload is an orphan, and a collection with a short undo window may take it: segments, moved
    packs and healed payloads just as a push's own uploads.
    """
    uploads = sorted(names)
    if any(root.condemns(name) for name in uploads):
        return False
    return not root.has_collected_since(epoch) or all(is_there(store, name) for name in uploads)


def is_there(store: ObjectStore, name: str) -> bool:
    """Whether an object exists; an unclear answer is an error, not a no."""
    try:
        store.head(name)
    except ObjectMissing:
        return False
    return True
