"""Moves a repository to another datastore (`datastore setup`) so that at no moment its data is in neither.

probe -> copy existing data into the cache (announced) -> push -> hydrate, always -> write `.swamp.yaml` -> clean up.
Until `.swamp.yaml` is written the old datastore is the true one and its files are untouched, so a failure or a crash at
any point is answered by running the same command again.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.scan import Observed, scan
from swamp.cache.state import State
from swamp.errors import AccessDenied, Failed, StoreError, SwampError, UsageError
from swamp.index.root import ROOT_KEY
from swamp.locks.flock import FileLock
from swamp.repo.config import LOCAL_DIRECTORY, DatastoreConfig, write_config
from swamp.repo.datastore import Datastore
from swamp.repo.migrate import Copied, Proof, TierCopier, clean_up, has_tiers, holds
from swamp.store.port import UNSAFE, Capabilities
from swamp.store.together import SideCall, together
from swamp.sync.result import SyncResult
from swamp.values import value

if TYPE_CHECKING:
    from swamp.repo.repository import Repo


@value
class SetUp:
    """What a setup did."""

    datastore: Datastore
    sync: SyncResult
    capabilities: Capabilities
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    joined: bool = True
    """Whether the repository has this datastore now. What the store has lost itself keeps nobody out."""

    @property
    def ok(self) -> bool:
        return not self.errors and not self.sync.conflicts

    def to_json(self) -> dict[str, Any]:
        new = self.datastore
        optional = {"namespace": new.config.namespace, "endpoint": new.endpoint}
        return {
            "type": new.config.type,
            "url": new.address,
            **{key: value for key, value in optional.items() if value},
            "hydrate": new.hydrate,
            "filesPushed": self.sync.files_pushed,
            "filesPulled": self.sync.files_pulled,
            "bytes": self.sync.bytes_pushed + self.sync.bytes_pulled,
            "discovered": self.sync.discovered,
            "engine": self.sync.engine,
            "capabilities": self.capabilities.to_json(),
            "conflicts": [{"path": c.path, "kept": c.kept} for c in self.sync.conflicts],
            "warnings": list(self.warnings),
            "errors": list(self.errors),
        }


def set_up(repo: Repo, wanted: DatastoreConfig, *, migrate: bool = True, hydrate: str | None = None) -> SetUp:
    """Makes `wanted` the datastore of `repo`. Raises what stands in the way; then nothing has changed."""
    old, context = repo.datastore, repo.datastore.context
    kept = old.config
    wanted = replace(wanted, hydrate=kept.hydrate, directories=kept.directories, exclude=kept.exclude, extra=kept.extra)
    new = Datastore(context, wanted, hydrate)
    timeout = context.settings.lock_timeout
    with FileLock(repo.path / LOCAL_DIRECTORY / "setup.lock", context.env).exclusive(timeout), ExitStack() as stack:
        if not old.synced:
            stack.enter_context(old.leases.whole_store())  # nobody writes into what is being copied
        stack.callback(new.close)
        return _Move(repo, old, new, migrate).run()


class _Move:
    """One setup."""

    def __init__(self, repo: Repo, old: Datastore, new: Datastore, migrate: bool) -> None:
        self._repo, self._old, self._new = repo, old, new
        self._migrate = migrate
        self._only_reads = False
        self._joined = True
        self._warnings: list[str] = []
        self._errors: list[str] = []

    def run(self) -> SetUp:
        new = self._new
        pulled = self._check_store() if new.synced else None
        copied = self._copy()
        if new.synced:
            synced = self._push_and_hydrate(copied, pulled)
        else:
            files, size = sum(len(done.seen) for done in copied), sum(done.size for done in copied)
            synced = SyncResult("sync", files_pushed=files, bytes_pushed=size)
        if self._joined:
            if new.synced:
                new.keep_choice()
            write_config(self._repo.path, {"datastore": new.config.to_document()})
            for done in copied:
                if done.is_local:
                    self._clean_up(done, synced)
        return self._result(synced)

    def _clean_up(self, done: Copied, synced: SyncResult) -> None:
        """What leaves the old directory is in the store, or in the new directory. inv[source.proven]"""
        kept = clean_up(done, self._proof(synced))
        if kept:
            why = "they changed meanwhile or are not shared"
            self._warnings.append(f"{len(kept)} files stay in {done.source}: {why}, first {kept[0]}")

    def _proof(self, synced: SyncResult) -> Proof:
        """For a bucket base is the proof; what lost a conflict is proven where it is kept."""
        new = self._new
        if not new.synced:
            return lambda path, sha256: holds(new.tree.root / path, sha256)
        state = new.must_sync().state
        kept = {c.path: new.cache.base / c.kept for c in synced.conflicts}

        def is_there(path: str, sha256: str) -> bool:
            base = state.base(path)
            return (base is not None and base.sha256 == sha256) or (path in kept and holds(kept[path], sha256))

        return is_there

    # -- probe

    def _check_store(self) -> SyncResult | None:
        """Asks the store what it enforces. What a machine without anything of its own will fetch is planned meanwhile,
        and fetched once the store has passed: that pull is the answer. inv[store.one-verdict]"""
        from swamp.commit.namespace import register

        new, pulled = self._new, None
        new.store  # noqa: B018  (opened once, and not by two threads)
        State.open(new.cache.ensure().state_db).close()  # as is this: SQLite refuses two that make one file at once
        # Neither answer depends on the other; what is wrong with the store itself is told first.
        asked = SideCall(lambda: together([self._probed, lambda: refuse_nested_store(new)]))
        try:
            if self._only_fetches():
                pulled = new.pull(ready=asked.answer)
        except SwampError:
            asked.answer()
            raise
        found = asked.answer()[0]
        assert found is not None
        new.capabilities = found
        new.context.cancel.check()  # nothing has been joined yet
        if new.config.namespace:
            context = new.context
            register(new.store, new.config.namespace, context.repo_id, context.env, new.capabilities)
        return pulled

    def _only_fetches(self) -> bool:
        """Whether a pull is all that this setup comes to, from a store that has a root: nothing is written then."""
        import swamp.bulk.choose
        import swamp.index.decode
        import swamp.sync.engine  # noqa: F401  (loaded while the store is asked, whatever the answer)
        from swamp.repo.ask import by_word, word_of

        new = self._new
        if self._old.synced or new.config.namespace or self._local_directories():
            return False
        try:
            word = word_of(new.store)
        except SwampError:
            return False  # who probes meets it, too, and has the words for it
        if word is None:
            return False
        new.capabilities = by_word(Capabilities(), word)
        return self._is_blank()

    def _probed(self) -> Capabilities:
        """What the store enforces, by trying. A login that may only read cannot try, and can still read."""
        from swamp.repo.ask import agreed_capabilities, by_word, word_of

        new = self._new
        try:
            measured = agreed_capabilities(new)
        except AccessDenied as denied:
            try:
                new.store.head(ROOT_KEY)
            except StoreError:
                raise denied from None  # nothing there that could be read
            self._only_reads = True
            self._warnings.append(
                f"this login may read and not write ({denied.message}): what the store enforces is not known, "
                "and nothing can be pushed from here"
            )
            return by_word(Capabilities(), word_of(new.store))
        if not measured.safe:
            self._warnings.append(UNSAFE)
        return measured

    # -- copy

    def _copy(self) -> list[Copied]:
        if not self._migrate:
            return []
        new = self._new
        # The same cache, under the same URL and namespace: probed and hydrated again, and nothing moves.
        same = self._old.synced and new.synced and self._old.cache == new.cache
        moves = self._old.synced and not same
        local = self._local_directories()
        if moves:
            self._settle_old()
        copier = TierCopier(new.tree, new.cache.conflicts if new.synced else None, new.context)
        copied = [copier.copy(path, is_local=True) for path in local]
        return [*copied, copier.copy(self._old.must_sync().root, is_local=False)] if moves else copied

    def _local_directories(self) -> list[Path]:
        """Plain directories that hold data: the old datastore's, and what an interrupted setup left behind."""
        found = [] if self._old.synced else [self._old.directory]
        left = self._repo.path / LOCAL_DIRECTORY
        if left not in found:
            found.append(left)
        target = None if self._new.synced else self._new.directory
        return [path for path in found if path != target and has_tiers(path)]

    def _settle_old(self) -> None:
        """What the old store is owed goes there first; what only it has is fetched."""
        engine = self._old.engine
        assert engine is not None  # only a synced store is settled
        owed = not engine.state.journal_empty() or bool(self._repo.kept.waiting())
        try:
            self._old.must_be_there()
            self._old.must_have_answered()
            self._repo.kept.deliver()
            if self._repo.kept.waiting():
                raise Failed(
                    f"{len(self._repo.kept.waiting())} kept puts could not be delivered to the old datastore",
                    hint="look at `swamp datastore status`, or give them up with --skip-migration",
                )
            result = engine.sync()
        except StoreError as error:
            # Whether the old store has something that this cache does not hold, as far as the cache knows.
            complete = self._old.is_hydrated and engine.state.deferred_empty()
            if owed or not complete or next(engine.remote_only(), None) is not None:
                raise Failed(
                    f"the old datastore cannot be reached ({error.message}), and this machine still owes it work "
                    "or needs files that only it has",
                    hint="make it reachable, or give that up with --skip-migration",
                ) from error
            self._warnings.append(f"the old datastore cannot be reached: {error.message}")
            return
        lost = result.lost
        if lost and result.has_all and not result.deletes_held:
            raise Failed(
                f"the old datastore has lost {len(lost)} of its files, first {lost[0]}",
                hint="`swamp datastore verify --repair` where they still are, or give them up with --drop PATH",
                details={"sync": result.to_json()},
            )
        if result.failed or result.deletes_held:
            raise Failed(
                f"{len(result.failed) + result.deletes_held} changes could not be delivered to the old datastore",
                hint="look at `swamp datastore sync`, or give them up with --skip-migration",
                details={"sync": result.to_json()},
            )
        for file in list(engine.remote_only()):
            engine.materialize(file.path)

    # -- push, hydrate

    def _push_and_hydrate(self, copied: list[Copied], pulled: SyncResult | None) -> SyncResult:
        nothing_here = pulled is not None or self._is_blank()
        pushed = SyncResult("push", fast_path=True) if nothing_here else self._new.push()
        pulled = pulled or self._new.pull()
        self._joined = not pushed.failed and pulled.has_all
        result = pushed.merged(pulled, "sync")
        aside = tuple(conflict for done in copied for conflict in done.conflicts)
        result = replace(result, conflicts=tuple(dict.fromkeys(aside + result.conflicts)))
        self._warnings += result.warnings
        self._errors += [f"{f.path}: {f.error}" for f in result.failed]
        self._warnings += [f"{c.path} exists there with other content; yours is in {c.kept}" for c in result.conflicts]
        if self._joined:
            self._new.mark_hydrated()
        return result

    def _is_blank(self) -> bool:
        """Whether this machine has nothing that the store could lack: no row, and no file. A pull is all then."""
        engine = self._new.must_sync()
        if engine.state.has_base() or not engine.state.journal_empty():
            return False
        return not any(isinstance(seen, Observed) for seen in scan(engine.root))

    def _result(self, sync: SyncResult) -> SetUp:
        capabilities = self._new.capabilities if self._new.synced else Capabilities()
        if self._only_reads:
            capabilities = Capabilities(**dict.fromkeys((f.name for f in fields(Capabilities)), False))
        warnings = tuple(dict.fromkeys(self._warnings))
        return SetUp(self._new, sync, capabilities, warnings, tuple(self._errors), self._joined)


def refuse_nested_store(datastore: Datastore) -> None:
    """Raises UsageError when a directory above the prefix is a store of its own: one would take the other's objects for
    its own. So is somebody else's namespace, opened by its address (L69). A namespace is no such nesting."""
    from swamp.commit.namespace import refuse_anothers_namespace, refuse_nested
    from swamp.store.open import TYPES, open_store, parse_target

    config = datastore.config
    if config.namespace is None:
        refuse_anothers_namespace(datastore.store, datastore.context.repo_id)
    if config.url is None and config.type not in TYPES:
        return  # a plug-in knows its own addresses
    target = parse_target(config.url or config.type, config.config)
    if target.kind == "file":
        _refuse_directory(Path(target.bucket))
    if target.prefix:
        config_of_bucket = {key: value for key, value in target.config.items() if key != "prefix"}
        bucket = open_store(f"{_SCHEMES[target.kind]}://{target.bucket}", config_of_bucket, datastore.context.env)
        refuse_nested(bucket, target.prefix)


_SCHEMES: Final = {"s3": "s3", "gcs": "gs", "azure": "az", "file": "file", "memory": "memory"}


def _refuse_directory(directory: Path) -> None:
    for above in directory.absolute().parents:
        if (above / ROOT_KEY).is_file():
            raise UsageError(
                f"{directory} lies inside another datastore: {above}",
                hint="choose a directory outside of it, or use a namespace of that datastore",
                details={"inside": str(above)},
            )
