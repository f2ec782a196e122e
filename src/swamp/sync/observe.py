"""Compares cache and store and plans: journal, root, facts, hashes, plan. Everything before the first effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from swamp.cache.paths import ancestors
from swamp.cache.scan import ScanProblem
from swamp.commit.commit import RootRead
from swamp.commit.log import LogStatus, is_newest, log_status, put_log
from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry, Row
from swamp.index.pack import open_payload
from swamp.index.read import read_root
from swamp.index.root import ROOT_KEY, Root, decode, first_root
from swamp.sync.bulk import Executor, Hash, Work
from swamp.sync.decide import Facts
from swamp.sync.gather import Gathered, Gatherer, Snapshot, learn, with_grown_base
from swamp.sync.plan import Plan, PlanPolicy, plan
from swamp.sync.progress import IdleTimeout
from swamp.sync.record import EngineContext, mark_read, tree_exclusive
from swamp.sync.unchanged import refuse_put_back
from swamp.sync.units import unit_of
from swamp.sync.view import View, is_of_store, view_root
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.commit.bootstrap import Bootstrapped

JUST_S: Final = 2.0
ANOTHER_STORE: Final = (
    "the store is not the one this machine knew (emptied, re-created or replaced): "
    "everything was compared again and nothing was removed"
)


Covers = Literal["all", "some", "end"]
"""Every path; a portion of them, with more to come; or none, after the last portion."""


@mutable
class Comparison:
    """What a comparison of cache and store saw, and the plan of what is to be done about it."""

    view: View
    snapshot: Snapshot
    planned: Plan
    problems: list[ScanProblem]
    unread: set[str]
    hidden: dict[str, Row | None] = field(default_factory=dict)
    """Paths that could not be looked at here, with what the root says: a pull defers them."""
    executor: Executor | None = None
    changing: frozenset[str] = frozenset()
    """Of the unread: files that were written while they were read. Nothing is wrong with them. inv[scan.honest]"""
    covers: Covers = "all"
    """How much of what the root may have changed was compared: the mark moves when that was all of it."""


@mutable
class Planner:
    """Reads the root and makes plans for one engine."""

    context: EngineContext
    idle_timeout: IdleTimeout
    executor: Executor | None = None
    warnings: list[str] = field(default_factory=list)
    vanished: Mapping[str, Row] = field(default_factory=dict)
    """What a dry run found gone from the tree: a real one has noted it as owed."""
    changing: set[str] = field(default_factory=set)
    """Files that were written while they were hashed."""
    ready: Callable[[], object] = lambda: None
    """Asked before the first file is fetched, and before a root is made or put right: whoever raises there has had
    nothing changed, here or in the store."""

    def read(self) -> RootRead:
        """The root: one conditional request; an unchanged one is the copy that is kept here."""
        state, store = self.context.state, self.context.committer.store
        token = state.meta("seenToken")
        if token is None or state.meta("seenBody") is None:
            return self.context.committer.read()
        try:
            fetched = store.get_if_changed(ROOT_KEY, token)
        except ObjectMissing:
            return RootRead(None, None)
        if fetched is None and (kept := self._kept()) is not None:
            return kept
        root, fetched = read_root(store, fetched)
        return RootRead(root, fetched.meta.token, fetched.body)

    def _kept(self) -> RootRead | None:
        """The root that was seen last, as it is kept here."""
        token, body = self.context.state.meta("seenToken"), self.context.state.meta("seenBody")
        if token is None or body is None:
            return None
        kept = body.encode("utf-8", "surrogatepass")
        return RootRead(decode(kept), token, kept)

    def _nothing_pending(self) -> bool:
        """Where conditions are not enforced, whether no commit of this machine can stand there without its record: then
        the log's names tell all. Else what it left behind would be decided as if that commit had not been."""
        state = self.context.state
        return not self.context.committer.enforced and state.journal_empty() and not state.staged_keys()

    def _was_empty(self) -> bool:
        """Whether a pull has just found nothing at all: the first root is created only where there still is none."""
        recent = self.context.recent
        nothing = recent.read is not None and recent.read.root is None and recent.read.token is None
        return nothing and self.context.env.clock.monotonic() - recent.at <= JUST_S

    def just_read(self) -> RootRead | None:
        """The root that a pull of this process has read within the last moments; it is handed out once."""
        recent = self.context.recent
        read = recent.read
        recent.read = read if read is not None and read.root is None else None
        if read is None or read.root is None or self.context.env.clock.monotonic() - recent.at > JUST_S:
            return None
        # Another thread of this process may have pushed since: then it is not what was seen last.
        state = self.context.state
        seen = read.token == state.meta("seenToken") and read.root.seq >= int(state.meta("pulledSeq") or 0)
        certain = self.context.committer.enforced or not state.staged_keys()  # see `_nothing_pending`
        return read if seen and certain else None

    def unused(self, read: RootRead) -> None:
        """Nothing was built on a root that was handed out: who comes next within the same moments may have it."""
        recent = self.context.recent
        recent.read = recent.read or read

    def bootstrapped(self, *, create: bool) -> Bootstrapped:
        """The root, made from a listing, an older format or the log where there is none."""
        found = self._bootstrapped(create=create)
        self.context.recent.read, self.context.recent.at = found.read, self.context.env.clock.monotonic()
        return found

    def _bootstrapped(self, *, create: bool) -> Bootstrapped:
        from swamp.commit.bootstrap import Bootstrapped, bootstrap, repair

        committer, pace = self.context.committer, self.idle_timeout.check
        kept = self._kept() if self.context.committing and self._nothing_pending() else None
        if kept is not None and kept.root is not None and is_newest(committer.store, kept.root):
            return Bootstrapped(kept)  # a root that was written late is met, and put right, by the commit
        if create and self._was_empty():
            return bootstrap(committer, pace, create=True, known=RootRead(None, None), empty=True)
        try:
            read = self.read()
        except CorruptData:
            self.await_ready()
            return bootstrap(committer, pace, create=create)
        refuse_put_back(self.context.state, read.root)
        if read.root is None:
            self.await_ready()
            # Listed by Spark, where Spark was asked for or is at hand.
            listed = lambda: self.context.pick(Work("discover", 0, 0)).discover(committer, self.idle_timeout)  # noqa: E731
            return bootstrap(committer, pace, create=create, known=read, discover=listed)
        committer.word.hear(read.root)
        stands = self._log_status(read)
        if stands != "recorded":
            self.await_ready()
        if stands == "rolled back":
            return repair(committer, pace)
        if stands == "unrecorded":
            # A root that may yet be put aside is no reason to retire anything.
            return Bootstrapped(committer.confirmed(pace))
        committer.word.refuse_lost(read.root)
        return Bootstrapped(read)

    def await_ready(self) -> None:
        """Who is asked has time limits of its own."""
        self.ready()
        self.idle_timeout.progressed()

    def stands(self, read: RootRead) -> bool:
        """Whether this root may be believed as it is: where conditions are enforced, always."""
        return self._log_status(read) == "recorded"

    def _log_status(self, read: RootRead) -> LogStatus:
        """Where conditions are not enforced a late write can undo later commits: the log still knows them.

        Also where the root is byte for byte the one seen last: it may be the very one that was written late.
        """
        if self.context.committer.enforced or read.root is None:
            return "recorded"
        return log_status(self.context.committer.store, read.root)

    def _gathered(self, gatherer: Gatherer, most: int | None) -> Iterator[Gathered]:
        """The facts in portions; where everything is compared, by the engine that so many rows are worth."""
        if not gatherer.everything:
            return gatherer.gathered(most)
        rows = self.context.state.base_rows() + gatherer.view.root.files_at_most
        executor = self.context.pick(Work("compare", rows, 0))
        if executor.name == "spark":  # the result tells who did bulk work, and comparing in process is none
            self.executor = executor
        return executor.compare(gatherer, most, self.context, self.idle_timeout)

    def previewed(self) -> RootRead:
        """What a dry run compares with: the root, or what would come to stand there first. Writes nothing."""
        from swamp.commit.bootstrap import preview

        try:
            read = self.read()
        except CorruptData:
            read = RootRead(None, None)
        if read.root is not None:
            refuse_put_back(self.context.state, read.root)
            return read
        committer = self.context.committer
        empty = first_root("", "", rfc3339(self.context.env.clock.now()), committer.writer)
        return RootRead(preview(committer) or empty, None)

    def compare(
        self, read: RootRead, scope: tuple[str, ...], *, full: bool, hydrating: bool, dry: bool = False
    ) -> Comparison:
        """Facts and plan against `read`. inv[journal.survives]: rows announced from now on belong to the next sync."""
        return self._planned(self._gatherer(read, scope, full=full, hydrating=hydrating, dry=dry))

    def plan_changes(self, read: RootRead, view: View) -> Comparison:
        """Facts and plan of what `view` says is new. Asks nothing more of this machine's past, and writes nothing."""
        return self._planned(self._gatherer(read, (), full=False, hydrating=False, dry=True, view=view))

    def portions(self, read: RootRead, scope: tuple[str, ...], *, full: bool, hydrating: bool) -> Iterator[Comparison]:
        """The same, a portion of the paths at a time where none needs another's facts: so a first pull of any size
        holds one portion (docs/decisions/0009-what-the-driver-holds.md)."""
        gatherer = self._gatherer(read, scope, full=full, hydrating=hydrating)
        most = self.context.policy.portion
        if gatherer.view.root.files_at_most <= most or not gatherer.is_plain():
            yield self._planned(gatherer)
            return
        for gathered in self._gathered(gatherer, most):
            yield replace(self._planned(gatherer, gathered), covers="some")
        yield Comparison(gatherer.view, gatherer.snapshot, Plan(), [], set(), executor=self.executor, covers="end")

    def _gatherer(
        self,
        read: RootRead,
        scope: tuple[str, ...],
        *,
        full: bool,
        hydrating: bool,
        dry: bool = False,
        view: View | None = None,
    ) -> Gatherer:
        assert read.root is not None
        if not dry:
            self.bind(read.root)
            self._log(read)
        snapshot = self._snapshot()
        try:
            view = view or view_root(self.context.committer.store, self.context.state, read.root, everything=full)
        except ObjectMissing as gone:
            raise CorruptData(
                f"the index names a segment that is not there: {gone}", hint="run: swamp datastore doctor --repair"
            ) from gone
        return Gatherer(
            state=self.context.state,
            tree=self.context.cache.tree,
            view=view,
            snapshot=snapshot,
            scope=scope,
            full_local=full,
            exclude=self.context.policy.exclude,
            deferred={**self.vanished, **self.context.state.deferred()},
            hydrating=hydrating,
            lazy=self.context.lazy and not hydrating,
            leave_large=self.context.policy.leave_large,
        )

    def _planned(self, gatherer: Gatherer, gathered: Gathered | None = None) -> Comparison:
        """The plan for one portion; for all, if none is given."""
        view, snapshot = gatherer.view, gatherer.snapshot
        if gathered is None:
            (gathered,) = self._gathered(gatherer, None)
        facts, unread = learn(gathered.facts, self._hash_local, self._hash_remote)
        tree, store = self.context.cache.tree, self.context.committer.store
        facts = [with_grown_base(f, tree, store) for f in facts]
        blocked = frozenset(unit_of(p) for p in [*unread, *gathered.hidden])
        planned = plan(facts, self._plan_policy(snapshot, gatherer.hydrating), _Clash(self.context, view), blocked)
        hidden = dict(gathered.hidden)
        if blocked:
            hidden |= {f.path: f.remote for f in gathered.facts if unit_of(f.path) in blocked}
        changing = frozenset(unread & self.changing)
        return Comparison(view, snapshot, planned, gathered.problems, unread, hidden, self.executor, changing)

    def _log(self, read: RootRead) -> None:
        """A root that may be my own unrecorded commit has its record before anything is retired on its word.

        inv[commit.logged]
        """
        committer, state = self.context.committer, self.context.state
        root = read.root
        if root is None or not read.body or not state.staged_keys() or state.meta("loggedOp") == root.op:
            return
        if not committer.enforced:
            return  # `bootstrapped` has seen its record
        put_log(committer.store, committer.env, root, read.body)
        with state.transaction() as tx:
            tx.set_meta("loggedOp", root.op)

    def bind(self, root: Root) -> None:
        """Another store's truth says nothing here: base and delete rows are void. inv[state.bound]"""
        state = self.context.state
        if is_of_store(state, root):
            return
        known = state.meta("storeId")
        with state.transaction() as tx:
            if known is not None:
                tx.void_base()
                tx.drop_all_deletes()
                tx.set_meta("pulledOp", None)
                tx.set_meta("pulledSeq", None)
                mark_read(tx, None)
            tx.set_meta("storeId", root.store_id)
        if known is not None:
            self.warnings.append(ANOTHER_STORE)

    def _snapshot(self) -> Snapshot:
        """The journal while nobody mutates: every row in it has happened, or never will."""
        at = self.context.now_ns()
        with tree_exclusive(self.context):
            rows = tuple(self.context.state.journal())
            last = rows[-1].id if rows else 0
            if not rows:  # in here: what is announced next is not of this look
                with self.context.state.transaction() as tx:
                    last = tx.last_row()
        return Snapshot(rows, last, at)

    def _plan_policy(self, snapshot: Snapshot, hydrating: bool) -> PlanPolicy:
        policy = self.context.policy
        confirmed = {r.path for r in snapshot.rows if r.kind == "delete" and r.confirmed}
        return PlanPolicy(
            lazy=self.context.lazy and not hydrating,
            leave_large=policy.leave_large,
            delete_fraction=policy.delete_fraction,
            delete_floor=policy.delete_floor,
            allow_deletes=policy.allow_deletes,
            index_size=self.context.state.base_rows() if any(r.kind == "delete" for r in snapshot.rows) else 0,
            confirmed=lambda path: path in confirmed,
        )

    # -- hashes

    def _hash_local(self, facts: list[Facts]) -> dict[str, str]:
        """Hashes that hold for the very file that was looked at: one that changed meanwhile is left out."""
        if not facts:
            return {}
        tree = self.context.cache.tree
        jobs = [Hash(f.path, str(tree / f.path), f.local.size if f.local else 0) for f in facts]
        executor = self.executor = self.context.pick(Work("hash", len(jobs), sum(j.size for j in jobs)))
        seen = {f.path: f.local for f in facts}
        found: dict[str, str] = {}
        self.changing.clear()
        for done in executor.hash(jobs, self.idle_timeout):
            local = seen[done.path]
            if done.sha256 is not None and local is not None and done.hint == local.hint:
                found[done.path] = done.sha256
            elif done.sha256 is not None:
                self.changing.add(done.path)
        return found

    def _hash_remote(self, entry: Entry) -> str | None:
        """The hash of adopted content, read once; None when it is not there to be read."""
        import hashlib

        digest = hashlib.sha256()
        try:
            with open_payload(self.context.committer.store, entry.key, entry.size) as body:
                for chunk in body:
                    digest.update(chunk)
                    self.idle_timeout.progressed()
        except ObjectMissing:
            return None
        return digest.hexdigest()


@value
class _Clash:
    """Paths of the store that cannot stand beside a new one: what base knows, less what the root has deleted since."""

    context: EngineContext
    view: View

    @cached_property
    def _has_base(self) -> bool:
        """Whether this cache knows anything of the store: a first push asks nobody for each of its files."""
        return self.context.state.has_base()

    def __call__(self, path: str, leaving: frozenset[str]) -> str | None:
        others = [*self.context.state.folded(path), *self.context.state.overlapping(path)] if self._has_base else []
        for other in others:
            if other in leaving:
                continue
            row = self.view.delta.get(other)
            if row is None or isinstance(row, Entry):
                return other
        if not self.view.delta:
            return None
        return next((a for a in ancestors(path) if isinstance(self.view.delta.get(a), Entry)), None)
