"""Plan -> downloads -> renames. Files wait in staging until their whole unit is there, verified and durable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Final

from swamp.cache.paths import is_safe
from swamp.cache.places import FLUSH_TOGETHER, Places, can_flush_together, flush_together
from swamp.cache.rows import BaseRow, Transaction
from swamp.commit.commit import RootRead
from swamp.env import parse_rfc3339
from swamp.index.entry import Entry, Row
from swamp.sync.apply import Moment, drop_foreign_base, keep_both, note, put_aside, take_places
from swamp.sync.bulk import Download, Got, Work
from swamp.sync.gather import Scope
from swamp.sync.observe import Comparison
from swamp.sync.plan import Action, UnitPlan
from swamp.sync.progress import IdleTimeout
from swamp.sync.record import EngineContext, SyncStats, mark_pulled, remember, retire, tree_exclusive, trusted_stat
from swamp.sync.result import LOST, Conflict
from swamp.sync.unchanged import make_tiers
from swamp.sync.units import unit_of
from swamp.values import mutable

PLACE_BATCH: Final = 2500
"""Units that are placed at a time: a flush and a transaction each. Fewer than small files fill a pack (4,000 of 2 KB):
the first ones get their names while the next pack is still being written to staging."""
QUIET_NS: Final = 3_000_000_000
_FETCHED = frozenset({"pull", "restore", "conflict"})
_LEAVING = frozenset({"conflict", "bury", "aside"})
_PULLED = frozenset({"pull", "restore", "aside", "adopt", "forget", "conflict", "bury", "nothing"})


@mutable
class Pull:
    """One pull under `sync.lock`. What cannot be brought is deferred, and the rest arrives."""

    context: EngineContext
    compared: Comparison
    read: RootRead
    scope: Scope
    idle_timeout: IdleTimeout
    stats: SyncStats
    pulled_before: str | None
    got: dict[str, Got] = field(default_factory=dict)
    held: list[BaseRow] = field(default_factory=list)
    op: str = ""
    together: bool = False
    """Whether files come to staging unflushed, and a batch is flushed at once before it is placed."""

    def run(self) -> None:
        self.op = self.context.env.ulid()
        units = [u for u in self.compared.planned.units if u.verbs & _PULLED]
        ready: list[UnitPlan] = []
        try:
            for unit in self._fetched(units):
                ready.append(unit)
                if len(ready) >= PLACE_BATCH:
                    self._place(ready)
                    ready = []
            self._place(ready)
            self._finish()
        finally:
            for left in self.got.values():
                if left.file:
                    Path(left.file).unlink(missing_ok=True)

    # -- download

    def _fetched(self, units: list[UnitPlan]) -> Iterator[UnitPlan]:
        """Units as soon as all their files are in staging; those that need none come first."""
        wanted = [(unit, [a.facts.remote for a in unit.actions if _is_fetched(a)]) for unit in units]
        self.together = sum(len(rows) for _, rows in wanted) >= FLUSH_TOGETHER and can_flush_together(
            self.context.cache.staging
        )
        yield from (unit for unit, rows in wanted if not rows)
        staging, latest = str(self.context.cache.staging), self.context.now_ns() - QUIET_NS
        jobs = [
            Download(r.path, r.key, r.size, r.sha256, staging, _quiet_ns(r.last_modified, latest), not self.together)
            for _, rows in wanted
            for r in rows
            if isinstance(r, Entry)
        ]
        missing = {unit.unit: (unit, {r.path for r in rows if r is not None}) for unit, rows in wanted if rows}
        del wanted
        for got in self._downloaded(jobs):
            unit, open_ = missing[unit_of(got.path)]
            self.got[got.path] = got
            open_.discard(got.path)
            if not open_:
                yield unit

    def _downloaded(self, jobs: list[Download]) -> Iterator[Got]:
        if not jobs:
            return
        total = sum(j.size for j in jobs)
        executor = self.stats.executor = self.context.pick(Work("download", len(jobs), total))
        self.context.progress.begin("pulling", len(jobs), total)
        try:
            for got in executor.download(jobs, self.idle_timeout):
                if not executor.reports_progress:
                    self.context.progress.advance(1, got.size)
                yield got
        finally:
            self.context.progress.end()

    # -- place

    def _place(self, units: list[UnitPlan]) -> None:
        """One batch of whole units: renamed and recorded in one transaction while nobody mutates."""
        if not units:
            return
        if self.together:
            flush_together(self.context.cache.staging)  # inv[cache.no-torn-file]: bytes before names
        with tree_exclusive(self.context), self.context.state.transaction() as tx:
            with Places(self.context.cache.tree) as places:
                moment = Moment.of(tx, places.look, units, self.compared.snapshot)
                placeable: list[UnitPlan] = []
                for unit in units:
                    if (why := self._obstacle(unit, moment)) is None:
                        placeable.append(unit)
                    else:
                        self._defer(tx, unit, why)
                # What leaves goes first: a file may come to stand where a directory was, and the other way round.
                left = [self._make_room(tx, unit) for unit in placeable]
                if any(left):
                    places.let_go()
                now = self.context.now_ns()
                room = (unit for unit in placeable if self._has_room(tx, unit, places))
                placed = [path for unit in room for path in self._fill(tx, unit, places, now)]
            tx.hold(self.held)  # after the names are durable: base never says more than the disk
            self.held.clear()
            tx.touch(placed)
        self.stats.touch(placed)

    def _make_room(self, tx: Transaction, unit: UnitPlan) -> bool:
        """Whether anything left the tree."""
        verbs = unit.verbs & _LEAVING
        if not verbs:
            return False
        if verbs & {"conflict", "bury"}:
            keep_both(tx, self.context, unit, self.op, self.stats)
        for action in unit.actions if "aside" in verbs else ():
            if action.verb == "aside":
                put_aside(tx, self.context, action, self.op)
                self.stats.files_deleted += action.facts.local is not None
        return True

    def _has_room(self, tx: Transaction, unit: UnitPlan, places: Places) -> bool:
        """Something that nobody announced may stand in the way: it stays, it is named, and the rest arrives (L46)."""
        for action in filter(_is_fetched, unit.actions):
            obstacle = places.obstacle(action.path)
            if obstacle is not None:
                self.stats.fail(action.path, f"{obstacle} is in its way here: move it, then pull again")
                self._defer(tx, unit, f"{obstacle} is in the way")
                return False
        return True

    def _fill(self, tx: Transaction, unit: UnitPlan, places: Places, now: int) -> list[str]:
        """Renames and records one unit; the paths that changed."""
        changed: list[str] = []
        for action in unit.actions:
            note(tx, self.compared.snapshot, action)
            if _is_fetched(action):
                self._rename(action, places, now)
            if _is_fetched(action) or action.verb in ("adopt", "forget", "aside"):
                changed.append(action.path)
        return changed

    def _obstacle(self, unit: UnitPlan, moment: Moment) -> str | None:
        for action in unit.actions:
            got = self.got.get(action.path)
            if got is not None and got.error is not None:
                return self._fail(action.path, got, got.error)
            if action.verb in _PULLED and not moment.as_planned(action.facts):
                return "it was changed here while it was being pulled"
        return None

    def _fail(self, path: str, got: Got, why: str) -> str:
        if got.cause in LOST:
            told = f"the store has lost {got.key}" if got.cause == "missing" else f"{got.key}: {why}"
            why = f"{told}; `swamp datastore verify --repair` where it still is"
        self.stats.fail(path, why, got.cause)
        return why

    def _defer(self, tx: Transaction, unit: UnitPlan, why: str) -> None:
        """Remembered with what the root said: the next pull decides again. inv[sync.derived]"""
        self.stats.unresolved.add(unit.unit)
        self.stats.again |= not any(a.path in self.stats.failed for a in unit.actions)
        for action in unit.actions:
            tx.defer(action.path, action.facts.remote, why)

    def _rename(self, action: Action, places: Places, now: int) -> None:
        remote, got = action.facts.remote, self.got.pop(action.path)
        assert isinstance(remote, Entry) and got.file is not None
        hint = trusted_stat(places.put(got.file, action.path), now)
        self.held.append(BaseRow.of(remote, got.sha256, True, hint))
        self.stats.files_pulled += 1
        self.stats.bytes_pulled += got.size
        if action.verb == "restore":
            self.stats.conflicts.append(Conflict(action.path, action.path))

    # -- finish

    def _finish(self) -> None:
        """The mark moves when every path was reconciled or deferred, and nobody moved it meanwhile."""
        root = self.compared.view.root
        waiting = {a.path for a in self.compared.planned.actions("push", "delete")} | set(self.compared.planned.held)
        waiting -= self.compared.planned.unfinished()
        with self.context.state.transaction() as tx:
            self._remember_deferred(tx)
            retire(tx, self.compared.snapshot, self.scope, self.stats.unresolved | waiting)
            if self.compared.covers == "some":
                drop_foreign_base(tx, self.compared.planned)  # nobody pulls in portions but who has no mark yet
                return
            remember(tx, self.context, root, self.read.token, self.read.body)
            unmoved = tx.meta("pulledOp") == self.pulled_before
            marked = not self.scope and unmoved
            if marked:
                mark_pulled(tx, root)
                take_places(tx, self.compared.planned, self.compared.hidden)
                drop_foreign_base(tx, self.compared.planned)
        if marked and self.context.lazy:  # only then is everything here that has to be (S11)
            make_tiers(self.context.state, self.context.cache.tree)

    def _remember_deferred(self, tx: Transaction) -> None:
        """What is left to a later sync keeps what this root says of it, and nothing that an older root said."""
        hidden = self.compared.hidden.items()  # names that no index can hold among them: nothing is owed for those
        owed = [(path, row, "it could not be read here") for path, row in hidden if is_safe(path)]
        left = (*(a.facts for a in self.compared.planned.actions("push", "delete")), *self.compared.planned.waiting)
        owed += [(f.path, f.remote, "left to the next push") for f in left]
        for path, row, why in owed:
            if _news(tx.base(path), row):
                tx.defer(path, row, why)
            else:
                tx.undefer(path)
        if self.compared.view.full and not self.scope and self.compared.covers == "all":
            known = {path for path, _, _ in owed}
            for path in tx.deferred_paths():
                if path not in known and unit_of(path) not in self.stats.unresolved:
                    tx.undefer(path)  # everything was compared: nobody is owed this any more


def _is_fetched(action: Action) -> bool:
    return action.verb in _FETCHED and isinstance(action.facts.remote, Entry)


@lru_cache(maxsize=256)  # the files of a pack share it
def _quiet_ns(last_modified: str, latest: int) -> int:
    """An mtime that lies in the past, so that the file's stat can vouch for it at once. inv[hint.racy]"""
    try:
        return min(latest, int(parse_rfc3339(last_modified).timestamp() * 1e9) or latest)
    except ValueError:
        return latest


def _news(base: BaseRow | None, remote: Row | None) -> bool:
    """Whether base, once the mark has moved, would no longer tell what the root says of a path."""
    if not isinstance(remote, Entry):
        return base is not None or remote is not None
    return base is None or base.identity != remote.identity or base.number != remote.number or remote.missing
