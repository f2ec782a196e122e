"""A repository's datastore: opened when needed, hydrated once, synced on demand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from swamp.cache.files import on_disk
from swamp.cache.layout import CacheDir, cache_dir
from swamp.cache.second import end_ahead
from swamp.env import Env
from swamp.errors import StoreError, Unavailable, UsageError
from swamp.repo.config import LOCAL_DIRECTORY, DatastoreConfig, choose, chosen
from swamp.repo.open import (
    client_settings,
    directory_of_bucket,
    excluder,
    in_namespace,
    open_bucket,
    writer_of,
)
from swamp.settings import Settings
from swamp.store.port import Capabilities, ObjectStore
from swamp.sync.port import PlainTree, Tree
from swamp.sync.progress import Cancel, IdleTimeout, Progress
from swamp.sync.result import Mode, SyncResult
from swamp.values import value

if TYPE_CHECKING:
    from swamp.bulk.choose import Chooser
    from swamp.index.root import Writer
    from swamp.locks.flock import DirectoryLeases, Leases
    from swamp.repo.maintain import Maintenance
    from swamp.store.layers import MeterStore
    from swamp.store.open import StoreSpec
    from swamp.sync.engine import Engine, Policy
    from swamp.sync.plan import Plan


@value
class DatastoreContext:
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

    def __init__(self, context: DatastoreContext, config: DatastoreConfig, choice: str | None = None) -> None:
        self.context = context
        self.config = config
        self._choice = choice  # this machine's, if it has just been made
        self.silence: Unavailable | None = None
        """The error of a first request that was not answered, until `must_have_answered` has raised it."""
        self.measured: Capabilities | None = None
        """What this process has found by trying."""
        self.doubted = False
        """Whether this machine has once measured something else than the store's roots say."""

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
        settings = client_settings(self.config, self.context.settings.sync_timeout)
        return open_bucket(self.config, self.context.env, settings)

    @cached_property
    def store(self) -> MeterStore:
        """The store that everything here talks to: inside its namespace, and counted."""
        from swamp.store.layers import MeterStore

        return MeterStore.of_process(in_namespace(self.bucket, self.config.namespace))

    @property
    def asked(self) -> int | None:
        """Requests that this process has made; None where it has no bucket, or has not opened it."""
        return self.store.requests if self.synced and "store" in self.__dict__ else None

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

    @property
    def hydrate(self) -> Literal["full", "lazy"]:
        """Whether content comes with a pull or when it is read: as this machine chose, else as `.swamp.yaml` says."""
        return "lazy" if (self.chosen or self.config.hydrate) == "lazy" else "full"

    @property
    def leave_large(self) -> bool:
        """Whether large parts of Spark datasets stay in the store until they are read: who asks for `full` gets all."""
        return self.chosen is None and self.config.hydrate is None

    @property
    def chosen(self) -> str | None:
        """What this machine chose for the store, if it did."""
        return self._choice or (chosen(self.cache) if self.synced else None)

    def keep_choice(self) -> None:
        if self._choice is not None:
            choose(self.cache, self._choice)

    # -- its parts

    @cached_property
    def engine(self) -> Engine | None:
        """The engine of this process, one for all repositories in it; None for a plain directory."""
        if not self.synced:
            return None
        from swamp.sync.engine import Engine

        return Engine.open(
            self.store,
            self.cache.ensure(),
            writer=self.writer,
            env=self.context.env,
            policy=self.policy(),
            progress=self.context.progress,
            cancel=self.context.cancel,
            pick=self.chooser,
            expect=self.chooser.expect,
        )

    @cached_property
    def writer(self) -> Writer:
        """Who commits from here."""
        return writer_of(self.context.repo_id)

    @cached_property
    def hurried_store(self) -> MeterStore:
        """The same store for who waits only seconds for an answer."""
        from swamp.repo.ask import PATIENCE_S
        from swamp.store.layers import MeterStore

        settings = client_settings(self.config, PATIENCE_S, PATIENCE_S * 1000)
        return MeterStore(in_namespace(open_bucket(self.config, self.context.env, settings), self.config.namespace))

    @cached_property
    def spec(self) -> StoreSpec:
        """How executors open this store, inside its namespace; a plug-in's by its type, if it is installed there."""
        from swamp.store.open import StoreSpec

        url = self.config.url or self.config.type
        config = client_settings(self.config, self.context.settings.sync_timeout)
        return StoreSpec(url, config, self.config.namespace, serialize_mkdir=not self.capabilities.safe)

    @property
    def plugin(self) -> str | None:
        """The type of the plug-in that brings this datastore; None for one of ours."""
        from swamp.store.open import is_plugin_type

        return self.config.type if self.config.url is None and is_plugin_type(self.config.type) else None

    @cached_property
    def chooser(self) -> Chooser:
        """Which engine does bulk work here, and the Spark session if it is needed."""
        from swamp.bulk.choose import Chooser
        from swamp.store.layers import SerializedMkdirStore

        settings = self.context.settings
        return Chooser(
            setting=settings.engine,
            block=settings.spark,
            address=self.spec,
            # One that ignores conditions often keeps directories: see there.
            store=self.store if self.capabilities.safe else SerializedMkdirStore(self.store),
            cache=self.cache.ensure().base,
            progress=self.context.progress,
            push_threads=settings.push_concurrency,
            pull_threads=settings.pull_concurrency,
            idle_timeout=self.idle_timeout(),
        )

    def idle_timeout(self) -> IdleTimeout:
        """A new watch over bulk work: how long it may go without progress."""
        return IdleTimeout(self.context.env, self.context.settings.sync_timeout, self.context.cancel)

    def policy(self) -> Policy:
        from swamp.repo.ask import measured_lately
        from swamp.sync.engine import Policy

        settings = self.context.settings
        return Policy(
            hydrate=self.hydrate,
            leave_large=self.leave_large,
            push_concurrency=settings.push_concurrency,
            pull_concurrency=settings.pull_concurrency,
            timeout=settings.sync_timeout,
            lock_timeout=settings.lock_timeout,
            allow_deletes=settings.allow_deletes,
            packs=settings.packs,
            exclude=excluder(self.config.exclude, self.config.directories),
            capabilities=self.capabilities,
            measure=self._ignores_conditions,
            doubted=self.doubted,
            convicted=not self.capabilities.safe and measured_lately(self) == self.capabilities,
        )

    def _ignores_conditions(self) -> bool:
        """By trying, once in a process; what was measured today counts unless it is in doubt. Raises StoreError."""
        from swamp.repo.ask import measured_lately, probe_again

        lately = None if self.doubted else measured_lately(self)
        return not (self.measured or lately or probe_again(self).capabilities).safe

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
        """What this store enforces: by its root's word where there is one, else as it was measured here."""
        from swamp.repo.ask import known_capabilities

        return known_capabilities(self)

    def rely_on_record(self) -> None:
        """Ask nobody what the store enforces: it has just been asked something else in vain."""
        from swamp.repo.ask import recorded_capabilities

        if "capabilities" not in self.__dict__:
            self.capabilities = recorded_capabilities(self)

    @cached_property
    def leases(self) -> Leases:
        from swamp.repo.leases import store_leases

        return store_leases(self) if self.synced else self.directory_leases

    @cached_property
    def directory_leases(self) -> DirectoryLeases:
        from swamp.repo.leases import directory_leases

        return directory_leases(self)

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
        where = directory_of_bucket(self.config)
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
        where = directory_of_bucket(self.config)
        return where is not None and not where.is_dir()

    # -- what it does

    def pull(
        self, scope: tuple[str, ...] = (), *, full: bool = False, ready: Callable[[], object] = lambda: None
    ) -> SyncResult:
        """What the store has and this machine has not; derived files follow. `ready`: see `Engine.pull`."""
        return self._derived(self.must_sync().pull(scope, full=full, ready=ready))

    def push(self, scope: tuple[str, ...] = (), *, full: bool = False, after_pull: bool = False) -> SyncResult:
        return self._derived(self.must_sync().push(scope, full=full, after_pull=after_pull))

    def _derived(self, result: SyncResult) -> SyncResult:
        if result.names:
            from swamp.data.versions import derive_latest

            derive_latest(self.must_sync().root, result.names)
        return result

    def pull_to_commit(self, scope: tuple[str, ...] = (), *, lazy: bool = False) -> SyncResult:
        """The same, for a command that pushes then. `lazy`: but for content, which is fetched when it is read."""
        return self._derived(self.must_sync().before_commit(lazy=lazy).pull(scope))

    def just_synced(self) -> bool:
        """Whether this process knew all of the store a moment ago."""
        from swamp.sync.observe import JUST_S

        return self.must_sync().knows_all(JUST_S)

    def hydrate_once(self) -> None:
        """A fresh clone fetches what the bucket holds on its first command, or fails with the command to run."""
        if not self.synced or self.is_hydrated or self.context.settings.fresh == "never":
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
        mark = self.cache.base / "hydrated"
        with on_disk("read", str(mark)):
            return mark.exists()

    def mark_hydrated(self) -> None:
        """From now on `is_hydrated`; that goes when the cache goes."""
        (self.cache.base / "hydrated").touch()

    def sync(self, mode: Mode = "sync", *, full: bool = False) -> SyncResult:
        """Push, pull, or pull and push, on the user's word. A plain directory is always in step with itself."""
        if not self.synced:
            return SyncResult(mode, fast_path=True)
        if mode == "pull":
            self.must_be_there()
        from swamp.repo.ask import idle_result

        idle = None if full else idle_result(self, mode)
        if idle is not None:
            return idle
        end_ahead()
        if mode == "push":
            result = self.push(full=full)
        else:
            result = self.pull(full=full) if mode == "pull" else self._derived(self.must_sync().sync(full=full))
        if mode != "push" and result.has_all:
            self.mark_hydrated()
        return result

    def plan(self, mode: Mode = "sync", *, full: bool = False) -> Plan | None:
        """What `sync` would do; changes nothing. None for a plain directory."""
        return None if self.engine is None else self.engine.plan(mode, full=full)

    def close(self) -> None:
        if "engine" in self.__dict__ and self.engine is not None:
            self.engine.close()
        if "chooser" in self.__dict__:
            self.chooser.close()
