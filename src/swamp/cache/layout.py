"""Says where a cache keeps its things, and clears staging: the synced tree holds synced files and nothing else, the
rest lies beside it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from swamp.cache.files import on_disk, open_directory
from swamp.cache.paths import TEMP_PREFIX, safe_path
from swamp.errors import UsageError
from swamp.values import value


@value
class CacheDir:
    """One repository's cache of one store and namespace. Losing it loses nothing shared. inv[cache.disposable]"""

    base: Path

    @property
    def tree(self) -> Path:
        return self.base / "tree"

    @property
    def state_db(self) -> Path:
        return self.base / "state.db"

    @property
    def sync_lock(self) -> Path:
        return self.base / "sync.lock"

    @property
    def tree_lock(self) -> Path:
        return self.base / "tree.lock"

    @property
    def staging(self) -> Path:
        return self.base / "staging"

    @property
    def conflicts(self) -> Path:
        return self.base / "conflicts"

    def ensure(self) -> CacheDir:
        """Makes the directories; the cache belongs to its user alone."""
        with on_disk("create", str(self.base)):
            if not (shelf := self.base.parent.parent).exists():
                shelf.mkdir(parents=True, exist_ok=True)
                _set_apart(shelf)
            self.base.mkdir(parents=True, exist_ok=True, mode=0o700)
            for directory in (self.tree, self.staging, self.conflicts):
                directory.mkdir(exist_ok=True)
        return self


_GET_FLAGS, _SET_FLAGS, _TOP_OF_TREES = 0x80086601, 0x40086602, 0x00020000  # linux/fs.h, as `chattr +T` uses them


def _set_apart(shelf: Path) -> None:
    """Asks ext4 to give each repository on this shelf, which was just made, a region of the disk for itself.

    Without a journal ext4 looks at every inode that was removed from a region in the last minutes before it makes a
    file there: a pull beside a program that removes its files would spend most of its time on that (PERFORMANCE.md).
    """
    if sys.platform != "linux":
        return
    with open_directory(shelf) as descriptor, suppress(OSError):  # only a wish: other file systems know no such thing
        flags = fcntl.ioctl(descriptor, _GET_FLAGS, bytes(8))
        wanted = int.from_bytes(flags, sys.byteorder) | _TOP_OF_TREES
        fcntl.ioctl(descriptor, _SET_FLAGS, wanted.to_bytes(8, sys.byteorder))


def cache_dir(home: Path, repo_id: str, url: str, namespace: str | None = None) -> CacheDir:
    """The cache of this repository for that store: another bucket, endpoint or namespace is another directory."""
    if "/" in safe_path(repo_id):
        raise UsageError(f"{repo_id!r} cannot be a repository id")
    return CacheDir(home / "repos" / repo_id / _mark_of(url, namespace))


def caches_of(home: Path, url: str, namespace: str | None = None) -> list[CacheDir]:
    """Every cache that repositories of this machine have of that store."""
    return [CacheDir(base) for base in sorted((home / "repos").glob(f"*/{_mark_of(url, namespace)}"))]


def _mark_of(url: str, namespace: str | None) -> str:
    identity = json.dumps([url, namespace or ""])
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


FOLDER_PREFIX: Final = "compare-"
OLD_SECONDS: Final = 3600.0
CLOCK_SECONDS: Final = 60.0
"""How far the system's idea of its own start may be off."""
_OWNED = re.compile(rf"(?:{re.escape(TEMP_PREFIX)}|{re.escape(FOLDER_PREFIX)})(\d+)-")


def sweep_staging(staging: Path, now: float, older_than: float = OLD_SECONDS) -> int:
    """Removes from staging what processes that are no more put there an hour ago or earlier; how many things that were.

    What a living process stages, also one that only reads a file into a lazy cache, stays. The hour is for those whom
    this process cannot see: another container that shares the cache.
    """
    try:
        with os.scandir(staging) as entries:
            found = [(entry, int(owned.group(1))) for entry in entries if (owned := _OWNED.match(entry.name))]
    except FileNotFoundError:
        return 0
    left = [entry for entry, process in found if _is_left(entry, process, now - older_than)]
    for entry in left:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):  # somebody else's to remove
                Path(entry.path).unlink(missing_ok=True)
    return len(left)


def _is_left(entry: os.DirEntry[str], process: int, before: float) -> bool:
    try:
        made = entry.stat(follow_symlinks=False).st_ctime
    except OSError:
        return False  # gone meanwhile
    return made <= before and not _is_alive(process, made)


def _is_alive(process: int, since: float) -> bool:
    """Whether that very process runs; one that began later only has its number (in a container: often)."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # somebody else's: there is one
    began = _began(process)
    return began is None or began <= since + CLOCK_SECONDS


def _began(process: int) -> float | None:
    """When it was started, where the system tells."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        booted = next(row for row in Path("/proc/stat").read_text().splitlines() if row.startswith("btime "))
    except (OSError, StopIteration):
        return None
    return int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
