"""The sync that has nothing to do, and what a cache remembers of its store: one conditional request, and the engine is
not even loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from swamp.cache.damage import Look, remember_whole
from swamp.cache.files import on_disk
from swamp.cache.rows import Transaction
from swamp.cache.second import second_look
from swamp.cache.state import State
from swamp.commit.conditions import SaidIgnored, remembered
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import ROOT_KEY
from swamp.index.root import REPAIR_HINT, Root
from swamp.store.port import ObjectStore
from swamp.store.together import together
from swamp.sync.units import is_large_part

SEEN_OP: Final = "seenOp"
"""The commit whose root was seen last, if that root asks nothing of this cache."""


def unchanged_at(
    state: State,
    store: Callable[[], ObjectStore],
    tree: Path,
    now_ns: int,
    *,
    lazy: bool,
    leave_large: bool = False,
) -> int | None:
    """The sequence, if this cache is in step with a root that is still the very one seen last; else None.

    The tree is looked at before the store is opened, by a second process, and while it answers.

    inv[sync.derived]: computed from what is owed in either direction, and from the store's own answer.
    """
    token, op = state.meta("seenToken"), state.meta(SEEN_OP)
    if token is None or op is None or op != state.meta("pulledOp"):
        return None
    if not state.journal_empty() or not nothing_deferred(state, tree, lazy=lazy, leave_large=leave_large):
        return None
    try:
        with second_look(str(state.path), str(tree)) as second:
            opened, look = store(), Look(tree)
            asking = together([lambda: opened.get_if_changed(ROOT_KEY, token), lambda: look.at_all(state, second)])
    except ObjectMissing:
        return None
    if asking[0] is not None:
        return None
    found = look.damage(state, now_ns)
    remember_whole(state, found)
    # Nothing that base calls present has vanished (S20). inv[tree.damage]
    return None if found.missing else int(state.meta("pulledSeq") or 0)


def has_taken_in(state: State, op: str) -> bool:
    """Whether a read has nothing left to take in of the root `op`: it was pulled, or read before."""
    return op in (state.meta("pulledOp"), state.meta("readOp"))


def newest_mark(state: State) -> int:
    """The number of the newest root that a pull or a read here has taken in."""
    return max(int(state.meta("pulledSeq") or 0), int(state.meta("readSeq") or 0))


def nothing_deferred(state: State, tree: Path, *, lazy: bool, leave_large: bool = False) -> bool:
    """Whether every pull so far is complete here, and what base calls present still has its place (S11)."""
    if not state.deferred_empty():
        return False
    owed = (row for row in state.remote_only() if not (leave_large and is_large_part(row.path, row.size)))
    return (lazy or next(owed, None) is None) and tiers_present(state, tree)


def left_here(state: State) -> Iterator[str]:
    """What a cache that fetches the rest has left in the store on purpose."""
    return (row.path for row in state.remote_only() if is_large_part(row.path, row.size))


def tiers_present(state: State, tree: Path) -> bool:
    """Whether the directories that base calls present are still there: an emptied cache is not in sync (S11)."""
    return all((tree / tier).exists() or not state.holds(tier) for tier, _ in state.tiers())


def make_tiers(state: State, tree: Path) -> None:
    """A lazy cache has its top directories before it has anything in them: that it is there is one look, not a search
    through all that it left in the bucket."""
    for tier, directory in state.tiers():
        if directory:
            with on_disk("create", tier), suppress(FileExistsError):  # a file in its way is the scan's to report
                (tree / tier).mkdir()


# -- what this cache has seen of its store, and what every later root of that store must therefore still say

SEEN_FORMAT: Final = "seenFormat"
SAID_IGNORED: Final = "saidIgnored"


def recall(tx: Transaction, root: Root) -> None:
    """Remembers what this root says of its store. Under another `storeId` everything before is void."""
    tx.set_meta(SEEN_FORMAT, str(root.version))
    said = remembered(_parsed(tx.meta(SAID_IGNORED)), root)
    tx.set_meta(SAID_IGNORED, json.dumps([said.store_id, said.op, said.seq]) if said else None)


def recalled(state: State) -> SaidIgnored | None:
    """When a root of this cache's store has last said that conditions are ignored, if one did."""
    said = _parsed(state.meta(SAID_IGNORED))
    return said if said is not None and said.store_id == state.meta("storeId") else None


def _parsed(text: str | None) -> SaidIgnored | None:
    try:
        store_id, op, seq = json.loads(text or "null")
        return SaidIgnored(str(store_id), str(op), int(seq))
    except (ValueError, TypeError):
        return None  # none was seen


def forget(tx: Transaction) -> None:
    """For a store that was put back from a backup: what it says now is what it is."""
    tx.set_meta(SEEN_FORMAT, None)
    tx.set_meta(SAID_IGNORED, None)


def has_seen_later_format(state: State, root: Root) -> bool:
    """Whether this cache has known the same store in a later format than that of `root`."""
    return state.meta("storeId") == root.store_id and root.version < int(state.meta(SEEN_FORMAT) or 0)


def refuse_put_back(state: State, root: Root | None) -> None:
    """Raises where the store has had a later format than this root: an old client wrote it. inv[format.newer]"""
    if root is not None and has_seen_later_format(state, root):
        seen = int(state.meta(SEEN_FORMAT) or 0)
        raise CorruptData(
            f"the store's index is of format version {root.version}, and this machine has seen version {seen} there: "
            "an older client, or a backup, has put an older index in its place",
            hint=REPAIR_HINT + " (it restores the index from the log), and upgrade that client",
            details={"version": root.version, "seen": seen},
        )
