"""Asks several things of a store at once: who is far away is waited for once and not once for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from swamp.env import SYSTEM

T = TypeVar("T")

GRACE_SECONDS: Final = 3.0
"""How long who interrupts waits for requests that are on their way: what they write is known to whoever cleans up."""


def together(calls: Sequence[Callable[[], T]], stop: Callable[[], object] = lambda: None) -> list[T]:
    """Every answer, in order. Raises what the first of those raised that failed, after all have ended.

    Threads that do not keep the process: whoever interrupts it need not wait for a store that does not answer. `stop`
    tells them that nobody wants their answers any more.
    """
    answers: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def ask(number: int, call: Callable[[], T]) -> None:
        try:
            answers[number] = call()
        except BaseException as error:  # noqa: BLE001  (raised again by who asked)
            errors[number] = error

    threads = [threading.Thread(target=ask, args=asked, daemon=True) for asked in enumerate(calls)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C
        stop()
        until = SYSTEM.clock.monotonic() + GRACE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - SYSTEM.clock.monotonic()))
        raise
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(calls))]
