"""Counts the files that a commit added, changed and deleted, from its own rows in the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry, Tombstone, Unreferenced
from swamp.index.lookup import FetchSegment
from swamp.index.root import Root
from swamp.index.segment import AnyRow, listed_rows
from swamp.values import value

MOST_PATHS: Final = 1000
FileChange = Literal["added", "changed", "deleted"]


@value
class CommitStats:
    """Files that a commit added, changed and deleted."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    paths: tuple[str, ...] = ()
    """The first of them, in the order of their names."""


def commit_stats(root: Root, fetch: FetchSegment) -> CommitStats:
    """What the commit did that published `root`; nothing where the segment that told it is gone."""
    counted: Counter[FileChange] = Counter()
    paths: list[str] = []
    try:
        for path, change in file_changes(root, fetch):
            counted[change] += 1
            if len(paths) < MOST_PATHS:
                paths.append(path)
    except (ObjectMissing, CorruptData):
        return CommitStats()  # it was compacted away since: the commit itself is still told
    return CommitStats(counted["added"], counted["changed"], counted["deleted"], tuple(sorted(paths)))


def file_changes(root: Root, fetch: FetchSegment) -> Iterator[tuple[str, FileChange]]:
    """What the commit that published `root` did, path by path. Raises where its segment is gone."""
    for rows in _places(root, fetch):
        yield from _by_path(row for row in rows if row.seq == root.seq)


def _places(root: Root, fetch: FetchSegment) -> Iterator[Iterable[AnyRow]]:
    """Where rows of the newest commit lie, each in path order. Those of one path are never in two of them: a commit
    leaves all of its rows in the layer, or flushes all of them into one segment."""
    layer: list[AnyRow] = [*root.entries.values(), *root.deleted.values(), *root.dropped.values()]
    yield sorted(layer, key=attrgetter("path"))
    for ref in root.segments:
        if ref.added_seq == root.seq:
            yield listed_rows(ref, fetch(ref))


def _by_path(rows: Iterable[AnyRow]) -> Iterator[tuple[str, FileChange]]:
    for path, group in groupby(rows, key=attrgetter("path")):
        change = _change(list(group))
        if change is not None:
            yield path, change


def _change(rows: list[AnyRow]) -> FileChange | None:
    """What one commit's rows of one path say; None for a segment that it took out of the index, and for content that
    it only moved, healed or marked: changes are counted by identity.

    A payload in place of a dropped one is a change.
    """
    for row in rows:
        if isinstance(row, Entry):
            if row.number != row.seq:
                return None
            return "changed" if any(isinstance(other, Unreferenced) for other in rows) else "added"
    return "deleted" if any(isinstance(row, Tombstone) and row.number == row.seq for row in rows) else None
