"""What the root says, seen from this cache: everything, or only what is new since the recorded pull."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from swamp.cache.paths import is_internal, is_safe
from swamp.cache.rows import BaseRow
from swamp.cache.state import State
from swamp.commit.log import has_op
from swamp.errors import CorruptData
from swamp.index.entry import Dropped, Entry, Row
from swamp.index.lookup import rows_since, winning_rows
from swamp.index.read import read_segment
from swamp.index.root import Root
from swamp.index.segment import listed_rows
from swamp.store.port import ObjectStore
from swamp.values import value


@value
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
        for row in winning_rows(self.root, lambda ref: read_segment(self.store, ref)):
            if usable(row.path):
                yield row


def usable(path: str) -> bool:
    """Hostile and internal names in an index are never acted on."""
    return is_safe(path) and not is_internal(path)


def as_entry(base: BaseRow) -> Entry:
    return Entry(base.path, base.key, base.size, base.sha256, "", base.seq, id=base.id, id_seq=base.id_seq)


def rolled_back(root: Root, seen: int) -> CorruptData:
    return CorruptData(
        f"the store's index is at {root.seq}, but this cache has already seen {seen}: "
        "it was rolled back or restored from a backup",
        hint="run: swamp datastore doctor --repair",
    )


def is_of_store(state: State, root: Root) -> bool:
    """Whether what this cache knows is about the store of this root. inv[state.bound]"""
    return state.meta("storeId") == root.store_id


def look(store: ObjectStore, state: State, root: Root, *, everything: bool = False) -> View:
    """How this cache stands to `root`; a root older than what was pulled is CorruptData. inv[state.bound]

    `everything`: for who walks the whole tree. A file from an old backup may have been deleted long before what this
    cache pulled last, so it must meet every tombstone that there is (L64). inv[full.view]
    """
    pulled_op, pulled_seq = state.meta("pulledOp"), int(state.meta("pulledSeq") or 0)
    staged = state.staged_keys()
    if not is_of_store(state, root) or pulled_op is None:
        return View(root, store, full=True, in_history=False, dropped=_dropped(store, root, 0, staged))
    if root.seq < pulled_seq:
        raise rolled_back(root, pulled_seq)
    in_history = _descends(store, root, pulled_op, pulled_seq) and _descends_from_read(store, state, root)
    if everything or not in_history or pulled_seq < root.horizon_seq:
        dropped = _dropped(store, root, 0, staged)
        return View(root, store, full=True, in_history=in_history, dropped=dropped)
    return since(store, root, pulled_seq, staged)


def _descends_from_read(store: ObjectStore, state: State, root: Root) -> bool:
    """Base may hold rows that a read took from a later root than the one that was pulled: if this root did not grow
    out of that one, they prove nothing."""
    op, seq = state.meta("readOp"), int(state.meta("readSeq") or 0)
    return op is None or (seq <= root.seq and _descends(store, root, op, seq))


def news(store: ObjectStore, state: State, root: Root) -> View | None:
    """What no pull and no read has seen of `root`; None if only a sync can tell that. inv[read.harmless]

    Everything is news to a cache that has only ever taken in parts of the store, or whose state was lost: unless
    deletions of what it holds may have been forgotten by now.
    """
    if state.meta("storeId") not in (None, root.store_id):
        return None
    marks = ((int(state.meta(f"{kind}Seq") or 0), state.meta(f"{kind}Op")) for kind in ("pulled", "read"))
    seq, op = max(((seq, op) for seq, op in marks if op is not None), default=(0, None))
    if op is None:
        if root.horizon_seq and state.has_base():
            return None
        return View(root, store, full=True, in_history=False, dropped=_dropped(store, root, 0, state.staged_keys()))
    if seq > root.seq:
        raise rolled_back(root, seq)
    if seq < root.horizon_seq or not _descends(store, root, op, seq):
        return None
    return since(store, root, seq, state.staged_keys())


def since(store: ObjectStore, root: Root, seq: int, staged: frozenset[str] = frozenset()) -> View:
    """Only what came after `seq`: the newest layer and the segments added since."""
    rows = list(rows_since(root, seq, lambda ref: read_segment(store, ref)))
    delta = {row.path: row for row in rows if usable(row.path)}
    unsafe = tuple(row.path for row in rows if row.path not in delta)
    dropped = _dropped(store, root, seq, staged)
    return View(root, store, full=False, in_history=True, delta=delta, dropped=dropped, unsafe=unsafe)


def _dropped(store: ObjectStore, root: Root, seq: int, keys: frozenset[str]) -> dict[str, Dropped]:
    """Which of my uploads a later commit has already replaced: they prove that mine landed. inv[crash.resolved]"""
    if not keys:
        return {}
    found = {row.identity: row for row in root.dropped.values() if row.identity in keys}
    for ref in root.segments:
        if ref.added_seq > seq:
            for row in listed_rows(ref, read_segment(store, ref)):
                if isinstance(row, Dropped) and row.identity in keys:
                    found[row.identity] = row
    return found


def _descends(store: ObjectStore, root: Root, op: str, seq: int) -> bool:
    """Whether the commit `op` is an ancestor of `root`."""
    if root.op == op or root.knows_op(op):
        return True
    return seq < root.oldest_known_seq and has_op(store, op, after_seq=seq - 1)
