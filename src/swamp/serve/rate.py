"""How often somebody may ask: a bucket of tokens per caller that fills with time."""

from __future__ import annotations

from typing import Final

from swamp.env import Clock

MOST_KEPT: Final = 10_000


class Buckets:
    """`rate` a second for long, `burst` at once. Used by one event loop: no lock."""

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._clock, self._rate, self._burst = clock, rate, burst
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """0 if this one more is fine, else the seconds to wait."""
        now = self._clock.monotonic()
        left, at = self._left.get(who, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        self._left.pop(who, None)  # to the end: those who came last are kept
        self._left[who] = (left - 1, now)
        if len(self._left) > MOST_KEPT:
            self._left.pop(next(iter(self._left)))
        return 0.0
