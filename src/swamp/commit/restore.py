"""Brings deleted files back while the undo window lasts, or purges them before it is over: people delete secrets.

A deleted file comes back as the same key under a new number; `place_again` finds files whose pack an older index does
not name. A purge first empties the packs that hold the files of everything else, live files and other deletions alike,
so that nobody loses anything but what was named. Then they go as everything goes: condemned in a commit, deleted,
cleared.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, islice
from typing import Final

from swamp.cache.paths import ancestors, fold
from swamp.commit.bootstrap import tier_pages
from swamp.commit.build import REBUILT_FROM, is_there
from swamp.commit.collect import BATCH, MovedTooFar, Sweeper, held_by
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import names
from swamp.commit.repack import COMMIT_ROWS, empty, relocated, unchanged_rows
from swamp.errors import CorruptData, NotFound, ObjectMissing, UsageError
from swamp.index.entry import PACK_PREFIX, Entry, Row, Tombstone, is_pack, is_payload_key, object_of, path_of_key
from swamp.index.lookup import all_rows, live_rows, winning_rows
from swamp.index.pack import fetch_footer, packs_of
from swamp.index.root import Root
from swamp.index.segment import AnyRow
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
    later = (n for n in names(committer.store) if n.meta.last_modified >= since) if since else ()
    recent = frozenset(n.seq for n in later)
    tombs: list[Tombstone] = []
    live: set[str] = set()
    taken: set[str] = set()
    for row in winning_rows(root, committer.fetch):
        if isinstance(row, Tombstone):
            tombs.append(row)
        else:
            live.add(unit_of(row.path))
            taken |= {fold(row.path), *map(fold, ancestors(row.path))}
    named = below(paths) if paths else lambda _: True
    wanted = {unit_of(t.path) for t in tombs if named(t.path) and (since is None or t.number in recent)}
    blocked = {unit_of(t.path) for t in tombs if fold(t.path) in taken} | live
    return _newest([t for t in tombs if unit_of(t.path) in wanted - blocked], unit_of)


def _newest(tombs: list[Tombstone], unit_of: UnitOf) -> list[Tombstone]:
    """A version number may have been used more than once: only its last generation comes back."""
    last: dict[str, int] = {}
    for tomb in tombs:
        last[unit_of(tomb.path)] = max(last.get(unit_of(tomb.path), 0), tomb.number)
    return [t for t in tombs if t.number == last[unit_of(t.path)]]


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
    packs = {meta.key: meta for meta in packs_of(committer.store)}
    rows = winning_rows(root, committer.fetch)
    lost = [row for row in rows if is_pack(pack := object_of(row.key)) and pack not in packs]
    places = _places(committer, pace, lost, [meta for meta in packs.values() if not root.condemns(meta.key)])
    batch = dict(islice(places.items(), COMMIT_ROWS))
    if not batch:
        return 0
    done = committer.commit(lambda now: _placed(committer, now, batch, root.gc_epoch), pace)
    return None if done is None else len(batch)


def forget_rebuild(committer: Committer, pace: Pace) -> bool:
    """Takes the mark of a rebuild from an older record off the root if every live row was seen to have its object, and
    says whether it did. From then on what lies there unnamed is an orphan like any other. inv[rebuild.keeps]

    On the very root that was looked at, and never where no record was left (`rebuiltFrom: 0`): nobody knows what the
    lost index named then.
    """
    root = committer.read().root
    if root is None or not root.extra.get(REBUILT_FROM):
        return False
    store = committer.store
    there = {meta.key for page in chain(store.list(PACK_PREFIX), tier_pages(store)) for meta in page}
    for row in live_rows(root, committer.fetch):
        if object_of(row.key) not in there or root.condemns(row.key):
            return False
    return committer.commit(lambda now: Changes(placed=True) if now.op == root.op else None, pace) is not None


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
                    found[row] = file.key(meta.key)
    return found


def _placed(committer: Committer, root: Root, places: Places, epoch: int) -> Changes | None:
    """Only rows that still are what was read; None where a collector has been at work since."""
    if root.has_collected_since(epoch):
        return None
    still = unchanged_rows(committer, root, places)
    return relocated(still, found=True) if still else None


ROUNDS: Final = 5


@value
class Findings:
    """What the store has of deleted files: rows that name them, objects that hold them, packs that cannot say."""

    rows: tuple[AnyRow, ...]
    objects: dict[str, ObjectMeta]
    unread: tuple[str, ...] = ()

    @property
    def packs(self) -> list[str]:
        return sorted(filter(is_pack, self.objects))

    @property
    def hashes(self) -> frozenset[str]:
        return frozenset(row.sha256 for row in self.rows if row.sha256 is not None)


@value
class Purged:
    """What was (or would be) rewritten and deleted, and which objects could not go."""

    packs: int
    moved: int
    deleted: tuple[str, ...]
    bytes: int
    left: tuple[str, ...] = ()


def below(paths: Sequence[str]) -> Callable[[str], bool]:
    """Whether a path is one of these or lies below one."""
    return lambda path: any(path == p or path.startswith(p.rstrip("/") + "/") for p in paths)


def find_deleted(committer: Committer, paths: Sequence[str]) -> Findings:
    """Everything that the store still has of these files. Raises UsageError where one lives, NotFound for a name that
    the store does not know."""
    root, wanted = _root(committer), below(paths)
    alive = next((entry.path for entry in live_rows(root, committer.fetch) if wanted(entry.path)), None)
    if alive is not None:
        raise UsageError(
            f"{alive} is not deleted: only what is deleted can be purged",
            hint="delete it first (`swamp data delete`), then purge it",
            details={"path": alive},
        )
    rows = tuple(row for row in all_rows(root, committer.fetch) if row.path and wanted(row.path))
    unread: list[str] = []
    objects = {meta.key: meta for meta in _holding(committer, paths, unread)}
    objects |= {meta.key: meta for meta in _plain(committer, rows)}
    if not rows and not objects:
        hint = "give whole paths, as `swamp datastore undelete` takes them"
        raise NotFound(f"the store knows nothing of {', '.join(paths)}", hint=hint)
    return Findings(rows, objects, tuple(unread))


def _root(committer: Committer) -> Root:
    root = committer.read().root
    if root is None:
        raise NotFound("the store has no index, so nothing was deleted from it", hint="run: swamp datastore doctor")
    return root


def _holding(committer: Committer, paths: Sequence[str], unread: list[str]) -> Iterator[ObjectMeta]:
    """Uploads of these paths, and packs whose footer names one: also those that a repack has emptied since."""
    wanted = below(paths)
    for path in paths:
        for page in committer.store.list(path):
            yield from (meta for meta in page if is_payload_key(meta.key) and wanted(path_of_key(meta.key)))
    for meta in packs_of(committer.store):
        try:
            if any(wanted(file.path) for file in fetch_footer(committer.store, meta)):
                yield meta
        except ObjectMissing:
            continue  # collected meanwhile
        except CorruptData:
            unread.append(meta.key)


def _plain(committer: Committer, rows: Sequence[AnyRow]) -> Iterator[ObjectMeta]:
    """Objects that something else wrote and a commit of ours has deleted: only with the very bytes that we knew."""
    for key in sorted({row.key for row in rows if object_of(row.key) == row.key and not is_payload_key(row.key)}):
        try:
            yield committer.store.head(key)
        except ObjectMissing:
            continue


def purge(committer: Committer, pace: Pace, paths: Sequence[str], found: Findings) -> Purged:
    """Rewrites the packs without these files and deletes what held them. Repeating it after a crash goes on."""
    wanted = below(paths)
    moved = empty(committer, pace, found.packs, lambda row: isinstance(row, Entry) or not wanted(row.path))
    gone: set[str] = set()
    for _ in range(ROUNDS):
        try:
            gone |= _swept(committer, pace, paths, found, gone)
            break
        except MovedTooFar:
            pace()
    deleted = tuple(sorted(gone))
    left = tuple(sorted(set(found.objects) - gone))
    return Purged(len(found.packs), moved.rows, deleted, sum(found.objects[key].size for key in deleted), left)


def _swept(committer: Committer, pace: Pace, paths: Sequence[str], found: Findings, gone: set[str]) -> set[str]:
    """Deletes what nothing else names any more. What could not be moved keeps its pack. inv[pack.live-if-any]"""
    root, wanted = _root(committer), below(paths)
    rows = winning_rows(root, committer.fetch)
    needed = {object_of(row.key) for row in rows if isinstance(row, Entry) or not wanted(row.path)}
    sweeper = Sweeper(committer, pace, root, held_by(found.rows))
    done: set[str] = set()
    going = sorted(set(found.objects) - needed - gone)
    for start in range(0, len(going), BATCH):
        pace()
        done |= sweeper.sweep(going[start : start + BATCH])
    return done
