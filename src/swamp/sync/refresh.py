"""What a read takes in: the news that harm nobody. Everything else waits for a sync."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from swamp.cache.paths import ancestors
from swamp.cache.rows import Transaction
from swamp.commit.commit import RootRead
from swamp.errors import CorruptData
from swamp.sync.look import Looker
from swamp.sync.plan import Action, Plan, UnitPlan
from swamp.sync.progress import Patience
from swamp.sync.pull import Pull
from swamp.sync.recall import refuse_put_back
from swamp.sync.record import Tally, mark_read, see
from swamp.sync.result import LOST, SyncResult
from swamp.sync.view import news

if TYPE_CHECKING:
    from swamp.sync.engine import Engine

_HARMLESS = frozenset({"pull", "adopt", "forget", "nothing"})
_NEWS = frozenset({"pull", "restore", "aside", "conflict", "bury"})


def refresh(engine: Engine, read: RootRead, patience: Patience) -> SyncResult:
    """Takes in what `read` says is new, as far as it harms nobody; content stays in the store until somebody reads it.

    Under `sync.lock`. Raises CorruptData where only a sync can tell what is new.
    """
    root = read.root
    assert root is not None
    parts = replace(engine.parts, lazy=True)
    looker = Looker(parts, (0.0, 0, 0), patience)
    refuse_put_back(parts.state, root)
    if not looker.stands(read):
        raise CorruptData(
            "the store's index may be an older one that was written late", hint="`swamp datastore sync` looks into it"
        )
    view = news(parts.committer.store, parts.state, root)
    if view is None:
        raise CorruptData(
            "this cache has to be compared with the whole store first", hint="`swamp datastore sync` does it"
        )
    look = looker.news(read, view)
    touched = parts.state.staged_paths() | {row.path for row in look.snapshot.rows}
    tally, planned = Tally("pull"), harmless(look.planned, touched)
    ReadPull(
        parts=parts,
        view=view,
        read=read,
        planned=planned,
        waiting=_waiting(look.planned, planned),
        snapshot=look.snapshot,
        scope=(),
        patience=patience,
        tally=tally,
        pulled_before=None,
        covers="all",
    ).run()
    return tally.result(root)


def harmless(planned: Plan, touched: frozenset[str]) -> Plan:
    """The units of a plan that a read may carry out: none at or below what somebody has `touched`, by announcing or by
    uploading it. inv[read.harmless]"""
    return Plan(tuple(unit for unit in planned.units if _harms_nobody(unit, touched)))


def _waiting(planned: Plan, done: Plan) -> int:
    """How many units hold news that only a sync takes in: what the store holds and this read does not show."""
    taken = {unit.unit for unit in done.units}
    return sum(bool(unit.verbs & _NEWS) for unit in planned.units if unit.unit not in taken)


def _harms_nobody(unit: UnitPlan, touched: frozenset[str]) -> bool:
    return all(_is_harmless(a) and touched.isdisjoint((a.path, *ancestors(a.path))) for a in unit.actions)


def _is_harmless(action: Action) -> bool:
    """Nobody has announced anything there, and what is here is what base says, or nothing."""
    facts = action.facts
    if action.verb not in _HARMLESS or facts.edited or facts.deleted:
        return False
    return facts.local is None or facts.unchanged


@dataclass
class ReadPull(Pull):
    """A pull that claims nothing: no mark moves, no row of the journal goes."""

    waiting: int = 0

    def _defer(self, tx: Transaction, unit: UnitPlan, why: str) -> None:
        """What the store could not give is remembered as owed; what was changed here meanwhile waits for a sync."""
        if any(action.path in self.tally.failed for action in unit.actions):
            super()._defer(tx, unit, why)

    def _finish(self) -> None:
        with self.parts.state.transaction() as tx:
            see(tx, self.view.root, self.read.token, self.read.body)
            if all(self.tally.causes.get(path) in LOST for path in self.tally.failed):
                mark_read(tx, self.view.root, self.waiting)
