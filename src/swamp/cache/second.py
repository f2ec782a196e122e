"""Has a second process look at the directories of a tree, from the first on, while this one is busy on another core.

It may begin before most of a command is loaded: this module needs neither `typing` nor SQLite to begin, which are half
of what Python itself takes to start. Whoever wants to know looks from the last directory on until the two meet, and
hears what the other found: the same as if all were seen here. What it found different is looked at again.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

Remembered = tuple[str, int | None, int | None, int | None]
"""A directory's path, mtime, ctime and inode; None: it has not been looked at since something came into it."""
Different = tuple[str, os.stat_result | None]
"""A directory whose stat is not the remembered one, with the stat that it has now; None: it could not be asked for."""
REMEMBERED: Final = "SELECT path, mtime, ctime, inode FROM dirs"
BEHIND_ALL: Final = "\U0010ffff" * 2
"""Sorts behind every path."""
LARGE: Final = 2 << 20
"""From so many bytes of state on, a second process looks, too: they may remember 8,000 directories."""
PAGE: Final = 250
"""So many directories are looked at before either of the two asks whether they have met."""
_BETWEEN: Final = b"\0"
_END: Final = b"\0\0"
"""Behind the last one: an answer without it was cut off."""
_PIECE: Final = 1 << 20
_ALL: Final = 1 << 60
WAITING: Final = "signals"
"""The thread of a command that only ever waits for the next signal, and holds nothing."""


def different(rows: Sequence[Remembered], stat_of: Callable[[str], os.stat_result]) -> Iterator[Different]:
    """Those whose stat is not the remembered one. It reads no state."""
    for path, mtime, ctime, inode in rows:
        try:
            stat = stat_of(path or ".")
        except OSError:
            yield path, None
        else:
            if stat.st_ctime_ns != ctime or stat.st_mtime_ns != mtime or stat.st_ino != inode:
                yield path, stat


class Second:
    """The second process, as the first one sees it."""

    def __init__(self, state_db: str, tree: str) -> None:
        self.state_db = state_db
        self.tree = tree
        self.identity = _identity(state_db, tree)
        self.seen_by_both = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
        """How many directories it has taken, how many the first one has, and how many there are, once it has counted
        them. It only says when to stop: what was really looked at is said by `heard`, and by whoever looked."""
        self.receive, self.send = os.pipe()
        self.process: int | None = None

    @property
    def has_met(self) -> bool:
        its, ours, total = self.seen_by_both[:3]
        return 0 < total <= its + ours

    def take(self, count: int) -> None:
        self.seen_by_both[1] += count

    def heard(self) -> tuple[str, list[str]]:
        """The first path that it did not look at, and what differs of those before. Who did not come to its end has
        looked at nothing: no answer is not "nothing differs"."""
        said = b"".join(iter(lambda: os.read(self.receive, _PIECE), b""))
        if not said.endswith(_END):
            return "", []
        first, *differing = map(os.fsdecode, said[: -len(_END)].split(_BETWEEN))
        return first, differing

    def close(self) -> None:
        """Ends it soon, whatever it is doing, and waits for that."""
        if self.process is None:
            return
        self.take(_ALL)
        os.close(self.receive)  # a child that still has something to say ends with that
        with suppress(ChildProcessError):  # whoever ignores SIGCHLD has no children to wait for
            os.waitpid(self.process, 0)
        self.process = None


_AHEAD: ContextVar[Second | None] = ContextVar("ahead", default=None)


@contextmanager
def begun_ahead(state_db: str, tree: str) -> Iterator[None]:
    """Begins to look at the tree now, for whoever asks for it in this block.

    Sound, though it is before anything else was read: a directory that is as some state of this command's time
    remembers it had then what base had in it; whatever came into base since was put there since. inv[tree.damage]
    """
    _AHEAD.set(_begun(state_db, tree))
    try:
        yield
    finally:
        end_ahead()


def end_ahead() -> None:
    """Ends the look that was begun ahead, if it is not at an end: nobody will ask for it."""
    second = _AHEAD.get()
    _AHEAD.set(None)
    if second is not None:
        second.close()


@contextmanager
def second_look(state_db: str, tree: str) -> Iterator[Second | None]:
    """The process that was begun ahead, if it looks at this tree by this very file, else one that begins now. None if
    there is little to look at, no second core, no room for a process, or other threads at work: a copy has none of
    them, but the locks that they hold."""
    second = _AHEAD.get()
    _AHEAD.set(None)
    if second is not None and second.identity != _identity(state_db, tree):
        second.close()
        second = None
    if second is None:
        second = _begun(state_db, tree)
    try:
        yield second
    finally:
        if second is not None:
            second.close()


def _identity(*paths: str) -> tuple[tuple[int, int], ...]:
    """Which files these are, however they are called; nothing if one of them is not there."""
    try:
        return tuple((found.st_dev, found.st_ino) for found in map(os.stat, paths))
    except OSError:
        return ()


def _begun(state_db: str, tree: str) -> Second | None:
    try:
        large = os.stat(state_db).st_size >= LARGE  # noqa: PTH116
    except OSError:
        return None  # whoever opens it as this cache's state says what is wrong with it
    if not large or not may_fork() or not _identity(state_db, tree):
        return None
    second, first = Second(state_db, tree), os.getpid()
    second.process = forked(lambda: _answer(second, first))
    os.close(second.send)
    if second.process is None:
        os.close(second.receive)
        return None
    return second


def may_fork() -> bool:
    """Whether this process may be copied: another core is there, and no thread of ours that could hold a lock."""
    asked = getattr(os, "sched_getaffinity", None)  # elsewhere a copy of a process may not go on by itself (macOS)
    return asked is not None and len(asked(0)) > 1 and _threads() <= {WAITING}


def _threads() -> set[str]:
    here = threading.current_thread()
    return {thread.name for thread in threading.enumerate() if thread is not here}


def forked(work: Callable[[], None]) -> int | None:
    """The process that does `work` and nothing after it; None where the system has no room for one more."""
    # Signals stay the first one's: both would be told of one, and two of them end a command at once.
    asked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with warnings.catch_warnings():
            # From 3.12 on Python warns of threads; those of a store's client hold nothing that a copy touches.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            work()
        return child
    except OSError:
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, asked)


def _answer(second: Second, first: int) -> None:
    """Never returns: nothing of what the first process has begun is to be ended twice."""
    code = 1
    try:
        os.close(second.receive)  # or nobody's leaving would be noticed: this one would wait for itself, with our locks
        gc.disable()
        os.chdir(second.tree)  # short paths, and a call without options: a fifth of each look
        said = _BETWEEN.join(map(os.fsencode, _looked(second, first))) + _END
        while said:
            said = said[os.write(second.send, said) :]
        code = 0
    finally:
        os._exit(code)


def _looked(second: Second, first: int) -> list[str]:
    """The first path that was not looked at, then those that differ."""
    import sqlite3  # here: the first process loads a command meanwhile

    differing: list[str] = []
    name = second.state_db.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    # A connection of its own: a copy of a process must not touch one that it was given.
    with closing(sqlite3.connect(f"file:{name}?mode=ro", uri=True, timeout=1)) as db:
        [second.seen_by_both[2]] = db.execute("SELECT COUNT(*) FROM dirs").fetchone()
        cursor = db.execute(f"{REMEMBERED} ORDER BY path")
        while rows := cursor.fetchmany(PAGE):
            if second.has_met or os.getppid() != first:  # nobody is left to tell
                return [rows[0][0], *differing]
            second.seen_by_both[0] += len(rows)
            differing += (path for path, _ in different(rows, os.lstat))
    return [BEHIND_ALL, *differing]
