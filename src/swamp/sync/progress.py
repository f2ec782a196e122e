"""How long work tells the world that it moves, and how the world tells it to stop."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from dataclasses import field

from swamp.env import Clock, Env
from swamp.errors import Interrupted, Unavailable
from swamp.values import mutable, value

_SLICE = 0.1
"""How long a sleep goes on, in seconds, before it looks whether somebody has had enough."""


class Progress:
    """Hears how work goes on, from several threads; this one tells nobody, a progress bar overrides it."""

    def begin(self, stage: str, files: int | None = None, size: int | None = None) -> None: ...

    def advance(self, files: int = 0, size: int = 0) -> None: ...

    def end(self) -> None: ...


class PortionedProgress(Progress):
    """One bar over a stage that is done in portions."""

    def __init__(self, inner: Progress, files: int) -> None:
        self._inner = inner
        self._files = files
        self._begun = False

    def begin(self, stage: str, files: int | None = None, size: int | None = None) -> None:
        if not self._begun:
            self._inner.begin(stage, self._files)
            self._begun = True

    def advance(self, files: int = 0, size: int = 0) -> None:
        self._inner.advance(files, size)

    def close(self) -> None:
        if self._begun:
            self._inner.end()


class Cancel:
    """Set once by a signal handler; long work looks at it between steps."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def request(self) -> None:
        self._event.set()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        if self.requested:
            raise Interrupted("interrupted", hint="nothing was lost: run the same command again to continue")


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


@mutable
class IdleTimeout:
    """A deadline that counts time *without progress*: a slow push may take hours, a stuck one may not."""

    env: Env
    seconds: float
    cancel: Cancel = field(default_factory=Cancel)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.env.clock.monotonic()

    def progressed(self) -> None:
        self._since = self.env.clock.monotonic()

    @property
    def left(self) -> float:
        return self.seconds - (self.env.clock.monotonic() - self._since)

    @property
    def over(self) -> bool:
        """Whether nobody waits for this work any more."""
        return self.cancel.requested or self.left <= 0

    def check(self) -> None:
        """Raises Interrupted when asked to stop, Unavailable when nothing has moved for too long."""
        self.cancel.check()
        if self.left <= 0:
            raise Unavailable(
                f"no progress for {self.seconds:g} s",
                hint="check the network and the store's status, then run the command again; "
                "unpushed work is kept in the journal",
            )
