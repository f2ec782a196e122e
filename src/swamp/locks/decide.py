"""Reads leases in a bucket and decides what to do about them; `decide` itself knows values alone. PROTOCOL, section 5.

Every write of a lease body raises `epoch`, renewals and releases too: on stores whose token is a hash of the bytes
two writes never look the same, so "the token has not moved" always means "nobody wrote".
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import socket
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final, Literal

from swamp.env import Env, user_name
from swamp.errors import ConditionFailed, LockTimeout, ObjectMissing
from swamp.store.port import WHOLE_AT_MOST, Match, ObjectStore, Token
from swamp.values import as_document, value

GLOBAL_KEY: Final = ".datastore.lock"
CLOCK_KEY: Final = ".datastore.clock"
TTL_S = 30.0
LONGEST_TTL_S = 600.0
MAX_LEASE: Final = WHOLE_AT_MOST
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
State = Literal["held", "released"]


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
class LeaseBody:
    """Who holds it, since when, and which write this is."""

    holder: str
    hostname: str
    pid: int
    acquired_at: str
    ttl_ms: int
    nonce: str
    epoch: int
    state: State

    def encode(self) -> bytes:
        return json.dumps(as_document(self)).encode()

    def renewed(self) -> LeaseBody:
        return replace(self, epoch=self.epoch + 1)

    def released(self) -> LeaseBody:
        """Marked, not deleted, so that `epoch` only grows. inv[lease.epoch]"""
        return replace(self, epoch=self.epoch + 1, state="released")


def decode(raw: bytes) -> LeaseBody | None:
    """The body, or None when it cannot be read: such a lease ages like any other.

    Ours, or that of another client of this format, which deletes what it releases and knows no epoch (K13).
    """
    try:
        doc = json.loads(raw)
        state = doc.get("state", "held")
        if state not in ("held", "released"):
            return None
        return LeaseBody(
            _shown(doc["holder"]),
            _shown(doc.get("hostname", "")),
            int(doc.get("pid", 0)),
            str(doc["acquiredAt"]),
            int(doc.get("ttlMs", TTL_S * 1000)),
            str(doc.get("nonce") or "without a nonce"),
            int(doc.get("epoch", 0)),
            state,
        )
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _shown(name: object) -> str:
    """Names are printed on terminals, and anybody who may write to the bucket may have made them up."""
    return "".join(c if c.isprintable() else "?" for c in str(name)[:200])


@value
class ObservedLease:
    """A lease object as the store showed it. `body` is None when its bytes make no sense."""

    key: str
    token: Token
    last_modified: dt.datetime
    body: LeaseBody | None

    @property
    def held(self) -> bool:
        """Somebody says it is theirs; an unreadable body is taken for that until it is stale."""
        return self.body is None or self.body.state == "held"

    @property
    def holder(self) -> str:
        return self.body.holder if self.body else "an unreadable lease"

    @property
    def nonce(self) -> str | None:
        return self.body.nonce if self.body else None

    @property
    def ttl_s(self) -> float:
        return min(self.body.ttl_ms / 1000, LONGEST_TTL_S) if self.body else TTL_S

    @property
    def next_epoch(self) -> int:
        """Larger than any epoch this object can have held, also when its own can no longer be read."""
        return self.body.epoch + 1 if self.body and self.body.epoch else int(self.last_modified.timestamp())


@value
class Watch:
    """Since when, on my own monotonic clock, a lease has shown this token."""

    token: Token
    since: float


def watching(before: Watch | None, observed: ObservedLease | None, now: float) -> Watch | None:
    """The watch after another look: a moved token starts it anew."""
    if observed is None:
        return None
    if before is not None and before.token == observed.token:
        return before
    return Watch(observed.token, now)


@value
class Take:
    """Free, or abandoned for the reason given: swap it on `token`."""

    token: Token
    epoch: int
    why: Literal["released", "stale", "dead"]


Decision = Take | Literal["create", "mine", "inherit", "ask", "wait"]
"""create: nobody ever held it. mine: my own write has arrived, whatever I was told about it. inherit: a parent process
holds it for me. ask: quiet for a TTL on my clock, so now ask how old it is by the store's own."""


@value
class Knowledge:
    """What I know besides the lease itself."""

    now: float
    nonce: str
    inherited: Collection[str] = ()
    dead: Collection[str] = ()
    store_now: dt.datetime | None = None


def decide(observed: ObservedLease | None, watch: Watch | None, know: Knowledge) -> Decision:
    """What to do next about one lease."""
    if observed is None:
        return "create"
    if not observed.held:
        return Take(observed.token, observed.next_epoch, "released")
    if observed.nonce == know.nonce:
        return "mine"
    if observed.nonce in know.inherited:
        return "inherit"
    if observed.nonce in know.dead:
        # The flock of this very nonce is free: its process is gone, and no pid was guessed for that.
        return Take(observed.token, observed.next_epoch, "dead")
    # inv[lease.no-clock]: my monotonic clock against itself, the store's timestamps against themselves.
    ttl = observed.ttl_s
    if watch is None or watch.token != observed.token or know.now - watch.since < ttl:
        return "wait"
    if know.store_now is None:
        return "ask"
    if (know.store_now - observed.last_modified).total_seconds() < ttl:
        return "wait"
    return Take(observed.token, observed.next_epoch, "stale")


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
    key = seen.key
    what = f"the model {key.removeprefix('data/').removesuffix('/.lock')}" if key.startswith("data/") else "the store"
    return f"Waiting for {what}, held by {seen.holder}{since}"


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
