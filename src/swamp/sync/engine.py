"""Pushes, pulls, syncs and hydrates one cache and one store, and says how they stand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from swamp.cache.files import Staged, place
from swamp.cache.layout import CacheDir, sweep_staging
from swamp.cache.paths import resolve_inside, safe_path
from swamp.cache.rows import Pending
from swamp.cache.scan import Observed, scan
from swamp.cache.state import Hook, State, StateRebuilt, once_more
from swamp.commit.commit import Committer, RootRead
from swamp.commit.conditions import ConditionsVerdict
from swamp.env import SYSTEM, Env
from swamp.errors import NotFound, StoreError, Unavailable
from swamp.index.root import Root, Writer
from swamp.locks.flock import FileLock
from swamp.locks.leases import commit_lock
from swamp.store.port import UNSAFE, ObjectStore
from swamp.sync.apply import Mender
from swamp.sync.bulk import Download, Executor, Expect, Pick, Work
from swamp.sync.inline import Inline
from swamp.sync.observe import Planner
from swamp.sync.plan import Plan
from swamp.sync.port import Deferred, Kind, RemoteFile, Touched
from swamp.sync.progress import Cancel, IdleTimeout, Progress
from swamp.sync.pull import QUIET_NS
from swamp.sync.record import EngineContext, tree_exclusive, trusted_stat
from swamp.sync.record import Policy as Policy
from swamp.sync.result import LOST, Mode, SyncResult, unfetched
from swamp.sync.run import SyncRun, refresh
from swamp.sync.transfer import download_one
from swamp.sync.unchanged import has_taken_in, left_here, newest_mark, nothing_deferred, recalled
from swamp.sync.units import unit_of
from swamp.trace import traced
from swamp.values import value

P = ParamSpec("P")
T = TypeVar("T")


@value
class EngineStatus:
    """What can be said without asking the store."""

    seq: int
    last_sync_at: str | None
    pending: Pending
    files: int
    bytes: int
    remote_only: int
    left: int
    """Of those: left there on purpose, by a cache that fetches the rest."""
    conflicts: int
    tree: Path


def _compared(ask: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[Engine, P], T]:
    """A question to the state that is asked again if the state had to be begun again: after all was compared."""

    @wraps(ask)
    def asked(engine: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return ask(engine, *args, **kwargs)
        except StateRebuilt:
            engine._compare_again()
            return ask(engine, *args, **kwargs)

    return asked


class Engine:
    """Keeps one cache and one store in step. Safe to share between the threads of a process."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._store = context.committer.store

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        cache: CacheDir,
        *,
        writer: Writer,
        env: Env = SYSTEM,
        policy: Policy | None = None,
        progress: Progress | None = None,
        cancel: Cancel | None = None,
        pick: Pick | None = None,
        expect: Expect = lambda _: None,
        hook: Hook | None = None,
        durable: bool = True,
    ) -> Engine:
        """Opens a cache, new or old. Nothing is asked of the store yet."""
        policy = policy or Policy()
        cache.ensure()
        state = (
            State.open(cache.state_db, hook, durable=durable) if hook else State.open(cache.state_db, durable=durable)
        )
        alone = commit_lock(store, env, timeout=policy.lock_timeout, local=cache.base / "leases")
        said = recalled(state)
        ignored = said is not None or not policy.capabilities.safe

        def in_process(work: Work) -> Executor:
            return Inline(store, env, policy.pull_concurrency if work.stage == "download" else policy.push_concurrency)

        word = ConditionsVerdict(ignored, said, policy.measure, policy.doubted, policy.convicted)
        context = EngineContext(
            state=state,
            cache=cache,
            committer=Committer(store, writer, env, word, alone),
            env=env,
            policy=policy,
            pick=pick or in_process,
            expect=expect,
            progress=progress or Progress(),
            cancel=cancel or Cancel(),
            tree_lock=FileLock(cache.tree_lock, env),
            sync_lock=FileLock(cache.sync_lock, env),
        )
        return cls(context)

    @property
    def store_url(self) -> str:
        return self._store.url

    def close(self) -> None:
        self._context.state.close()

    # -- the tree, for those who write into it (sync.port.Tree)

    @property
    def root(self) -> Path:
        return self._context.cache.tree

    @property
    def context(self) -> EngineContext:
        """What the engine works with, for verification and repair."""
        return self._context

    @property
    def cache(self) -> CacheDir:
        return self._context.cache

    @property
    def state(self) -> State:
        return self._context.state

    @property
    def committer(self) -> Committer:
        return self._context.committer

    @contextmanager
    def announce(self, paths: Iterable[str], kind: Kind = "write", *, confirmed: bool = False) -> Iterator[None]:
        """Rows on disk before the first byte changes; nobody plans meanwhile. inv[journal.first]"""
        names = [safe_path(p) for p in paths]
        with self._context.tree_lock.shared(self._context.policy.lock_timeout):
            rows = self._expanded(names) if kind == "delete" else names
            self.state.announce(rows, kind, confirmed=confirmed)
            yield

    def _expanded(self, names: list[str]) -> list[str]:
        """One delete row per file, remote-only files included: absence alone is never a deletion."""
        rows: dict[str, None] = {}
        for name in names:
            rows.update(dict.fromkeys(row.path for row in self.state.base_below(name)))
            rows.update(dict.fromkeys(s.path for s in scan(self.root, name) if isinstance(s, Observed)))
        return list(rows)

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        told = ""
        try:
            for r in self.state.remote_only(prefix):
                told = r.path
                yield RemoteFile(r.path, r.size, r.sha256)
            return
        except StateRebuilt:
            self._compare_again()
        for r in self.state.remote_only(prefix):
            if r.path > told:
                yield RemoteFile(r.path, r.size, r.sha256)

    def _compare_again(self) -> None:
        """After the state was lost: what the store holds is known here again, without content. If it is away, the next
        sync compares. inv[cache.disposable]"""
        if self._context.tree_lock.shared_here:
            return  # in the middle of a change: its push compares
        with suppress(StoreError):
            self.before_commit(lazy=True).pull()

    @_compared
    def deferred(self, prefix: str) -> Sequence[Deferred]:
        found = self.state.deferred_below(prefix)
        return [Deferred(entry.path, why) for entry, why in found if not os.path.lexists(self.root / entry.path)]

    @_compared
    def touched_since(self, mark: int) -> Touched:
        return Touched(*self.state.touched_since(mark))

    @property
    def mender(self) -> Mender:
        """What vanished from the tree, and how it comes back."""
        return Mender(self._context, self.hydrate)

    @_compared
    def bring_back(self, prefix: str) -> None:
        self.mender.bring_back(prefix)

    @_compared
    def materialize(self, path: str) -> Path:
        """The local file or directory of `path`, fetched first where only the bucket has it."""
        for row in list(self.state.remote_only(path)):
            self.hydrate(row.path)
        for gone in self.mender.missing_at(path):
            self.hydrate(gone)
        found = resolve_inside(self.root, path)
        if not found.exists():
            raise NotFound(f"{path} does not exist in this datastore")
        return found

    @_compared
    def hydrate(self, path: str) -> Path:
        """Fetches one file that is not here. If the bucket has moved on, its whole unit is pulled."""
        row = self.state.base(path)
        if row is None or (row.present and os.path.lexists(self.root / path)):
            return resolve_inside(self.root, path)
        job = Download(path, row.key, row.size, row.sha256, str(self.cache.staging), self._context.now_ns() - QUIET_NS)
        idle_timeout = self._idle_timeout()
        got = download_one(self._store, job, self._context.env, idle_timeout, lambda _: idle_timeout.progressed())
        if got.file is None:
            if got.cause in LOST:  # a machine that still had it may have put it back under another key
                return self._pull_unit(path)
            raise unfetched(path, got.error, got.cause)
        staged = Staged(got.file, got.size, got.sha256 or "")
        with tree_exclusive(self._context), self.state.transaction() as tx:
            now = tx.base(path)
            if now == row and not tx.is_deleted(path) and not (self.root / path).exists():
                hint = place(staged, self.root, path)
                vouched = trusted_stat(hint, self._context.now_ns())
                tx.put_base(replace(row, sha256=got.sha256, present=True, hint=vouched))
                if row.present:  # it had vanished
                    tx.undefer(path)
                    tx.touch([path])
            else:
                staged.discard()
        return resolve_inside(self.root, path)

    def _pull_unit(self, path: str) -> Path:
        wanted = Engine(self._context.tuned(leave_large=False))
        result = wanted._run("pull", (unit_of(path),), full=False, hydrating=True)
        if result.failed:
            raise unfetched(path, result.failed[0].error, result.failed[0].cause)
        row = self.state.base(path)
        if row is not None and not row.present:  # no root spoke of it: a directory that is not mounted looks like this
            raise Unavailable(
                f"{path} could not be fetched: the store has nothing of what this cache knows",
                hint="`swamp datastore doctor` looks into it",
            )
        return resolve_inside(self.root, path)

    # -- sync

    def push(self, scope: tuple[str, ...] = (), *, full: bool = False, after_pull: bool = False) -> SyncResult:
        """Makes what was announced here true in the store. `full` also finds what nobody announced; `after_pull`: the
        root that a pull of this process read a moment ago will do for the plan."""
        return self._run("push", scope, full, after_pull=after_pull)

    def pull(
        self, scope: tuple[str, ...] = (), *, full: bool = False, ready: Callable[[], object] = lambda: None
    ) -> SyncResult:
        """Makes what is true in the store present here. Never pushes. `ready`: see `Planner`."""
        return self._run("pull", scope, full, ready=ready)

    def sync(self, scope: tuple[str, ...] = (), *, full: bool = False) -> SyncResult:
        """A pull, then a push on the same root."""
        return self._run("sync", scope, full)

    def before_commit(self, *, lazy: bool = False) -> Engine:
        """The same engine, for who pulls first and commits then. `lazy` leaves content in the store until somebody
        reads it; in a full cache it is owed: not in sync, and the next sync brings it. inv[sync.derived]"""
        context = self._context.tuned(hydrate="lazy") if lazy else self._context
        return Engine(replace(context, committing=True))

    @once_more
    def refresh(self, read: RootRead, wait: float = 60.0) -> SyncResult:
        """Takes in what is new in a root that a read has fetched and that harms nobody. Moves no mark."""
        idle_timeout = self._idle_timeout()
        with self._context.sync_lock.exclusive(wait):
            if read.root is not None and read.root.seq < newest_mark(self.state):
                # Another process has seen a later one while this one waited.
                read = Planner(self._context, idle_timeout).read()
            if read.root is None or has_taken_in(self.state, read.root.op):
                return SyncResult("pull", fast_path=True, seq=read.root.seq if read.root else 0)
            return refresh(self, read, idle_timeout)

    @once_more
    def plan(self, mode: Mode, scope: tuple[str, ...] = (), *, full: bool = False) -> Plan:
        """What `mode` would do. Changes nothing, here or there."""
        planner = Planner(self._context, self._idle_timeout())
        scope = tuple(unit_of(path) for path in scope)
        if mode != "push":
            planner.vanished = self.mender.vanished(scope or ("",))
        read = planner.previewed()
        hydrating = mode != "push" and not self._context.lazy
        compared = planner.compare(read, scope, full=full, hydrating=hydrating, dry=True)
        return compared.planned

    def _idle_timeout(self) -> IdleTimeout:
        return IdleTimeout(self._context.env, self._context.policy.timeout, self._context.cancel)

    @traced(lambda engine, mode, *_, **__: (mode, {"store": engine.store_url}))
    @once_more
    def _run(
        self,
        mode: Mode,
        scope: tuple[str, ...],
        full: bool,
        hydrating: bool | None = None,
        after_pull: bool = False,
        ready: Callable[[], object] = lambda: None,
    ) -> SyncResult:
        """One command: timed, metered, alone in this cache."""
        clock = self._context.env.clock
        started, requests = clock.monotonic(), _requests(self._store)
        idle_timeout = self._idle_timeout()
        want = (not self._context.lazy) if hydrating is None else hydrating
        scope = tuple(unit_of(path) for path in scope)  # inv[unit.whole]: a scope never cuts a version in two
        with self._alone():
            sweep_staging(self.cache.staging, clock.now().timestamp())
            if mode != "push":
                self.mender.note(scope or ("",))
            planner = Planner(self._context, idle_timeout, ready=ready)
            result = SyncRun(self, planner, idle_timeout, scope, full, want, after_pull).run(mode)
        result = replace(result, warnings=(*result.warnings, *planner.warnings))
        if not self.committer.enforced:
            result = replace(result, warnings=(*result.warnings, UNSAFE))
        return replace(
            result,
            mode=mode,
            requests=_requests(self._store) - requests,
            duration_ms=int((clock.monotonic() - started) * 1000),
        )

    def _alone(self) -> AbstractContextManager[None]:
        """One push or pull at a time in this cache."""
        policy = self._context.policy
        return self._context.sync_lock.exclusive(max(policy.lock_timeout, policy.timeout))

    # -- status

    @once_more
    def status(self) -> EngineStatus:
        files, size, remote = self.state.base_count()
        kept = sum(1 for p in self.cache.conflicts.rglob("*") if p.is_file())
        return EngineStatus(
            seq=int(self.state.meta("pulledSeq") or 0),
            last_sync_at=self.state.meta("lastSyncAt"),
            pending=self.state.pending(),
            files=files,
            bytes=size,
            remote_only=remote,
            left=sum(1 for _ in left_here(self.state)) if remote and self._context.policy.leave_large else 0,
            conflicts=kept,
            tree=self.root,
        )

    def knows_all(self, within: float = float("inf")) -> bool:
        """Whether all that the root holds which this process has read or committed last is in the tree."""
        root = self._context.recent.root(within, self._context.env.clock)
        return root is not None and self._context.committer.enforced and self.nothing_to_pull(root)

    def in_sync(self, root: Root) -> bool:
        """Computed, never a flag: nothing owed in either direction, and the recorded pull is this root."""
        return self.state.journal_empty() and self.nothing_to_pull(root)

    def nothing_to_pull(self, root: Root) -> bool:
        """inv[sync.derived]"""
        state, policy = self.state, self._context.policy
        return (
            state.meta("storeId") == root.store_id
            and state.meta("pulledOp") == root.op
            and nothing_deferred(state, self.root, lazy=self._context.lazy, leave_large=policy.leave_large)
        )


def _requests(store: ObjectStore) -> int:
    """Requests so far, where a meter counts them."""
    return int(getattr(store, "requests", 0))
