"""Effects on the cache that need no commit: adopting, forgetting, moving aside. In one transaction."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from swamp.cache.files import move_aside
from swamp.cache.rows import BaseRow, Transaction
from swamp.cache.scan import Observed, Seen, scan, stat_one
from swamp.index.entry import Entry, Row
from swamp.sync.facts import Facts
from swamp.sync.gather import Snapshot
from swamp.sync.plan import Action, Plan, UnitPlan
from swamp.sync.record import Parts, Tally, vouching
from swamp.sync.result import Conflict
from swamp.values import value


def tree_exclusive(parts: Parts) -> AbstractContextManager[None]:
    """Nobody mutates the tree meanwhile."""
    return parts.tree_lock.exclusive(parts.lock_timeout)


@value
class Moment:
    """Base and journal while nobody mutates, read once for all paths of a batch."""

    tx: Transaction
    look: Callable[[str], Seen | None]
    snapshot: Snapshot
    bases: Mapping[str, BaseRow]
    news: bool
    """Whether anybody announced anything since the plan: if not, no path need be asked for."""

    @classmethod
    def of(
        cls, tx: Transaction, look: Callable[[str], Seen | None], units: Iterable[UnitPlan], snapshot: Snapshot
    ) -> Moment:
        bases = tx.bases([a.path for u in units for a in u.actions])
        return cls(tx, look, snapshot, bases, tx.rows_after(snapshot.last, snapshot.own))

    def as_planned(self, facts: Facts) -> bool:
        """Whether base, journal and file are still what the plan saw. inv[cache.no-torn-file]"""
        if self.news and self._announced(facts.path):
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
    hint = vouching(facts.local.hint, snapshot.at_ns) if facts.local else None
    tx.put_base(BaseRow.of(remote, known, facts.local is not None, hint))
    tx.drop_staged_for(facts.path)
    tx.undefer(facts.path)


def leave(tx: Transaction, snapshot: Snapshot, action: Action) -> None:
    """Nothing is to be done; what was learned on the way (my own landed commit, a fresh stat) becomes base."""
    if action.facts.local is not None and isinstance(action.facts.remote, Entry):
        adopt(tx, snapshot, action)
    tx.undefer(action.path)


def forget(tx: Transaction, action: Action) -> None:
    tx.drop_base(action.path)
    tx.drop_staged_for(action.path)
    tx.undefer(action.path)


def keep_both(tx: Transaction, parts: Parts, unit: UnitPlan, op: str, tally: Tally) -> None:
    """The remote keeps the path; the local unit goes to conflicts/ as a whole. inv[conflict.keeps-both]"""
    losing = [a for a in unit.actions if a.verb in ("conflict", "bury") and a.facts.local is not None]
    moving = {a.path for a in losing}
    for seen in list(scan(parts.cache.tree, unit.unit)):
        if isinstance(seen, Observed) and seen.path not in moving:
            target = parts.cache.conflicts / op / seen.path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(parts.cache.tree / seen.path, target)
    for action in losing:
        kept = move_aside(parts.cache.tree, action.path, parts.cache.conflicts, op)
        tally.conflicts.append(Conflict(action.path, f"conflicts/{kept}"))
        tx.drop_staged_for(action.path)
        if isinstance(action.facts.remote, Entry):
            tx.defer(action.path, action.facts.remote, "lost a conflict")
        elif action.verb == "bury" or not isinstance(action.facts.remote, Entry):
            tx.drop_base(action.path)
            tx.undefer(action.path)
    tx.touch(moving)
    tally.touch(moving)


def put_aside(tx: Transaction, parts: Parts, action: Action, op: str) -> None:
    """A file that was deleted remotely leaves the tree; its bytes stay in conflicts/ until the user removes them."""
    if action.facts.local is not None:
        move_aside(parts.cache.tree, action.path, parts.cache.conflicts, op)
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


def void_strangers(tx: Transaction, planned: Plan) -> None:
    """What base knows from another history, and this root does not, is void once the mark moves: it is still to be
    pushed, and must not be taken for something that the root has (L53). inv[state.bound]"""
    told = (*(a.facts for a in planned.actions("push")), *planned.waiting)
    strange = [facts.path for facts in told if not facts.in_history and facts.remote is None]
    for path in tx.bases(strange):
        tx.drop_base(path)


def settle(
    tx: Transaction,
    parts: Parts,
    units: Sequence[UnitPlan],
    snapshot: Snapshot,
    op: str,
    tally: Tally,
    *,
    mark: set[str],
) -> None:
    """Adopts, forgets, keeps both: what a push and a pull have in common. `mark` collects units that must wait."""
    moment = Moment.of(tx, partial(stat_one, parts.cache.tree), units, snapshot)
    for unit in units:
        if not all(moment.as_planned(a.facts) for a in unit.actions if a.verb in _SETTLED):
            mark.add(unit.unit)
            continue
        if unit.verbs & {"conflict", "bury"}:
            keep_both(tx, parts, unit, op, tally)
        for action in unit.actions:
            if action.verb == "adopt":
                adopt(tx, snapshot, action)
            elif action.verb == "forget":
                forget(tx, action)
            elif action.verb == "nothing":
                leave(tx, snapshot, action)


_SETTLED = frozenset({"adopt", "forget", "conflict", "bury", "nothing"})
