"""Finds what changed in a plain directory, which has no journal: by the times of its directories."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from swamp.cache.files import RACY_NS, disk_error
from swamp.data.names import DATA, METADATA, RAW, name_of_directory, parse_version
from swamp.values import value

UNSETTLED = 0


@value
class Directory:
    """A directory that was looked at: when it last changed (0: too recently to trust), whether it is a data name."""

    mtime: int
    named: bool


@value
class SweptTree:
    """What a sweep found: directories that are new or changed, those that are gone, and which names to read again."""

    looked_at: Mapping[str, Directory]
    gone: tuple[str, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(path for path, found in self.looked_at.items() if found.named)


def sweep(root: Path, known: Mapping[str, Directory], now_ns: int) -> SweptTree:
    """One stat per directory that is known and unchanged, one listing for every other. Never opens a file."""
    below: dict[str, list[str]] = {}
    for path in known:
        below.setdefault(path.rpartition("/")[0], []).append(path)
    there: set[str] = set()
    looked_at: dict[str, Directory] = {}
    waiting = [DATA]
    while waiting:
        path = waiting.pop()
        mtime = _mtime(root / path)
        if mtime is None:
            continue
        there.add(path)
        before = known.get(path)
        if before is not None and before.mtime == mtime:
            waiting += below.get(path, [])
            continue
        named, children = _look(root, path)
        looked_at[path] = Directory(mtime if mtime < now_ns - RACY_NS else UNSETTLED, named)
        waiting += children
    return SweptTree(looked_at, tuple(path for path in known if path not in there))


def _mtime(path: Path) -> int | None:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - one call per known name
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise disk_error(error, "read", str(path)) from error


def _look(root: Path, path: str) -> tuple[bool, list[str]]:
    """Whether a directory is a data name, and the directories in it."""
    try:
        with os.scandir(root / path) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return False, []
    except OSError as error:
        raise disk_error(error, "read", path) from error
    if name_of_directory(path) is not None and any(_is_version(root / path, name) for name in names):
        return True, []
    return False, [f"{path}/{name}" for name in names]


def _is_version(directory: Path, name: str) -> bool:
    inside = directory / name
    return parse_version(name) is not None and ((inside / METADATA).exists() or (inside / RAW).exists())
