"""Lists a directory bucket in key order, lazily: one directory's names in memory at a time.

How a key becomes a path there, and back: nearly always they are the same. A bucket has no directories, so two keys may
be `a` and `a/b`, and a segment may be 1,024 bytes long. A file system allows neither. Two endings, which no key's own
segment is ever given, mark the exceptions:

    a%2F      the directory `a`, while a file `a` stands in its way; or the object `a`, while a directory does
    aaa…%2B   a piece of a name too long for a file system; the next path component continues it
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

INTERNAL = ".swamp-bucket"
"""Locks and unfinished writes; never part of a listing, at any depth (a bucket may lie in another)."""
ASIDE, MORE = "%2F", "%2B"
_MARKED = re.compile(r"%((?:25)*)2([FB])$")
_PIECE_CHARS, _NAME_BYTES = 60, 245


def plain_path(key: str) -> str:
    """Where the object lies unless something stands in its way."""
    if "%" not in key and len(key) <= _NAME_BYTES and key.isascii():
        return key
    return "/".join(part for s in key.split("/") for part in components_of(s))


def components_of(segment: str) -> tuple[str, ...]:
    *pieces, last = _pieces(segment)
    return (*(p + MORE for p in pieces), _MARKED.sub(lambda m: f"%25{m.group(1)}2{m.group(2)}", last))


def segment_of(pieces: str, last: str) -> str:
    """A key's segment from the pieces collected so far and the component that ends it."""
    return pieces + _MARKED.sub(lambda m: f"%{m.group(1)[2:]}2{m.group(2)}", last.removesuffix(ASIDE))


def _pieces(segment: str) -> list[str]:
    if len(segment.encode()) <= _NAME_BYTES:
        return [segment]
    # The last piece must not come out as `.` or `..`: it gets at least half of a full one.
    count = -(-len(segment) // _PIECE_CHARS)
    step = -(-len(segment) // count)
    return [segment[i : i + step] for i in range(0, len(segment), step)]


Found = tuple[str, os.stat_result]


class Walk:
    """The objects of a directory bucket whose key starts with `prefix` and sorts after `after`."""

    def __init__(self, root: Path, prefix: str, after: str) -> None:
        self._root = root
        self._prefix = prefix
        self._after = after

    def objects(self) -> Iterator[Found]:
        yield from self._below("", [self._root])

    def level(self) -> tuple[list[str], list[Found]]:
        """What lies directly below the prefix."""
        folders, lead = [self._root], ""
        for segment in self._prefix.split("/")[:-1]:
            folders = _entries(folders)[0].get(segment, [])
            lead += segment + "/"
        dirs, files = _entries(folders)
        anything = Walk(self._root, "", "")
        holding = [lead + name for name in sorted(dirs) if next(anything._below("", dirs[name]), None) is not None]
        found = ((lead + name, _status(files[name])) for name in sorted(files))
        return holding, [(key, status) for key, status in found if status is not None]

    def _below(self, lead: str, folders: list[Path]) -> Iterator[Found]:
        dirs, files = _entries(folders)
        # A directory sorts where its keys do: as its name with the slash behind it.
        for name in sorted([*files, *(d + "/" for d in dirs)]):
            key = lead + name
            if not name.endswith("/"):
                status = _status(files[name]) if key.startswith(self._prefix) and key > self._after else None
                if status is not None:
                    yield key, status
            elif self._may_hold(key):
                yield from self._below(key, dirs[name[:-1]])

    def _may_hold(self, folder: str) -> bool:
        within = folder.startswith(self._prefix) or self._prefix.startswith(folder)
        return within and (folder > self._after or self._after.startswith(folder))


def _entries(folders: Iterable[Path]) -> tuple[dict[str, list[Path]], dict[str, Path]]:
    dirs: dict[str, list[Path]] = {}
    files: dict[str, Path] = {}
    for folder in folders:
        for segment, is_dir, path in _scan(folder, ""):
            if is_dir:
                dirs.setdefault(segment, []).append(path)
            else:
                files.setdefault(segment, path)
    return dirs, files


def _scan(folder: Path, pieces: str) -> Iterator[tuple[str, bool, Path]]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return  # deleted while we walked: its objects are gone with it
    for entry in entries:
        utf8 = entry.name.isascii() or not any(0xD800 <= ord(c) <= 0xDFFF for c in entry.name)
        if entry.name == INTERNAL or not utf8:
            continue
        is_dir = entry.is_dir(follow_symlinks=False)
        if is_dir and entry.name.endswith(MORE):
            yield from _scan(folder / entry.name, pieces + entry.name.removesuffix(MORE))
        elif is_dir or entry.is_file(follow_symlinks=False):
            yield segment_of(pieces, entry.name), is_dir, folder / entry.name


def _status(path: Path) -> os.stat_result | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None
