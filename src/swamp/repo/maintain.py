"""Maintains a datastore: verify, gc, repack, compact, undelete, log, locks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from swamp.cache.files import fingerprint_of, hash_file, move_aside
from swamp.errors import CorruptData, Failed, NotFound, ObjectMissing, SwampError, UsageError
from swamp.index.read import read_root
from swamp.index.root import Root
from swamp.sync.bulk import Work
from swamp.values import value

if TYPE_CHECKING:
    from swamp.bulk.maintain import OnStore
    from swamp.cache.rows import BaseRow
    from swamp.commit.collect import Collected
    from swamp.commit.commit import Committer
    from swamp.commit.namespace import Registration
    from swamp.commit.repack import Compacted, Repacked
    from swamp.commit.restore import Undeleted
    from swamp.locks.decide import ObservedLease
    from swamp.repo.datastore import Datastore
    from swamp.repo.repository import Repo
    from swamp.sync.bulk import Stage
    from swamp.sync.engine import Engine
    from swamp.sync.verify import VerifyReport


@value
class LoggedCommit:
    """One line of `datastore log`."""

    seq: int
    op: str
    at: str
    writer: dict[str, Any]
    added: int
    changed: int
    deleted: int
    command: str = ""
    names: tuple[tuple[str, str], ...] = ()
    """(model id, data name) of what it touched, as far as that is data."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def commit_items(repo: Repo, commits: Iterable[LoggedCommit]) -> list[dict[str, Any]]:
    """Commits as documents, with the data that they touched by the names of its models."""
    called = {model_id: name or model_id for _, model_id, name in repo.catalog.models()}
    return [
        {**one.to_json(), "names": [f"{called.get(model_id, model_id)}/{name}" for model_id, name in one.names]}
        for one in commits
    ]


class Maintenance:
    """Everything `swamp datastore` does besides setup and sync."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore

    # -- status

    def status(self) -> dict[str, Any]:
        """What is known here, and whether the store answers. Never raises for a store that does not."""
        from swamp.repo.status import DatastoreStatus

        return DatastoreStatus(self._datastore).document()

    def root(self) -> Root | None:
        """The store's root as it is now, or None where there is none. Raises when it does not answer in seconds."""
        from swamp.repo.status import DatastoreStatus

        return DatastoreStatus(self._datastore).root()

    # -- content

    def verify(self, *, repair: bool = False, drop: Sequence[str] = ()) -> VerifyReport:
        """Reads every payload and compares it with its hash."""
        from swamp.sync.verify import conclude, verify

        if drop and not repair:
            raise UsageError("--drop belongs to --repair", hint="swamp datastore verify --repair --drop PATH")
        engine, idle_timeout, given_up = self._datastore.must_sync(), self._datastore.idle_timeout(), tuple(drop)
        here = restore_damaged(engine) if repair else ()
        gone = tuple(engine.mender.missing())
        if repair and gone:
            engine.pull(gone)
            here, gone = (*here, *gone), tuple(engine.mender.missing())
        bulk = self._on_spark("download")
        if bulk is None:
            found = verify(engine.context, idle_timeout, repair=repair, drop=given_up)
        else:
            root = self._committer.read().root
            assert root is not None
            seen = bulk.verify(root)
            told = (seen.checked, seen.bytes, list(seen.bad))
            found = conclude(engine.context, idle_timeout, *told, repair=repair, drop=given_up)
        healed = tuple(path for path in dict.fromkeys((*found.healed, *here)) if path not in gone)
        return replace(found, healed=healed, gone=gone)

    def repack(self, *, keep_days: float, dry_run: bool = False, most: int | None = None) -> Repacked:
        """Moves what lives in packs that are mostly dead into new ones; the old ones go after the undo window.

        At most `most` files, 200,000 if nobody says so.
        """
        from swamp.commit.repack import RUN_ROWS, repack

        keep, bulk = dt.timedelta(days=keep_days), self._on_spark("compare")
        rows = RUN_ROWS if most is None else most
        return repack(
            self._committer, self._datastore.idle_timeout().check, keep=keep, dry_run=dry_run, rows=rows, bulk=bulk
        )

    def gc(self, *, keep_days: float, dry_run: bool = False) -> Collected:
        """Deletes what no path has named for longer than the undo window."""
        from swamp.commit.collect import collect

        keep, bulk = dt.timedelta(days=keep_days), self._on_spark("compare")
        marker = bulk.mark if bulk else None
        return collect(self._committer, self._datastore.idle_timeout().check, keep=keep, dry_run=dry_run, marker=marker)

    def compact(self) -> Compacted:
        """Merges the index segments."""
        from swamp.commit.repack import compact

        bulk = self._on_spark("compare")
        return compact(self._committer, self._datastore.idle_timeout().check, merge=bulk.merged if bulk else None)

    def _on_spark(self, stage: Stage) -> OnStore | None:
        """The bulk commands on Spark, when the index is large enough for it or the user demands it."""
        root = self._committer.read().root
        if root is None:
            return None
        files = root.files_at_most
        size = sum(entry.size for entry in root.entries.values()) if stage == "download" else 0
        executor = self._datastore.chooser.on_spark(Work(stage, files, size))
        return executor.on_store(self._committer, self._datastore.idle_timeout()) if executor is not None else None

    def undelete(self, paths: Sequence[str] = (), *, since: dt.datetime | None = None) -> Undeleted:
        """Brings deleted units back, in the store and here."""
        from swamp.commit.restore import undelete
        from swamp.sync.units import unit_of

        if bool(paths) == (since is not None):
            raise UsageError("say what to restore: paths, or --since TIME", hint="such as --since 1h")
        done = undelete(self._committer, self._datastore.idle_timeout().check, paths, unit_of, since=since)
        hits = [f"{hit}/" for hit in (*done.restored, *done.gone)]
        unmatched = [path for path in paths if not any(hit.startswith(path.rstrip("/") + "/") for hit in hits)]
        if done.restored or unmatched:
            self._datastore.pull()
        engine = self._datastore.must_sync()
        gone = (path for path in unmatched if not (engine.root / path).exists())
        unknown = tuple(path for path in gone if next(engine.remote_only(path), None) is None)
        if unknown and len(unknown) == len(paths):
            raise NotFound(
                f"nothing was deleted at {', '.join(unknown)}, as far as the store remembers",
                hint="give paths as `swamp datastore sync --dry-run` shows them, or --since 1d",
            )
        return replace(done, gone=(*done.gone, *unknown))

    # -- history

    def log(self, limit: int = 20, before: int | None = None) -> Iterator[LoggedCommit]:
        """The commits of the store, newest first; only those `before` that number, if one is given."""
        from swamp.commit.log import names

        if limit < 1:
            raise UsageError(f"--limit {limit}: at least 1")
        if not self._datastore.synced:
            return
        store = self._datastore.store
        listed = [name for name in names(store) if before is None or name.seq < before]
        for name in listed[-limit:][::-1]:
            yield self._commit_of(read_root(store, key=name.key)[0])

    def _commit_of(self, root: Root) -> LoggedCommit:
        from swamp.data.names import version_of
        from swamp.index.lookup import commit_stats

        did = commit_stats(root, self._committer.fetch)
        refs = filter(None, (version_of(path) for path in did.paths))
        names = tuple(dict.fromkeys((ref.data.model_id, ref.data.name) for ref in refs))
        command = str(root.writer.get("command") or "")
        counts = (did.added, did.changed, did.deleted)
        return LoggedCommit(root.seq, root.op, root.committed_at, dict(root.writer), *counts, command, names)

    def commit(self, seq: int, most: int) -> dict[str, Any]:
        """One commit of the log with the paths that it changed, at most so many. Raises NotFound."""
        from swamp.commit.log import names
        from swamp.index.lookup import file_changes

        recorded = names(self._datastore.store) if self._datastore.synced else ()
        found = next((name for name in recorded if name.seq == seq), None)
        if found is None:
            raise NotFound(f"there is no commit {seq} in the log", hint="`swamp datastore log` shows the newest")
        root, _ = read_root(self._datastore.store, key=found.key)
        try:
            changes = islice(file_changes(root, self._committer.fetch), most + 1)
            paths = [{"change": deed, "path": path} for path, deed in changes]
        except (ObjectMissing, CorruptData):
            paths = []  # compacted away since: the commit itself is still told
        document = self._commit_of(root).to_json()
        return {**document, "paths": paths[:most], "truncated": len(paths) > most}

    # -- leases

    def lock_status(self) -> dict[str, Any]:
        """The global lease and every model lease that is held."""
        if not self._datastore.synced:
            leases = self._datastore.directory_leases
            holder = leases.whole_store_holder()
            info = {} if holder is None else {"info": holder}
            return {"held": holder is not None, **info, "models": leases.model_holders()}
        from swamp.locks.decide import GLOBAL_KEY, list_model_leases, read_lease

        store = self._datastore.store
        seen = read_lease(store, GLOBAL_KEY)
        info = {"info": self._info(seen)} if seen is not None and seen.held else {}
        held = [lease for lease in list_model_leases(store) if lease.held]
        called = {lease.key.removeprefix("data/").removesuffix("/.lock"): lease for lease in held}
        models = [{"model": model, **self._info(lease)} for model, lease in called.items()]
        return {"held": bool(info), **info, "models": models}

    def _info(self, seen: ObservedLease) -> dict[str, Any]:
        from swamp.repo.status import age_ms

        known = {"holder": seen.holder, "ageMs": age_ms(self._datastore.context.env, seen)}
        if seen.body is None:
            return known
        body = seen.body
        return {**known, "hostname": body.hostname, "pid": body.pid, "acquiredAt": body.acquired_at,
                "ttlMs": body.ttl_ms, "nonce": body.nonce, "epoch": body.epoch}  # fmt: skip

    def lock_release(self, model: str | None = None) -> dict[str, Any]:
        """Marks a lease released, by its nonce: a holder that came in between keeps it."""
        from swamp.locks.decide import GLOBAL_KEY, force_release, model_key, read_lease

        wanted = None if model is None else _type_and_id(model)
        if not self._datastore.synced:
            return self._plain_release(wanted)
        key = GLOBAL_KEY if wanted is None else model_key(*wanted)
        seen = read_lease(self._datastore.store, key)
        if seen is None or not seen.held:
            return {"released": False}
        return {"released": force_release(self._datastore.store, key, seen.nonce), "previousHolder": seen.holder}

    def _plain_release(self, wanted: tuple[str, str] | None) -> dict[str, Any]:
        """A file lock belongs to its process and to nobody else. Raises Failed when one holds it."""
        leases = self._datastore.directory_leases
        if wanted is None:
            held = leases.whole_store_holder()
        else:
            held = next((one for one in leases.model_holders() if one["model"] == "/".join(wanted)), None)
        if held is None:
            return {"released": False}
        who = f"process {held['pid']} of {held['holder']}" if "pid" in held else held["holder"]
        raise Failed(
            f"{who} holds it: the lock of a plain directory cannot be taken away, it goes with its process",
            hint="wait for that command to finish, or stop it",
            details={"holder": held},
        )

    # -- namespaces

    def namespaces(self) -> list[Registration]:
        from swamp.commit.namespace import list_namespaces

        self._datastore.must_sync()
        return list_namespaces(self._datastore.bucket)

    # --

    @property
    def _committer(self) -> Committer:
        return self._datastore.must_sync().committer


def _type_and_id(model: str) -> tuple[str, str]:
    from swamp.data.names import check_id, normalise_type

    kind, slash, model_id = model.rpartition("/")
    if not slash or not kind:
        raise UsageError(f"--model {model!r} is not of the form TYPE/ID")
    return normalise_type(kind), check_id(model_id)


def restore_damaged(engine: Engine) -> tuple[str, ...]:
    """Fetches again every file whose bytes differ from their recorded hash without an announced change; their paths.

    What is here instead is moved aside, never deleted. inv[conflict.keeps-both]
    """
    announced = {row.path for row in engine.state.journal()}
    damaged = [row.path for row in engine.state.base_below() if _is_damaged(engine, row, announced)]
    if not damaged:
        return ()
    op = engine.context.env.ulid()
    with engine.context.tree_lock.exclusive(engine.context.policy.lock_timeout):
        for path in damaged:
            move_aside(engine.root, path, engine.cache.conflicts, op)
    engine.pull(tuple(damaged), full=True)
    return tuple(path for path in damaged if (engine.root / path).is_file())


def _is_damaged(engine: Engine, row: BaseRow, announced: set[str]) -> bool:
    parts = row.path.split("/")
    above = ("/".join(parts[:n]) for n in range(1, len(parts) + 1))
    if not row.present or row.sha256 is None or any(path in announced for path in above):
        return False
    file = engine.root / row.path
    try:
        if row.hint is not None and row.hint == fingerprint_of(file.lstat()):
            return False
        return hash_file(file).sha256 != row.sha256
    except (OSError, SwampError):
        return False  # gone or unreadable: a sync says so
