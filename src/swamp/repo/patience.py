"""Waiting that listens: every sleep of a command ends when it was asked to stop."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from swamp.env import Clock
from swamp.sync.progress import Cancel

_SLICE = 0.1


@dataclass(frozen=True)
class StoppableClock:
    """A clock whose `sleep` raises Interrupted soon after a signal: in a retry, in a queue for a lease, anywhere."""

    clock: Clock
    cancel: Cancel

    def now(self) -> dt.datetime:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            self.cancel.check()
            self.clock.sleep(min(left, _SLICE))
        self.cancel.check()
