"""What a commit did to files, counted from its own record: whoever tells of commits counts here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, Literal

from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Dropped, Entry, Tombstone
from swamp.index.lookup import FetchSegment
from swamp.index.root import Root
from swamp.index.segment import AnyRow, listed_rows

MOST_PATHS: Final = 1000
Deed = Literal["added", "changed", "deleted"]


@dataclass(frozen=True, slots=True)
class Tally:
    """Files that a commit added, changed and deleted."""

    added: int = 0
    changed: int = 0
    deleted: int = 0
    paths: tuple[str, ...] = ()
    """The first of them, in the order of their names."""


def tally(root: Root, fetch: FetchSegment) -> Tally:
    """What the commit did that published `root`; nothing where the segment that told it is gone."""
    counted: Counter[Deed] = Counter()
    paths: list[str] = []
    try:
        for path, deed in deeds(root, fetch):
            counted[deed] += 1
            if len(paths) < MOST_PATHS:
                paths.append(path)
    except (ObjectMissing, CorruptData):
        return Tally()  # it was compacted away since: the commit itself is still told
    return Tally(counted["added"], counted["changed"], counted["deleted"], tuple(sorted(paths)))


def deeds(root: Root, fetch: FetchSegment) -> Iterator[tuple[str, Deed]]:
    """What the commit that published `root` did, path by path. Raises where its segment is gone."""
    for rows in _places(root, fetch):
        yield from _deeds(row for row in rows if row.seq == root.seq)


def _places(root: Root, fetch: FetchSegment) -> Iterator[Iterable[AnyRow]]:
    """Where rows of the newest commit lie, each in path order. Those of one path are never in two of them: a commit
    leaves all of its rows in the layer, or flushes all of them into one segment."""
    layer: list[AnyRow] = [*root.entries.values(), *root.deleted.values(), *root.dropped.values()]
    yield sorted(layer, key=attrgetter("path"))
    for ref in root.segments:
        if ref.added_seq == root.seq:
            yield listed_rows(ref, fetch(ref))


def _deeds(rows: Iterable[AnyRow]) -> Iterator[tuple[str, Deed]]:
    for path, group in groupby(rows, key=attrgetter("path")):
        deed = _deed(list(group))
        if deed is not None:
            yield path, deed


def _deed(rows: list[AnyRow]) -> Deed | None:
    """What one commit's rows of one path say; None for a segment that it took out of the index, and for content that
    it only moved, healed or marked: changes are counted by identity.

    A payload in place of a dropped one is a change.
    """
    for row in rows:
        if isinstance(row, Entry):
            if row.number != row.seq:
                return None
            return "changed" if any(isinstance(other, Dropped) for other in rows) else "added"
    return "deleted" if any(isinstance(row, Tombstone) and row.number == row.seq for row in rows) else None
