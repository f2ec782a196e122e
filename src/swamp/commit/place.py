"""Places files again whose pack is gone: an index from an older record does not know what a repack has moved since."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from swamp.commit.build import Changes
from swamp.commit.commit import Committer, Pace
from swamp.commit.repack import COMMIT_ROWS, is_what_was_read
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry, Row, Tombstone
from swamp.index.keys import PACK_PREFIX, is_pack, object_of
from swamp.index.lookup import lookup, winning_rows
from swamp.index.payload import fetch_footer
from swamp.index.root import Root
from swamp.store.port import ObjectMeta

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
    done = committer.commit(lambda now: _changes(committer, now, batch, root.gc_epoch), pace)
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


def _changes(committer: Committer, root: Root, places: Places, epoch: int) -> Changes | None:
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
