"""Garbage: what no path names any more, for longer than the undo window. Mark looks, condemn commits, sweep deletes.

A key is deleted only after a commit has put it into `collecting`: a writer that wants it sees that and gives it up.
Ages are the store's own: the last-modified of log records and objects, against that of an object just written.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from swamp.cache.paths import is_internal
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.establish import tier_pages
from swamp.commit.lease import store_now
from swamp.commit.log import LOG_PREFIX, LogName, names, put_log
from swamp.errors import CorruptData
from swamp.index.adopt import own_objects
from swamp.index.entry import Dropped, Entry, Tombstone, is_payload_key
from swamp.index.lookup import all_rows, rows_since, winning_rows
from swamp.index.root import SEGMENT_PREFIX, Root
from swamp.store.keys import is_key
from swamp.store.port import ObjectMeta

BATCH: Final = 1_000
KEPT_RECORDS: Final = 1_000
KEPT_RECORD_AGE: Final = dt.timedelta(days=30)
UNDO_WINDOW: Final = dt.timedelta(days=7)


@dataclass(frozen=True, slots=True)
class Collected:
    candidates: int
    deleted: int
    bytes: int


@dataclass(frozen=True)
class Marked:
    """What may go, and the root that says so."""

    root: Root
    garbage: tuple[ObjectMeta, ...]
    records: tuple[ObjectMeta, ...] = ()
    """Log records beyond what is kept: nothing names them, so they need no condemning."""


@dataclass(frozen=True)
class Ages:
    """When commits happened by the store's clock. A missing record is as young as the next later one."""

    now: dt.datetime
    seqs: tuple[int, ...]
    times: tuple[dt.datetime, ...]

    @classmethod
    def of(cls, records: list[LogName], now: dt.datetime) -> Ages:
        known = sorted((r.seq, r.meta.last_modified) for r in records)
        return cls(now, tuple(seq for seq, _ in known), tuple(at for _, at in known))

    def older(self, seq: int, than: dt.timedelta) -> bool:
        place = bisect_left(self.seqs, seq)
        return place < len(self.seqs) and self.now - self.times[place] >= than


def collect(
    committer: Committer,
    pace: Pace,
    *,
    keep: dt.timedelta = UNDO_WINDOW,
    dry_run: bool = False,
    marker: Callable[[Root, dt.timedelta], Marked] | None = None,
) -> Collected:
    """Deletes what `mark` finds (or a `marker` that finds the same in bulk), in batches; a dead collector's batch
    goes along."""
    read = committer.read()
    if read.root is None:
        return Collected(0, 0, 0)
    # The newest commit may have no record yet: without one, what it dropped just now would have no age (L33).
    put_log(committer.store, committer.env, read.root, read.body)
    marked = marker(read.root, keep) if marker else mark(committer, read.root, keep)
    found = len(marked.garbage) + len(marked.records)
    if dry_run:
        return Collected(found, 0, sum(m.size for m in (*marked.garbage, *marked.records)))
    deleted = size = 0
    inherited = tuple(read.root.collecting)
    for start in range(0, max(len(marked.garbage), 1 if inherited else 0), BATCH):
        pace()
        batch = marked.garbage[start : start + BATCH]
        gone = _sweep(committer, pace, marked.root, {m.key for m in batch} | set(inherited))
        inherited = ()
        deleted += len(gone)
        size += sum(m.size for m in batch if m.key in gone)
    if marked.records:
        committer.store.delete([m.key for m in marked.records])
        deleted += len(marked.records)
        size += sum(m.size for m in marked.records)
    return Collected(found, deleted, size)


def mark(committer: Committer, root: Root, keep: dt.timedelta) -> Marked:
    """Objects that no live row names: dropped, deleted or never published longer ago than `keep`."""
    store = committer.store
    records = list(names(store))
    ages = Ages.of(records, store_now(store))
    live, expired, waiting = _keys(committer, root, ages, keep)
    garbage = []
    for meta in _collectable(committer):
        if meta.key in live or meta.key in waiting:
            continue
        orphan = (is_payload_key(meta.key) or meta.key.startswith(SEGMENT_PREFIX)) and meta.key not in expired
        if meta.key in expired or (orphan and ages.now - meta.last_modified >= keep):
            garbage.append(meta)
    return Marked(root, tuple(garbage), tuple(old_records(records, ages)))


def _keys(committer: Committer, root: Root, ages: Ages, keep: dt.timedelta) -> tuple[set[str], set[str], set[str]]:
    """Keys that are live, keys whose undo window is over, keys that still wait for it."""
    live = {ref.key for ref in root.segments}
    live |= {row.key for row in winning_rows(root, committer.fetch) if isinstance(row, Entry)}
    expired: set[str] = set()
    waiting: set[str] = set()
    for row in all_rows(root, committer.fetch):
        if isinstance(row, Dropped | Tombstone) and row.key not in live:
            (expired if ages.older(row.seq, keep) else waiting).add(row.key)
    return live, expired - waiting, waiting


def _collectable(committer: Committer) -> Iterator[ObjectMeta]:
    """Only below the tier directories and `_index/`; never internal names, the log, or other tenants (L34)."""
    for meta in own_objects(tier_pages(committer.store)):
        if is_key(meta.key) and not is_internal(meta.key):  # what no file can be called is another tool's
            yield meta
    for page in committer.store.list(SEGMENT_PREFIX):
        for meta in page:
            if meta.key.endswith(".parquet") and not meta.key.startswith(LOG_PREFIX):
                yield meta


def old_records(records: list[LogName], ages: Ages) -> Iterator[ObjectMeta]:
    """All but the newest 1,000, and of those only what is older than a month."""
    for record in records[:-KEPT_RECORDS]:
        if ages.now - record.meta.last_modified >= KEPT_RECORD_AGE:
            yield record.meta


def _sweep(committer: Committer, pace: Pace, seen: Root, keys: set[str]) -> set[str]:
    """Condemns a batch, deletes it, and takes it off the list again."""
    batch: set[str] = set()

    def condemn(root: Root) -> Changes | None:
        batch.clear()
        batch.update(keys - _named_since(committer, root, seen))
        if not batch:
            return None
        listed = tuple(sorted(set(root.collecting) | batch))
        return Changes(collecting=listed, gc_epoch_step=1)

    if committer.commit(condemn, pace) is None:
        return set()
    committer.store.delete(sorted(batch))

    def clear(root: Root) -> Changes | None:
        left = tuple(k for k in root.collecting if k not in batch)
        return Changes(collecting=left, swept=frozenset(batch))

    committer.commit(clear, pace)
    return batch


def _named_since(committer: Committer, root: Root, seen: Root) -> set[str]:
    """Keys that a root newer than the marked one brought to life: they are spared."""
    if root.op == seen.op:
        return set()
    if not root.knows_op(seen.op):
        raise CorruptData("the store has moved too far while garbage was marked", hint="run the command again")
    rows = rows_since(root, seen.seq, committer.fetch)
    return {r.key for r in rows if isinstance(r, Entry)} | {ref.key for ref in root.segments}
