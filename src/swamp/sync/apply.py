"""Applies to the cache what needs no commit: adopting, forgetting, moving aside, in one transaction.

What vanished from the tree unannounced comes back: with the next pull, or for whoever reads it. inv[tree.damage]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from swamp.cache.damage import GONE, look_for_damage, remember_whole
from swamp.cache.files import move_aside
from swamp.cache.rows import BaseRow, Transaction
from swamp.cache.scan import Observed, Seen, scan, stat_one
from swamp.errors import SwampError
from swamp.index.entry import Entry, Row
from swamp.sync.decide import Facts
from swamp.sync.gather import Snapshot
from swamp.sync.plan import Action, Plan, UnitPlan
from swamp.sync.record import EngineContext, SyncStats, trusted_stat
from swamp.sync.result import Conflict
from swamp.sync.units import is_content
from swamp.sync.view import as_entry
from swamp.values import value


@value
class Moment:
    """Base and journal while nobody mutates, read once for all paths of a batch."""

    tx: Transaction
    look: Callable[[str], Seen | None]
    snapshot: Snapshot
    bases: Mapping[str, BaseRow]
    announced_since: bool
    """Whether anybody announced anything since the plan: if not, no path need be asked for."""

    @classmethod
    def of(
        cls, tx: Transaction, look: Callable[[str], Seen | None], units: Iterable[UnitPlan], snapshot: Snapshot
    ) -> Moment:
        bases = tx.bases([a.path for u in units for a in u.actions])
        return cls(tx, look, snapshot, bases, tx.rows_after(snapshot.last, snapshot.own))

    def as_planned(self, facts: Facts) -> bool:
        """Whether base, journal and file are still what the plan saw. inv[cache.no-torn-file]"""
        if self.announced_since and self._announced(facts.path):
            return False
        if _differs(self.bases.get(facts.path), facts):
            return False
        now = self.look(facts.path)
        if facts.local is None:
            return now is None
        return isinstance(now, Observed) and now.hint == facts.local.hint

    def _announced(self, path: str) -> bool:
        return self.tx.newer_row_over(path, self.snapshot.last, self.snapshot.own)


def _differs(base: BaseRow | None, facts: Facts) -> bool:
    """Base moved since the plan. A base that the plan took from `staged` is not in the table yet."""
    if base is None or facts.base is None:
        return base is not None
    return base.identity != facts.base.identity and base.number > facts.base.number


def adopt(tx: Transaction, snapshot: Snapshot, action: Action) -> None:
    """Records that this cache holds, or knows, what the root names; nothing moves."""
    facts, remote = action.facts, action.facts.remote
    assert isinstance(remote, Entry)
    known = remote.sha256 or facts.remote_sha256 or facts.sha256
    hint = trusted_stat(facts.local.hint, snapshot.at_ns) if facts.local else None
    tx.put_base(BaseRow.of(remote, known, facts.local is not None, hint))
    tx.drop_staged_for(facts.path)
    tx.undefer(facts.path)


def note(tx: Transaction, snapshot: Snapshot, action: Action) -> None:
    """Records what needs no byte moved: adopting, forgetting, or nothing at all."""
    if action.verb == "adopt":
        adopt(tx, snapshot, action)
    elif action.verb == "forget":
        forget(tx, action)
    elif action.verb == "nothing":
        # What was learned on the way (my own landed commit, a fresh stat) becomes base.
        if action.facts.local is not None and isinstance(action.facts.remote, Entry):
            adopt(tx, snapshot, action)
        tx.undefer(action.path)


def forget(tx: Transaction, action: Action) -> None:
    tx.drop_base(action.path)
    tx.drop_staged_for(action.path)
    tx.undefer(action.path)


def keep_both(tx: Transaction, context: EngineContext, unit: UnitPlan, op: str, stats: SyncStats) -> None:
    """The remote keeps the path; the local unit goes to conflicts/ as a whole. inv[conflict.keeps-both]"""
    losing = [a for a in unit.actions if a.verb in ("conflict", "bury") and a.facts.local is not None]
    moving = {a.path for a in losing}
    for seen in list(scan(context.cache.tree, unit.unit)):
        if isinstance(seen, Observed) and seen.path not in moving:
            target = context.cache.conflicts / op / seen.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(context.cache.tree / seen.path, target)
    for action in losing:
        kept = move_aside(context.cache.tree, action.path, context.cache.conflicts, op)
        stats.conflicts.append(Conflict(action.path, f"conflicts/{kept}"))
        tx.drop_staged_for(action.path)
        if isinstance(action.facts.remote, Entry):
            tx.defer(action.path, action.facts.remote, "lost a conflict")
        else:
            tx.drop_base(action.path)
            tx.undefer(action.path)
    tx.touch(moving)
    stats.touch(moving)


def put_aside(tx: Transaction, context: EngineContext, action: Action, op: str) -> None:
    """A file that was deleted remotely leaves the tree; its bytes stay in conflicts/ until the user removes them."""
    if action.facts.local is not None:
        move_aside(context.cache.tree, action.path, context.cache.conflicts, op)
    forget(tx, action)


def take_places(tx: Transaction, planned: Plan, hidden: Mapping[str, Row | None] | None = None) -> None:
    """Base learns where its content lies now, of every path, also of those that wait for a push: once the mark has
    moved nobody tells it again. inv[pack.place-now]"""
    told = [(f.path, f.remote) for f in (*(a.facts for a in planned.actions()), *planned.waiting) if f.base is not None]
    told += (hidden or {}).items()
    moved = {path: row for path, row in told if isinstance(row, Entry)}
    if not moved:
        return
    for path, base in tx.bases(list(moved)).items():
        row = moved[path]
        if base.identity == row.identity and (base.key, base.seq) != (row.key, row.seq) and base.number == row.number:
            tx.put_base(base.moved(row))


def drop_foreign_base(tx: Transaction, planned: Plan) -> None:
    """What base knows from another history, and this root does not, is void once the mark moves: it is still to be
    pushed, and must not be taken for something that the root has (L53). inv[state.bound]"""
    told = (*(a.facts for a in planned.actions("push")), *planned.waiting)
    strange = [facts.path for facts in told if not facts.in_history and facts.remote is None]
    for path in tx.bases(strange):
        tx.drop_base(path)


def apply_locally(
    tx: Transaction,
    context: EngineContext,
    units: Sequence[UnitPlan],
    snapshot: Snapshot,
    op: str,
    stats: SyncStats,
    *,
    mark: set[str],
) -> None:
    """Adopts, forgets, keeps both: what a push and a pull have in common. `mark` collects units that must wait."""
    moment = Moment.of(tx, partial(stat_one, context.cache.tree), units, snapshot)
    for unit in units:
        if not all(moment.as_planned(a.facts) for a in unit.actions if a.verb in _SETTLED):
            mark.add(unit.unit)
            continue
        if unit.verbs & {"conflict", "bury"}:
            keep_both(tx, context, unit, op, stats)
        for action in unit.actions:
            note(tx, snapshot, action)


_SETTLED = frozenset({"adopt", "forget", "conflict", "bury", "nothing"})


@value
class Mender:
    """Looks after the files that one cache is proven to hold. `fetch` brings one of them again."""

    context: EngineContext
    fetch: Callable[[str], object]

    def missing(self, prefix: str = "") -> Sequence[str]:
        """Files that belong here and are gone, though nobody deleted them."""
        return look_for_damage(self.context.state, self._tree, self.context.now_ns(), (prefix,)).missing

    def missing_at(self, path: str) -> Sequence[str]:
        """The same of one file, or of everything below a directory."""
        state = self.context.state
        base = state.base(path)
        if base is None:
            return self.missing(path)
        gone = base.present and not os.path.lexists(self._tree / path)
        return [path] if gone and not state.deleted_among([path]) else []

    def bring_back(self, prefix: str) -> None:
        """Fetches metadata and records below `prefix` that vanished; what the store cannot give now is owed."""
        for path in self.missing(prefix):
            if is_content(path):
                continue  # fetched by who reads it
            try:
                self.fetch(path)
            except SwampError as error:
                with (
                    self.context.tree_lock.shared(self.context.policy.lock_timeout),
                    self.context.state.transaction() as tx,
                ):
                    self._defer(tx, path, f"{GONE}; {error.message}")

    def note(self, prefixes: tuple[str, ...]) -> None:
        """What vanished is owed from now on, so that the pull that follows brings it back. Under `sync.lock`."""
        found = look_for_damage(self.context.state, self._tree, self.context.now_ns(), prefixes)
        remember_whole(self.context.state, found)
        if found.missing:
            with self.context.state.transaction() as tx:
                for path in found.missing:
                    self._defer(tx, path, GONE)

    def vanished(self, prefixes: tuple[str, ...]) -> dict[str, Entry]:
        """The same for a dry run: what would be owed, with what base knows of it. Writes nothing."""
        found = look_for_damage(self.context.state, self._tree, self.context.now_ns(), prefixes).missing
        bases = (self.context.state.base(path) for path in found)
        return {base.path: as_entry(base) for base in bases if base is not None}

    @property
    def _tree(self) -> Path:
        return self.context.cache.tree

    def _defer(self, tx: Transaction, path: str, why: str) -> None:
        """Only what is still so: base may have moved on, a delete may have been announced, it may be back."""
        base = tx.base(path)
        if base is None or not base.present or tx.is_deleted(path) or os.path.lexists(self._tree / path):
            return
        if tx.is_deferred(path):  # with what a newer root said of it
            return
        tx.defer(path, as_entry(base), why)
        tx.touch([path])
