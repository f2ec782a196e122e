"""Many new files made durable by one call, where the file system is known to keep that promise."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from swamp.cache.files import disk_error

# syncfs(2) of these writes every byte and name before it returns. Network file systems and FUSE are not among them.
_KNOWN: Final = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs"})
FLUSH_TOGETHER: Final = 64
"""From so many files on, one flush of the file system is cheaper than theirs, unless others have much unwritten."""
_TELLS_ERRORS: Final = (5, 8)  # older kernels forget a failed write by the time syncfs is asked


def can_flush_together(directory: Path) -> bool:
    """Whether `flush_together` may stand in for an fsync of every file below `directory`."""
    return _kernel() >= _TELLS_ERRORS and _file_system(directory) in _KNOWN and _syncfs() is not None


def flush_together(directory: Path) -> None:
    """After this, whatever was written to the file system of `directory` survives a power cut.

    10,000 small files cost 0.1 s like this and 1 to 3 s one by one (docs/decisions/0008-one-flush.md).
    """
    syncfs = _syncfs()
    assert syncfs is not None
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs(descriptor)
    except OSError as error:
        raise disk_error(error, "flush", str(directory)) from error
    finally:
        os.close(descriptor)


def _kernel() -> tuple[int, ...]:
    if not hasattr(os, "uname") or os.uname().sysname != "Linux":
        return ()
    numbers = os.uname().release.split("-")[0].split(".")[:2]
    return tuple(int(n) for n in numbers if n.isdigit())


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
def _syncfs() -> _Syncfs | None:
    import ctypes  # only a pull of many files pays for it

    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None
    return _Syncfs(function)


class _Syncfs:
    def __init__(self, function: object) -> None:
        self._function = function

    def __call__(self, descriptor: int) -> None:
        import ctypes

        if self._function(descriptor):  # type: ignore[operator]
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
