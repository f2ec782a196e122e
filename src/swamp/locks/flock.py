"""The interface to locks (`Leases`), and those of one machine: flock, so they die with their holder.

`DirectoryLeases` keeps the interface for a plain directory, `leases.StoreLeases` for a bucket.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from swamp.cache.files import on_disk
from swamp.env import SYSTEM, Env, parse_rfc3339, rfc3339
from swamp.errors import LockTimeout
from swamp.store.retry import Backoff
from swamp.values import value


class Held(Protocol):
    """A lease that is mine until `check` says otherwise."""

    @property
    def unbroken(self) -> bool:
        """Whether nobody else has held it since this machine did, or since ever."""
        ...

    def check(self) -> None:
        """Raises LockTimeout when it can no longer be shown to be mine."""
        ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` for a child process, which then does not wait for its parent (K09)."""
        ...


class Leases(Protocol):
    def within(self, changed: Callable[[Env], Env]) -> Leases:
        """The same leases for who waits by another clock, such as one that a request to cancel stops."""
        ...

    def model(self, model_type: str, model_id: str) -> AbstractContextManager[Held]:
        """One model's runs in order; steps back while the global lease is held."""
        ...

    def whole_store(self) -> AbstractContextManager[Held]:
        """Nobody else works: takes the global lease, then waits for every model's."""
        ...


@value
class NoLease:
    """For work that needs none."""

    unbroken: bool = True

    def check(self) -> None: ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ)


DEFAULT_TIMEOUT: Final = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_BUSY = (errno.EAGAIN, errno.EACCES)
Verdict = Literal["alive", "dead", "unknown"]
ECHO_SECONDS = 2.0


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
        held = [] if depth else [self._wait(self._take_shared, timeout, timeout)]
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
            held.append(self._wait(partial(try_lock, self._queue, fcntl.LOCK_EX), timeout, timeout))
            left = deadline - self._env.clock.monotonic()
            held.append(self._wait(partial(try_lock, self._path, fcntl.LOCK_EX), left, timeout))
            _release(held[:1])
            del held[0]
            yield
        finally:
            _release(held)

    def _take_shared(self) -> int | None:
        """Passes the queue and takes the lock in one go: waiting inside the queue would block its holder."""
        queue = try_lock(self._queue, fcntl.LOCK_SH)
        if queue is None:
            return None
        lock = try_lock(self._path, fcntl.LOCK_SH)
        _release([queue])
        return lock

    def _wait(self, take: Callable[[], int | None], left: float, timeout: float) -> int:
        backoff = Backoff(self._env, left, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        while (lock := take()) is None:
            if not backoff.pause():
                raise LockTimeout(
                    f"{self._path} is in use by {self._holders()} and was not free within {timeout:g} s",
                    hint="wait for the other swamp command to finish, or stop it",
                    details={"path": str(self._path)},
                )
        return lock

    def _holders(self) -> str:
        """For the message only: a lock's holder is known to the kernel, never guessed from a file."""
        # Whoever waits for it stands in the queue, this process too: only when nobody has it is the queue the reason.
        pids = sorted(pids_holding(self._path) or pids_holding(self._queue))
        if not pids:
            return "another process"
        return f"process {', '.join(map(str, pids))}" + (" (this one)" if pids == [os.getpid()] else "")


def try_lock(path: Path, mode: int, rights: int = 0o666) -> int | None:
    """A descriptor that holds the lock, or None; each try opens its own, so threads exclude each other too."""
    with on_disk("lock", str(path)):
        descriptor = _open(path, rights)
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


def _open(path: Path, rights: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, rights)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, rights)


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


def by_lock(file: Path) -> Verdict | None:
    """What the kernel knows: a lock that somebody holds, one that nobody holds any more, or none at all.

    A child that its killed parent had just forked holds the lock too, until it executes its program: a lock that no
    living process has taken is looked at again.
    """
    deadline = SYSTEM.clock.monotonic() + ECHO_SECONDS
    while True:
        try:
            free = is_free(file)
        except FileNotFoundError:
            return None
        if free:
            return "dead"
        # Decides how long to wait, never who is alive: a pid may be somebody else's by now.
        if (
            any(Path(f"/proc/{pid}").exists() for pid in pids_holding(file) if pid)
            or SYSTEM.clock.monotonic() > deadline
        ):
            return "alive"
        SYSTEM.clock.sleep(0.02)


LOCAL_LOCKS_VARIABLE: Final = "SWAMP_LOCAL_LOCKS"
GLOBAL_FILE: Final = "global.lock"


@value
class LocalHeld:
    """A flock of this process: it cannot be lost, and a child is told its name."""

    name: str
    unbroken: bool = False

    def check(self) -> None: ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        names = [n for n in environ.get(LOCAL_LOCKS_VARIABLE, "").split("\n") if n and n != self.name]
        return {**environ, LOCAL_LOCKS_VARIABLE: "\n".join([*names, self.name])}


@value
class DirectoryLeases:
    """Leases of a datastore that is a plain directory: file locks beside the tier, gone with their process."""

    directory: Path
    env: Env
    timeout: float
    on_waiting: Callable[[str], object] = lambda _: None
    """Hears of a holder that has to be waited for."""

    def within(self, changed: Callable[[Env], Env]) -> DirectoryLeases:
        return replace(self, env=changed(self.env))

    @contextmanager
    def model(self, model_type: str, model_id: str) -> Iterator[Held]:
        name = f"{self.directory}/{model_type}/{model_id}"
        with ExitStack() as stack:
            if not self._inherited(name):
                with self._naming_the_holder(GLOBAL_FILE):
                    stack.enter_context(self._lock(GLOBAL_FILE).shared(self.timeout))
                file = f"model-{model_type.replace('/', '+')}-{model_id}.lock"
                stack.enter_context(self._exclusive(file, {"model": f"{model_type}/{model_id}"}))
            yield LocalHeld(name)

    @contextmanager
    def whole_store(self) -> Iterator[Held]:
        name = f"{self.directory}/*"
        with ExitStack() as stack:
            if not self._inherited(name):
                stack.enter_context(self._exclusive(GLOBAL_FILE, {}))
            yield LocalHeld(name)

    def whole_store_holder(self) -> dict[str, Any] | None:
        """Who holds the global lease now, as `lock status` tells it; None when nobody does."""
        return self._held(GLOBAL_FILE)

    def model_holders(self) -> list[dict[str, Any]]:
        """Who holds which model now, in the order of the models' names."""
        files = sorted(file.name for file in self.directory.glob("model-*.lock"))
        return [held for file in files if (held := self._held(file)) is not None]

    def _lock(self, file: str) -> FileLock:
        return FileLock(self.directory / file, self.env)

    @contextmanager
    def _exclusive(self, file: str, about: Mapping[str, str]) -> Iterator[None]:
        """Notes who holds it in a file beside it, for `lock status` and for the message of who waits in vain."""
        from swamp.locks.decide import Holder

        note = self._note(file)
        with ExitStack() as stack:
            with self._naming_the_holder(file):
                stack.enter_context(self._lock(file).exclusive(self.timeout))
            me, acquired = Holder.of_process(), rfc3339(self.env.clock.now())
            told = {"holder": str(me), "hostname": me.hostname, "pid": me.pid, "acquiredAt": acquired}
            note.write_text(json.dumps({**about, **told}), encoding="utf-8")
            try:
                yield
            finally:
                note.unlink(missing_ok=True)

    @contextmanager
    def _naming_the_holder(self, file: str) -> Iterator[None]:
        held = self._held(file)
        if held is not None:
            what = f"the model {held['model']}" if "model" in held else "the datastore"
            since = f" since {held['acquiredAt']}" if "acquiredAt" in held else ""
            self.on_waiting(f"Waiting for {what}, held by {held['holder']}{since}")
        try:
            yield
        except LockTimeout as error:
            held = self._held(file)
            if held is not None:
                error.details["holder"] = held
            raise

    def _held(self, file: str) -> dict[str, Any] | None:
        """The kernel says whether it is held, the note by whom: a note outlives a killed process, a lock does not."""
        try:
            if is_free(self.directory / file):
                return None
        except FileNotFoundError:
            return None  # nobody ever took it
        noted = self._noted(file)
        if file != GLOBAL_FILE:
            noted.setdefault("model", file.removeprefix("model-").removesuffix(".lock").replace("+", "/"))
        noted.setdefault("holder", "another process")
        return noted

    def _noted(self, file: str) -> dict[str, Any]:
        """What the holder wrote of itself; empty in the moment before it does."""
        try:
            found = json.loads(self._note(file).read_text(encoding="utf-8"))
            age = self.env.clock.now() - parse_rfc3339(found["acquiredAt"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return {**found, "ageMs": max(0, int(age.total_seconds() * 1000))}

    def _note(self, file: str) -> Path:
        return self.directory / f"{file}.holder"

    def _inherited(self, name: str) -> bool:
        held = os.environ.get(LOCAL_LOCKS_VARIABLE, "").split("\n")
        return name in held or f"{self.directory}/*" in held
