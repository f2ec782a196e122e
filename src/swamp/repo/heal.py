"""Files of this cache that are no longer what was recorded, and that nobody announced: the store's copy comes back.

What is here instead is moved aside, never deleted. inv[conflict.keeps-both]
"""

from __future__ import annotations

from swamp.cache.files import hash_file, hint_of, move_aside
from swamp.cache.rows import BaseRow
from swamp.errors import SwampError
from swamp.sync.engine import Engine


def restore_damaged(engine: Engine) -> tuple[str, ...]:
    """Fetches again every file whose bytes differ from their recorded hash without an announced change; their paths."""
    announced = {row.path for row in engine.state.journal()}
    damaged = [row.path for row in engine.state.base_below() if _is_damaged(engine, row, announced)]
    if not damaged:
        return ()
    op = engine.parts.env.ulid()
    with engine.parts.tree_lock.exclusive(engine.parts.lock_timeout):
        for path in damaged:
            move_aside(engine.root, path, engine.cache.conflicts, op)
    engine.pull(tuple(damaged), full=True)
    return tuple(path for path in damaged if (engine.root / path).is_file())


def _is_damaged(engine: Engine, row: BaseRow, announced: set[str]) -> bool:
    if not row.present or row.sha256 is None or _is_announced(row.path, announced):
        return False
    file = engine.root / row.path
    try:
        if row.hint is not None and row.hint == hint_of(file.lstat()):
            return False
        return hash_file(file).sha256 != row.sha256
    except (OSError, SwampError):
        return False  # gone or unreadable: a sync says so


def _is_announced(path: str, announced: set[str]) -> bool:
    parts = path.split("/")
    return any("/".join(parts[:n]) in announced for n in range(1, len(parts) + 1))
