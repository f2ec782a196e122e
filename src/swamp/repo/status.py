"""Reports how a datastore stands: what is known here, whether the store answers, what one still owes the other, and
what lives and is dead in the store's packs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.outbox import Outbox
from swamp.cache.paths import TIER_DIRECTORIES
from swamp.cache.state import StateRebuilt
from swamp.commit.log import LOG_PREFIX
from swamp.env import Env, parse_rfc3339
from swamp.errors import Failed, ObjectMissing, StoreError, SwampError
from swamp.index.entry import live_in_packs
from swamp.index.lookup import FetchSegment, live_rows
from swamp.index.pack import packed_bytes, packs_of
from swamp.index.read import read_root
from swamp.index.root import Root
from swamp.repo.ask import PATIENCE_S, in_time, read_record
from swamp.store.port import Capabilities, ObjectStore
from swamp.sync.inline import pooled
from swamp.values import value

if TYPE_CHECKING:
    from swamp.locks.decide import ObservedLease
    from swamp.repo.datastore import Datastore
    from swamp.sync.engine import Engine, EngineStatus

SHOWN_AT_MOST: Final = 20


class DatastoreStatus:
    """One look at a datastore."""

    def __init__(self, datastore: Datastore) -> None:
        self._datastore = datastore
        self._env = datastore.context.env

    def document(self) -> dict[str, Any]:
        """What is known here, and whether the store answers. Never raises for a store that does not."""
        datastore = self._datastore
        try:
            address = datastore.address
        except StoreError as error:
            return self._unopened(error)
        document: dict[str, Any] = {
            "type": datastore.config.type,
            "url": address,
            "namespace": datastore.config.namespace,
            **({"endpoint": datastore.endpoint} if datastore.endpoint else {}),
        }
        found = {**document, **(self._remote() if datastore.synced else self._plain())}
        return {"summary": sentence(found), **found}

    def _unopened(self, error: StoreError) -> dict[str, Any]:
        """Of a store that cannot even be opened, such as with a login that is not there. Which cache is its is not
        known then, so nothing is said of what is in it."""
        config = self._datastore.config
        unknown = dict.fromkeys(("capabilities", "seq", "behind", "lastSyncAt", "pending", "cache", "packs"))
        known = {"type": config.type, "url": config.url or config.type, "namespace": config.namespace}
        said = {"summary": f"The store cannot be opened: {error.message}."}
        answer = {"healthy": False, "message": error.message, "latencyMs": 0}
        return {**said, **known, **answer, **unknown, "lock": {"held": None}}

    # -- a plain directory

    def _plain(self) -> dict[str, Any]:
        root = self._datastore.directory
        files = size = 0
        for tier in TIER_DIRECTORIES:
            for directory, _, names in os.walk(root / tier):
                files += len(names)
                size += sum(os.stat(os.path.join(directory, name)).st_size for name in names)  # noqa: PTH116, PTH118
        healthy = not root.exists() or os.access(root, os.W_OK)
        held = self._datastore.directory_leases.whole_store_holder() or {}
        return {
            "healthy": healthy,
            "message": "a plain directory, no sync" if healthy else f"{root} cannot be written",
            "latencyMs": 0,
            "capabilities": Capabilities().to_json(),
            "seq": 0,
            "behind": 0,
            "lastSyncAt": None,
            "packs": {"count": 0, "liveBytes": 0},
            "pending": {"writes": 0, "deletes": 0, "found": 0, "outbox": 0},
            "cache": {"path": str(root), "files": files, "bytes": size, "remoteOnly": 0, "conflicts": 0},
            "lock": {"held": bool(held), **{key: held[key] for key in ("holder", "ageMs") if key in held}},
        }

    # -- a store

    def _remote(self) -> dict[str, Any]:
        # First the store, and in haste: what else is opened below must not wait for one that is away.
        root, answer = self._asked()
        try:
            return self._beside(root, answer)
        except StateRebuilt:
            raise
        except Failed as error:
            return self._cacheless(root, answer, error)

    def _cacheless(self, root: Root | None, answer: dict[str, Any], error: Failed) -> dict[str, Any]:
        """Of a cache that cannot be opened or written, which is when people ask: what the store says, and why the rest
        is not known. L30"""
        unknown = dict.fromkeys(("capabilities", "behind", "lastSyncAt", "pending", "cache", "packs"))
        away = "" if answer["healthy"] else f"{answer['message']}; "
        said = {"healthy": False, "message": f"{away}this machine's cache cannot be used: {error.message}"}
        return {**answer, **said, "hint": error.hint, "seq": root.seq if root else None, **unknown}

    def _beside(self, root: Root | None, answer: dict[str, Any]) -> dict[str, Any]:
        """What the store has said, beside what is here. Raises Failed for a cache that cannot be used."""
        if not answer["healthy"]:
            self._datastore.rely_on_record()
        engine = self._datastore.engine
        assert engine is not None  # a plain directory has its own status
        known = engine.status()
        answer |= self._compared(root, known, engine.state.meta("storeId")) if answer["healthy"] else {}
        answer["capabilities"] = self._seen_to_do(root, engine)
        if answer["healthy"] and not self._datastore.capabilities.safe:
            answer["message"] = "this store does not enforce conditions: two machines must not write at once"
        return {
            **answer,
            "seq": root.seq if root else known.seq,
            "behind": answer.get("behind"),
            "packs": self._packs(engine),
            "hydrate": "lazy" if engine.context.lazy else "full",
            "lastSyncAt": known.last_sync_at,
            "pending": {
                "writes": known.pending.writes,
                "deletes": known.pending.deletes,
                "found": known.pending.found,
                "outbox": Outbox(engine.cache, self._env).count(),
            },
            "cache": {
                "path": str(known.tree),
                "files": known.files,
                "bytes": known.bytes,
                "remoteOnly": known.remote_only,
                **({"left": known.left} if known.left else {}),
                "conflicts": known.conflicts,
                **self._lacking(engine),
            },
        }

    def _seen_to_do(self, root: Root | None, engine: Engine) -> dict[str, bool | None] | None:
        """What the store was measured to do, here; what was not is not known. Of conditions its root says it."""
        known = self._datastore.capabilities
        if read_record(engine.state, self._datastore.store.url) is not None:
            return {**known.to_json()}
        if root is None and engine.state.meta("storeId") is None:
            return None
        return {**dict.fromkeys(known.to_json()), "createOnly": known.safe, "compareAndSwap": known.safe}

    def _packs(self, engine: Engine) -> dict[str, int]:
        """As far as this cache knows the index: nothing is listed. `datastore doctor` tells what is dead in them."""
        live = live_in_packs(engine.state.base_keys())
        return {"count": len(live), "liveBytes": sum(live.values())}

    def _lacking(self, engine: Engine) -> dict[str, Any]:
        """What belongs here and is not: vanished since, or never brought, with the reason. S20, S23"""
        gone, owed = engine.mender.missing(), engine.deferred("")
        first = [{"path": file.path, "reason": file.why} for file in owed[:SHOWN_AT_MOST]]
        return {"gone": len(gone), "owed": len(owed), **({"notHere": first} if first else {})}

    def _asked(self) -> tuple[Root | None, dict[str, Any]]:
        """One look at the root and one at the global lease, timed."""
        clock = self._env.clock
        started = clock.monotonic()
        # Whether somebody holds the lease is not known until the store has said so.
        found: dict[str, Any] = {"healthy": True, "message": "ok", "lock": {"held": None}}
        root: Root | None = None
        try:
            root = self.root()
            found["latencyMs"] = int((clock.monotonic() - started) * 1000)
            found["lock"] = in_time(PATIENCE_S, self._lock)
        except SwampError as error:
            found |= {"healthy": False, "message": error.message}
            found.setdefault("latencyMs", int((clock.monotonic() - started) * 1000))
        return root, found

    def _compared(self, root: Root | None, known: EngineStatus, store_id: str | None) -> dict[str, Any]:
        """How this cache stands to the root: commits that it has not pulled."""
        if root is None and not known.seq:
            return {"message": "the store is reachable and has no index yet", "behind": 0}
        if root is None:
            lost = f"the store has lost its index: this cache has seen sequence {known.seq} (datastore doctor)"
            return {"healthy": False, "message": lost}
        if store_id not in (None, root.store_id):
            return {"message": "not the store that this cache knew: the next sync compares everything"}
        return {"behind": max(0, root.seq - known.seq)}

    def root(self) -> Root | None:
        """The root as the store has it now. Raises Unavailable when that takes longer than a few seconds."""
        return in_time(PATIENCE_S, self._read_root)

    def _read_root(self) -> Root | None:
        self._datastore.must_be_there()
        try:
            return read_root(self._datastore.hurried_store)[0]
        except ObjectMissing:
            # Every address answers like that for a name that it does not know. Only a bucket has a listing.
            next(iter(self._datastore.hurried_store.list(LOG_PREFIX)), None)
            return None

    def _lock(self) -> dict[str, Any]:
        from swamp.locks.decide import GLOBAL_KEY, read_lease

        seen = read_lease(self._datastore.hurried_store, GLOBAL_KEY)
        if seen is None or not seen.held:
            return {"held": False}
        return {"held": True, "holder": seen.holder, "ageMs": age_ms(self._env, seen)}


def age_ms(env: Env, seen: ObservedLease) -> int:
    """For people only: nothing is decided by it. inv[lease.no-clock]"""
    try:
        since = parse_rfc3339(seen.body.acquired_at) if seen.body else seen.last_modified
    except ValueError:
        since = seen.last_modified
    return max(0, int((env.clock.now() - since).total_seconds() * 1000))


def sentence(found: dict[str, Any]) -> str:
    """One sentence on how things stand, and what to do about it."""
    pending, cache = found["pending"], found["cache"]
    if found["type"] == "filesystem":
        return "A plain directory: everything is here, and nothing is shared."
    if pending is None:
        return f"{found['message']}; what waits here is not known."
    owed = _owed(found["behind"], pending, cache, lazy=found["hydrate"] == "lazy")
    if not found["healthy"]:
        kept = f"; {_listed(owed)} wait for it" if owed else "; nothing here waits for it"
        return f"The store cannot be used: {found['message']}{kept}."
    if owed:
        return f"Not in sync: {_listed(owed)}; `swamp datastore sync` brings both sides in step."
    if found["behind"] is None:
        return f"Not in sync: {found['message']}."
    aside = cache["conflicts"]
    kept = "1 file that lost a conflict is" if aside == 1 else f"{aside} files that lost a conflict are"
    left = f"; {kept} kept here" if aside else ""
    return f"In sync with {found['url']} at commit {found['seq']}{left}."


def _owed(behind: int | None, pending: dict[str, int], cache: dict[str, Any], *, lazy: bool) -> list[str]:
    """What one side still owes the other. What a lazy cache leaves in the store is owed to nobody."""
    changes = pending["writes"] + pending["deletes"] + pending["found"]
    words = [
        (behind or 0, "commit behind", "commits behind"),
        (changes, "change to push", "changes to push"),
        (pending["outbox"], "kept put to deliver", "kept puts to deliver"),
        (0 if lazy else cache["remoteOnly"] - cache.get("left", 0), "file still to fetch", "files still to fetch"),
        (cache.get("gone", 0), "file that vanished here", "files that vanished here"),
        (cache.get("owed", 0), "file that could not be brought", "files that could not be brought"),
    ]
    return [f"{count} {one if count == 1 else many}" for count, one, many in words if count]


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


# -- packs

FOOTERS: Final = 1000
"""Footers that are read at most, of the packs with most to gain; of others the footer counts as dead."""


@value
class Weighed:
    """The packs of a store as a listing and the index tell; `missing` are those that a live file lies in."""

    count: int
    live: int
    dead: int
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "liveBytes": self.live, "deadBytes": self.dead}


def weigh(store: ObjectStore, root: Root, fetch: FetchSegment) -> Weighed:
    """Reads the index, lists the packs, and reads the footers of those in which something seems dead."""
    live = live_in_packs(row.key for row in live_rows(root, fetch))
    packs = list(packs_of(store))
    used = sorted((meta for meta in packs if meta.key in live), key=lambda meta: live[meta.key] - meta.size)
    held = pooled(used[:FOOTERS], lambda meta: (meta.key, packed_bytes(store, meta)))
    sizes = {meta.key: meta.size for meta in packs} | {key: size for key, size in held if size is not None}
    dead = sum(max(0, size - live.get(key, 0)) for key, size in sizes.items())
    return Weighed(len(packs), sum(live.values()), dead, tuple(sorted(live.keys() - sizes.keys())))
