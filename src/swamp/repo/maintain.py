"""Looking after a datastore: what state it is in, what can go, what can come back, who did what, who holds what."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.env import parse_rfc3339
from swamp.errors import Failed, NotFound, ObjectMissing, StoreError, SwampError, UsageError
from swamp.index.root import ROOT_KEY, Root, decode
from swamp.store.port import Capabilities
from swamp.sync.bulk import Work
from swamp.sync.progress import Patience

if TYPE_CHECKING:
    from swamp.commit.collect import Collected
    from swamp.commit.commit import Committer
    from swamp.commit.compact import Compacted
    from swamp.commit.lease_decide import Observed
    from swamp.commit.namespace import Registration
    from swamp.commit.undelete import Undeleted
    from swamp.pipeline.bulk import OnStore
    from swamp.repo.datastore import Datastore
    from swamp.sync.bulk import Stage
    from swamp.sync.verify import VerifyReport


@dataclass(frozen=True)
class Commit:
    """One line of `datastore log`."""

    seq: int
    op: str
    at: str
    writer: dict[str, Any]
    added: int
    changed: int
    deleted: int

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Maintenance:
    """Everything `swamp datastore` does besides setup and sync."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._context = datastore.context

    # -- status

    def status(self) -> dict[str, Any]:
        """What is known here, and whether the store answers. Never raises for a store that does not."""
        datastore = self._datastore
        try:
            address = datastore.address
        except StoreError as error:
            return self._unopened_status(error)
        document: dict[str, Any] = {
            "type": datastore.config.type,
            "url": address,
            "namespace": datastore.config.namespace,
            **({"endpoint": datastore.endpoint} if datastore.endpoint else {}),
        }
        return {**document, **(self._remote_status() if datastore.synced else self._plain_status())}

    def _unopened_status(self, error: StoreError) -> dict[str, Any]:
        """Of a store that cannot even be opened, such as with a login that is not there. Which cache is its is not
        known then, so nothing is said of what is in it."""
        config = self._datastore.config
        unknown = dict.fromkeys(("capabilities", "seq", "lastSyncAt", "pending", "cache"))
        known = {"type": config.type, "url": config.url or config.type, "namespace": config.namespace}
        return {**known, "healthy": False, "message": error.message, "latencyMs": 0, **unknown, "lock": {"held": None}}

    def _plain_status(self) -> dict[str, Any]:
        root = self._datastore.directory
        files = size = 0
        for tier in TIER_DIRECTORIES:
            for directory, _, names in os.walk(root / tier):
                files += len(names)
                size += sum(os.stat(os.path.join(directory, name)).st_size for name in names)  # noqa: PTH116, PTH118
        healthy = not root.exists() or os.access(root, os.W_OK)
        return {
            "healthy": healthy,
            "message": "a plain directory, no sync" if healthy else f"{root} cannot be written",
            "latencyMs": 0,
            "capabilities": Capabilities().to_json(),
            "seq": 0,
            "lastSyncAt": None,
            "pending": {"writes": 0, "deletes": 0, "found": 0},
            "cache": {"path": str(root), "files": files, "bytes": size, "remoteOnly": 0, "conflicts": 0},
            "lock": self._plain_lock_line(),
        }

    def _plain_lock_line(self) -> dict[str, Any]:
        held = self._datastore.directory_leases.whole_store_holder()
        if held is None:
            return {"held": False}
        return {"held": True, **{key: held[key] for key in ("holder", "ageMs") if key in held}}

    def _remote_status(self) -> dict[str, Any]:
        engine = self._datastore.engine
        assert engine is not None  # a plain directory has its own status
        known = engine.status()
        answer = self._ask(known.seq)
        return {
            **answer,
            "seq": answer.get("seq") or known.seq,
            "lastSyncAt": known.last_sync_at,
            "pending": {
                "writes": known.pending.writes,
                "deletes": known.pending.deletes,
                "found": known.pending.found,
            },
            "cache": {
                "path": str(known.tree),
                "files": known.files,
                "bytes": known.bytes,
                "remoteOnly": known.remote_only,
                "conflicts": known.conflicts,
            },
        }

    def _ask(self, seen: int) -> dict[str, Any]:
        """One look at the root and one at the global lease, timed. `seen` is the sequence this cache has pulled."""
        clock = self._context.env.clock
        started = clock.monotonic()
        # Whether somebody holds the lease is not known until the store has said so.
        found: dict[str, Any] = {"healthy": True, "message": "ok", "lock": {"held": None}}
        try:
            self._datastore.must_be_there()
            self._datastore.must_have_answered()
            root = self._read_root()
            found["latencyMs"] = int((clock.monotonic() - started) * 1000)
            found["seq"] = root.seq if root else 0
            found["message"] = "ok" if root else "the store is reachable and has no index yet"
            if root is None and seen:
                found["healthy"] = False
                found["message"] = (
                    f"the store has lost its index: this cache has seen sequence {seen} (datastore doctor)"
                )
            found["lock"] = self._lock_line()
        except SwampError as error:
            found |= {"healthy": False, "message": error.message}
            found.setdefault("latencyMs", int((clock.monotonic() - started) * 1000))
        found["capabilities"] = self._datastore.capabilities.to_json()
        if found["healthy"] and not self._datastore.capabilities.safe:
            found["message"] = "this store does not enforce conditions: two machines must not write at once"
        return found

    def _read_root(self) -> Root | None:
        try:
            return decode(self._datastore.store.get(ROOT_KEY).body)
        except ObjectMissing:
            return None

    def _lock_line(self) -> dict[str, Any]:
        from swamp.commit.lease import GLOBAL_KEY, read_lease

        seen = read_lease(self._datastore.store, GLOBAL_KEY)
        if seen is None or not seen.held:
            return {"held": False}
        return {"held": True, "holder": seen.holder, "ageMs": self._age_ms(seen)}

    def _age_ms(self, seen: Observed) -> int:
        """For people only: nothing is decided by it. inv[lease.no-clock]"""
        try:
            since = parse_rfc3339(seen.body.acquired_at) if seen.body else seen.last_modified
        except ValueError:
            since = seen.last_modified
        return max(0, int((self._context.env.clock.now() - since).total_seconds() * 1000))

    # -- content

    def verify(self, *, repair: bool = False, drop: Sequence[str] = ()) -> VerifyReport:
        """Reads every payload and compares it with its hash."""
        from swamp.repo.heal import restore_damaged
        from swamp.sync.verify import conclude, verify

        if drop and not repair:
            raise UsageError("--drop belongs to --repair", hint="swamp datastore verify --repair --drop PATH")
        engine, patience, given_up = self._datastore.must_sync(), self._patience(), tuple(drop)
        here = restore_damaged(engine) if repair else ()
        bulk = self._on_spark("download")
        if bulk is None:
            found = verify(engine.parts, patience, repair=repair, drop=given_up)
        else:
            root = self._committer.read().root
            assert root is not None
            seen = bulk.verify(root)
            bad = list(seen.bad)
            found = conclude(engine.parts, patience, seen.checked, seen.bytes, bad, repair=repair, drop=given_up)
        return replace(found, healed=tuple(dict.fromkeys((*found.healed, *here))))

    def gc(self, *, keep_days: float, dry_run: bool = False) -> Collected:
        """Deletes what no path has named for longer than the undo window."""
        from swamp.commit.collect import collect

        keep, bulk = dt.timedelta(days=keep_days), self._on_spark("compare")
        marker = bulk.mark if bulk else None
        return collect(self._committer, self._patience().check, keep=keep, dry_run=dry_run, marker=marker)

    def compact(self) -> Compacted:
        """Merges the index segments."""
        from swamp.commit.compact import Compacted, compact

        bulk = self._on_spark("compare")
        if bulk is None:
            return compact(self._committer, self._patience().check)
        return Compacted(*bulk.compact())

    def _on_spark(self, stage: Stage) -> OnStore | None:
        """The bulk commands on Spark, when the index is large enough for it or the user demands it."""

        root = self._committer.read().root
        if root is None:
            return None
        files = root.files_at_most
        size = sum(entry.size for entry in root.entries.values()) if stage == "download" else 0
        executor: Any = self._datastore.chooser(Work(stage, files, size))
        if executor.name != "spark":
            return None
        from swamp.pipeline.bulk import OnStore

        return OnStore(executor.jobs, executor.store, self._committer, self._patience())

    def undelete(self, paths: Sequence[str] = (), *, since: dt.datetime | None = None) -> Undeleted:
        """Brings deleted units back, in the store and here."""
        from swamp.commit.undelete import undelete
        from swamp.sync.units import unit_of

        if bool(paths) == (since is not None):
            raise UsageError("say what to restore: paths, or --since TIME", hint="such as --since 1h")
        done = undelete(self._committer, self._patience().check, paths, unit_of, since=since)
        unmatched = [path for path in paths if not any(_at(path, hit) for hit in (*done.restored, *done.gone))]
        if done.restored or unmatched:
            self._datastore.pull()
        unknown = tuple(path for path in unmatched if not self._lives(path))
        if unknown and len(unknown) == len(paths):
            raise NotFound(
                f"nothing was deleted at {', '.join(unknown)}, as far as the store remembers",
                hint="give paths as `swamp datastore sync --dry-run` shows them, or --since 1d",
            )
        return replace(done, gone=(*done.gone, *unknown))

    def _lives(self, path: str) -> bool:
        engine = self._datastore.must_sync()
        return (engine.root / path).exists() or next(engine.remote_only(path), None) is not None

    # -- history

    def log(self, limit: int = 20) -> Iterator[Commit]:
        """The commits of the store, newest first."""
        from swamp.commit.log import names

        if limit < 1:
            raise UsageError(f"--limit {limit}: at least 1")
        if not self._datastore.synced:
            return
        store = self._datastore.store
        for name in list(names(store))[-limit:][::-1]:
            yield self._commit_of(decode(store.get(name.key).body))

    def _commit_of(self, root: Root) -> Commit:
        from swamp.index.tally import tally

        did = tally(root, self._committer.fetch)
        return Commit(root.seq, root.op, root.committed_at, dict(root.writer), did.added, did.changed, did.deleted)

    # -- leases

    def lock_status(self) -> dict[str, Any]:
        """The global lease and every model lease that is held."""
        if not self._datastore.synced:
            return self._plain_locks()
        from swamp.commit.lease import GLOBAL_KEY, read_lease
        from swamp.commit.lease_scope import list_model_leases

        store = self._datastore.store
        seen = read_lease(store, GLOBAL_KEY)
        held = [lease for lease in list_model_leases(store) if lease.held]
        document: dict[str, Any] = {"held": bool(seen and seen.held)}
        if seen is not None and seen.held:
            document["info"] = self._info(seen)
        document["models"] = [{"model": _model_of(lease.key), **self._info(lease)} for lease in held]
        return document

    def _plain_locks(self) -> dict[str, Any]:
        leases = self._datastore.directory_leases
        held = leases.whole_store_holder()
        info = {} if held is None else {"info": held}
        return {"held": held is not None, **info, "models": leases.model_holders()}

    def _info(self, seen: Observed) -> dict[str, Any]:
        known = {"holder": seen.holder, "ageMs": self._age_ms(seen)}
        if seen.body is None:
            return known
        body = seen.body
        return {**known, "hostname": body.hostname, "pid": body.pid, "acquiredAt": body.acquired_at,
                "ttlMs": body.ttl_ms, "nonce": body.nonce, "epoch": body.epoch}  # fmt: skip

    def lock_release(self, model: str | None = None) -> dict[str, Any]:
        """Marks a lease released, by its nonce: a holder that came in between keeps it."""
        from swamp.commit.lease import GLOBAL_KEY, force_release, model_key, read_lease

        wanted = None if model is None else _type_and_id(model)
        if not self._datastore.synced:
            return self._plain_release(wanted)
        key = GLOBAL_KEY if wanted is None else model_key(*wanted)
        seen = read_lease(self._datastore.store, key)
        if seen is None or not seen.held:
            return {"released": False}
        return {
            "released": force_release(self._datastore.store, key, seen.nonce),
            "previousHolder": seen.holder,
        }

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

    def _patience(self) -> Patience:
        context = self._context
        return Patience(context.env, context.settings.sync_timeout, context.cancel)


def _at(path: str, found: str) -> bool:
    return found == path or found.startswith(path.rstrip("/") + "/")


def _type_and_id(model: str) -> tuple[str, str]:
    from swamp.data.names import check_id, normalise_type

    kind, slash, model_id = model.rpartition("/")
    if not slash or not kind:
        raise UsageError(f"--model {model!r} is not of the form TYPE/ID")
    return normalise_type(kind), check_id(model_id)


def _model_of(key: str) -> str:
    return key.removeprefix("data/").removesuffix("/.lock")
