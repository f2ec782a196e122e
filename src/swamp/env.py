"""The only door for time, sleep, identity and chance: the simulator stands behind it in tests."""

from __future__ import annotations

import datetime as dt
import os
import random  # noqa: TID251
import time
import uuid
from typing import Protocol

from swamp.values import value

UTC = dt.UTC
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _CROCKFORD for second in _CROCKFORD]
ULID_LENGTH = 26


class Clock(Protocol):
    def now(self) -> dt.datetime:
        """Wall-clock time in UTC. Never compared between machines. inv[lease.no-clock]"""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for durations and deadlines."""
        ...

    def sleep(self, seconds: float) -> None: ...


class Rng(Protocol):
    def random(self) -> float:
        """A number in [0, 1)."""
        ...

    def getrandbits(self, bits: int) -> int: ...


class SystemClock:
    def now(self) -> dt.datetime:
        return dt.datetime.now(UTC)  # noqa: TID251

    def monotonic(self) -> float:
        return time.monotonic()  # noqa: TID251

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: TID251


@value
class Env:
    """Clock, chance and the identities made from them."""

    clock: Clock
    rng: Rng

    def ulid(self) -> str:
        """A 26-character identity that sorts by time and is never made twice."""
        millis = int(self.clock.now().timestamp() * 1000)
        return _encode(millis, 10) + _encode(self.rng.getrandbits(80), 16)

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.rng.getrandbits(128), version=4))

    def jitter(self, seconds: float) -> float:
        """Between half of `seconds` and all of it, so that a crowd spreads out."""
        return seconds * (0.5 + self.rng.random() / 2)


def _encode(value: int, length: int) -> str:
    """`length` characters, an even number: two at a time, because every upload has an identity of its own."""
    return "".join([_PAIRS[(value >> (5 * i)) & 1023] for i in range(length - 2, -1, -2)])


def is_ulid(text: str) -> bool:
    return len(text) == ULID_LENGTH and not text.strip(_CROCKFORD)


def user_name() -> str:
    """Who works here, by name, or by number where that has none: a container without a passwd entry for this uid."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def rfc3339(moment: dt.datetime) -> str:
    """`2026-11-15T19:48:40.123Z`: one spelling of time in every file we write."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_rfc3339(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


SYSTEM = Env(SystemClock(), random.SystemRandom())
