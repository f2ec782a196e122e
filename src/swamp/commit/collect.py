"""Garbage: what no path names any more, for longer than the undo window. Mark looks; `sweep` condemns and deletes.

A key is deleted only after a commit has put it into `collecting`: a writer that wants it sees that and gives it up.
Ages are the store's own: the last-modified of log records and objects, against that of an object just written.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from itertools import chain
from typing import Final

from swamp.commit.bootstrap import tier_pages
from swamp.commit.build import PLACED_AGAIN, REBUILT_FROM
from swamp.commit.commit import Committer, Pace
from swamp.commit.log import LogName, names, put_log, refuse_later_formats
from swamp.commit.sweep import Held, MovedTooFar, Sweeper, is_own_key, is_segment_key, may_condemn, release
from swamp.index.adopt import own_objects
from swamp.index.entry import Entry, Tombstone, Unreferenced
from swamp.index.keys import PACK_PREFIX, is_pack, object_of
from swamp.index.lookup import all_rows, winning_rows
from swamp.index.root import SEGMENT_PREFIX, Root
from swamp.index.segment import AnyRow
from swamp.locks.acquire import store_now
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.values import value

BATCH: Final = 1_000
KEPT_RECORDS: Final = 1_000
KEPT_RECORD_AGE: Final = dt.timedelta(days=30)
UNDO_WINDOW: Final = dt.timedelta(days=7)


@value
class Collected:
    candidates: int
    deleted: int
    bytes: int

    def __add__(self, more: Collected) -> Collected:
        return Collected(self.candidates, self.deleted + more.deleted, self.bytes + more.bytes)


@value
class Marked:
    """What may go, and the root that says so."""

    root: Root
    garbage: tuple[ObjectMeta, ...]
    records: tuple[ObjectMeta, ...] = ()
    """Log records beyond what is kept: nothing names them, so they need no condemning."""
    held: Held = field(default_factory=dict)
    """What commits of ours dropped under the plain keys among the garbage."""

    @property
    def size(self) -> int:
        return sum(meta.size for meta in (*self.garbage, *self.records))


@value
class Ages:
    """When commits happened by the store's clock. A commit whose record is gone is as young as the next later one."""

    now: dt.datetime
    seqs: tuple[int, ...]
    times: tuple[dt.datetime, ...]

    @classmethod
    def of(cls, records: list[LogName], now: dt.datetime) -> Ages:
        known: dict[int, dt.datetime] = {}
        for record in records:
            at = record.meta.last_modified
            known[record.seq] = max(at, known.get(record.seq, at))
        return cls(now, tuple(sorted(known)), tuple(known[seq] for seq in sorted(known)))

    def older(self, seq: int, than: dt.timedelta) -> bool:
        place = bisect_left(self.seqs, seq)
        return place < len(self.seqs) and self.now - self.times[place] >= than

    def at(self, seq: int) -> dt.datetime | None:
        """When a commit happened, or the next later one that has a record; None when there is none."""
        place = bisect_left(self.seqs, seq)
        return self.times[place] if place < len(self.times) else None

    def young(self, than: dt.timedelta) -> list[tuple[int, int | None]]:
        """The numbers that are not `older`, as ranges `low <= seq <= high` (None: without end), for a query."""
        spans: list[tuple[int, int | None]] = []
        low = 0
        for seq, at in zip(self.seqs, self.times, strict=True):
            if self.now - at < than:
                if spans and spans[-1][1] == low - 1:
                    low = spans.pop()[0]
                spans.append((low, seq))
            low = seq + 1
        if spans and spans[-1][1] == low - 1:
            low = spans.pop()[0]
        return [*spans, (low, None)]


Marker = Callable[[Root, dt.timedelta], Marked]


def collect(
    committer: Committer,
    pace: Pace,
    *,
    keep: dt.timedelta = UNDO_WINDOW,
    dry_run: bool = False,
    marker: Marker | None = None,
) -> Collected:
    """Deletes what `mark` finds (or a `marker` that finds the same in bulk), in batches; looks again when the store
    has moved on too far meanwhile."""
    done = Collected(0, 0, 0)
    while True:
        marked = _marked(committer, keep, marker)
        if marked is None:
            return done
        found = done.deleted + len(marked.garbage) + len(marked.records)
        if dry_run:
            return Collected(found, 0, marked.size)
        done = Collected(found, done.deleted, done.bytes)
        try:
            for part in _swept(committer, pace, marked):
                done += part
        except MovedTooFar:
            pace()
            continue
        if marked.records:
            committer.store.delete([m.key for m in marked.records])
        return done + Collected(0, len(marked.records), sum(m.size for m in marked.records))


def _marked(committer: Committer, keep: dt.timedelta, marker: Marker | None) -> Marked | None:
    read = committer.read()
    if read.root is None:
        return None
    refuse_later_formats(committer.store, read.root)  # what they name is not garbage
    # The newest commit may have no record yet: without one, what it dropped just now would have no age (L33).
    put_log(committer.store, committer.env, read.root, read.body)
    return marker(read.root, keep) if marker else mark(committer, read.root, keep)


def _swept(committer: Committer, pace: Pace, marked: Marked) -> Iterator[Collected]:
    """Deletes the garbage in batches. A dead collector's batch goes along as far as it was marked, and no further."""
    sweeper = Sweeper(committer, pace, marked.root, marked.held)
    garbage, inherited = marked.garbage, frozenset(marked.root.collecting)
    for start in range(0, len(garbage), BATCH):
        pace()
        batch = garbage[start : start + BATCH]
        gone = sweeper.sweep({m.key for m in batch})
        yield Collected(0, len(gone), sum(m.size for m in batch if m.key in gone))
    release(committer, pace, inherited)


def mark(committer: Committer, root: Root, keep: dt.timedelta) -> Marked:
    """Objects that no live row names: dropped, deleted or never published longer ago than `keep`."""
    store = committer.store
    records = list(names(store))
    ages = Ages.of(records, store_now(store))
    keys = _keys(committer, root, ages, keep)
    garbage = []
    # Only below the tier directories, `_index/` and `_packs/`; never internal names, the log, other tenants (L34).
    below_tiers = (meta for meta in own_objects(tier_pages(store)) if may_condemn(meta.key))
    for meta in chain(below_tiers, internal_objects(store)):
        if meta.key in keys.live or meta.key in keys.waiting:
            continue
        if is_own_key(meta.key):
            if meta.key in keys.expired or may_be_orphan(meta, root, ages, keep):
                garbage.append(meta)
        elif meta.key in keys.expired and may_hold(meta, keys.held):
            garbage.append(meta)
    return Marked(root, tuple(garbage), tuple(old_records(records, ages)), keys.held)


def may_be_orphan(meta: ObjectMeta, root: Root, ages: Ages, keep: dt.timedelta) -> bool:
    """Whether an object that no row names has lain there long enough, and no lost commit can have named it."""
    until = orphans_until(root, ages, keep)
    return until is not None and meta.last_modified <= until


def orphans_until(root: Root, ages: Ages, keep: dt.timedelta) -> dt.datetime | None:
    """Objects that no row names may go if they are from before then; None: no such object may. inv[rebuild.keeps]"""
    until = ages.now - keep
    if REBUILT_FROM in root.extra:
        seq = root.extra[REBUILT_FROM]
    else:
        since, whole = _placed_again(root)
        if not whole or ages.older(whole, keep):
            return until
        seq = since  # nobody has had the undo window yet to look for what the lost commits named
    recorded = ages.at(seq) if isinstance(seq, int) and seq else None
    return None if recorded is None else min(until, recorded)


def _placed_again(root: Root) -> tuple[int, int]:
    """After which commit a rebuilt root knew nothing, and which one saw that it was whole; zeros where none did."""
    told = root.extra.get(PLACED_AGAIN)
    if isinstance(told, list) and len(told) == 2 and all(isinstance(seq, int) for seq in told):
        return told[0], told[1]
    return 0, 0


def may_hold(meta: ObjectMeta, held: Held) -> bool:
    """Whether a plain object has the size of something that we dropped there: the cheap half of the proof."""
    return any(size == meta.size for size, _ in held.get(meta.key, ()))


@value
class _Keys:
    """Objects that are live, whose undo window is over, that still wait for it; and what plain ones held."""

    live: set[str]
    expired: set[str]
    waiting: set[str]
    held: Held


def _keys(committer: Committer, root: Root, ages: Ages, keep: dt.timedelta) -> _Keys:
    live = _live_objects(committer, root)
    expired: set[str] = set()
    waiting: set[str] = set()
    plain: list[AnyRow] = []
    for row in all_rows(root, committer.fetch):
        name = object_of(row.key)
        if isinstance(row, Unreferenced | Tombstone) and name not in live:
            (expired if ages.older(row.seq, keep) else waiting).add(name)
            plain += [] if is_own_key(name) else [row]
    return _Keys(live, expired - waiting, waiting, held_by(plain))


def _live_objects(committer: Committer, root: Root) -> set[str]:
    """An object is live while any winning row has bytes in it. inv[pack.live-if-any]"""
    named = {object_of(row.key) for row in winning_rows(root, committer.fetch) if isinstance(row, Entry)}
    return named | {ref.key for ref in root.segments}


def held_by(rows: Iterable[AnyRow]) -> Held:
    """What commits of ours dropped under each plain key, as far as its hash was known."""
    found: dict[str, frozenset[tuple[int, str]]] = {}
    for row in rows:
        if row.sha256 is not None:
            found[row.key] = found.get(row.key, frozenset()) | {(row.size, row.sha256)}
    return found


def internal_objects(store: ObjectStore) -> Iterator[ObjectMeta]:
    """Segments and packs under our own names."""
    for prefix in (SEGMENT_PREFIX, PACK_PREFIX):
        for page in store.list(prefix):
            yield from (meta for meta in page if is_segment_key(meta.key) or is_pack(meta.key))


def old_records(records: list[LogName], ages: Ages) -> Iterator[ObjectMeta]:
    """All but the newest 1,000, and of those only what is older than a month."""
    for record in records[:-KEPT_RECORDS]:
        if ages.now - record.meta.last_modified >= KEPT_RECORD_AGE:
            yield record.meta
