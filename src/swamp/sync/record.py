"""Holds what a push or pull works with, and records its effects: retired journal rows, the pulled mark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Any, Literal

from swamp.cache.files import StatFingerprint, trusted
from swamp.cache.layout import CacheDir
from swamp.cache.paths import ancestors, is_below
from swamp.cache.rows import JournalRow, Transaction
from swamp.cache.state import State
from swamp.commit.commit import Committer, RootRead
from swamp.env import Clock, Env, rfc3339
from swamp.index.root import Root
from swamp.locks.flock import FileLock
from swamp.store.port import Capabilities
from swamp.sync.bulk import Executor, Expect, Pick
from swamp.sync.gather import Scope, Snapshot
from swamp.sync.progress import Cancel, Progress
from swamp.sync.result import COUNTS, LOST, Cause, Conflict, FailedFile, Mode, SyncResult
from swamp.sync.unchanged import SEEN_OP, recall
from swamp.sync.units import name_of
from swamp.values import mutable, value


@mutable
class Recent:
    """The root that was read last, and when: who pushes right after a pull need not ask for it again. Nothing rests on
    it: a commit is swapped on the token that was read, and made again on whatever stands there instead."""

    read: RootRead | None = None
    at: float = 0.0

    def root(self, within: float, clock: Clock) -> Root | None:
        """The root, if it was read or committed so many seconds ago at most."""
        return None if self.read is None or clock.monotonic() - self.at > within else self.read.root


@value
class Policy:
    """What can be tuned about an engine."""

    hydrate: Literal["full", "lazy"] = "full"
    leave_large: bool = False
    """Whether a full cache leaves large parts of Spark datasets in the store until they are read."""
    push_concurrency: int = 32
    pull_concurrency: int = 32
    timeout: float = 300.0
    """Seconds *without progress* after which a sync gives up."""
    lock_timeout: float = 60.0
    commit_every: float = 60.0
    delete_fraction: float = 0.2
    delete_floor: int = 100
    allow_deletes: int | None = None
    packs: bool = False
    """Whether a push puts small files together into packs, where the store's format knows slices."""
    portion: int = 50_000
    """Paths that a first pull holds at a time: about 70 MB, and some seconds of transfer."""
    exclude: Callable[[str, bool], bool] = lambda path, directory: False
    capabilities: Capabilities = field(default_factory=Capabilities)
    measure: Callable[[], bool] | None = None
    """Finds out by trying whether the store ignores conditions: for its first root, and where there is doubt."""
    doubted: bool = False
    """Whether this machine has once measured something else than the store's roots say."""
    convicted: bool = False
    """Whether it has measured lately that the store ignores conditions."""


@value
class EngineContext:
    """What one engine works with: its state, its cache, its committer, its locks and its policy."""

    state: State
    cache: CacheDir
    committer: Committer
    env: Env
    policy: Policy
    pick: Pick
    expect: Expect
    progress: Progress
    cancel: Cancel
    tree_lock: FileLock
    sync_lock: FileLock
    recent: Recent = field(default_factory=Recent)
    committing: bool = False
    """A commit follows what is pulled, and compares the root with the log under its lease."""

    @property
    def lazy(self) -> bool:
        return self.policy.hydrate == "lazy"

    def tuned(self, **changes: Any) -> EngineContext:
        """The same with a policy in which these fields are others."""
        return replace(self, policy=replace(self.policy, **changes))

    def now_ns(self) -> int:
        return int(self.env.clock.now().timestamp() * 1e9)


def tree_exclusive(context: EngineContext) -> AbstractContextManager[None]:
    """Nobody mutates the tree meanwhile."""
    return context.tree_lock.exclusive(context.policy.lock_timeout)


def trusted_stat(hint: StatFingerprint, observed_ns: int) -> StatFingerprint | None:
    """The stat, if it stands for the bytes that were looked at no earlier than `observed_ns`. inv[hint.racy]

    The moment that counts is the one *before* the bytes were read: a rewrite between the reading and the record can
    hide in the same tick of the file system's clock.
    """
    return hint if trusted(hint, observed_ns) else None


@mutable
class SyncStats:
    """Counts of one push or pull while it runs."""

    mode: Mode
    files_pushed: int = 0
    files_pulled: int = 0
    files_deleted: int = 0
    bytes_pushed: int = 0
    bytes_pulled: int = 0
    deletes_held: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unresolved: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    """Directories of data names whose versions came or went."""
    warnings: list[str] = field(default_factory=list)
    executor: Executor | None = None
    again: bool = False
    """Something moved meanwhile: another look at the newest root is worth it."""
    moving: set[str] = field(default_factory=set)
    """Units that another look is worth."""
    causes: dict[str, Cause] = field(default_factory=dict)
    """Of failures by which somebody decides."""

    @property
    def lost(self) -> bool:
        """A payload that the root names was not there, or was another one."""
        return any(cause in LOST for cause in self.causes.values())

    def fail(self, path: str, why: str, cause: Cause | None = None) -> None:
        self.failed[path] = why
        self.unresolved.add(path)
        if cause is not None:
            self.causes[path] = cause

    def look_again(self, units: set[str]) -> None:
        """These moved under this push or pull: the newest root is read and they are decided once more."""
        self.moving |= units
        self.unresolved |= units
        self.again |= bool(units)

    @property
    def changed(self) -> bool:
        """A file was written while it was read: another look finds it whole."""
        return "changed" in self.causes.values()

    def leave_moving(self) -> None:
        """No round is left for what moved in every one of them: said by name, for the next sync. C02"""
        for path in self.moving - self.failed.keys():
            self.fail(path, "it changed again and again while it was pushed; the next sync takes it", "changed")

    def touch(self, paths: Iterable[str]) -> None:
        self.names.update(name for path in paths if (name := name_of(path)) is not None)

    def result(self, root: Root | None) -> SyncResult:
        used = self.executor
        return SyncResult(
            mode=self.mode,
            **{name: getattr(self, name) for name in COUNTS},
            conflicts=tuple(self.conflicts),
            failed=tuple(FailedFile(p, e, self.causes.get(p)) for p, e in sorted(self.failed.items())),
            engine=used.name if used else "none",
            engine_reason=used.reason if used else "",
            spark=used.report() if used else None,
            seq=root.seq if root else 0,
            deletes_held=self.deletes_held,
            warnings=tuple(self.warnings),
            names=frozenset(self.names),
        )


def retire(tx: Transaction, snapshot: Snapshot, scope: Scope, unresolved: Iterable[str]) -> list[JournalRow]:
    """Drops the snapshot's rows whose paths now equal base, and that nobody announced again; says which they were.

    inv[journal.survives]
    """
    done = _settled_rows(snapshot, scope, set(unresolved))
    if done and tx.rows_after(snapshot.last, snapshot.own):
        done = [r for r in done if not tx.newer_row_over(r.path, snapshot.last, snapshot.own)]
    tx.drop_journal(r.id for r in done)
    return done


def _settled_rows(snapshot: Snapshot, scope: Scope, open_paths: set[str]) -> list[JournalRow]:
    """The announcements of a snapshot that this push or pull has dealt with: in its scope, nothing left open."""
    if not scope and not open_paths:
        return list(snapshot.rows)
    above = {a for p in open_paths for a in ancestors(p)}
    rows = (r for r in snapshot.rows if not scope or any(is_below(r.path, prefix) for prefix in scope))
    return [r for r in rows if r.path not in above and open_paths.isdisjoint((r.path, *ancestors(r.path)))]


def remember(tx: Transaction, context: EngineContext, root: Root, token: str | None, body: bytes) -> None:
    """The root as last seen by a sync: the next conditional GET asks for anything newer."""
    see(tx, root, token, body)
    tx.set_meta("lastSyncAt", rfc3339(context.env.clock.now()))


def see(tx: Transaction, root: Root, token: str | None, body: bytes) -> None:
    """The same for who only looked: nothing is claimed to be in step."""
    asks = any(entry.missing for entry in root.entries.values())  # bytes that the bucket lost, and we may have (L32)
    tx.set_meta("seenToken", token)
    tx.set_meta("seenRoot", root.op)
    tx.set_meta(SEEN_OP, None if asks else root.op)
    tx.set_meta("seenBody", body.decode("utf-8", "surrogatepass") if token else None)
    tx.set_meta("storeId", root.store_id)
    recall(tx, root)


def builds_on_pulled(tx: Transaction, root: Root) -> bool:
    """Whether a commit of mine follows the very root that was pulled: only then does the mark move with it."""
    return root.prev_op == tx.meta("pulledOp")


def mark_pulled(tx: Transaction, root: Root) -> None:
    """From now on only what comes after this root is news. inv[sync.derived]"""
    tx.set_meta("pulledSeq", str(root.seq))
    tx.set_meta("pulledOp", root.op)
    mark_read(tx, None)


def mark_read(tx: Transaction, root: Root | None, waiting: int = 0) -> None:
    """The newest root of which a read has taken in what harms nobody; None: a pull has taken in more than that.
    `waiting` units hold news that wait for a sync.

    It is no claim to be in sync. It saves the next read from looking again, and it binds the rows of base that a read
    wrote to the history they came from. inv[state.bound]
    """
    tx.set_meta("readSeq", None if root is None else str(root.seq))
    tx.set_meta("readOp", None if root is None else root.op)
    before = int(tx.meta("readWaits") or 0) if root is not None else 0
    tx.set_meta("readWaits", str(before + waiting) if before + waiting else None)
