"""Takes the leases of a bucket: a model's, the global one, which exclude each other on every backend (K07), and the
commit lock of a store without conditions.

Both sides write first and look second, so of two that overlap at least one sees the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from swamp.env import Env
from swamp.errors import StoreError, Unavailable
from swamp.locks.acquire import (
    GLOBAL_KEY,
    Holder,
    LeaseClient,
    Terms,
    look,
    model_key,
    read_lease,
    retire,
    timed_out,
)
from swamp.locks.decide import ObservedLease, Take, Watch
from swamp.locks.hold import HeldLease, LocalLock
from swamp.store.port import Capabilities, ObjectStore
from swamp.store.retry import Backoff
from swamp.values import value

WATCH_S: Final = 1.0
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@value
class StoreLeases(LeaseClient):
    """Takes the leases of one store for a command: a model's, or the global one."""

    def within(self, changed: Callable[[Env], Env]) -> StoreLeases:
        """The same leases for who waits by another clock, such as one that a request to cancel stops."""
        return replace(self, env=changed(self.env))

    def model(self, model_type: str, model_id: str) -> HeldLease:
        """The lease of one model: taken, then given back for as long as a structural command holds the global one."""
        backoff = Backoff(self.env, self.timeout_s)
        watcher = _Watcher(self)
        while True:
            lease = self.acquire(
                model_key(model_type, model_id), max(backoff.left, 0.0), lambda: watcher.watch([GLOBAL_KEY])
            )
            try:
                blocking = None if lease.inherited else watcher.blocking(GLOBAL_KEY)
            except BaseException:
                lease.release()
                raise
            if blocking is None:
                return lease
            self.tell(blocking)
            lease.release()
            if not backoff.pause():
                raise timed_out(GLOBAL_KEY, blocking, self.timeout_s)

    def whole_store(self) -> HeldLease:
        """The global lease: taken first, so that no model starts, then those that are held are waited for."""
        backoff = Backoff(self.env, self.timeout_s)
        watcher = _Watcher(self)
        lease = self.acquire(GLOBAL_KEY, on_wait=lambda: watcher.watch(model_lease_keys(self.store)))
        try:
            if not lease.inherited:
                self._drain(backoff, lease, watcher)
        except BaseException:
            lease.release()
            raise
        return lease

    def _drain(self, backoff: Backoff, lease: HeldLease, watcher: _Watcher) -> None:
        """Waits until no model lease is held. All are watched at once: who died together is waited for once."""
        keys = list(model_lease_keys(self.store))
        while blocking := [held for key in keys if (held := watcher.blocking(key)) is not None]:
            lease.check()
            self.tell(blocking[0])
            if not backoff.pause():
                raise timed_out(blocking[0].key, blocking[0], self.timeout_s)
            keys = [held.key for held in blocking]


class _Watcher:
    """Looks at leases of others without taking them."""

    def __init__(self, leases: StoreLeases) -> None:
        self._leases = leases
        self._watches: dict[str, Watch | None] = {}
        self._inherited = leases.nonces()

    def watch(self, keys: Iterable[str]) -> None:
        """Begins to count now how long these have been idle: who died with the holder I wait for is not a second wait.

        A look that fails costs that head start and nothing else, so it does not end the wait; and of very many only
        those are looked at that a second is enough for, because nothing is waited for meanwhile.
        """
        clock = self._leases.env.clock
        until = clock.monotonic() + WATCH_S
        with suppress(Unavailable):
            for key in keys:
                self.blocking(key)
                if clock.monotonic() > until:
                    return

    def blocking(self, key: str) -> ObservedLease | None:
        """The lease if somebody alive, who is not my parent, holds it."""
        store, known = self._leases.store, ("", self._inherited, self._dead(key))
        seen, watch, decision = look(store, self._leases.env, key, self._watches.get(key), *known)
        self._watches[key] = watch
        if isinstance(decision, Take) and seen is not None and seen.held:
            # A dead holder is waited for once, not by every command after this one: its lease is marked released (K13).
            # That it could not be done is no reason to stop: the lease is as dead as before.
            with suppress(StoreError):
                retire(store, seen)
        return seen if decision == "wait" else None

    def _dead(self, key: str) -> frozenset[str]:
        directory = self._leases.local_lock_dir
        if directory is None:
            return frozenset()
        local = LocalLock(directory, self._leases.store.url, key)
        try:
            return local.dead()
        finally:
            local.close()


def list_model_leases(store: ObjectStore) -> list[ObservedLease]:
    """Every model lease that was ever taken, held or released."""
    found = (read_lease(store, key) for key in model_lease_keys(store))
    return [lease for lease in found if lease is not None]


def model_lease_keys(store: ObjectStore, prefix: str = "data/") -> Iterator[str]:
    """Where model leases may lie: one request per type and none per version, however much data there is."""
    level = store.level(prefix)
    locks = [o.key for o in level.objects if o.key == f"{prefix}.lock"]
    yield from locks
    if locks:
        return  # this is a model's directory: below it are its data
    for directory in level.dirs:
        name = directory.rsplit("/", 1)[-1]
        if _UUID.fullmatch(name):
            yield f"{directory}/.lock"
        elif not name.isdigit():  # digits are versions: too deep
            yield from model_lease_keys(store, directory + "/")


COMMIT_LEASE: Final = ".datastore-commit.lock"
TERMS = Terms()
NOT_ENFORCED: Final = Capabilities(create_only=False, compare_and_swap=False)


def commit_lock(
    store: ObjectStore, env: Env, *, timeout: float = 60.0, local: Path | None = None
) -> Callable[[], HeldLease]:
    """Opens the lock under which commits are made one at a time, where the store does not enforce conditions."""

    def lease() -> HeldLease:
        client = LeaseClient(
            store,
            Holder.of_process(),
            env,
            timeout_s=timeout,
            capabilities=NOT_ENFORCED,
            local_lock_dir=local,
            inherited=(),
            terms=TERMS,
        )
        return client.acquire(COMMIT_LEASE)

    return lease
