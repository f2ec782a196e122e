"""What is on disk: a walk in path order that reports every obstacle and stops at none. inv[scan.honest]"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

from swamp.cache.files import StatFingerprint, fingerprint_of
from swamp.cache.paths import (
    ancestors,
    fault_of,
    fold,
    is_below,
    is_foreign_temp,
    is_internal,
    is_internal_directory,
    leads_inside,
    shown,
)
from swamp.values import value

_DEEPEST_CUT: Final = 8
_SOME_FILES: Final = 100
ProblemKind = Literal["vanished", "unreadable", "link", "special", "name"]
Exclude = Callable[[str, bool], bool]
"""(path, is directory) -> leave it out; a directory left out is not entered."""


@value
class Observed:
    """A regular file that was there."""

    path: str
    hint: StatFingerprint

    @property
    def size(self) -> int:
        return self.hint.size


@value
class ScanProblem:
    """Something that could not be observed: neither present nor absent, so nothing may be concluded from it.

    A problem with a directory hides everything below it: ask `hides` before taking a path for absent.
    """

    path: str
    kind: ProblemKind
    reason: str
    directory: bool = False

    def hides(self, path: str) -> bool:
        return path == self.path or (self.directory and is_below(path, self.path))

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.reason}"


Seen = Observed | ScanProblem


def _nothing(path: str, directory: bool) -> bool:
    del path, directory
    return False


def scan(
    tree: Path, start: str = "", *, exclude: Exclude = _nothing, lowest: str = "", end: str | None = None
) -> Iterator[Seen]:
    """All regular files at or below `start`, in the byte order of their whole paths, as SQL's `ORDER BY path`.

    Holds the names of one directory per level, never the whole tree. A `start` that is not there yields nothing.
    With a range, `lowest <= path < end`: only directories that reach into it are read, and what hides a part of it is
    told wherever it lies.
    """
    found = _look(tree, start) if start else "directory"
    if found == "directory":
        yield from _walk(tree, start, exclude, lowest, end)
    elif found is not None and _reaches(found.path, isinstance(found, ScanProblem) and found.directory, lowest, end):
        yield found


def _reaches(path: str, directory: bool, lowest: str, end: str | None) -> bool:
    """Whether a path, or anything below it if it is a directory, lies in the range."""
    if lowest <= path and (end is None or path < end):
        return True
    return directory and (not path or (path + "0" > lowest and (end is None or path + "/" < end)))  # "0" follows "/"


def landmarks(
    tree: Path, starts: Iterable[str], wanted: int, *, exclude: Exclude = _nothing
) -> Iterator[tuple[str, int]]:
    """Paths at which a walk can be cut, with a guess of the files from each up to the next; about `wanted` or more.

    Opens directories level by level until there are enough: for who shares the walk out, not for who needs the files.
    """
    waiting, met, root = list(starts), 0, os.fspath(tree)
    for _ in range(_DEEPEST_CUT):
        if met + len(waiting) >= wanted:
            break
        inner: list[str] = []
        for directory in waiting:
            prefix = f"{directory}/" if directory else ""
            names = [prefix + name for name in _names(root, directory, exclude) if isinstance(name, str)]
            inner += [name[:-1] for name in names if name.endswith("/")]
            files = [name for name in names if not name.endswith("/")]
            step = -(-len(files) // max(1, wanted)) or 1
            yield from ((path, step) for path in files[::step])
            met += -(-len(files) // step)
        waiting = inner
    yield from ((f"{directory}/", _SOME_FILES) for directory in waiting if directory)


def names_below(tree: Path, start: str, *, exclude: Exclude = _nothing) -> Iterator[str]:
    """The paths that directories list at or below `start`, in no order, nobody having looked at them: for counting."""
    waiting = [start]
    while waiting:
        here = waiting.pop()
        prefix = f"{here}/" if here else ""
        for name in _names(os.fspath(tree), here, exclude):
            if isinstance(name, str) and name.endswith("/"):
                waiting.append(prefix + name[:-1])
            elif isinstance(name, str):
                yield prefix + name


def stat_one(tree: Path, path: str) -> Seen | None:
    """One file as it is now; None if there is no file of that name (also when it is a directory)."""
    found = _look(tree, path)
    return None if found == "directory" else found


def _look(tree: Path, path: str) -> Seen | Literal["directory"] | None:
    """What stands at `path`, not looking through links above it."""
    fault = fault_of(path)
    if fault is not None:
        return ScanProblem(path, "name", fault)
    root = os.fspath(tree)
    for end in (i for i, letter in enumerate(path) if letter == "/"):
        if os.path.islink(f"{root}/{path[:end]}"):  # noqa: PTH114  (hot: one lstat and no Path objects)
            return ScanProblem(path[:end], "link", "a link to a directory is not followed", directory=True)
    return _observe(root, path)


def _walk(tree: Path, start: str, exclude: Exclude, lowest: str, end: str | None) -> Iterator[Seen]:
    """Depth first with a stack of iterators: as deep as paths go, whatever Python's recursion limit."""
    root, ranged = os.fspath(tree), lowest != "" or end is not None
    stack: list[tuple[str, Iterator[str | ScanProblem]]] = []
    entering: str | None = start
    while stack or entering is not None:
        if entering is not None:
            stack.append((f"{entering}/" if entering else "", iter(_names(root, entering, exclude))))
            entering = None
        prefix, rest = stack[-1]
        name = next(rest, None)
        if name is None:
            stack.pop()
        elif isinstance(name, ScanProblem):
            if _reaches(name.path, name.directory, lowest, end):
                yield name
        elif ranged and not _reaches(prefix + name.rstrip("/"), True, lowest, end):
            continue
        elif name.endswith("/"):
            entering = prefix + name[:-1]
        else:
            seen = _as_file(prefix + name, _observe(root, prefix + name))
            if not ranged or _reaches(seen.path, isinstance(seen, ScanProblem) and seen.directory, lowest, end):
                yield seen


def _as_file(path: str, seen: Seen | Literal["directory"] | None) -> Seen:
    """A name that its directory listed as a file: gone or changed since then is a problem, not an absence."""
    if seen is None:
        return ScanProblem(path, "vanished", "it vanished while the directory was walked")
    if seen == "directory":
        return ScanProblem(path, "vanished", "it became a directory while it was walked", directory=True)
    return seen


def _names(root: str, directory: str, exclude: Exclude) -> list[str | ScanProblem]:
    """A directory's names in path order: a directory counts as `name/`, so that `a-b` comes before `a/b`.

    Problems come at their place among them: whoever merges this with other streams relies on the order (L47).
    """
    names: list[str] = []
    problems: list[ScanProblem] = []
    prefix = f"{directory}/" if directory else ""
    try:
        with os.scandir(f"{root}/{directory}") as entries:
            for entry in entries:
                is_dir = entry.is_dir(follow_symlinks=False)
                if _is_wanted(prefix + entry.name, is_dir, exclude, problems):
                    names.append(f"{entry.name}/" if is_dir else entry.name)
    except FileNotFoundError:
        if directory:
            reason = "the directory vanished while it was walked"
            problems.append(ScanProblem(directory, "vanished", reason, directory=True))
    except OSError as error:
        problems.append(ScanProblem(directory, "unreadable", error.strerror or str(error), directory=True))
    if not problems:
        names.sort()
        return list(names)
    cut = len(prefix)
    placed: list[str | ScanProblem] = [*names, *problems]
    return sorted(placed, key=lambda found: found if isinstance(found, str) else found.path[cut:])


def _is_wanted(path: str, is_dir: bool, exclude: Exclude, problems: list[ScanProblem]) -> bool:
    if is_left_out(path, is_dir) or exclude(path, is_dir):
        return False
    fault = fault_of(path)
    if fault is not None:
        problems.append(ScanProblem(path, "name", fault, directory=is_dir))
    return fault is None


def is_left_out(path: str, is_dir: bool) -> bool:
    """Whether a walk passes this name by: ours, or another client's unfinished file. inv[names.by-place]"""
    return is_internal_directory(path) if is_dir else is_internal(path) or is_foreign_temp(path)


def _observe(root: str, path: str) -> Seen | Literal["directory"] | None:
    """One lstat; a link is looked at once more if it ends inside the tree."""
    full = f"{root}/{path}"
    try:
        found = os.lstat(full)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return ScanProblem(path, "unreadable", error.strerror or str(error))
    if stat.S_ISREG(found.st_mode):
        return Observed(path, fingerprint_of(found))
    if stat.S_ISDIR(found.st_mode):
        return "directory"
    if stat.S_ISLNK(found.st_mode):
        return _observe_link(root, path)
    return ScanProblem(path, "special", "it is neither a file nor a directory")


def _observe_link(root: str, path: str) -> Seen:
    """A link to a file of the tree is that file's bytes; every other link is reported."""
    link = Path(root, path)
    try:
        target = link.stat()
    except OSError as error:
        return ScanProblem(path, "link", f"the link leads nowhere: {error.strerror}")
    if not leads_inside(Path(root), link):
        return ScanProblem(path, "link", "the link leaves the tree", directory=stat.S_ISDIR(target.st_mode))
    if stat.S_ISREG(target.st_mode):
        return Observed(path, fingerprint_of(target))
    return ScanProblem(path, "link", "a link to a directory is not followed", directory=True)


@value
class Collision:
    """Two paths that cannot both be on every machine: equal after folding, or one is a directory of the other."""

    first: str
    second: str


def collisions(paths: Iterable[str]) -> list[Collision]:
    """Every pair of neighbours that cannot coexist. Memory grows with `paths`: give it what changes, not the index."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        groups[fold(path)].append(path)
    found: list[Collision] = []
    for folded, group in groups.items():
        first, *others = sorted(set(group))
        found += [Collision(first, other) for other in others]
        clash = next((groups[above] for above in reversed(ancestors(folded)) if above in groups), None)
        if clash is not None:
            found.append(Collision(min(clash), min(group)))
    return sorted(found, key=lambda c: (c.first, c.second))
