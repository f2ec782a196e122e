"""What the root says, seen from this cache: everything, or only what is new since the recorded pull."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from swamp.cache.paths import is_internal, is_safe
from swamp.cache.rows import BaseRow
from swamp.cache.state import State
from swamp.commit.log import has_op
from swamp.errors import CorruptData
from swamp.index.entry import Dropped, Entry, Row
from swamp.index.lookup import rows_since, winning_rows
from swamp.index.root import Root, SegmentRef
from swamp.index.segment import listed_rows
from swamp.rules import rule
from swamp.store.port import ObjectStore


@dataclass(frozen=True)
class View:
    """A root as a cache reads it. `delta` holds the rows that are new since the pull; unless `full`, every other path
    is what base says. inv[read.snapshot]"""

    root: Root
    store: ObjectStore
    full: bool
    in_history: bool
    delta: dict[str, Row] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    unsafe: tuple[str, ...] = ()

    def row(self, path: str, base: BaseRow | None) -> Row | None:
        """What the root says of a path whose base is known (incremental views only)."""
        found = self.delta.get(path)
        if found is not None:
            return found
        return None if base is None else as_entry(base)

    def stream(self) -> Iterator[Row]:
        """Every live or deleted path, in path order (full views only)."""
        for row in winning_rows(self.root, lambda ref: fetch_segment(self.store, ref)):
            if usable(row.path):
                yield row


def usable(path: str) -> bool:
    """Hostile and internal names in an index are never acted on."""
    return is_safe(path) and not is_internal(path)


def as_entry(base: BaseRow) -> Entry:
    return Entry(base.path, base.key, base.size, base.sha256, "", base.seq)


def fetch_segment(store: ObjectStore, ref: SegmentRef) -> bytes:
    """A segment's bytes; whoever reads rows out of them verifies them first."""
    return store.get(ref.key).body


def look(store: ObjectStore, state: State, root: Root) -> View:
    """How this cache stands to `root`; a root older than what was pulled is CorruptData. inv[state.bound]"""
    known = state.meta("storeId") == root.store_id or not rule("state.identity")
    pulled_op, pulled_seq = state.meta("pulledOp"), int(state.meta("pulledSeq") or 0)
    staged = state.staged_keys()
    if not known or pulled_op is None:
        return View(root, store, full=True, in_history=False, dropped=_dropped(store, root, 0, staged))
    if root.seq < pulled_seq:
        raise CorruptData(
            f"the store's index is at {root.seq}, but this cache has already seen {pulled_seq}: "
            "it was rolled back or restored from a backup",
            hint="run: swamp datastore doctor --repair",
        )
    in_history = _descends(store, root, pulled_op, pulled_seq)
    if not in_history or pulled_seq < root.horizon_seq:
        dropped = _dropped(store, root, 0, staged)
        return View(root, store, full=True, in_history=in_history, dropped=dropped)
    return since(store, root, pulled_seq, staged)


def since(store: ObjectStore, root: Root, seq: int, staged: frozenset[str] = frozenset()) -> View:
    """Only what came after `seq`: the newest layer and the segments added since."""
    rows = list(rows_since(root, seq, lambda ref: fetch_segment(store, ref)))
    delta = {row.path: row for row in rows if usable(row.path)}
    unsafe = tuple(row.path for row in rows if row.path not in delta)
    dropped = _dropped(store, root, seq, staged)
    return View(root, store, full=False, in_history=True, delta=delta, dropped=dropped, unsafe=unsafe)


def _dropped(store: ObjectStore, root: Root, seq: int, keys: frozenset[str]) -> dict[str, Dropped]:
    """Which of my uploads a later commit has already replaced: they prove that mine landed. inv[crash.resolved]"""
    if not keys:
        return {}
    found = {key: root.dropped[key] for key in keys if key in root.dropped}
    for ref in root.segments:
        if ref.added_seq > seq:
            for row in listed_rows(ref, fetch_segment(store, ref)):
                if row.key in keys and isinstance(row, Dropped):
                    found[row.key] = row
    return found


def _descends(store: ObjectStore, root: Root, op: str, seq: int) -> bool:
    """Whether the commit `op` is an ancestor of `root`."""
    if root.op == op or root.knows_op(op):
        return True
    return seq < root.oldest_known_seq and has_op(store, op, after_seq=seq - 1)
