"""What a commit did to files, counted from its own record: whoever tells of commits counts here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Literal

from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Dropped, Entry, Tombstone
from swamp.index.lookup import FetchSegment
from swamp.index.root import Root
from swamp.index.segment import AnyRow, listed_rows

_Deed = Literal["added", "changed", "deleted"]


@dataclass(frozen=True, slots=True)
class Tally:
    """Files that a commit added, changed and deleted."""

    added: int = 0
    changed: int = 0
    deleted: int = 0


def tally(root: Root, fetch: FetchSegment) -> Tally:
    """What the commit did that published `root`; nothing where the segment that told it is gone."""
    counted: Counter[_Deed] = Counter()
    try:
        for rows in _places(root, fetch):
            counted.update(_deeds(row for row in rows if row.seq == root.seq))
    except (ObjectMissing, CorruptData):
        return Tally()  # it was compacted away since: the commit itself is still told
    return Tally(counted["added"], counted["changed"], counted["deleted"])


def _places(root: Root, fetch: FetchSegment) -> Iterator[Iterable[AnyRow]]:
    """Where rows of the newest commit lie, each in path order. Those of one path are never in two of them: a commit
    leaves all of its rows in the layer, or flushes all of them into one segment."""
    layer: list[AnyRow] = [*root.entries.values(), *root.deleted.values(), *root.dropped.values()]
    yield sorted(layer, key=attrgetter("path"))
    for ref in root.segments:
        if ref.added_seq == root.seq:
            yield listed_rows(ref, fetch(ref))


def _deeds(rows: Iterable[AnyRow]) -> Iterator[_Deed]:
    for _, group in groupby(rows, key=attrgetter("path")):
        deed = _deed(list(group))
        if deed is not None:
            yield deed


def _deed(rows: list[AnyRow]) -> _Deed | None:
    """What one commit's rows of one path say; None for a segment that it took out of the index.

    A payload in place of a dropped one is a change, and so is the mark that a payload is missing.
    """
    for row in rows:
        if isinstance(row, Entry):
            return "changed" if row.missing or any(isinstance(other, Dropped) for other in rows) else "added"
    return "deleted" if any(isinstance(row, Tombstone) for row in rows) else None
