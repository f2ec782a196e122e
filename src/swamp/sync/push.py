"""Plan -> uploads -> commits -> record. Whole units, about one commit a minute, so that a kill costs at most that."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from swamp.cache.files import hash_file, hint_of, read_atomic
from swamp.cache.paths import is_internal
from swamp.cache.rows import BaseRow, StagedRow
from swamp.cache.scan import Observed, stat_one
from swamp.cache.transact import Transaction
from swamp.commit.commit import Changes, Committed, RootRead
from swamp.errors import ObjectMissing, SwampError
from swamp.index.entry import Dropped, Entry, Tombstone
from swamp.index.root import Root
from swamp.rules import rule
from swamp.sync.bulk import Sent, Upload, Work
from swamp.sync.gather import Scope, Snapshot
from swamp.sync.news import News
from swamp.sync.plan import Action, Plan, UnitPlan
from swamp.sync.progress import Patience
from swamp.sync.record import Parts, Tally, mark_pulled, remember, retire, vouching
from swamp.sync.settle import settle, tree_exclusive, void_strangers
from swamp.sync.units import names_unit, unit_of
from swamp.sync.view import View, since

STAGED_BATCH: Final = 256
COMMIT_ROWS: Final = 20_000
CONFIRM_BATCH: Final = 2_000


@dataclass
class Push:
    """One push under `sync.lock`. Failed files hold back their unit; everything else is committed."""

    parts: Parts
    view: View
    read: RootRead
    planned: Plan
    snapshot: Snapshot
    scope: Scope
    patience: Patience
    tally: Tally
    compared: bool = False
    """Everything was compared and nothing is owed to a pull: the fast path may start here again (L20)."""
    uploads: dict[str, StagedRow] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    unsaved: list[StagedRow] = field(default_factory=list)
    news: tuple[str, News] | None = None

    def run(self) -> RootRead:
        """The root after the last commit (or as it was read, when nothing was to be committed)."""
        self.tally.deletes_held += self.planned.deletes_held
        self.tally.unresolved |= set(self.planned.held)
        self._report_waiting()
        self._settle()
        units = [u for u in self.planned.units if u.verbs & {"push", "delete"} and u.unit not in self.tally.unresolved]
        staged = self._deliver([u for u in units if not u.is_record], [])
        records = [u for u in units if u.is_record and not self._names_waiting(u)]
        self._commit(self._deliver(records, staged))  # a run's record and the data it names: one commit, or neither
        self._retire()
        return self.read

    def _report_waiting(self) -> None:
        """What was announced here and does not go now is said by name: no push leaves its own rows silently."""
        unfinished = self.planned.unfinished()
        self.tally.warnings += [f"{unit} is still being written: it stays here for now" for unit in sorted(unfinished)]
        for facts in self.planned.waiting:
            unit = unit_of(facts.path)
            if unit not in unfinished and facts.path not in self.tally.failed and facts.decision().verb == "push":
                self.tally.fail(facts.path, self.planned.held.get(unit, ""))
        for action in self.planned.actions("restore"):
            self.tally.fail(action.path, f"{action.why}: pull first, then delete it again")

    def _settle(self) -> None:
        units = [u for u in self.planned.units if u.verbs & {"adopt", "forget", "conflict", "bury", "nothing"}]
        if not units and not self.compared:
            return
        waiting: set[str] = set()
        op = self.parts.env.ulid()
        with tree_exclusive(self.parts, "tree-lock.plan"), self.parts.state.transaction() as tx:
            settle(tx, self.parts, units, self.snapshot, op, self.tally, mark=waiting)
            if self.compared and not waiting and self.read.token:
                # With the settling or not at all: a mark without its base rows would hide what the root says.
                remember(tx, self.parts, self.view.root, self.read.token, self.read.body)
                mark_pulled(tx, self.view.root)
                void_strangers(tx, self.planned)
        self.tally.unresolved |= waiting
        self.tally.again |= bool(waiting)

    def _names_waiting(self, unit: UnitPlan) -> bool:
        """Records wait for every version they name (L42). inv[unit.whole]"""
        waiting = [u for u in self.tally.unresolved if u != unit.unit]
        if not waiting or "push" not in unit.verbs or not rule("unit.whole"):
            return False
        body = read_atomic(self.parts.cache.tree / unit.unit) or b""
        named = next((path for path in waiting if names_unit(body, unit_of(path))), None)
        if named is not None:
            self.tally.fail(unit.unit, f"it names {unit_of(named)}, which is not in the store yet")
            return True
        return False

    # -- stage

    def _deliver(self, units: list[UnitPlan], ready: list[UnitPlan]) -> list[UnitPlan]:
        """Uploads them behind those that are `ready`; what is staged and not committed yet, in that order."""
        changing = self._changing(units)
        units = [u for u in units if u.unit not in changing]
        if not units:
            return ready
        missing = {u.unit: {a.path for a in u.actions if a.verb == "push"} for u in units}
        by_name = {u.unit: u for u in units}
        started = self.parts.env.clock.monotonic()
        for unit, path in self._staged(units, missing):
            missing[unit].discard(path)
            if missing[unit] or unit in self.tally.unresolved:
                continue
            ready.append(by_name[unit])
            if self.parts.env.clock.monotonic() - started > self.parts.commit_every or len(ready) >= COMMIT_ROWS:
                self._commit(ready)
                ready, started = [], self.parts.env.clock.monotonic()
        return ready

    def _changing(self, units: list[UnitPlan]) -> set[str]:
        """Units that the walk may have seen in the middle of a write: they wait for another look (L47).

        The walk held no lock. A file that still has the planned stat at a moment when nobody mutates was whole then.
        """
        files = [(u.unit, a) for u in units for a in u.actions if a.verb == "push"]
        moved: set[str] = set()
        for start in range(0, len(files), CONFIRM_BATCH):
            with tree_exclusive(self.parts, "tree-lock.plan"):
                for unit, action in files[start : start + CONFIRM_BATCH]:
                    now = stat_one(self.parts.cache.tree, action.path)
                    planned = action.facts.local
                    if planned is None or not isinstance(now, Observed) or now.hint != planned.hint:
                        moved.add(unit)
        self.tally.unresolved |= moved
        self.tally.again |= bool(moved)
        return moved

    def _staged(self, units: list[UnitPlan], missing: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
        """Units and paths as their bytes are known to be in the bucket; a unit without uploads comes at once."""
        jobs: list[Upload] = []
        tree, known = os.fspath(self.parts.cache.tree), self.parts.state.staged_paths()
        for unit in units:
            if not missing[unit.unit]:
                yield unit.unit, ""
            for action in unit.actions:
                if action.verb != "push" or action.facts.local is None:
                    continue
                if action.path in known and self._reused(action):
                    yield unit.unit, action.path
                else:
                    jobs.append(Upload(action.path, f"{tree}/{action.path}", action.facts.local.size))
        if jobs:
            yield from self._uploaded(jobs, {a.path: a for u in units for a in u.actions})

    def _uploaded(self, jobs: list[Upload], actions: dict[str, Action]) -> Iterator[tuple[str, str]]:
        total = sum(j.size for j in jobs)
        executor = self.tally.executor = self.parts.pick(Work("upload", len(jobs), total))
        epoch = self.view.root.gc_epoch
        self.parts.progress.begin("pushing", len(jobs), total)
        try:
            for sent in executor.upload(jobs, self.patience):
                if not executor.reports_progress:
                    self.parts.progress.advance(1, sent.size)
                if self._accept(sent, actions[sent.path], epoch):
                    yield unit_of(sent.path), sent.path
        finally:
            self._save_staged()
            self.parts.progress.end()

    def _accept(self, sent: Sent, action: Action, epoch: int) -> bool:
        """A file whose stat changed since the plan is left for the next push: what was sent may be a mixture."""
        local = action.facts.local
        if sent.error is not None or sent.key is None or sent.sha256 is None:
            self.tally.fail(sent.path, sent.error or "the upload failed", sent.cause)
        elif sent.changed or local is None or (sent.hint is not None and sent.hint != local.hint):
            self.tally.fail(sent.path, "it changed while it was being pushed; the next push takes it")
        else:
            row = StagedRow(sent.key, sent.path, sent.sha256, sent.size, epoch)
            self.uploads[sent.path] = row
            self.sent[sent.path] = sent
            self.unsaved.append(row)
            if len(self.unsaved) >= STAGED_BATCH:
                self._save_staged()
            return True
        self.tally.unresolved.add(unit_of(sent.path))
        return False

    def _save_staged(self) -> None:
        """Finished uploads are known to later attempts, and prove a commit whose answer was lost."""
        if self.unsaved:
            with self.parts.state.transaction() as tx:
                tx.put_staged(self.unsaved)
            self.unsaved.clear()

    def _reused(self, action: Action) -> bool:
        """An upload of an earlier attempt, if the file still holds those bytes."""
        rows = self.parts.state.staged_for(action.path)
        local = action.facts.local
        if not rows or local is None:
            return False
        try:
            found = hash_file(self.parts.cache.tree / action.path)
        except SwampError:
            return False  # the upload itself will report it
        row = next((r for r in rows if r.sha256 == found.sha256), None)
        if row is None or hint_of(found.stat) != local.hint:
            return False
        self.uploads[action.path] = row
        return True

    # -- commit

    def _commit(self, units: list[UnitPlan]) -> None:
        """Publishes whole units; those that the newest root no longer allows wait for another look."""
        self._save_staged()
        if not units:
            return
        going: list[UnitPlan] = []

        def propose(root: Root) -> Changes | None:
            going[:] = self._allowed(units, root)
            return self._changes(going, root) if going else None

        logged = self.parts.state.meta("loggedOp") or ""
        done = self.parts.committer.commit(propose, self.patience.check, start=self.read, logged=logged)
        self.patience.progressed()
        left = {u.unit for u in units} - {u.unit for u in going}
        self.tally.unresolved |= left
        self.tally.again |= bool(left)
        if done is not None:
            self._record(going, done)

    def _allowed(self, units: list[UnitPlan], root: Root) -> list[UnitPlan]:
        """What this root still allows; a record stays behind with any version that it names (L42). inv[unit.whole]"""
        right = [u for u in units if self._still_right(u, root)]
        behind = self.tally.unresolved | ({u.unit for u in units} - {u.unit for u in right})
        if not behind or not rule("unit.whole"):
            return right
        return [u for u in right if not (u.is_record and self._may_name(u, behind))]

    def _may_name(self, record: UnitPlan, behind: set[str]) -> bool:
        """Whether the bytes that were uploaded name one of these; what was written over since cannot be asked."""
        planned = next((a.facts.local for a in record.actions if a.verb == "push"), None)
        if planned is None:
            return False
        now = stat_one(self.parts.cache.tree, record.unit)
        if not isinstance(now, Observed) or now.hint != planned.hint:
            return True
        body = read_atomic(self.parts.cache.tree / record.unit) or b""
        return any(names_unit(body, unit_of(path)) for path in behind if path != record.unit)

    def _still_right(self, unit: UnitPlan, root: Root) -> bool:
        return self._untouched(unit, root) and self._still_there(unit, root)

    def _untouched(self, unit: UnitPlan, root: Root) -> bool:
        """Nobody else changed the unit, or what may stand beside it, since the plan looked."""
        if root.op == self.view.root.op:
            return True
        news = self._news(root)
        return news is not None and news.leave(unit)

    def _news(self, root: Root) -> News | None:
        """What has come since the plan's root; None when that root is not in this one's past."""
        if self.news is None or self.news[0] != root.op:
            if not root.knows_op(self.view.root.op) or root.horizon_seq > self.view.root.seq:
                return None
            self.news = (root.op, News.of(since(self.parts.committer.store, root, self.view.root.seq).delta))
        return self.news[1]

    def _still_there(self, unit: UnitPlan, root: Root) -> bool:
        """My uploads survive the collector: a condemned key is given up, a collection means looking again."""
        for action in unit.actions:
            if action.verb != "push":
                continue
            row = self.uploads[action.path]
            if row.key in root.collecting and rule("gc.collecting-check"):
                self._give_up(row)
                return False
            if row.gc_epoch != root.gc_epoch and rule("gc.epoch-check"):
                try:
                    self.parts.committer.store.head(row.key)
                except ObjectMissing:
                    self._give_up(row)
                    return False
                self.uploads[action.path] = StagedRow(row.key, row.path, row.sha256, row.size, root.gc_epoch)
        return True

    def _give_up(self, row: StagedRow) -> None:
        with self.parts.state.transaction() as tx:
            tx.drop_staged(row.key)

    def _changes(self, units: Iterable[UnitPlan], root: Root) -> Changes:
        puts: list[Entry] = []
        deletes: list[Tombstone] = []
        dropped: list[Dropped] = []
        for action in (a for u in units for a in u.actions):
            remote = action.facts.remote
            if action.verb == "push":
                row = self.uploads[action.path]
                at = self.sent[action.path].last_modified if action.path in self.sent else ""
                puts.append(Entry(action.path, row.key, row.size, row.sha256, at or ""))
                if isinstance(remote, Entry) and remote.key != row.key:
                    dropped.append(Dropped(remote.key, action.path))
            elif action.verb == "delete" and isinstance(remote, Entry):
                deletes.append(Tombstone(action.path, remote.key, remote.size, remote.sha256))
        internal = frozenset(p for p in root.entries if is_internal(p))
        return Changes(tuple(puts), tuple(deletes), tuple(dropped), forgotten=internal, learned=self._learned(root))

    def _learned(self, root: Root) -> tuple[Entry, ...]:
        """Hashes of adopted content that reading it has taught us go along with a real commit."""
        found: list[Entry] = []
        for entry in root.entries.values():
            base = self.parts.state.base(entry.path) if entry.sha256 is None else None
            if base is not None and base.sha256 and base.key == entry.key:
                found.append(Entry(entry.path, entry.key, entry.size, base.sha256, entry.last_modified, entry.seq))
        return tuple(found)

    # -- record

    def _record(self, units: list[UnitPlan], done: Committed) -> None:
        """Base says what the bucket now holds; the mark moves only if this commit built on what was pulled."""
        with self.parts.state.transaction() as tx:
            tx.hold([self._recorded(a, done.root.seq) for u in units for a in u.actions if a.verb == "push"])
            for action in (a for u in units for a in u.actions):
                if action.verb == "delete":
                    tx.drop_base(action.path)
                    tx.drop_staged_for(action.path)
                    tx.undefer(action.path)
                    self.tally.files_deleted += 1
            self._retire_rows(tx, {a.path for u in units for a in u.actions})
            remember(tx, self.parts, done.root, done.token, done.body)
            tx.set_meta("loggedOp", done.root.op)
            if done.token and (done.root.prev_op == tx.meta("pulledOp") or not rule("pulled.op")):
                mark_pulled(tx, done.root)
        self.read = RootRead(done.root, done.token, done.body) if done.token else self.parts.committer.read()

    def _recorded(self, action: Action, seq: int) -> BaseRow:
        row = self.uploads[action.path]
        local = action.facts.local
        hint = vouching(local.hint, self.snapshot.at_ns) if local else None
        self.tally.files_pushed += 1
        self.tally.bytes_pushed += row.size
        return BaseRow(action.path, row.key, row.size, row.sha256, seq, present=True, hint=hint)

    def _retire_rows(self, tx: Transaction, committed: set[str]) -> None:
        """Rows of what this commit delivered; those of directories go with the last one."""
        rows = tuple(r for r in self.snapshot.rows if r.path in committed)
        retire(tx, replace(self.snapshot, rows=rows), self.scope, self.tally.unresolved)

    def _retire(self) -> None:
        skipped = {a.path for a in self.planned.actions("pull", "restore", "aside")}
        left = (self.tally.unresolved | skipped) - self.planned.unfinished()
        with self.parts.state.transaction() as tx:
            retire(tx, self.snapshot, self.scope, left)
