"""Brings files back: deleted ones, while the undo window lasts, and those whose pack an older index does not find.

A deleted file comes back as the same key under a new number.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import islice
from typing import Final

from swamp.cache.paths import fold
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import names
from swamp.commit.repack import COMMIT_ROWS, is_what_was_read
from swamp.commit.survive import is_there
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry, Row, Tombstone
from swamp.index.keys import PACK_PREFIX, is_pack, object_of
from swamp.index.lookup import lookup, winning_rows
from swamp.index.payload import fetch_footer
from swamp.index.root import Root
from swamp.store.port import ObjectMeta
from swamp.values import value

UnitOf = Callable[[str], str]


@value
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
        there = cache(partial(is_there, committer.store))  # one question for a pack, however much of it comes back
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


Places = dict[Row, str]
_ROUNDS: Final = 100
"""Commits, or looks after somebody else's: a bound for one repair, which can be run again."""


def place_again(committer: Committer, pace: Pace) -> int:
    """Commits where the files of lost packs lie now, by the footers of the packs that are there; how many were found.

    By path and hash, so that only the very bytes that a row promises take its place. inv[rebuild.keeps]
    """
    placed = 0
    for _ in range(_ROUNDS):
        found = _place_some(committer, pace)
        if found == 0:
            break
        placed += found or 0
    return placed


def _place_some(committer: Committer, pace: Pace) -> int | None:
    """How many; None where another machine was at work meanwhile, and all has to be looked at again."""
    root = committer.read().root
    if root is None:
        return 0
    packs = {meta.key: meta for page in committer.store.list(PACK_PREFIX) for meta in page if is_pack(meta.key)}
    lost = [row for row in winning_rows(root, committer.fetch) if _is_lost(row, packs)]
    places = _places(committer, pace, lost, [meta for meta in packs.values() if not root.condemns(meta.key)])
    batch = dict(islice(places.items(), COMMIT_ROWS))
    if not batch:
        return 0
    done = committer.commit(lambda now: _placed(committer, now, batch, root.gc_epoch), pace)
    return None if done is None else len(batch)


def _is_lost(row: Row, packs: dict[str, ObjectMeta]) -> bool:
    pack = object_of(row.key)
    return is_pack(pack) and pack not in packs


def _places(committer: Committer, pace: Pace, lost: Sequence[Row], packs: Sequence[ObjectMeta]) -> Places:
    """For each row a slice that says it holds its content, one ranged request for each pack."""
    wanted: dict[tuple[str, str | None], list[Row]] = {}
    for row in lost:
        wanted.setdefault((row.path, row.sha256), []).append(row)
    found: Places = {}
    for meta in packs if wanted else ():
        pace()
        try:
            files = fetch_footer(committer.store, meta)
        except (CorruptData, ObjectMissing):
            continue  # it proposes nothing, and stays
        for file in files:
            for row in wanted.get((file.path, file.sha256), ()):
                if row.size == file.size:
                    found[row] = file.slice(meta.key).key
    return found


def _placed(committer: Committer, root: Root, places: Places, epoch: int) -> Changes | None:
    """Only rows that still are what was read; None where a collector has been at work since."""
    if root.has_collected_since(epoch):
        return None
    now = lookup(root, [row.path for row in places], committer.fetch)
    still = {
        now[row.path]: key for row, key in places.items() if row.path in now and is_what_was_read(now[row.path], row)
    }
    puts = tuple(row.rewritten(key) for row, key in still.items() if isinstance(row, Entry))
    deletes = tuple(row.moved(key) for row, key in still.items() if isinstance(row, Tombstone))
    return Changes(puts, deletes) if still else None
