"""What this cache has seen of its store, and what every later root of that store must therefore still say.

Apart from `record.py`, because commands that have nothing to do ask for it, and load no engine.
"""

from __future__ import annotations

import json
from typing import Final

from swamp.cache.rows import Transaction
from swamp.cache.state import State
from swamp.commit.conditions import SaidIgnored, remembered
from swamp.errors import CorruptData
from swamp.index.root import REPAIR_HINT, Root

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
