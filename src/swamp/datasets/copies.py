"""Copies of parts on this machine's disk: what was read once from a bucket is a file for the next read.

A part that is lent (`lend`) is kept as far as it was fetched. Once it is whole, and its hash is that of the index, it
goes on a shelf that all processes of this user share. Whoever reads it has a link of its own, in a directory that ends
with the process: what the shelf loses meanwhile, nobody loses who is reading. Losing all of it loses nothing.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import logging
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from swamp.env import SYSTEM
from swamp.errors import CorruptData

log = logging.getLogger("swamp.spark")
SPARE_BYTES: Final = 1 << 30
"""So much of the disk stays free of copies."""
UNUSED_SECONDS: Final = 7 * 86_400.0
"""What nobody has read for so long goes, also where there is room: it may be deleted in the store since."""
MARK_NS: Final = 1_000_000_000 * 10**9
"""When every copy says that it was changed. One that says otherwise was written to, and is no copy any more."""
HASHED_AT_ONCE: Final = 1 << 20
HASH_LENGTH: Final = 64
_ODD: Final = re.compile(r"[^A-Za-z0-9.=-]")


def name_for_spark(path: str) -> str:
    """The name of a part under which Spark's readers do not pass over it; its ending says how it is compressed."""
    name = _ODD.sub("-", path.rpartition("/")[2])
    return name if name[:4] == "part" else f"part-{name}"


_LOCK: Final = threading.Lock()
_shelves: Final[dict[tuple[int, Path], Shelf]] = {}


class Growing:
    """A copy that is not whole yet: which bytes of the part have come so far. Threads share it."""

    def __init__(self, file: Path, size: int, sha256: str) -> None:
        self.file, self.size, self.sha256 = file, size, sha256
        self._here: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self.is_open = True

    @property
    def bytes_here(self) -> int:
        with self._lock:
            return sum(stop - start for start, stop in self._here)

    def read(self, start: int, length: int) -> bytes | None:
        """These bytes; None unless all of them are here."""
        with self._lock:
            if not self._has(start, length):
                return None
        try:
            with self.file.open("rb", buffering=0) as file:
                body = os.pread(file.fileno(), length, start)
        except OSError as error:
            self.drop(f"cannot be read: {error}")
            return None
        return body if len(body) == length else None

    def add(self, start: int, body: bytes) -> None:
        """Keeps bytes that were fetched. A disk that has no room for them ends this copy, and nothing else."""
        with self._lock:
            if not self.is_open or self._has(start, len(body)):  # what is whole is never written to again
                return
            try:
                with self.file.open("r+b", buffering=0) as file:
                    file.seek(start)
                    rest = memoryview(body)
                    while rest:
                        rest = rest[file.write(rest) :]
                self._here = _joined([*self._here, (start, start + len(body))])
                return
            except OSError as error:
                why = f"cannot be written: {error}"
        self.drop(why)

    def _has(self, start: int, length: int) -> bool:
        return any(begun <= start and start + length <= stop for begun, stop in self._here)

    def missing(self) -> list[tuple[int, int]]:
        """From where, how many bytes: what a whole copy lacks."""
        with self._lock:
            edges = [0, *(edge for span in self._here for edge in span), self.size]
        return [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]

    def drop(self, why: str) -> None:
        with self._lock:
            self.is_open, self._here = False, []
        log.info("no copy is kept of a part: %s", why)
        self.file.unlink(missing_ok=True)

    def seal(self) -> None:
        """Makes it durable and read-only. Raises CorruptData if these are not the bytes that were stored, OSError."""
        digest = hashlib.sha256()
        with self.file.open("r+b", buffering=0) as file:
            while piece := file.read(HASHED_AT_ONCE):
                digest.update(piece)
            if digest.hexdigest() != self.sha256:
                raise CorruptData("these are not the bytes that were stored", hint="swamp datastore verify")
            os.fchmod(file.fileno(), 0o400)
            os.utime(file.fileno(), ns=(_now_ns(), MARK_NS))
            os.fsync(file.fileno())  # a name must never lead to bytes that a power cut has eaten


class Shelf:
    """The whole copies of this user on this machine, by their hashes, and those of them that this process uses."""

    def __init__(self, base: Path) -> None:
        """Raises OSError where the directory cannot be made, or knows neither locks nor links."""
        self.base, self._process = base, os.getpid()
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._used = base / "used"
        self._used.mkdir(exist_ok=True, mode=0o700)
        with self._alone():
            self._sweep()
            self._makes_room(0, sys.maxsize)
            self._own = self._used / SYSTEM.uuid()
            self._own.mkdir(mode=0o700)
            self._held = _locked(self._own)
            os.link(base / "lock", self._own / "lock")
        atexit.register(self.close)

    def close(self) -> None:
        if os.getpid() == self._process:  # a copy of the process has no business here
            shutil.rmtree(self._own, ignore_errors=True)

    @property
    def is_there(self) -> bool:
        return self._own.is_dir()

    def has_room(self, size: int, most: int) -> bool:
        """Whether so many bytes more, of one version, can be kept beside what somebody uses now."""
        used = sum(copy.size for copy in self._copies() if copy.is_used)
        return used + size <= most and shutil.disk_usage(self.base).free - size >= SPARE_BYTES

    def take(self, path: str, size: int, sha256: str) -> str | None:
        """The file that is a whole copy of that part, for as long as this process lives; None if there is none."""
        link = self._own / sha256 / name_for_spark(path)
        try:
            if not link.exists():
                if not (self.base / sha256).exists():
                    return None
                link.parent.mkdir(exist_ok=True)
                with suppress(FileExistsError):  # another thread was faster
                    os.link(self.base / sha256, link)
            found = link.stat()
            if (found.st_size, found.st_mtime_ns) == (size, MARK_NS):
                os.utime(link, ns=(_now_ns(), MARK_NS))
                return str(link)
            link.unlink()
            (self.base / sha256).unlink(missing_ok=True)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.info("the copy of %s cannot be used: %s", path, error)
            return None
        log.warning("the copy of %s was written to by somebody; it is fetched again", path)
        return None

    def begin(self, size: int, sha256: str) -> Growing | None:
        """A copy to fill; None where this process has begun one of the same bytes already."""
        try:
            return Growing(self._own / f"growing-{sha256}", size, sha256)
        except FileExistsError:
            return None
        except OSError as error:
            log.info("no copy is kept of a part: %s", error)
            return None

    def put(self, grown: Growing, most: int) -> None:
        """Puts a copy that has all of its bytes on the shelf. Raises CorruptData, and drops it."""
        try:
            grown.seal()
            with self._alone():
                if not self._makes_room(grown.size, most):
                    grown.drop(f"all {most} bytes for copies are in use")
                    return
                with suppress(FileExistsError):  # another process was faster, with the same bytes
                    os.link(grown.file, self.base / grown.sha256)
        except OSError as error:
            grown.drop(f"cannot be kept: {error}")
        except CorruptData as error:
            grown.drop(str(error))
            raise

    def _makes_room(self, size: int, most: int) -> bool:
        """Removes what nobody has used for long, and then what was used longest ago and nobody uses now, until there is
        room for so many bytes more."""
        kept = sorted(self._copies(), key=_age)
        total = sum(copy.size for copy in kept)
        for copy in kept:
            old = copy.used_ns < _now_ns() - UNUSED_SECONDS * 10**9
            if not copy.is_used and (old or total + size > most):
                copy.file.unlink(missing_ok=True)
                total -= copy.size
        return total + size <= most

    def _copies(self) -> list[_Copy]:
        found = []
        for entry in os.scandir(self.base):
            if len(entry.name) == HASH_LENGTH:
                with suppress(FileNotFoundError):  # somebody else has removed it meanwhile
                    found.append(_Copy(Path(entry.path)))
        return found

    def _sweep(self) -> None:
        """Removes what processes have left that are no more: their directories are nobody's."""
        for own in self._used.iterdir():
            if own.is_dir() and (descriptor := _locked(own)) is not None:
                shutil.rmtree(own, ignore_errors=True)
                os.close(descriptor)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        descriptor = os.open(self.base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class _Copy:
    """A file of the shelf as it is now."""

    def __init__(self, file: Path) -> None:
        found = file.stat()
        self.file, self.size, self.used_ns = file, found.st_size, found.st_atime_ns
        self.is_used = found.st_nlink > 1


def _age(copy: _Copy) -> int:
    return copy.used_ns


def shelf_at(home: Path) -> Shelf | None:
    """This process's shelf in that home directory; None where no copies can be kept, with the reason in the log."""
    known = os.getpid(), home / "parts"
    with _LOCK:
        found = _shelves.get(known)
        if found is None or not found.is_there:  # somebody has cleared the directory: all of it is made anew
            try:
                found = _shelves[known] = Shelf(known[1])
            except OSError as error:
                log.info("no copies of parts are kept in %s: %s", known[1], error)
                return None
        return found


def _locked(directory: Path) -> int | None:
    """Holds a directory for as long as this process lives, or the descriptor is open; None if somebody else does."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # its process has just ended
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few spans as there can be, in order."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _now_ns() -> int:
    return int(SYSTEM.clock.now().timestamp() * 10**9)
