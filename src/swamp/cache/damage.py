"""Files that base calls present and that are gone, found without walking files. inv[tree.damage]

A directory is remembered with its stat once everything that base has in it was seen there. As long as that stat is the
same nothing was removed from it, and one that differs is listed: one call for each directory, none for a file. Every
sync looks at all of them, also one that has nothing to do: it does so while it waits for the store's answer.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from stat import S_ISLNK
from typing import TYPE_CHECKING, Final

from swamp.cache.files import RACY_NS
from swamp.cache.halve import asked_of_another
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.cache.state import State

GONE: Final = "it was here and is gone, and nobody deleted it"
MANY: Final = 8_000
"""From so many directories on, a second process looks at half of them."""
Remembered = tuple[str, int | None, int | None, int | None]
"""A directory's path, mtime, ctime and inode; None: it has not been looked at since something came into it."""


@mutable
class Damage:
    """What a look at the directories found. Nothing is concluded from one that cannot be read. inv[scan.honest]"""

    missing: list[str] = field(default_factory=list)
    whole: list[Remembered] = field(default_factory=list)
    """Directories that were listed and have all that base says: to be remembered as they were before that."""
    empty: list[str] = field(default_factory=list)
    """Directories of which base holds nothing any more."""


@value
class Look:
    """One look at directories: those whose stat is not the remembered one, each with the stat that it has now."""

    tree: Path
    differing: list[tuple[str, os.stat_result | None]] = field(default_factory=list)

    def at(self, rows: Sequence[Remembered]) -> None:
        """Asks for the stat of each, below the open tree. It reads no state, so that it can be a thread's."""
        try:
            top = os.open(self.tree, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            self.differing.extend((row[0], None) for row in rows)
            return
        try:
            self._compare_all(rows, top)
        finally:
            os.close(top)

    def _compare_all(self, rows: Sequence[Remembered], top: int) -> None:
        stat_of, differing = os.stat, self.differing
        for path, mtime, ctime, inode in rows:
            try:
                stat = stat_of(path or ".", dir_fd=top, follow_symlinks=False)
            except OSError:
                differing.append((path, None))
            else:
                if stat.st_ctime_ns != ctime or stat.st_mtime_ns != mtime or stat.st_ino != inode:
                    differing.append((path, stat))

    def damage(self, state: State, now_ns: int) -> Damage:
        """What is missing from the directories that differ."""
        found = Damage()
        for path, stat in self.differing:
            _compare(state, os.fspath(self.tree), path, stat, now_ns, found)
        if found.missing:  # the journal last: who deletes announces first
            deleted = state.deleted_among(found.missing)
            found.missing = [path for path in found.missing if path not in deleted]
        return found


def look_for_damage(state: State, tree: Path, now_ns: int, prefixes: Iterable[str] = ("",)) -> Damage:
    """Which files of base are gone below `prefixes`, without a deletion that anybody announced."""
    look = Look(tree)
    look.at([row for prefix in prefixes for row in state.directories(prefix)])
    return look.damage(state, now_ns)


@contextmanager
def looking(state: State, tree: Path) -> Iterator[Look]:
    """Looks at every directory while something else is waited for; at the end of the block all were looked at.

    Of very many, half are another process's: a stat is half Python's work, and threads would take turns at that.
    """
    look, middle = Look(tree), state.middle_directory(MANY)
    with asked_of_another(lambda: _differing_from(state, tree, middle), unless=middle is None) as rest:
        thread = threading.Thread(target=look.at, args=(state.directories(before=middle),), name="swamp-look")
        thread.daemon = True
        thread.start()
        try:
            yield look
        finally:
            thread.join()
        if middle is not None:
            known = rest()
            look.at(state.directories(since=middle) if known is None else state.directories_among(known))


def _differing_from(state: State, tree: Path, middle: str | None) -> list[str]:
    look = Look(tree)
    look.at(state.read_apart(lambda apart: apart.directories(since=middle)))
    return [path for path, _ in look.differing]


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
