"""Plan -> uploads -> commits -> record. Whole units, about one commit a minute, so that a kill costs at most that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from functools import cached_property
from typing import Final

from swamp.cache.files import read_atomic
from swamp.cache.paths import is_internal
from swamp.cache.places import Places
from swamp.cache.rows import BaseRow
from swamp.cache.scan import Observed, stat_one
from swamp.commit.build import is_there
from swamp.commit.commit import Changes, Committed, RootRead
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced, object_of
from swamp.index.root import Root, allows
from swamp.sync.apply import apply_locally, drop_foreign_base, take_places
from swamp.sync.gather import Scope
from swamp.sync.observe import Comparison
from swamp.sync.plan import Action, UnitPlan
from swamp.sync.progress import IdleTimeout
from swamp.sync.record import (
    EngineContext,
    SyncStats,
    builds_on_pulled,
    mark_pulled,
    remember,
    retire,
    tree_exclusive,
    trusted_stat,
)
from swamp.sync.result import Cause
from swamp.sync.stage import Stager
from swamp.sync.units import names_unit, unit_of
from swamp.sync.view import ChangesSince, changes_since
from swamp.values import mutable

COMMIT_ROWS: Final = 20_000
CONFIRM_BATCH: Final = 2_000


@mutable
class Push:
    """One push under `sync.lock`. Failed files hold back their unit; everything else is committed."""

    context: EngineContext
    compared: Comparison
    read: RootRead
    scope: Scope
    idle_timeout: IdleTimeout
    stats: SyncStats
    complete: bool = False
    """Everything was compared and nothing is owed to a pull: the fast path may start here again (L20)."""
    own: set[str] = field(default_factory=set)
    """My commits that stand on the plan's root with nobody else's between them."""
    changed: tuple[str, ChangesSince] | None = None
    looked: tuple[str, dict[str, bool]] | None = None
    """Objects of mine that were looked for after reading a root, by its op."""
    puts: tuple[Entry, ...] = ()
    """What the commit that was proposed last puts at its paths."""

    @cached_property
    def stager(self) -> Stager:
        root = self.compared.view.root
        packs = self.context.policy.packs and allows(root.version, "slices")
        return Stager(self.context, self.stats, self.idle_timeout, root.gc_epoch, packs)

    def run(self) -> RootRead:
        """The root after the last commit (or as it was read, when nothing was to be committed)."""
        self.stats.deletes_held += self.compared.planned.deletes_held
        self.stats.unresolved |= set(self.compared.planned.held)
        self._report_waiting()
        self._apply_locally()
        units = [
            u
            for u in self.compared.planned.units
            if u.verbs & {"push", "delete"} and u.unit not in self.stats.unresolved
        ]
        self._deliver(sorted(units, key=lambda u: u.is_record))
        skipped = {a.path for a in self.compared.planned.actions("pull", "restore", "aside")}
        left = (self.stats.unresolved | skipped) - self.compared.planned.unfinished()
        with self.context.state.transaction() as tx:
            retire(tx, self.compared.snapshot, self.scope, left)
        return self.read

    def _report_waiting(self) -> None:
        """What was announced here and does not go now is said by name: no push leaves its own rows silently."""
        unfinished = self.compared.planned.unfinished()
        changing = {unit_of(path) for path in self.compared.changing}
        self.stats.warnings += [f"{unit} is still being written: it stays here for now" for unit in sorted(unfinished)]
        for facts in self.compared.planned.waiting:
            unit = unit_of(facts.path)
            if unit not in unfinished and facts.path not in self.stats.failed and facts.decision().verb == "push":
                cause: Cause | None = "changed" if unit in changing else None
                self.stats.fail(facts.path, self.compared.planned.held.get(unit, ""), cause)
        for action in self.compared.planned.actions("restore"):
            self.stats.fail(action.path, f"{action.why}: pull first, then delete it again")

    def _apply_locally(self) -> None:
        units = [u for u in self.compared.planned.units if u.verbs & {"adopt", "forget", "conflict", "bury", "nothing"}]
        if not units and not self.complete:
            return
        waiting: set[str] = set()
        op = self.context.env.ulid()
        with tree_exclusive(self.context), self.context.state.transaction() as tx:
            apply_locally(tx, self.context, units, self.compared.snapshot, op, self.stats, mark=waiting)
            if self.complete and not waiting and self.read.token:
                # With the settling or not at all: a mark without its base rows would hide what the root says.
                remember(tx, self.context, self.compared.view.root, self.read.token, self.read.body)
                mark_pulled(tx, self.compared.view.root)
                take_places(tx, self.compared.planned)
                drop_foreign_base(tx, self.compared.planned)
        self.stats.look_again(waiting)

    def _names_waiting(self, unit: UnitPlan) -> bool:
        """Records wait for every version they name (L42). inv[unit.whole]"""
        waiting = [u for u in self.stats.unresolved if u != unit.unit]
        if not waiting or "push" not in unit.verbs:
            return False
        body = read_atomic(self.context.cache.tree / unit.unit) or b""
        version = next((named for path in waiting if names_unit(body, named := unit_of(path))), None)
        if version is None:
            return False
        later = any(cause == "changed" and unit_of(p) == version for p, cause in self.stats.causes.items())
        self.stats.fail(unit.unit, f"it names {version}, which is not in the store yet", "changed" if later else None)
        return True

    # -- stage

    def _deliver(self, units: list[UnitPlan]) -> None:
        """Uploads and commits them. A run's record goes with the last commit, or stays behind with what it names."""
        changing = self._changing(units)
        units = [u for u in units if u.unit not in changing]
        missing = {u.unit: sum(a.verb == "push" for a in u.actions) for u in units}
        by_name = {u.unit: u for u in units}
        ready: list[UnitPlan] = []
        records: list[UnitPlan] = []
        started = self.context.env.clock.monotonic()
        for unit, path in self.stager.staged(units, missing):
            missing[unit] -= bool(path)
            if missing[unit] or unit in self.stats.unresolved:
                continue
            (records if by_name[unit].is_record else ready).append(by_name[unit])
            if (
                self.context.env.clock.monotonic() - started > self.context.policy.commit_every
                or len(ready) >= COMMIT_ROWS
            ):
                self._commit(ready)
                ready, started = [], self.context.env.clock.monotonic()
        self._commit([*ready, *(u for u in records if not self._names_waiting(u))])

    def _changing(self, units: list[UnitPlan]) -> set[str]:
        """Units that the walk may have seen in the middle of a write: they wait for another look (L47).

        The walk held no lock. A file that still has the planned stat at a moment when nobody mutates was whole then.
        """
        files = [(u.unit, a) for u in units for a in u.actions if a.verb == "push"]
        moved: set[str] = set()
        for start in range(0, len(files), CONFIRM_BATCH):
            with tree_exclusive(self.context), Places(self.context.cache.tree) as places:
                for unit, action in files[start : start + CONFIRM_BATCH]:
                    now = places.look(action.path)
                    planned = action.facts.local
                    if planned is None or not isinstance(now, Observed) or now.hint != planned.hint:
                        moved.add(unit)
        self.stats.look_again(moved)
        return moved

    # -- commit

    def _commit(self, units: list[UnitPlan]) -> None:
        """Publishes whole units; those that the newest root no longer allows wait for another look."""
        self.stager.save()
        if not units:
            return
        going: list[UnitPlan] = []
        self.puts = ()

        def propose(root: Root) -> Changes | None:
            going[:] = self._allowed(units, root)
            if not going:
                return None
            self.puts = (changes := self._changes(going, root)).puts
            return changes

        logged = self.context.state.meta("loggedOp") or ""
        done = self.context.committer.commit(propose, self.idle_timeout.check, start=self.read, logged=logged)
        self.idle_timeout.progressed()
        self.stats.look_again({u.unit for u in units} - {u.unit for u in going})
        if done is not None:
            self._record(going, done)

    def _allowed(self, units: list[UnitPlan], root: Root) -> list[UnitPlan]:
        """What this root still allows; a record stays behind with any version that it names (L42). inv[unit.whole]"""
        right = [u for u in units if self._still_right(u, root)]
        behind = self.stats.unresolved | ({u.unit for u in units} - {u.unit for u in right})
        if not behind:
            return right
        return [u for u in right if not (u.is_record and self._may_name(u, behind))]

    def _may_name(self, record: UnitPlan, behind: set[str]) -> bool:
        """Whether the bytes that were uploaded name one of these; what was written over since cannot be asked."""
        planned = next((a.facts.local for a in record.actions if a.verb == "push"), None)
        if planned is None:
            return False
        now = stat_one(self.context.cache.tree, record.unit)
        if not isinstance(now, Observed) or now.hint != planned.hint:
            return True
        body = read_atomic(self.context.cache.tree / record.unit) or b""
        return any(names_unit(body, unit_of(path)) for path in behind if path != record.unit)

    def _still_right(self, unit: UnitPlan, root: Root) -> bool:
        """Nobody else changed the unit, or what may stand beside it, since the plan; and my uploads are there."""
        if not self._unmoved(root):
            changed = self._changes_since(root)
            if changed is None or not changed.leave(unit):
                return False
        return self._still_there(unit, root)

    def _unmoved(self, root: Root) -> bool:
        """Whether nobody but me has committed since the plan's root: what I commit touches each unit once."""
        return root.op == self.compared.view.root.op or root.op in self.own

    def _changes_since(self, root: Root) -> ChangesSince | None:
        """What has come since the plan's root; None when that root is not in this one's past."""
        if self.changed is None or self.changed[0] != root.op:
            if not root.knows_op(self.compared.view.root.op) or root.horizon_seq > self.compared.view.root.seq:
                return None
            self.changed = (
                root.op,
                ChangesSince.of(changes_since(self.context.committer.store, root, self.compared.view.root.seq).delta),
            )
        return self.changed[1]

    def _still_there(self, unit: UnitPlan, root: Root) -> bool:
        """My uploads survive the collector: a condemned key is given up, a collection means looking again."""
        for action in unit.actions:
            if action.verb != "push":
                continue
            row = self.stager.rows[action.path]
            condemned = root.condemns(row.key)
            moved = root.has_collected_since(row.gc_epoch)
            if condemned or (moved and not self._exists(object_of(row.key), root)):
                self.stager.give_up(row)
                return False
            if moved:
                self.stager.rows[action.path] = replace(row, gc_epoch=root.gc_epoch)
        return True

    def _exists(self, name: str, root: Root) -> bool:
        """Whether an object is there, asked once after each root, however many files lie in it. inv[gc.objects]"""
        if self.looked is None or self.looked[0] != root.op:
            self.looked = (root.op, {})
        known = self.looked[1]
        if name not in known:
            known[name] = is_there(self.context.committer.store, name)
        return known[name]

    def _changes(self, units: Iterable[UnitPlan], root: Root) -> Changes:
        puts: list[Entry] = []
        deletes: list[Tombstone] = []
        dropped: list[Unreferenced] = []
        for action in (a for u in units for a in u.actions):
            remote = self._now(action, root)
            if action.verb == "push":
                puts.append(self._put(action, remote))
                if isinstance(remote, Entry) and remote.key != puts[-1].key:
                    dropped.append(Unreferenced.of(remote, _known_hash(action, remote)))
            elif action.verb == "delete" and isinstance(remote, Entry):
                deletes.append(Tombstone.of(remote, _known_hash(action, remote)))
        internal = frozenset(p for p in root.entries if is_internal(p))
        return Changes(tuple(puts), tuple(deletes), tuple(dropped), forgotten=internal, learned=self._learned(root))

    def _now(self, action: Action, root: Root) -> Row | None:
        """What this very root names at the path: since the plan it may have been moved. inv[pack.place-now]"""
        changed = None if self._unmoved(root) else self._changes_since(root)
        return changed.rows.get(action.path, action.facts.remote) if changed else action.facts.remote

    def _put(self, action: Action, remote: Row | None) -> Entry:
        """The entry of an upload; bytes that the bucket had lost come back as what they were. inv[pack.identity]"""
        row = self.stager.rows[action.path]
        at = self.stager.modified.get(action.path, "")
        entry = Entry(action.path, row.key, row.size, row.sha256, at)
        healed = isinstance(remote, Entry) and remote.missing and remote.sha256 == row.sha256
        return replace(remote.rewritten(row.key), last_modified=at) if healed else entry  # type: ignore[union-attr]

    def _learned(self, root: Root) -> tuple[Entry, ...]:
        """Hashes of adopted content that reading it has taught us go along with a real commit."""
        found: list[Entry] = []
        for entry in root.entries.values():
            base = self.context.state.base(entry.path) if entry.sha256 is None else None
            if base is not None and base.sha256 and base.identity == entry.identity:
                found.append(replace(entry, sha256=base.sha256))
        return tuple(found)

    # -- record

    def _record(self, units: list[UnitPlan], done: Committed) -> None:
        """Base says what the bucket now holds; the mark moves only if this commit built on what was pulled."""
        with self.context.state.transaction() as tx:
            puts = {p.path: p.at(done.root.seq) for p in self.puts}
            tx.hold([self._recorded(a, puts[a.path]) for u in units for a in u.actions if a.verb == "push"])
            for action in (a for u in units for a in u.actions):
                if action.verb == "delete":
                    tx.drop_base(action.path)
                    tx.drop_staged_for(action.path)
                    tx.undefer(action.path)
                    self.stats.files_deleted += 1
            # Rows of what this commit delivered; those of directories go with the last one.
            committed = {a.path for u in units for a in u.actions}
            rows = tuple(r for r in self.compared.snapshot.rows if r.path in committed)
            delivered = replace(self.compared.snapshot, rows=rows)
            retired = {r.id for r in retire(tx, delivered, self.scope, self.stats.unresolved)}
            remember(tx, self.context, done.root, done.token, done.body)
            tx.set_meta("loggedOp", done.root.op)
            if done.token and builds_on_pulled(tx, done.root):
                mark_pulled(tx, done.root)
        if retired:
            self.compared.snapshot = replace(
                self.compared.snapshot, rows=tuple(r for r in self.compared.snapshot.rows if r.id not in retired)
            )
        self.stager.release(a.path for u in units for a in u.actions)
        if done.root.prev_op == self.compared.view.root.op or done.root.prev_op in self.own:
            self.own.add(done.root.op)
        self.read = RootRead(done.root, done.token, done.body) if done.token else self.context.committer.read()
        self.context.recent.read, self.context.recent.at = self.read, self.context.env.clock.monotonic()

    def _recorded(self, action: Action, entry: Entry) -> BaseRow:
        local = action.facts.local
        hint = trusted_stat(local.hint, self.compared.snapshot.at_ns) if local else None
        self.stats.files_pushed += 1
        self.stats.bytes_pushed += entry.size
        return BaseRow.of(entry, entry.sha256, True, hint)


def _known_hash(action: Action, remote: Entry) -> str | None:
    """The hash of what stands remotely: the index's, or what reading that very object has taught this cache."""
    base = action.facts.base
    return remote.sha256 or (base.sha256 if base is not None and base.key == remote.key else None)
