"""Asks several things of a store at once: who is far away is waited for once and not once for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Every answer, in order. Raises what the first of those raised that failed, after all have ended.

    Threads that do not keep the process: whoever interrupts it need not wait for a store that does not answer.
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
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return [answers[number] for number in range(len(calls))]
