"""Gives a batch of staged files their names in the tree: directories are opened once and never through a link.

The bytes are made durable by one flush for all, where the file system is known to keep that promise.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from swamp.cache.files import (
    StatFingerprint,
    disk_error,
    fingerprint_of,
    in_the_way,
    on_disk,
    open_directory,
    remove_empty,
)
from swamp.cache.paths import ancestors, safe_path
from swamp.cache.scan import Observed, Seen, stat_one
from swamp.errors import Failed

OPEN_AT_MOST: Final = 200
_TOP = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_ENTER = _TOP | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe must fail, not wait
_NO_DIRECTORY = frozenset({errno.ENOTDIR, errno.ELOOP})


def _read_all(descriptor: int, most: int) -> bytes:
    """One byte more than there should be at most: what is longer by now shows it, and the end need not be asked for."""
    read = os.read(descriptor, most)
    while len(read) < most - 1 and (more := os.read(descriptor, most - len(read))):
        read += more
    return read


class Places:
    """Renames go to open directories, so that nothing planted in the tree meanwhile leads them out of it (S17).

    When it is closed, every name it gave survives a power cut. inv[cache.no-torn-file]
    """

    def __init__(self, tree: Path) -> None:
        self._tree = os.fspath(tree)
        self._open: dict[str, int] = {}
        self._changed: set[str] = set()
        self._missing: set[str] = set()
        """Directories that were not there when somebody looked; one that is made here is taken out."""
        self._absent: set[str] = set()
        self._filled: set[str] = set()

    def __enter__(self) -> Places:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave(sync=kind is None)

    def look(self, path: str) -> Seen | None:
        """What `stat_one` says of a path, without walking down to it each time."""
        found = self._stat(path)
        if isinstance(found, os.stat_result) and stat.S_ISREG(found.st_mode):
            return Observed(path, fingerprint_of(found))
        if found != "nothing":
            return stat_one(Path(self._tree), path)
        self._absent.add(path)
        return None

    def obstacle(self, path: str) -> str | None:
        """What keeps a file from being placed at `path`, below the tree; None if nothing does."""
        # Nothing was there a moment ago, and no file was placed here since where a directory of the path must be.
        if path in self._absent and (path.rpartition("/")[0] in self._open or self._filled.isdisjoint(ancestors(path))):
            return None
        found = self._stat(path)
        if found == "nothing" or (isinstance(found, os.stat_result) and not stat.S_ISDIR(found.st_mode)):
            return None
        return in_the_way(Path(self._tree), path)

    def _stat(self, path: str) -> os.stat_result | Literal["nothing", "no way"]:
        parent, _, name = path.rpartition("/")
        if parent in self._missing:
            return "nothing"
        try:
            return os.stat(name, dir_fd=self._enter(parent), follow_symlinks=False)
        except FileNotFoundError:
            return "nothing"
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return "no way"
            raise disk_error(error, "look at", path) from error

    def read(self, path: str, most: int) -> tuple[bytes, StatFingerprint, StatFingerprint] | None:
        """A file's bytes, with its stat from before and after they were read; None for a link, or for more than `most`
        bytes. inv[hint.racy]"""
        parent, _, name = path.rpartition("/")
        try:
            directory = self._enter(parent)
            descriptor = os.open(name, _READ, dir_fd=directory)
            try:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise Failed(f"cannot read {path}: it is not a regular file")
                if found.st_size > most:
                    return None
                body = _read_all(descriptor, found.st_size + 1)
            finally:
                os.close(descriptor)
            return body, fingerprint_of(found), fingerprint_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return None
            raise disk_error(error, "read", path) from error

    def put(self, file: str, path: str) -> StatFingerprint:
        """Gives a staged file its place and says what a stat of it says."""
        parent, _, name = safe_path(path).rpartition("/")
        try:
            directory = self._enter(parent, make=True)
            try:
                os.rename(file, name, dst_dir_fd=directory)
            except IsADirectoryError:
                directory = self._renamed_over_directory(file, parent, name)
            self._changed.add(parent)
            self._filled.add(path)
            return fingerprint_of(os.stat(name, dir_fd=directory, follow_symlinks=False))
        except OSError as error:
            raise disk_error(error, "write", path) from error

    def _renamed_over_directory(self, file: str, parent: str, name: str) -> int:
        self.let_go()
        remove_empty(Path(self._tree, parent, name))
        directory = self._enter(parent, make=True)
        os.rename(file, name, dst_dir_fd=directory)
        return directory

    def let_go(self) -> None:
        """When somebody removes directories: handles of what is removed would lead nowhere."""
        self._leave(sync=True)
        self._missing.clear()
        self._absent.clear()

    def _enter(self, directory: str, *, make: bool = False) -> int:
        known = self._open.get(directory)
        if known is not None:
            return known
        if directory in self._missing and not make:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
        if len(self._open) >= OPEN_AT_MOST:
            self.let_go()
        try:
            if make and not directory:
                os.makedirs(self._tree, exist_ok=True)  # noqa: PTH103
            opened = self._open_below(directory, make) if directory else os.open(self._tree, _TOP)
        except FileNotFoundError:
            if not make:
                self._missing.add(directory)
            raise
        self._open[directory] = opened
        self._missing.discard(directory)
        return opened

    def _open_below(self, directory: str, make: bool) -> int:
        above, _, name = directory.rpartition("/")
        parent = self._enter(above, make=make)
        try:
            return os.open(name, _ENTER, dir_fd=parent)
        except FileNotFoundError:
            if not make:
                raise
        os.mkdir(name, dir_fd=parent)
        self._changed.add(above)
        return os.open(name, _ENTER, dir_fd=parent)

    def _leave(self, *, sync: bool) -> None:
        """Closes every directory; those that got a name are flushed first."""
        try:
            for directory in sorted(self._changed) if sync else ():
                try:
                    os.fsync(self._open[directory])
                except OSError as error:
                    raise disk_error(error, "flush", directory) from error
        finally:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()
            self._changed.clear()


# syncfs(2) of these writes every byte and name before it returns. Network file systems and FUSE are not among them.
_KNOWN: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
FLUSH_TOGETHER: Final = 64
"""From so many files on, one flush of the file system is cheaper than theirs, unless others have much unwritten."""
_TELLS_ERRORS: Final = (5, 8)  # older kernels forget a failed write by the time syncfs is asked


def can_flush_together(directory: Path) -> bool:
    """Whether `flush_together` may stand in for an fsync of every file below `directory`."""
    if not hasattr(os, "uname") or os.uname().sysname != "Linux":
        return False
    kernel = tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2] if n.isdigit())
    return kernel >= _TELLS_ERRORS and _file_system(directory) in _KNOWN and _syncfs() is not None


def flush_together(directory: Path) -> None:
    """After this, whatever was written to the file system of `directory` survives a power cut.

    10,000 small files cost 0.1 s like this and 1 to 3 s one by one (docs/decisions/0008-one-flush.md).
    """
    syncfs = _syncfs()
    assert syncfs is not None
    with on_disk("flush", str(directory)), open_directory(directory) as descriptor:
        syncfs(descriptor)


def _file_system(directory: Path) -> str | None:
    """The type of the file system that holds `directory`; None when the kernel's table does not tell."""
    try:
        device = directory.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return None
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, rest = line.partition(" - ")
        if mount.split()[2] == wanted:
            return rest.split()[0]
    return None


@cache
def _syncfs() -> Callable[[int], None] | None:
    import ctypes  # only a pull of many files pays for it

    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None

    def flush(descriptor: int) -> None:
        if function(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    return flush
