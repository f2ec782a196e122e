"""Limits how long a command waits: a call ends in time, a sleep ends when the command was cancelled."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVar

from swamp.env import Clock
from swamp.errors import Unavailable
from swamp.sync.progress import Cancel
from swamp.values import value

_SLICE = 0.1


T = TypeVar("T")


def in_time(seconds: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises, if it ends in time: whatever hangs (a name server, a login, a mount), nobody waits
    for longer. Else Unavailable, and what it began is left alone."""
    outcome: list[Callable[[], T]] = []

    def run() -> None:
        try:
            found = call()
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
            outcome.append(partial(_raise, error))
        else:
            outcome.append(lambda: found)

    thread = threading.Thread(target=run, name="in time", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if not outcome:
        raise Unavailable(f"the store did not answer within {seconds:.1f} s", hint="check the network and the store")
    return outcome[0]()


def _raise(error: BaseException) -> NoReturn:
    raise error


@value
class StoppableClock:
    """A clock whose `sleep` raises Interrupted soon after a signal: in a retry, in a queue for a lease, anywhere."""

    clock: Clock
    cancel: Cancel
    waiting: Callable[[], None] = lambda: None
    """Called before every sleep."""

    def now(self) -> dt.datetime:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.waiting()
        end = self.clock.monotonic() + seconds
        while (left := end - self.clock.monotonic()) > 0:
            self.cancel.check()
            self.clock.sleep(min(left, _SLICE))
        self.cancel.check()
