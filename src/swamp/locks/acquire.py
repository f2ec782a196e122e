"""Leases: keep one model's runs in order and save work. Safety does not rest on them. Section 5 of the protocol.

`decide` says what to do, this module does it. Acquire, renew, release and steal are compare-and-swap.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
from collections.abc import Callable, Collection
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from swamp.env import Env, rfc3339, user_name
from swamp.errors import ConditionFailed, LockTimeout, ObjectMissing, Unavailable
from swamp.locks.decide import (
    TTL_S,
    Decision,
    Knowledge,
    LeaseBody,
    ObservedLease,
    Take,
    Watch,
    decide,
    decode,
    watching,
)
from swamp.locks.hold import LEASES_VARIABLE, HeldLease, LocalLock, Swap
from swamp.store.port import CREATE, WHOLE_AT_MOST, Capabilities, Condition, Match, ObjectStore, Token
from swamp.store.retry import Backoff
from swamp.values import value

GLOBAL_KEY: Final = ".datastore.lock"
CLOCK_KEY: Final = ".datastore.clock"
RENEW_S: Final = 10.0
MAX_LEASE: Final = WHOLE_AT_MOST
DEFAULT_TIMEOUT_S: Final = 60.0
AWAY_S: Final = 5.0
"""How long a store that cannot be asked is waited for, beyond what its client has already done for each request."""
SETTLE_S: Final = 5.0
SHORTEST_SETTLE_S: Final = 0.02
SETTLE_FACTOR: Final = 3.0


def model_key(model_type: str, model_id: str) -> str:
    return f"data/{model_type}/{model_id}/.lock"


@value
class Holder:
    """Who asks, for people to read: no decision is ever made from a host name or a pid (K08)."""

    user: str
    hostname: str
    pid: int

    @classmethod
    def of_process(cls) -> Holder:
        return cls(user_name(), socket.gethostname(), os.getpid())

    def __str__(self) -> str:
        return f"{self.user}@{self.hostname}"


@value
class Terms:
    """How long a lease lives without renewal, and how often it is renewed (0: by hand, in the simulator)."""

    ttl_s: float = TTL_S
    renew_s: float = RENEW_S
    settle_s: float = SETTLE_S


def inherited_of(environ: dict[str, str] | os._Environ[str]) -> frozenset[str]:
    """Nonces of the leases that a parent process holds for this one (K09)."""
    return frozenset(n for n in environ.get(LEASES_VARIABLE, "").split(",") if n)


def read_lease(store: ObjectStore, key: str) -> ObservedLease | None:
    """The lease as it stands, None if there never was one. Raises StoreError."""
    try:
        found = store.get(key, length=MAX_LEASE)  # cut off it is unreadable, and stale like any other (K06)
    except ObjectMissing:
        return None
    return ObservedLease(key, found.meta.token, found.meta.last_modified, decode(found.body))


def store_now(store: ObjectStore) -> dt.datetime:
    """What time the store thinks it is: the timestamp it gives to an object just written. inv[lease.no-clock]"""
    store.put(CLOCK_KEY, b"{}")
    return store.head(CLOCK_KEY).last_modified


def look(
    store: ObjectStore,
    env: Env,
    key: str,
    watch: Watch | None,
    nonce: str,
    inherited: Collection[str],
    dead: Collection[str],
) -> tuple[ObservedLease | None, Watch | None, Decision]:
    """Reads a lease once more and says what to do about it; the store is asked for its time only if that decides."""
    seen = read_lease(store, key)
    now = env.clock.monotonic()
    watch = watching(watch, seen, now)
    know = Knowledge(now, nonce, inherited, dead)
    decision = decide(seen, watch, know)
    if decision == "ask":
        decision = decide(seen, watch, replace(know, store_now=store_now(store)))
    return seen, watch, decision


@value
class LeaseClient:
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


class _Attempt:
    """One caller's way to a lease: look, decide, swap or wait."""

    def __init__(self, client: LeaseClient, key: str, local: LocalLock | None) -> None:
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
        decision = self._look()
        if decision == "wait":
            return None
        if decision in ("inherit", "mine"):
            return self._held_as_seen(inherited=decision == "inherit")
        if self._local is not None and not self._local.take(self._nonce):
            return None  # another process of this machine is ahead
        return self._swap(decision)

    def _look(self) -> Decision:
        self._looked_at = self._env.clock.monotonic()
        dead = self._local.dead() if self._local else ()
        known = (self._nonce, self._inherited, dead)
        self._seen, self._watch, decision = look(self._store, self._env, self._key, self._watch, *known)
        return decision

    def _swap(self, decision: Decision) -> HeldLease | None:
        body, condition = self._proposal(decision)
        unanswered: Unavailable | None = None
        self._sent_at = self._env.clock.monotonic()
        try:
            token = self._store.put(self._key, body.encode(), condition).token  # inv[commit.condition]
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

    def _proposal(self, decision: Decision) -> tuple[LeaseBody, Condition]:
        if isinstance(decision, Take):
            return replace(self._body, epoch=decision.epoch), Match(decision.token)
        return self._body, CREATE

    def _held_as_seen(self, *, inherited: bool = False) -> HeldLease:
        assert self._seen is not None and self._seen.body is not None
        return self._held(self._seen.body, self._seen.token, inherited=inherited)

    def _held(self, body: LeaseBody, token: Token, *, inherited: bool = False, unbroken: bool = False) -> HeldLease:
        swap = Swap(self._store, self._env, self._key, self._safe)
        local = None if inherited else self._local
        if local is not None:
            local.settle(self._nonce)
        lease = HeldLease(
            swap,
            body,
            token,
            self._sent_at,
            renew_s=self._client.terms.renew_s,
            on_lost=self._client.on_lost,
            local=local,
            inherited=inherited,
            unbroken=unbroken,
        )
        lease.start()
        return lease


def timed_out(key: str, seen: ObservedLease | None, timeout_s: float) -> LockTimeout:
    """The error that names who is in the way."""
    if seen is None or not seen.held:
        message = f"the lease {key} could not be taken within {timeout_s:g} s"
        return LockTimeout(message, hint="check the connection to the store and try again", details={"key": key})
    since = f" since {seen.body.acquired_at}" if seen.body else ""
    # Without a model `lock release` takes the global lease.
    which = f" --model {key.removeprefix('data/').removesuffix('/.lock')}" if key.startswith("data/") else ""
    return LockTimeout(
        f"{key} is held by {seen.holder}{since} and was not released within {timeout_s:.3g} s",
        hint=f"wait for it; if its process is gone: swamp datastore lock release --force{which}",
        details={"key": key, "holder": seen.holder, "nonce": seen.nonce},
    )


def waiting_for(seen: ObservedLease) -> str:
    """Who holds a lease that somebody waits for, in words."""
    since = f" since {seen.body.acquired_at}" if seen.body else ""
    what = key_in_words(seen.key)
    return f"Waiting for {what}, held by {seen.holder}{since}"


def key_in_words(key: str) -> str:
    return f"the model {key.removeprefix('data/').removesuffix('/.lock')}" if key.startswith("data/") else "the store"


def force_release(store: ObjectStore, key: str, nonce: str | None) -> bool:
    """Marks the lease of that nonce released; False when another holds it by now. None: an unreadable one."""
    seen = read_lease(store, key)
    if seen is None or not seen.held or seen.nonce != nonce:
        return False
    body = _freed(seen)
    try:
        store.put(key, body.encode(), Match(seen.token))
    except ConditionFailed:
        after = read_lease(store, key)
        return after is not None and after.body == body
    return True


def retire(store: ObjectStore, seen: ObservedLease) -> None:
    """Marks an abandoned lease released, on the token that was watched: a holder who came back, or a new one, keeps it.

    Looked at once more just before, for stores that do not enforce the condition.
    """
    now = read_lease(store, seen.key)
    if now is not None and now.token == seen.token:
        store.put(seen.key, _freed(seen).encode(), Match(seen.token))


def _freed(seen: ObservedLease) -> LeaseBody:
    """Free, and with an epoch above whatever stood there, also where that cannot be read."""
    if seen.body:
        return replace(seen.body.released(), epoch=seen.next_epoch)
    return LeaseBody("", "", 0, "", int(TTL_S * 1000), "", seen.next_epoch, "released")
