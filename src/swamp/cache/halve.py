"""Has part of a long look done by a second process, on another core: its answer is the same as if it were done here."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

_BETWEEN: Final = b"\0"
_END: Final = b"\0\0"
"""Behind the last one: an answer without it was cut off."""
_PIECE: Final = 1 << 20
WAITING: Final = "signals"
"""The thread of a command that only ever waits for the next signal, and holds nothing."""


@contextmanager
def asked_of_another(
    find: Callable[[], Sequence[str]], *, unless: bool = False
) -> Iterator[Callable[[], list[str] | None]]:
    """Runs `find` in a copy of this process. What is given says what it found; None, if that is not known: where there
    is no second core, where other threads are at work (a copy has none of them, but the locks that they hold), or
    where the copy did not come to its end. Who hears None looks by itself: no answer is not "nothing"."""
    if unless or not _may_copy():
        yield lambda: None
        return
    receive, send = os.pipe()
    child = _copied(lambda: _answer(find, send, receive))
    os.close(send)
    if child is None:
        os.close(receive)
        yield lambda: None
        return
    try:
        yield lambda: _heard(receive)
    finally:
        os.close(receive)  # a child that still has something to say ends with that
        with suppress(ChildProcessError):  # whoever ignores SIGCHLD has no children to wait for
            os.waitpid(child, 0)


def _may_copy() -> bool:
    asked = getattr(os, "sched_getaffinity", None)  # elsewhere a copy of a process may not go on by itself (macOS)
    return asked is not None and len(asked(0)) > 1 and _threads() <= {WAITING}


def _threads() -> set[str]:
    here = threading.current_thread()
    return {thread.name for thread in threading.enumerate() if thread is not here}


def _copied(work: Callable[[], None]) -> int | None:
    """The process that does `work` and nothing after it; None where the system has no room for one more."""
    # Signals stay the first one's: both would be told of one, and two of them end a command at once.
    asked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        child = os.fork()
        if child == 0:
            work()
        return child
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, asked)


def _answer(find: Callable[[], Sequence[str]], send: int, receive: int) -> None:
    """Never returns: nothing of what the first process has begun is to be ended twice."""
    code = 1
    try:
        os.close(receive)  # or nobody's leaving would be noticed: this one would wait for itself, with all our locks
        said = _BETWEEN.join(os.fsencode(path) for path in find()) + _END
        while said:
            said = said[os.write(send, said) :]
        code = 0
    finally:
        os._exit(code)


def _heard(receive: int) -> list[str] | None:
    said = b"".join(iter(lambda: os.read(receive, _PIECE), b""))
    if not said.endswith(_END):
        return None
    return [os.fsdecode(path) for path in said[: -len(_END)].split(_BETWEEN)] if len(said) > len(_END) else []
