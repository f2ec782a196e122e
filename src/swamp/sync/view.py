"""Reads what a root says to this cache: everything, or only the changes since the recorded pull.

`ChangesSince` says whether a unit that was planned may still be published after what other commits brought.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from swamp.cache.paths import ancestors, fold, is_internal, is_safe
from swamp.cache.rows import BaseRow
from swamp.cache.state import State
from swamp.commit.log import has_op
from swamp.errors import CorruptData
from swamp.index.entry import Entry, Row, Unreferenced
from swamp.index.lookup import rows_between, rows_since
from swamp.index.read import read_segment
from swamp.index.root import EVERYTHING, Root, Span
from swamp.index.segment import listed_rows
from swamp.store.port import ObjectStore
from swamp.sync.plan import UnitPlan
from swamp.sync.units import unit_of
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
    dropped: dict[str, Unreferenced] = field(default_factory=dict)
    unsafe: tuple[str, ...] = ()

    def stream(self, span: Span = EVERYTHING) -> Iterator[Row]:
        """Every live or deleted path of a span, in path order (full views only)."""
        rows = rows_between(self.root, lambda ref: read_segment(self.store, ref), span)
        return (row for row in rows if usable(row.path))


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


def view_root(store: ObjectStore, state: State, root: Root, *, everything: bool = False) -> View:
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
    # Base may hold rows that a read took from a later root than the one that was pulled: if this root did not grow out
    # of that one, they prove nothing.
    read_op, read_seq = state.meta("readOp"), int(state.meta("readSeq") or 0)
    in_history = _descends(store, root, pulled_op, pulled_seq) and (
        read_op is None or (read_seq <= root.seq and _descends(store, root, read_op, read_seq))
    )
    if everything or not in_history or pulled_seq < root.horizon_seq:
        dropped = _dropped(store, root, 0, staged)
        return View(root, store, full=True, in_history=in_history, dropped=dropped)
    return changes_since(store, root, pulled_seq, staged)


def unseen_changes(store: ObjectStore, state: State, root: Root) -> View | None:
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
    return changes_since(store, root, seq, state.staged_keys())


def changes_since(store: ObjectStore, root: Root, seq: int, staged: frozenset[str] = frozenset()) -> View:
    """Only what came after `seq`: the newest layer and the segments added since."""
    rows = list(rows_since(root, seq, lambda ref: read_segment(store, ref)))
    delta = {row.path: row for row in rows if usable(row.path)}
    unsafe = tuple(row.path for row in rows if row.path not in delta)
    dropped = _dropped(store, root, seq, staged)
    return View(root, store, full=False, in_history=True, delta=delta, dropped=dropped, unsafe=unsafe)


def _dropped(store: ObjectStore, root: Root, seq: int, keys: frozenset[str]) -> dict[str, Unreferenced]:
    """Which of my uploads a later commit has already replaced: they prove that mine landed. inv[crash.resolved]"""
    if not keys:
        return {}
    found = {row.identity: row for row in root.dropped.values() if row.identity in keys}
    for ref in root.segments:
        if ref.added_seq > seq:
            for row in listed_rows(ref, read_segment(store, ref)):
                if isinstance(row, Unreferenced) and row.identity in keys:
                    found[row.identity] = row
    return found


def _descends(store: ObjectStore, root: Root, op: str, seq: int) -> bool:
    """Whether the commit `op` is an ancestor of `root`."""
    if root.op == op or root.knows_op(op):
        return True
    return seq < root.oldest_known_seq and has_op(store, op, after_seq=seq - 1)


@value
class ChangesSince:
    """Rows that appeared, looked up and never walked through: a long push has a hundred thousand of its own."""

    rows: Mapping[str, Row]
    units: Mapping[str, tuple[str, ...]]
    """The paths that changed, by unit."""
    names: Mapping[str, frozenset[str]]
    """The paths that are there now, by what some file system takes for the same."""
    above: frozenset[str]
    """The directories above those, likewise."""

    @classmethod
    def of(cls, rows: Mapping[str, Row]) -> ChangesSince:
        units: dict[str, list[str]] = {}
        names: dict[str, set[str]] = {}
        directories: set[str] = set()
        for path, row in rows.items():
            units.setdefault(unit_of(path), []).append(path)
            if isinstance(row, Entry):
                names.setdefault(fold(path), set()).add(path)
                directories.update(ancestors(path))
        return cls(
            rows,
            {unit: tuple(paths) for unit, paths in units.items()},
            {name: frozenset(paths) for name, paths in names.items()},
            frozenset(map(fold, directories)),
        )

    def leave(self, unit: UnitPlan) -> bool:
        """Whether nobody else changed the unit, or what must stand beside it, since the plan looked."""
        planned = {a.path: a.facts.remote for a in unit.actions}
        changed = self.units.get(unit.unit, ())
        if not all(path in planned and _same_row(self.rows[path], planned[path]) for path in changed):
            return False
        return not self._clash(a.path for a in unit.actions if a.verb == "push")

    def _clash(self, paths: Iterable[str]) -> bool:
        """Whether one of these cannot stand beside a path that appeared meanwhile."""
        for path in paths:
            folded = fold(path)
            if folded in self.above or self.names.get(folded, frozenset()) - {path}:
                return True
            if any(fold(directory) in self.names for directory in ancestors(path)):
                return True
        return False


def _same_row(row: Row, planned: Row | None) -> bool:
    """The same content under the same number: what was moved since is, what was undeleted since is not what was
    looked at. inv[pack.identity]"""
    if planned is None or type(row) is not type(planned):
        return False
    return (row.identity, row.number) == (planned.identity, planned.number)
