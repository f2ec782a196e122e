"""Takes the leases of a bucket: a model's, the global one, which exclude each other on every backend (K07), and the
commit lock of a store without conditions. Section 5 of the protocol.

Leases keep one model's runs in order and save work; safety does not rest on them. `decide` says what to do, this module
does it: acquire, renew, release and steal are compare-and-swap. Who takes a model's lease or the global one writes
first and looks at the other second, so of two that overlap at least one sees the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from swamp.env import Env, rfc3339
from swamp.errors import ConditionFailed, ObjectMissing, StoreError, Unavailable
from swamp.locks.decide import (
    GLOBAL_KEY,
    TTL_S,
    Decision,
    Holder,
    LeaseBody,
    ObservedLease,
    Take,
    Watch,
    look,
    model_key,
    model_lease_keys,
    read_lease,
    retire,
    timed_out,
    waiting_for,
)
from swamp.locks.hold import LEASES_VARIABLE, HeldLease, LocalLock
from swamp.store.port import CREATE, Capabilities, Match, ObjectStore, Token
from swamp.store.retry import Backoff
from swamp.values import value

RENEW_S: Final = 10.0
WATCH_S: Final = 1.0
DEFAULT_TIMEOUT_S: Final = 60.0
AWAY_S: Final = 5.0
"""How long a store that cannot be asked is waited for, beyond what its client has already done for each request."""
SETTLE_S: Final = 5.0
SHORTEST_SETTLE_S: Final = 0.02
SETTLE_FACTOR: Final = 3.0


@value
class Terms:
    """How long a lease lives without renewal, and how often it is renewed (0: by hand, in the simulator)."""

    ttl_s: float = TTL_S
    renew_s: float = RENEW_S
    settle_s: float = SETTLE_S


def inherited_of(environ: dict[str, str] | os._Environ[str]) -> frozenset[str]:
    """Nonces of the leases that a parent process holds for this one (K09)."""
    return frozenset(n for n in environ.get(LEASES_VARIABLE, "").split(",") if n)


@value
class StoreLeases:
    """Takes leases on one store for one process: knows who asks, how long it waits and who is told meanwhile."""

    store: ObjectStore
    holder: Holder
    env: Env
    timeout_s: float = DEFAULT_TIMEOUT_S
    capabilities: Capabilities = field(default_factory=Capabilities)
    local_lock_dir: Path | None = None
    on_lost: Callable[[str], None] = lambda _: None
    inherited: Collection[str] | None = None
    """Nonces of leases that a parent process holds for this one; None: those that the environment names."""
    terms: Terms = field(default_factory=Terms)
    away_s: float = AWAY_S
    on_waiting: Callable[[str], object] = lambda _: None
    """Hears once of each holder that has to be waited for."""
    _told: set[str] = field(default_factory=set, compare=False)

    def acquire(
        self, key: str, timeout_s: float | None = None, on_wait: Callable[[], object] = lambda: None
    ) -> HeldLease:
        """The lease on `key`, renewed by a thread until it is released. Raises LockTimeout (75) with the holder's name.

        A holder is waited for `timeout_s`, a store that cannot be asked `away_s` at a time: then its error is raised.
        `on_wait` is called at most once, when the first look shows that somebody has to be waited for.
        """
        local = LocalLock(self.local_lock_dir, self.store.url, key) if self.local_lock_dir else None
        try:
            return _Attempt(self, key, local).run(self.timeout_s if timeout_s is None else timeout_s, on_wait)
        except BaseException:
            if local:
                local.close()
            raise

    def nonces(self) -> frozenset[str]:
        """Of the leases that a parent process holds for this one."""
        return inherited_of(os.environ) if self.inherited is None else frozenset(self.inherited)

    def tell(self, seen: ObservedLease) -> None:
        said = waiting_for(seen)
        if said not in self._told:
            self._told.add(said)
            self.on_waiting(said)

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


class _Attempt:
    """One caller's way to a lease: look, decide, swap or wait."""

    def __init__(self, client: StoreLeases, key: str, local: LocalLock | None) -> None:
        self._client, self._key, self._local = client, key, local
        self._store, self._env, self._safe = client.store, client.env, client.capabilities.safe
        self._inherited, self._nonce = client.nonces(), client.env.uuid()
        holder, now = client.holder, client.env.clock.now()
        ttl_ms = int(client.terms.ttl_s * 1000)
        said = (str(holder), holder.hostname, holder.pid, rfc3339(now), ttl_ms, self._nonce)
        self._body = LeaseBody(*said, epoch=1, state="held")
        self._watch: Watch | None = None
        self._seen: ObservedLease | None = None
        self._sent_at = self._looked_at = self._away_since = client.env.clock.monotonic()
        self._unreachable: Unavailable | None = None

    def run(self, timeout_s: float, on_wait: Callable[[], object]) -> HeldLease:
        backoff = Backoff(self._env, timeout_s)
        held = self._try(first=True)
        if held is None and self._unreachable is None:
            if self._seen is not None and self._seen.held:
                self._client.tell(self._seen)
            on_wait()
            held = self._try()  # that may have taken long, and the time be up
        while held is None:
            # Nothing has been heard of the store for so long that waiting for it is no use.
            away = self._unreachable and self._env.clock.monotonic() - self._away_since >= self._client.away_s
            if away or not backoff.pause():
                raise self._unreachable or timed_out(self._key, self._seen, timeout_s)
            held = self._try()
        return held

    def _at_once(self) -> HeldLease | None:
        """Without a look, where conditions are enforced: a swap on what this machine left there, or on nothing, can
        only succeed if a look would have shown just that. Whatever else comes of it, the look follows."""
        local = self._local
        if local is None or not self._safe or self._inherited or not local.take(self._nonce):
            return None
        left = local.left()
        body = self._body if left is None else replace(self._body, epoch=left.epoch + 1)
        self._sent_at = self._env.clock.monotonic()
        try:
            token = self._store.put(self._key, body.encode(), CREATE if left is None else Match(left.token)).token
        except (ConditionFailed, ObjectMissing, Unavailable):
            return None
        return self._held(body, token, unbroken=True) if token else None

    def _try(self, *, first: bool = False) -> HeldLease | None:
        """One look and at most one swap; an unreachable store is waited for like a holder, but not for as long."""
        try:
            held = (self._at_once() if first else None) or self._attempt()
        except Unavailable as error:
            if self._unreachable is None:
                self._away_since = self._looked_at
            self._unreachable = error
            return None
        self._unreachable = None
        return held

    def _attempt(self) -> HeldLease | None:
        self._looked_at = self._env.clock.monotonic()
        dead = self._local.dead() if self._local else ()
        known = (self._nonce, self._inherited, dead)
        self._seen, self._watch, decision = look(self._store, self._env, self._key, self._watch, *known)
        if decision == "wait":
            return None
        if decision in ("inherit", "mine"):
            return self._held_as_seen(inherited=decision == "inherit")
        if self._local is not None and not self._local.take(self._nonce):
            return None  # another process of this machine is ahead
        return self._swap(decision)

    def _swap(self, decision: Decision) -> HeldLease | None:
        found = decision if isinstance(decision, Take) else None
        body = replace(self._body, epoch=found.epoch) if found else self._body
        unanswered: Unavailable | None = None
        self._sent_at = self._env.clock.monotonic()
        try:
            condition = Match(found.token) if found else CREATE  # inv[commit.condition]
            token = self._store.put(self._key, body.encode(), condition).token
            if self._safe and token:
                return self._held(body, token)  # a swap that clearly happened need not be looked at
        except ConditionFailed:
            pass  # no other answer decides: what stands there now does (K05)
        except Unavailable as error:
            unanswered = error
        if not self._safe:
            self._env.clock.sleep(self._settling())
        self._seen = read_lease(self._store, self._key)
        if self._seen and self._seen.held and self._seen.nonce == self._nonce:
            return self._held_as_seen()
        if unanswered is not None:
            raise unanswered  # a store that takes no lease is not a holder that is waited for (C20)
        return None

    def _settling(self) -> float:
        """How long a rival that looked before my write may take to write over it: three times what I took for both.

        What this saves is work, not data: a rival may be slower than that, or asleep. It then writes over a lease that
        is held, the holder finds that out before it records a commit, and whatever was written under a lost lease is
        put right by the log (docs/decisions/0006-without-conditions.md).
        """
        took = self._env.clock.monotonic() - self._looked_at
        return min(self._client.terms.settle_s, max(SHORTEST_SETTLE_S, SETTLE_FACTOR * took))

    def _held_as_seen(self, *, inherited: bool = False) -> HeldLease:
        assert self._seen is not None and self._seen.body is not None
        return self._held(self._seen.body, self._seen.token, inherited=inherited)

    def _held(self, body: LeaseBody, token: Token, *, inherited: bool = False, unbroken: bool = False) -> HeldLease:
        local = None if inherited else self._local
        if local is not None:
            local.settle(self._nonce)
        lease = HeldLease(
            self._store,
            self._env,
            self._key,
            body,
            token,
            self._sent_at,
            safe=self._safe,
            renew_s=self._client.terms.renew_s,
            on_lost=self._client.on_lost,
            local=local,
            inherited=inherited,
            unbroken=unbroken,
        )
        lease.start()
        return lease


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


COMMIT_LEASE: Final = ".datastore-commit.lock"
TERMS = Terms()
NOT_ENFORCED: Final = Capabilities(create_only=False, compare_and_swap=False)


def commit_lock(
    store: ObjectStore, env: Env, *, timeout: float = 60.0, local: Path | None = None
) -> Callable[[], HeldLease]:
    """Opens the lock under which commits are made one at a time, where the store does not enforce conditions."""

    def lease() -> HeldLease:
        client = StoreLeases(
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
