"""Files that base calls present and that are gone, found without walking files. inv[tree.damage]

A directory is remembered with its stat once everything that base has in it was seen there. As long as that stat is the
same nothing was removed from it, and one that differs is listed: one call for each directory, none for a file. A sync
that moves anything looks at all of them, one that has nothing to do at the next 20,000.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISLNK
from typing import TYPE_CHECKING, Final

from swamp.cache.files import RACY_NS

if TYPE_CHECKING:
    from swamp.cache.state import State

IN_TURN: Final = 20_000
"""Directories that a sync with nothing to do looks at: a row and a stat of each are 2.5 to 5 µs, below 0.1 s in all."""
GONE: Final = "it was here and is gone, and nobody deleted it"
Remembered = tuple[str, int | None, int | None, int | None]
"""A directory's path, mtime, ctime and inode; None: it has not been looked at since something came into it."""


@dataclass
class Damage:
    """What a look at the directories found. Nothing is concluded from one that cannot be read. inv[scan.honest]"""

    missing: list[str] = field(default_factory=list)
    whole: list[Remembered] = field(default_factory=list)
    """Directories that were listed and have all that base says: to be remembered as they were before that."""
    empty: list[str] = field(default_factory=list)
    """Directories of which base holds nothing any more."""


def look_for_damage(state: State, tree: Path, now_ns: int, prefixes: Iterable[str] = ("",)) -> Damage:
    """Which files of base are gone below `prefixes`, without a deletion that anybody announced."""
    return _looked(state, tree, now_ns, (row for prefix in prefixes for row in state.directories(prefix)))


def look_in_turn(state: State, tree: Path, now_ns: int) -> Damage:
    """The same for a sync that has nothing else to do: where there are very many directories, the next ones each time.

    Which ones they are is remembered beside the tree, and losing that costs nothing.
    """
    mark = tree.with_name("looked")
    try:
        after = mark.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        after = ""
    rows = state.directories_after(after, IN_TURN)
    if after and len(rows) < IN_TURN:
        rows += state.directories_after("", IN_TURN - len(rows), after)
    if after or len(rows) == IN_TURN:
        with suppress(OSError):  # then the same ones are looked at again
            mark.write_text(rows[-1][0] if rows else "", encoding="utf-8", errors="surrogateescape")
    return _looked(state, tree, now_ns, rows)


def _looked(state: State, tree: Path, now_ns: int, rows: Iterable[Remembered]) -> Damage:
    found = Damage()
    top = os.fspath(tree)
    for row in rows:
        stat = _stat(f"{top}/{row[0]}" if row[0] else top)
        if stat is None or row[1:] != (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino):
            _compare(state, top, row[0], stat, now_ns, found)
    gone = found.missing
    if gone:  # the journal last: who deletes announces first
        deleted = state.deleted_among(gone)
        found.missing = [path for path in gone if path not in deleted]
    return found


def _stat(directory: str) -> os.stat_result | None:
    try:
        return os.lstat(directory)
    except OSError:
        return None


def _compare(state: State, top: str, path: str, stat: os.stat_result | None, now_ns: int, found: Damage) -> None:
    if stat is not None and S_ISLNK(stat.st_mode) and path:
        return  # a link in its place hides what is below: the next walk reports it
    try:
        names = set(os.listdir(f"{top}/{path}"))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        names = set()
    except OSError:
        return  # it cannot be read: the next walk reports it
    cut = len(path) + 1 if path else 0
    expected = state.present_in(path)
    missing = [file for file in expected if file[cut:] not in names]
    found.missing += missing
    if not expected:
        found.empty.append(path)
    elif stat is not None and not missing and stat.st_mtime_ns < now_ns - RACY_NS:  # inv[hint.racy]
        found.whole.append((path, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))


def remember_whole(state: State, found: Damage) -> None:
    """Writes down which directories need not be listed again."""
    if found.whole or found.empty:
        with state.transaction() as tx:
            tx.remember_directories(found.whole)
            tx.forget_directories(found.empty)
