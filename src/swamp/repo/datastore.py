"""A repository's datastore: opened when needed, hydrated once, synced on demand."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.cache.layout import CacheDir, cache_dir
from swamp.env import Env
from swamp.errors import StoreError, Unavailable, UsageError
from swamp.repo.config import DatastoreConfig
from swamp.repo.layout import LOCAL_DIRECTORY, excluder
from swamp.repo.open import BUILT_IN, client_settings, in_namespace, open_bucket, writer_of
from swamp.settings import Settings
from swamp.store.port import UNSAFE, Capabilities, ObjectStore
from swamp.sync.port import PlainTree, Tree
from swamp.sync.progress import Cancel, Patience, Progress
from swamp.sync.result import Mode, SyncResult

if TYPE_CHECKING:
    from swamp.commit.lease_scope import Leases as StoreLeases
    from swamp.pipeline.choose import Chooser
    from swamp.repo.leases import DirectoryLeases, Leases
    from swamp.repo.maintain import Maintenance
    from swamp.store.layers import MeterStore
    from swamp.store.open import StoreSpec
    from swamp.sync.engine import Engine, Policy
    from swamp.sync.plan import Plan


@dataclass(frozen=True)
class Context:
    """What every datastore that a command opens shares."""

    repo: Path
    repo_id: str
    settings: Settings
    env: Env
    cancel: Cancel
    progress: Progress
    notify: Callable[[str], None]


class Datastore:
    """The datastore that a `datastore` block describes. `filesystem` is a plain directory without sync."""

    def __init__(self, context: Context, config: DatastoreConfig) -> None:
        self.context = context
        self.config = config
        self.silence: Unavailable | None = None
        """What the first question to the store ran into, until somebody was told."""

    # -- where it is

    @property
    def synced(self) -> bool:
        return self.config.synced

    @cached_property
    def directory(self) -> Path:
        """The directory of a filesystem datastore."""
        if self.config.path is None:
            return self.context.repo / LOCAL_DIRECTORY
        return self.context.repo / Path(self.config.path).expanduser()

    @cached_property
    def bucket(self) -> ObjectStore:
        """The store without its namespace."""
        return open_bucket(self.config, self.context.env, _store_settings(), self.context.settings.sync_timeout)

    @cached_property
    def store(self) -> MeterStore:
        """The store that everything here talks to: inside its namespace, and counted."""
        from swamp.store.layers import MeterStore

        return MeterStore(in_namespace(self.bucket, self.config.namespace))

    @property
    def url(self) -> str:
        return self.store.url if self.synced else self.directory.as_uri()

    @property
    def address(self) -> str:
        """What `setup` was told: without the namespace and the endpoint, which are said beside it."""
        return self.bucket.url.partition("?")[0] if self.synced else self.directory.as_uri()

    @property
    def endpoint(self) -> str | None:
        return self.bucket.url.partition("?endpoint=")[2] or None if self.synced else None

    @cached_property
    def cache(self) -> CacheDir:
        home = self.context.settings.home
        return cache_dir(home, self.context.repo_id, self.bucket.url, self.config.namespace)

    @property
    def identity_file(self) -> Path:
        """Beside the tree, so that it is lost with the cache: see `audit`."""
        return (self.cache.base if self.synced else self.directory) / "_writer"

    # -- its parts

    @cached_property
    def engine(self) -> Engine | None:
        """The engine of this process, one for all repositories in it; None for a plain directory."""
        if not self.synced:
            return None
        from swamp.sync.engine import Engine

        context = self.context
        return Engine.open(
            self.store,
            self.cache.ensure(),
            writer=writer_of(context.repo_id),
            env=context.env,
            policy=self._policy(),
            progress=context.progress,
            cancel=context.cancel,
            pick=self.chooser,
            expect=self.chooser.expect,
        )

    @cached_property
    def spec(self) -> StoreSpec | None:
        """How executors open this store, inside its namespace; None for a plug-in's, which they cannot."""
        from swamp.store.open import StoreSpec

        if self.config.type not in BUILT_IN and self.config.url is None:
            return None
        url = self.config.url or self.config.type
        config = client_settings(self.config, _store_settings(), self.context.settings.sync_timeout)
        return StoreSpec(url, config, self.config.namespace, gentle=not self.capabilities.safe)

    @cached_property
    def _bulk_store(self) -> ObjectStore:
        """Where many uploads go at once. A server that ignores conditions often is a directory with a door."""
        from swamp.store.gentle import GentleStore

        return self.store if self.capabilities.safe else GentleStore(self.store)

    @cached_property
    def chooser(self) -> Chooser:
        """Which engine does bulk work here, and the Spark session if it is needed."""
        from swamp.pipeline.choose import Chooser

        settings = self.context.settings
        return Chooser(
            setting=settings.engine,
            block=settings.spark,
            address=self.spec,
            store=self._bulk_store,
            cache=self.cache.ensure().base,
            progress=self.context.progress,
            push_threads=settings.push_concurrency,
            pull_threads=settings.pull_concurrency,
            meter=self.store.meter,
            patience=Patience(self.context.env, settings.sync_timeout, self.context.cancel),
        )

    def _policy(self) -> Policy:
        from swamp.sync.engine import Policy

        settings = self.context.settings
        return Policy(
            hydrate="lazy" if self.config.hydrate == "lazy" else "full",
            push_concurrency=settings.push_concurrency,
            pull_concurrency=settings.pull_concurrency,
            timeout=settings.sync_timeout,
            lock_timeout=settings.lock_timeout,
            allow_deletes=settings.allow_deletes,
            exclude=excluder(self.config.exclude, self.config.directories),
            capabilities=self.capabilities,
        )

    def must_sync(self) -> Engine:
        """The engine. Raises UsageError for a plain directory."""
        if self.engine is None:
            raise UsageError(
                "this repository's datastore is a plain directory without sync",
                hint="share it with `swamp datastore setup s3://bucket/prefix`",
            )
        self.must_have_answered()
        return self.engine

    @property
    def tree(self) -> Tree:
        return self.engine or PlainTree(self.directory)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What this store was seen to enforce: as recorded in this cache, else found out now."""
        from swamp.repo.probe import known_capabilities

        return known_capabilities(self)

    @cached_property
    def leases(self) -> Leases:
        return self.store_leases if self.synced else self.directory_leases

    @cached_property
    def directory_leases(self) -> DirectoryLeases:
        from swamp.repo.leases import DirectoryLeases

        context = self.context
        return DirectoryLeases(self.directory / ".locks", context.env, context.settings.lock_timeout)

    @cached_property
    def store_leases(self) -> StoreLeases:
        from swamp.commit.lease import AWAY_S, Holder
        from swamp.commit.lease_scope import Leases as StoreLeases

        context = self.context
        limits = context.settings.sync_timeout, context.settings.request_timeout
        return StoreLeases(
            self.store,
            Holder.of_process(),
            context.env,
            timeout_s=context.settings.lock_timeout,
            capabilities=self.capabilities,
            local_lock_dir=context.settings.home / "locks",
            on_lost=lambda why: context.notify(f"Warning: the lease was lost: {why}"),
            away_s=min(AWAY_S, *limits),
        )

    @cached_property
    def maintenance(self) -> Maintenance:
        """status, doctor, verify, gc, compact, undelete, log, lock, namespace."""
        from swamp.repo.maintain import Maintenance

        return Maintenance(self)

    def must_have_answered(self) -> None:
        """Raises Unavailable, once, if this process has just asked in vain: nobody waits twice for one silence."""
        silence, self.silence = self.silence, None
        if silence is not None:
            raise silence

    def must_be_there(self) -> None:
        """Raises Unavailable if the bucket's directory is gone: away, not empty. `setup` and pushes make it."""
        where = self._directory_of_bucket()
        if where is None or not self.is_away:
            return
        gone = "is not a directory" if where.exists() else "is not there"
        raise Unavailable(
            f"the datastore {self.url} {gone}",
            hint="mount it or put it back; if it is lost, `swamp datastore sync` makes it again from what is here",
            details={"store": self.url},
        )

    @property
    def is_away(self) -> bool:
        """Whether the directory that is its bucket is not there."""
        where = self._directory_of_bucket()
        return where is not None and not where.is_dir()

    def _directory_of_bucket(self) -> Path | None:
        if not self.synced or not (self.config.url or "").startswith("file:"):
            return None
        from swamp.store.open import parse_target

        return Path(parse_target(self.config.url or "", self.config.config).bucket)

    # -- what it does

    def pull(self, scope: tuple[str, ...] = (), *, full: bool = False) -> SyncResult:
        """What the store has and this machine has not; derived files follow."""
        return self._derived(self.must_sync().pull(scope, full=full))

    def push(self, scope: tuple[str, ...] = (), *, full: bool = False) -> SyncResult:
        return self._derived(self.must_sync().push(scope, full=full))

    def _derived(self, result: SyncResult) -> SyncResult:
        from swamp.repo.latest import derive_latest

        if result.names:
            derive_latest(self.must_sync().root, result.names)
        return result

    def hydrate_once(self) -> None:
        """A fresh clone fetches what the bucket holds on its first command, or fails with the command to run."""
        if not self.synced or self.is_hydrated:
            return
        self.context.notify(f"First use of {self.url} on this machine: fetching its data")
        try:
            self.must_be_there()
            result = self.pull()
        except StoreError as error:
            error.hint = f"{error.hint or 'check the connection'}; then run `swamp datastore sync --pull`"
            raise
        for failed in result.failed:
            self.context.notify(f"Warning: {failed.path} was not pulled: {failed.error}")
        if result.has_all:
            self.mark_hydrated()

    @property
    def is_hydrated(self) -> bool:
        """Whether this cache has seen the whole store once."""
        return self._hydrated.exists()

    def mark_hydrated(self) -> None:
        """From now on `is_hydrated`; that goes when the cache goes."""
        self._hydrated.touch()

    @property
    def _hydrated(self) -> Path:
        return self.cache.base / "hydrated"

    def sync(self, mode: Mode = "sync", *, full: bool = False) -> SyncResult:
        """Push, pull, or pull and push, on the user's word. A plain directory is always in step with itself."""
        if not self.synced:
            return SyncResult(mode, fast_path=True)
        if mode == "pull":
            self.must_be_there()
        idle = None if full else self._idle(mode)
        if idle is not None:
            return idle
        result = self._run(mode, full)  # where the store enforces nothing, each commit is made under a lease of its own
        if mode != "push" and result.has_all:
            self.mark_hydrated()
        return result

    def _idle(self, mode: Mode) -> SyncResult | None:
        """The result where nothing is owed in either direction: one request, and no engine."""
        from swamp.cache.state import State
        from swamp.sync.unchanged import unchanged_at

        if not self.is_hydrated:
            return None
        clock, store = self.context.env.clock, self.store
        started, asked = clock.monotonic(), store.requests
        state = State.open(self.cache.state_db)
        try:
            seq = unchanged_at(state, store, self.cache.tree, lazy=self.config.hydrate == "lazy")
        finally:
            state.close()
        if seq is None:
            return None
        took = int((clock.monotonic() - started) * 1000)
        warnings = () if self.capabilities.safe else (UNSAFE,)
        requests = store.requests - asked
        return SyncResult(mode, fast_path=True, seq=seq, requests=requests, duration_ms=took, warnings=warnings)

    def _run(self, mode: Mode, full: bool) -> SyncResult:
        if mode == "push":
            return self.push(full=full)
        return self.pull(full=full) if mode == "pull" else self._derived(self.must_sync().sync(full=full))

    def plan(self, mode: Mode = "sync", *, full: bool = False) -> Plan | None:
        """What `sync` would do; changes nothing. None for a plain directory."""
        return None if self.engine is None else self.engine.plan(mode, full=full)

    def close(self) -> None:
        if "engine" in self.__dict__ and self.engine is not None:
            self.engine.close()
        if "chooser" in self.__dict__:
            self.chooser.close()


def _store_settings() -> dict[str, Any]:
    """What the environment says of the client; the store knows its own defaults."""
    names = {"SWAMP_REQUEST_TIMEOUT_MS": "requestTimeoutMs"}
    return {key: os.environ[name] for name, key in names.items() if os.environ.get(name)}
