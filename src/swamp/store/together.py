"""Asks a store several things side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from swamp.env import SYSTEM

T = TypeVar("T")

GRACE_SECONDS: Final = 3.0
"""How long who interrupts waits for requests that are on their way: what they write is known to whoever cleans up."""


class SideCall(Generic[T]):
    """One call in a thread of its own, while whoever made it does something else.

    A thread that does not keep the process: whoever interrupts it need not wait for a store that does not answer. Not
    the standard library's `Future`, which would load `logging` (10 ms) into every command with nothing to do.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._answers: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as error:  # noqa: BLE001  (raised again by who asked)
            self._error = error

    def wait(self, seconds: float | None = None) -> None:
        """Until it has ended, or for so long."""
        self._thread.join(seconds)

    @property
    def ended(self) -> bool:
        return bool(self._answers) or self._error is not None

    def answer(self) -> T:
        """What the call returned, once it has ended. Raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._answers[0]


def together(calls: Sequence[Callable[[], T]], stop: Callable[[], object] = lambda: None) -> list[T]:
    """Every answer, in order. Raises what the first of those raised that failed, after all have ended.

    `stop` tells them that nobody wants their answers any more: whoever waits was interrupted.
    """
    asked = [SideCall(call) for call in calls]
    try:
        for one in asked:
            one.wait()
    except BaseException:  # Ctrl-C
        stop()
        until = SYSTEM.clock.monotonic() + GRACE_SECONDS
        for one in asked:
            one.wait(max(0.0, until - SYSTEM.clock.monotonic()))
        raise
    return [one.answer() for one in asked]
