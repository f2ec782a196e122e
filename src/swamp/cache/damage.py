"""Files that base calls present and that are gone, found without walking files. inv[tree.damage]

A directory is remembered with its stat once everything that base has in it was seen there. As long as that stat is the
same nothing was removed from it, and one that differs is listed: one call for each directory, none for a file. Every
sync looks at all of them, also one that has nothing to do: it does so while it waits for the store's answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from stat import S_ISLNK
from typing import TYPE_CHECKING, Final

from swamp.cache.files import RACY_NS, open_directory
from swamp.cache.second import BEHIND_ALL, PAGE, Different, Remembered, Second, different
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.cache.state import State

GONE: Final = "it was here and is gone, and nobody deleted it"


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
    differing: list[Different] = field(default_factory=list)

    def at(self, rows: Sequence[Remembered]) -> None:
        """Asks for the stat of each, below the open tree."""
        try:
            with open_directory(self.tree) as top:
                self.differing.extend(different(rows, partial(os.stat, dir_fd=top, follow_symlinks=False)))
        except OSError:  # of the tree itself: `different` tells its own
            self.differing.extend((row[0], None) for row in rows)

    def at_all(self, state: State, second: Second | None) -> None:
        """Looks at every directory: with a second process, from the last one on until they have met."""
        looked_from, not_looked, elsewhere = BEHIND_ALL, "", list[str]()
        if second is not None:
            while not second.has_met and (rows := state.last_directories(looked_from, PAGE)):
                second.take(len(rows))
                self.at(rows)
                looked_from = rows[-1][0]
            not_looked, elsewhere = second.heard()
        self.at(state.directories_between(not_looked, looked_from))
        self.at(state.directories_among([path for path in elsewhere if path < looked_from]))

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
