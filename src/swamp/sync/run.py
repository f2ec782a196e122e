"""Runs one push, pull or sync inside the lock: root, plan, apply, and again while the root moves.

A read takes in what harms nobody of a root that it has fetched (`refresh`); everything else waits for a sync.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from swamp.cache.paths import ancestors
from swamp.cache.rows import JournalRow, Transaction
from swamp.cache.scan import Observed, scan
from swamp.commit.bootstrap import refuse_old_client
from swamp.commit.commit import RootRead
from swamp.errors import CorruptData
from swamp.index.root import Root
from swamp.sync.bulk import Work
from swamp.sync.observe import Comparison, Planner
from swamp.sync.plan import Action, Plan, UnitPlan
from swamp.sync.progress import IdleTimeout, PortionedProgress
from swamp.sync.pull import Pull
from swamp.sync.push import Push
from swamp.sync.record import SyncStats, mark_read, remember, see
from swamp.sync.result import LOST, Mode, SyncResult
from swamp.sync.unchanged import SEEN_OP, refuse_put_back, tiers_present
from swamp.sync.view import unseen_changes
from swamp.values import mutable

if TYPE_CHECKING:
    from swamp.sync.engine import Engine


ROUNDS: Final = 8
CHANGED_ROUNDS: Final = 2
"""Further looks at files that were written while they were read: one that never rests waits for the next sync."""


@mutable
class SyncRun:
    """One push, pull or sync inside the lock."""

    engine: Engine
    planner: Planner
    idle_timeout: IdleTimeout
    scope: tuple[str, ...]
    full: bool
    hydrating: bool
    after_pull: bool = False
    """The caller has pulled for this very push: a root that was read a moment ago need not be asked for again."""

    def run(self, mode: Mode) -> SyncResult:
        """A pull, a push, or a pull and then a push on the same root."""
        if mode == "push":
            return self._push(None)
        pulled, read = self._pull()
        if mode == "pull":
            return pulled
        return pulled.merged(self._push(read if read.root is not None else None), mode)

    def _pull(self) -> tuple[SyncResult, RootRead]:
        first = self.planner.bootstrapped(create=False)
        read, discovered = first.read, first.discovered
        if read.root is None:
            return SyncResult("pull", fast_path=not self.full, warnings=first.warnings), read
        fetching = self.hydrating and self.engine.context.lazy  # content left in the bucket: "in sync" is no answer
        if not self.full and not fetching and self.engine.in_sync(read.root):
            self._note(read)
            return SyncResult("pull", fast_path=True, seq=read.root.seq, discovered=discovered), read
        total: SyncResult | None = None
        for _ in range(ROUNDS):
            result, again = self._pull_once(read)
            total = result if total is None else _joined(total, result)
            if not again:
                break
            again_read = self.planner.bootstrapped(create=False)
            read, discovered = again_read.read, discovered or again_read.discovered
        assert total is not None
        return replace(total, discovered=discovered, warnings=total.warnings + first.warnings), read

    def _pull_once(self, read: RootRead) -> tuple[SyncResult, bool]:
        engine = self.engine
        assert read.root is not None
        full = self.full or not tiers_present(engine.state, engine.root)
        self.planner.bind(read.root)
        if (
            self.hydrating and not self.scope and not engine.state.has_base()
        ):  # who knows nothing yet fetches everything
            engine.context.expect(Work("download", read.root.files_at_most, 0))
        before = engine.state.meta("pulledOp")
        stats, bar = SyncStats("pull"), PortionedProgress(engine.context.progress, read.root.files_at_most)
        try:
            for compared in self.planner.portions(read, self.scope, full=full, hydrating=self.hydrating):
                _note_comparison(stats, compared)
                self.planner.await_ready()
                self._journal_found(compared)
                Pull(
                    context=engine.context if compared.covers == "all" else replace(engine.context, progress=bar),
                    compared=compared,
                    read=read,
                    scope=self.scope,
                    idle_timeout=self.idle_timeout,
                    stats=stats,
                    pulled_before=before,
                ).run()
        finally:
            bar.close()
        if not stats.again and stats.lost:
            # A payload is not there: the root is read again before anything is said of it. inv[entry.keeps]
            now = self.planner.read().root
            stats.again = now is not None and now.op != read.root.op
        return stats.result(read.root), stats.again

    def _push(self, read: RootRead | None) -> SyncResult:
        discovered = False
        warnings: tuple[str, ...] = ()
        total: SyncResult | None = None
        for turn in range(ROUNDS):
            if read is None and turn == 0 and self.after_pull and not self.full:
                read = self.planner.just_read()
            if read is None:
                found = self.planner.bootstrapped(create=self._something_to_push())
                read, warnings, discovered = found.read, found.warnings, discovered or found.discovered
            if read.root is None or (turn == 0 and self._nothing_to_push(read.root)):
                self.planner.unused(read)
                self._note(read)
                seq = read.root.seq if read.root else 0
                return SyncResult("push", fast_path=True, seq=seq, discovered=discovered, warnings=warnings)
            stats, now = self._push_once(read)
            root = now.root
            again = stats.again or (stats.changed and turn < CHANGED_ROUNDS)
            if again and turn + 1 == ROUNDS:
                stats.leave_moving()
            result = stats.result(root)
            total = result if total is None else _joined(total, result)
            if not again:
                break
            read = None if now.root is read.root else self.planner.just_read()  # what was committed a moment ago
        assert total is not None
        return replace(total, discovered=discovered, warnings=total.warnings + warnings)

    def _something_to_push(self) -> bool:
        if not self.engine.state.journal_empty():
            return True
        return any(isinstance(s, Observed) for s in scan(self.engine.root))

    def _nothing_to_push(self, root: Root) -> bool:
        """Nothing announced, and state that belongs to this store: one request was enough."""
        state = self.engine.state
        if not self.full and state.meta("pulledOp") is None and not state.has_base():
            return not self._something_to_push()  # a new machine: nothing is here that the store could lack
        if self.full or not state.journal_empty() or state.meta("pulledOp") is None:
            return False
        if state.meta("storeId") != root.store_id or any(e.missing for e in root.entries.values()):
            return False  # another store; or the bucket has lost bytes that this cache may have (L32)
        op, seq = state.meta("pulledOp") or "", int(state.meta("pulledSeq") or 0)
        return seq <= root.seq and (root.knows_op(op) or seq < root.oldest_known_seq)

    def _note(self, read: RootRead) -> None:
        state = self.engine.state
        if read.root is not None and (read.token != state.meta("seenToken") or state.meta(SEEN_OP) is None):
            with state.transaction() as tx:
                remember(tx, self.engine.context, read.root, read.token, read.body)

    def _push_once(self, read: RootRead) -> tuple[SyncStats, RootRead]:
        engine = self.engine
        if read.root is not None and read.root.extra:
            refuse_old_client(engine.committer, read.root)
        compared = self.planner.compare(read, self.scope, full=self.full, hydrating=False)
        stats = SyncStats("push")
        _note_comparison(stats, compared)
        self._journal_found(compared)
        owed = any(compared.planned.actions("pull", "restore", "aside")) or bool(compared.hidden)
        push = Push(
            context=engine.context,
            compared=compared,
            read=read,
            scope=self.scope,
            idle_timeout=self.idle_timeout,
            stats=stats,
            complete=compared.view.full and not self.scope and not owed and not compared.planned.held,
        )
        return stats, push.run()

    def _journal_found(self, compared: Comparison) -> None:
        """What a comparison found and will push is announced first, so that a crash forgets none of it."""
        paths = [a.path for a in compared.planned.actions("push") if not a.facts.edited]
        known = {r.path for r in compared.snapshot.rows if r.kind == "found"}
        fresh = [p for p in paths if p not in known]
        if not fresh:
            return
        with self.engine.state.transaction() as tx:
            first = tx.last_row() + 1
            tx.announce(fresh, "found")
            own = (first, tx.last_row())  # one transaction numbers its rows without a gap
        rows = tuple(JournalRow(number, path, "found", False) for number, path in enumerate(fresh, first))
        compared.snapshot = replace(compared.snapshot, own=own, rows=compared.snapshot.rows + rows)


def _note_comparison(stats: SyncStats, compared: Comparison) -> None:
    """Who looked, and what could not be looked at."""
    stats.executor = stats.executor or compared.executor
    for problem in compared.problems:
        stats.fail(problem.path, problem.reason)
    for path in compared.unread - compared.changing:
        stats.fail(path, "it could not be read")
    for path in compared.changing:
        stats.fail(path, "it changed while it was read; the next sync takes it", "changed")
    for path in compared.view.unsafe:
        stats.failed[path] = "the index names a path that is not safe; it is ignored"


def _joined(first: SyncResult, later: SyncResult) -> SyncResult:
    """Two rounds of one push or pull: what the later one delivered is no longer failed."""
    joined = first.merged(later, later.mode)
    return replace(joined, failed=later.failed, deletes_held=later.deletes_held)


_HARMLESS = frozenset({"pull", "adopt", "forget", "nothing"})
_NEWS = frozenset({"pull", "restore", "aside", "conflict", "bury"})


def refresh(engine: Engine, read: RootRead, idle_timeout: IdleTimeout) -> SyncResult:
    """Takes in what `read` says is new, as far as it harms nobody; content stays in the store until somebody reads it.

    Under `sync.lock`. Raises CorruptData where only a sync can tell what is new.
    """
    root = read.root
    assert root is not None
    context = engine.context.tuned(hydrate="lazy", allow_deletes=0)
    planner = Planner(context, idle_timeout)
    refuse_put_back(context.state, root)
    if not planner.stands(read):
        raise CorruptData(
            "the store's index may be an older one that was written late", hint="`swamp datastore sync` looks into it"
        )
    view = unseen_changes(context.committer.store, context.state, root)
    if view is None:
        raise CorruptData(
            "this cache has to be compared with the whole store first", hint="`swamp datastore sync` does it"
        )
    compared = planner.plan_changes(read, view)
    touched = context.state.staged_paths() | {row.path for row in compared.snapshot.rows}
    stats, planned = SyncStats("pull"), harmless(compared.planned, touched)
    ReadPull(
        context=context,
        compared=replace(compared, planned=planned, hidden={}),
        read=read,
        waiting=_waiting(compared.planned, planned),
        scope=(),
        idle_timeout=idle_timeout,
        stats=stats,
        pulled_before=None,
    ).run()
    return stats.result(root)


def harmless(planned: Plan, touched: frozenset[str]) -> Plan:
    """The units of a plan that a read may carry out: none at or below what somebody has `touched`, by announcing or by
    uploading it. inv[read.harmless]"""

    def harms_nobody(action: Action) -> bool:
        """Nobody has announced anything there, and what is here is what base says, or nothing."""
        facts = action.facts
        if action.verb not in _HARMLESS or facts.edited or facts.deleted:
            return False
        untouched = touched.isdisjoint((action.path, *ancestors(action.path)))
        return untouched and (facts.local is None or facts.unchanged)

    return Plan(tuple(unit for unit in planned.units if all(map(harms_nobody, unit.actions))))


def _waiting(planned: Plan, done: Plan) -> int:
    """How many units hold news that only a sync takes in: what the store holds and this read does not show."""
    taken = {unit.unit for unit in done.units}
    return sum(bool(unit.verbs & _NEWS) for unit in planned.units if unit.unit not in taken)


@mutable
class ReadPull(Pull):
    """A pull that claims nothing: no mark moves, no row of the journal goes."""

    waiting: int = 0

    def _defer(self, tx: Transaction, unit: UnitPlan, why: str) -> None:
        """What the store could not give is remembered as owed; what was changed here meanwhile waits for a sync."""
        if any(action.path in self.stats.failed for action in unit.actions):
            super()._defer(tx, unit, why)

    def _finish(self) -> None:
        with self.context.state.transaction() as tx:
            see(tx, self.compared.view.root, self.read.token, self.read.body)
            if all(self.stats.causes.get(path) in LOST for path in self.stats.failed):
                mark_read(tx, self.compared.view.root, self.waiting)
