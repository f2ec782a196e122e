"""A sync that has nothing to do: one request, and no engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swamp.cache.state import State, once_more
from swamp.sync.result import Mode, SyncResult
from swamp.sync.unchanged import unchanged_at

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore


@once_more
def idle_result(datastore: Datastore, mode: Mode) -> SyncResult | None:
    """The result where nothing is owed in either direction; else None."""
    if not datastore.is_hydrated or not datastore.capabilities.safe:
        return None  # without conditions the root is compared with the log first
    clock, store = datastore.context.env.clock, datastore.store
    started, asked = clock.monotonic(), store.requests
    state = State.open(datastore.cache.state_db)
    try:
        now = int(clock.now().timestamp() * 1e9)
        seq = unchanged_at(state, store, datastore.cache.tree, now, lazy=datastore.hydrate == "lazy")
    finally:
        state.close()
    if seq is None:
        return None
    took = int((clock.monotonic() - started) * 1000)
    requests = store.requests - asked
    return SyncResult(mode, fast_path=True, seq=seq, requests=requests, duration_ms=took)
