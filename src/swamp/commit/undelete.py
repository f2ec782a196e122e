"""Deletes can be taken back while the undo window lasts: the same keys under a new number."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

from swamp.cache.paths import fold
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import names
from swamp.errors import ObjectMissing
from swamp.index.entry import Entry, Tombstone
from swamp.index.keys import object_of
from swamp.index.lookup import winning_rows
from swamp.index.root import Root

UnitOf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Undeleted:
    restored: tuple[str, ...]
    gone: tuple[str, ...]


def undelete(
    committer: Committer, pace: Pace, paths: Iterable[str], unit_of: UnitOf, *, since: dt.datetime | None = None
) -> Undeleted:
    """Restores whole units: those at or below `paths`, or all that were deleted since then. inv[unit.whole]"""
    wanted = tuple(paths)
    done: dict[str, list[str]] = {"restored": [], "gone": []}

    def propose(root: Root) -> Changes | None:
        tombs = _deleted(committer, root, wanted, since, unit_of)
        there = cache(partial(_exists, committer))  # one question for a pack, however much of it comes back
        units: dict[str, list[Tombstone]] = {}
        for tomb in tombs:
            units.setdefault(unit_of(tomb.path), []).append(tomb)
        puts: list[Entry] = []
        done["restored"], done["gone"] = [], []
        for members in units.values():
            whole = all(not root.condemns(t.key) and there(object_of(t.key)) for t in members)
            done["restored" if whole else "gone"] += [t.path for t in members]
            if whole:
                puts += [t.restored() for t in members]
        return Changes(puts=tuple(puts)) if puts else None

    committer.commit(propose, pace)
    return Undeleted(tuple(done["restored"]), tuple(done["gone"]))


def _deleted(
    committer: Committer, root: Root, paths: tuple[str, ...], since: dt.datetime | None, unit_of: UnitOf
) -> list[Tombstone]:
    """The tombstones of whole units that are wanted, and in whose place nothing lives now."""
    recent = _commits_since(committer, since) if since else frozenset()
    tombs: list[Tombstone] = []
    live: set[str] = set()
    taken: set[str] = set()
    for row in winning_rows(root, committer.fetch):
        if isinstance(row, Tombstone):
            tombs.append(row)
        else:
            live.add(unit_of(row.path))
            taken |= {fold(row.path), *(fold(a) for a in _above(row.path))}
    wanted = {unit_of(t.path) for t in tombs if _is_wanted(t, paths, recent, since)}
    blocked = {unit_of(t.path) for t in tombs if fold(t.path) in taken} | live
    return _newest([t for t in tombs if unit_of(t.path) in wanted - blocked], unit_of)


def _newest(tombs: list[Tombstone], unit_of: UnitOf) -> list[Tombstone]:
    """A version number may have been used more than once: only its last generation comes back."""
    last: dict[str, int] = {}
    for tomb in tombs:
        last[unit_of(tomb.path)] = max(last.get(unit_of(tomb.path), 0), tomb.number)
    return [t for t in tombs if t.number == last[unit_of(t.path)]]


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:i]) for i in range(1, len(parts))]


def _is_wanted(tomb: Tombstone, paths: tuple[str, ...], recent: frozenset[int], since: dt.datetime | None) -> bool:
    if paths and not any(tomb.path == p or tomb.path.startswith(p.rstrip("/") + "/") for p in paths):
        return False
    return since is None or tomb.number in recent


def _commits_since(committer: Committer, since: dt.datetime) -> frozenset[int]:
    return frozenset(n.seq for n in names(committer.store) if n.meta.last_modified >= since)


def _exists(committer: Committer, key: str) -> bool:
    try:
        committer.store.head(key)
    except ObjectMissing:
        return False
    return True
