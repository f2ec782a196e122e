"""What is on disk, found by many tasks: names are listed first and looked at afterwards.

Listing a directory is one sequential read and cheap; a stat and a hash per file are not. So listing yields chunks of
names, and the chunks are shared out: a directory with a million files is a few hundred rows, not one long task.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.kernels import Batches, hint_row, rows_of
from swamp.bulk.schemas import FILES, NAMES
from swamp.cache.files import fingerprint_of
from swamp.cache.paths import is_safe
from swamp.cache.scan import Observed, ScanProblem, Seen, is_left_out, stat_one

CHUNK_NAMES: Final = 2_000
Exclude = Callable[[str, bool], bool]


def nothing_excluded(path: str, directory: bool) -> bool:
    del path, directory
    return False


@dataclass(frozen=True)
class ListNames:
    """Directories -> chunks of the file paths below them."""

    tree: str
    exclude: Exclude = nothing_excluded

    def __call__(self, batches: Batches) -> Batches:
        for row in rows_of(batches):
            yield from NAMES.batches(names_below(self.tree, row["directory"], self.exclude), 50)


def names_below(tree: str, directory: str, exclude: Exclude = nothing_excluded) -> Iterator[dict[str, Any]]:
    """Chunks of names, and a row for each place that could not be listed. inv[scan.honest]"""
    chunk: list[str] = []
    waiting = [directory]
    while waiting:
        here = waiting.pop()
        for path, error in _listed(tree, here, exclude, waiting):
            if error is not None:
                yield {"path": path, "error": error}
                continue
            chunk.append(path)
            if len(chunk) >= CHUNK_NAMES:
                yield {"paths": chunk}
                chunk = []
    if chunk:
        yield {"paths": chunk}


def _listed(tree: str, here: str, exclude: Exclude, waiting: list[str]) -> Iterator[tuple[str, str | None]]:
    try:
        with os.scandir(Path(tree) / here) as entries:
            for entry in entries:
                path = f"{here}/{entry.name}" if here else entry.name
                is_dir = entry.is_dir(follow_symlinks=False)
                if is_left_out(path, is_dir) or exclude(path, is_dir):
                    continue
                if not is_safe(path):
                    yield _shown(path), "it cannot be a path in a datastore"
                elif is_dir:
                    waiting.append(path)
                else:
                    yield path, None
    except OSError as error:
        yield here, error.strerror or str(error)


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class LookAtFiles:
    """Chunks of names -> files with their stat, or problems."""

    tree: str
    beacon: Address | None = None

    def __call__(self, batches: Batches) -> Batches:
        with Beat(self.beacon) as beat:
            yield from FILES.batches(self._looked(batches, beat))

    def _looked(self, batches: Batches, beat: Beat) -> Iterator[dict[str, Any]]:
        for row in rows_of(batches):
            if row["error"] is not None:
                yield {"path": row["path"], "problem": "unreadable", "directory": True, "error": row["error"]}
                continue
            paths = row["paths"] or ()
            yield from (file_row(observe(self.tree, path)) for path in paths)
            beat.add(len(paths))


def observe(tree: str, path: str) -> Seen:
    """A name that a directory listed: what it is now. One lstat for a plain file."""
    try:
        found = os.lstat(f"{tree}/{path}")
    except OSError:
        found = None
    if found is not None and stat.S_ISREG(found.st_mode):
        return Observed(path, fingerprint_of(found))
    seen = stat_one(Path(tree), path)
    if seen is None:
        return ScanProblem(path, "vanished", "it vanished while the directory was walked")
    return seen


def file_row(seen: Seen) -> dict[str, Any]:
    if isinstance(seen, Observed):
        return {"path": seen.path, "directory": False, **hint_row(seen.hint)}
    return {
        "path": _shown(seen.path),
        "problem": seen.kind,
        "directory": seen.directory,
        "error": seen.reason,
    }


def subtrees(tree: str, scope: tuple[str, ...], wanted: int, exclude: Exclude = nothing_excluded) -> list[str]:
    """Directories that together hold everything in `scope`, about `wanted` of them.

    A directory is opened up only when it holds no files of its own: then its children stand for it.
    """
    found = list(scope) or [""]
    for _ in range(8):
        if len(found) >= wanted:
            break
        opened = [inner for directory in found for inner in _opened(tree, directory, exclude)]
        if opened == found:
            break
        found = opened
    return found


def _opened(tree: str, directory: str, exclude: Exclude) -> list[str]:
    inner: list[str] = []
    for _, error in _listed(tree, directory, exclude, inner):
        if error is None:
            return [directory]
        return [directory]
    return inner or [directory]
