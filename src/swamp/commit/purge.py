"""Deleted files taken out of the store at once, undo window or not: people delete secrets.

The packs that hold them are emptied of everything else first, live files and other deletions alike, so that nobody
loses anything but what was named. Then they go as everything goes: condemned in a commit, deleted, cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from swamp.commit.collect import BATCH, held_by, internal_objects
from swamp.commit.commit import Committer, Pace
from swamp.commit.repack import empty
from swamp.commit.sweep import MovedTooFar, Sweeper
from swamp.errors import CorruptData, NotFound, ObjectMissing, UsageError
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.keys import is_pack, object_of
from swamp.index.lookup import all_rows, live_rows, winning_rows
from swamp.index.payload import fetch_footer
from swamp.index.root import Root
from swamp.index.segment import AnyRow
from swamp.store.port import ObjectMeta
from swamp.values import value

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
    for meta in internal_objects(committer.store):
        if not is_pack(meta.key):
            continue
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
