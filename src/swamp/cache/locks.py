"""Locks between the processes and threads of one machine: flock, so they die with their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from swamp.cache.files import on_disk
from swamp.env import SYSTEM, Env
from swamp.errors import LockTimeout

DEFAULT_TIMEOUT: Final = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_BUSY = (errno.EAGAIN, errno.EACCES)


class FileLock:
    """Shared by many or exclusive to one, between processes and between threads.

    Whoever waits for exclusive access holds the queue file meanwhile, and whoever wants to share must pass it:
    a steady stream of short shared holders cannot starve a plan. A thread that shares may share again; it must
    not ask for exclusive access while it does.
    """

    def __init__(self, path: Path, env: Env = SYSTEM) -> None:
        self._path = path
        self._queue = path.with_name(path.name + ".queue")
        self._env = env
        self._mine = threading.local()

    @contextmanager
    def shared(self, timeout: float = DEFAULT_TIMEOUT) -> Iterator[None]:
        """Many hold it at once, and nobody exclusively."""
        depth = getattr(self._mine, "depth", 0)
        held = [] if depth else [self._wait_shared(timeout)]
        self._mine.depth = depth + 1
        try:
            yield
        finally:
            self._mine.depth = depth
            _release(held)

    @property
    def shared_here(self) -> bool:
        """Whether this thread shares it now."""
        return bool(getattr(self._mine, "depth", 0))

    @contextmanager
    def exclusive(self, timeout: float = DEFAULT_TIMEOUT) -> Iterator[None]:
        """Nobody else holds it, in either way."""
        held: list[int] = []
        try:
            deadline = self._env.clock.monotonic() + timeout
            held.append(self._wait(self._queue, fcntl.LOCK_EX, deadline, timeout))
            held.append(self._wait(self._path, fcntl.LOCK_EX, deadline, timeout))
            _release(held[:1])
            del held[0]
            yield
        finally:
            _release(held)

    def _wait_shared(self, timeout: float) -> int:
        """Passes the queue and takes the lock in one go: waiting inside the queue would block its holder."""
        deadline = self._env.clock.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            queue = _try_lock(self._queue, fcntl.LOCK_SH)
            if queue is not None:
                lock = _try_lock(self._path, fcntl.LOCK_SH)
                _release([queue])
                if lock is not None:
                    return lock
            pause = self._pause(pause, deadline, timeout)

    def _wait(self, path: Path, mode: int, deadline: float, timeout: float) -> int:
        pause = _FIRST_PAUSE
        while True:
            lock = _try_lock(path, mode)
            if lock is not None:
                return lock
            pause = self._pause(pause, deadline, timeout)

    def _pause(self, pause: float, deadline: float, timeout: float) -> float:
        if self._env.clock.monotonic() >= deadline:
            raise LockTimeout(
                f"{self._path} is in use by {self._holders()} and was not free within {timeout:g} s",
                hint="wait for the other swamp command to finish, or stop it",
                details={"path": str(self._path)},
            )
        self._env.clock.sleep(self._env.jitter(pause))
        return min(pause * 2, _LONGEST_PAUSE)

    def _holders(self) -> str:
        """For the message only: a lock's holder is known to the kernel, never guessed from a file."""
        # Whoever waits for it stands in the queue, this process too: only when nobody has it is the queue the reason.
        pids = sorted(pids_holding(self._path) or pids_holding(self._queue))
        if not pids:
            return "another process"
        return f"process {', '.join(map(str, pids))}" + (" (this one)" if pids == [os.getpid()] else "")


def _try_lock(path: Path, mode: int) -> int | None:
    """A descriptor that holds the lock, or None; each try opens its own, so threads exclude each other too."""
    with on_disk("lock", str(path)):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
            if _is_still(path, descriptor):
                return descriptor
        except OSError as error:
            if error.errno not in _BUSY:
                os.close(descriptor)
                raise
        os.close(descriptor)
        return None


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def _is_still(path: Path, descriptor: int) -> bool:
    """A lock on a file that was removed meanwhile excludes nobody."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _release(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicit: a forked child may still have the file open
        os.close(descriptor)


def is_free(path: Path) -> bool:
    """Whether nobody holds it exclusively. Raises FileNotFoundError if it was never taken.

    Asked with a shared lock: two who ask at once do not take each other for a holder.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def pids_holding(path: Path) -> set[int]:
    """Which processes took this lock, by the kernel's table; 0 stands for one that is gone."""
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return set()  # not Linux, or the file is gone: the message names nobody
    fields = (line.split() for line in lines)
    return {int(f[4]) for f in fields if len(f) > 5 and f[1] == "FLOCK" and f[5].endswith(f":{inode}")}
