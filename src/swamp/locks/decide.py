"""What to do about a lease, as values: no store, no sleep, no thread. Section 5 of the protocol.

Every write of a lease body raises `epoch`, renewals and releases too: on stores whose token is a hash of the bytes
two writes never look the same, so "the token has not moved" always means "nobody wrote".
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

from swamp.store.port import Token
from swamp.values import as_document, value

TTL_S = 30.0
LONGEST_TTL_S = 600.0
State = Literal["held", "released"]


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
    """The body, or None when it cannot be read: such a lease ages like any other."""
    try:
        doc = json.loads(raw)
        return _from_json(doc)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _from_json(doc: dict[str, Any]) -> LeaseBody:
    """Ours, or that of another client of this format, which deletes what it releases and knows no epoch (K13)."""
    if not isinstance(doc, dict):
        raise TypeError(doc)
    state = doc.get("state", "held")
    if state not in ("held", "released"):
        raise ValueError(state)
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

    def idle_s(self, now: float) -> float:
        return now - self.since


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
    return _of_another(observed, watch, know)


def _of_another(observed: ObservedLease, watch: Watch | None, know: Knowledge) -> Decision:
    # inv[lease.no-clock]: my monotonic clock against itself, the store's timestamps against themselves.
    ttl = observed.ttl_s
    if watch is None or watch.token != observed.token or watch.idle_s(know.now) < ttl:
        return "wait"
    if know.store_now is None:
        return "ask"
    if (know.store_now - observed.last_modified).total_seconds() < ttl:
        return "wait"
    return Take(observed.token, observed.next_epoch, "stale")
