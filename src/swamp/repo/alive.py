"""Whether a process still works on something: by a lock that dies with it, or by its lease, never by a pid (K08)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from swamp.cache.locks import is_free, pids_holding
from swamp.env import SYSTEM
from swamp.errors import CorruptData, ObjectMissing, StoreError

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore

Verdict = Literal["alive", "dead", "unknown"]
STALE_TTLS: Final = 3
LOOK_SECONDS: Final = 5.0
ECHO_SECONDS = 2.0


def by_lock(file: Path) -> Verdict | None:
    """What the kernel knows: a lock that somebody holds, one that nobody holds any more, or none at all.

    A child that its killed parent had just forked holds the lock too, until it executes its program: a lock that no
    living process has taken is looked at again.
    """
    deadline = SYSTEM.clock.monotonic() + ECHO_SECONDS
    while True:
        try:
            free = is_free(file)
        except FileNotFoundError:
            return None
        if free:
            return "dead"
        if _taken_by_the_living(file) or SYSTEM.clock.monotonic() > deadline:
            return "alive"
        SYSTEM.clock.sleep(0.02)


def _taken_by_the_living(file: Path) -> bool:
    """Decides about patience only, never about life: a pid may be somebody else's by now."""
    return any(Path(f"/proc/{pid}").exists() for pid in pids_holding(file) if pid)


def by_lease(datastore: Datastore, key: str, *, fresh: bool) -> Verdict:
    """By what stands in the store and the store's own clock; `unknown` after a while. inv[lease.no-clock]

    `fresh`: the record was pulled just now, so that a missing lease cannot mean a newer record elsewhere.
    """
    return _within(LOOK_SECONDS, lambda: _look(datastore, key, fresh)) or "unknown"


def _look(datastore: Datastore, key: str, fresh: bool) -> Verdict:
    from swamp.commit.lease import read_lease, store_now

    try:
        seen = read_lease(datastore.store, key)
        if seen is None or not seen.held:
            # Whoever ends in good order lets go after the last record is in the bucket.
            return "dead" if fresh or has_seen_everything(datastore) else "unknown"
        age = store_now(datastore.store) - seen.last_modified
    except (StoreError, ObjectMissing, CorruptData):
        return "unknown"
    return "dead" if age.total_seconds() > STALE_TTLS * seen.ttl_s else "alive"


def has_seen_everything(datastore: Datastore) -> bool:
    """Whether this cache has pulled all that the bucket has: then its records are the last ones there are."""
    engine = datastore.must_sync()
    root = engine.committer.read().root
    return root is not None and engine.state.meta("pulledOp") == root.op and engine.state.deferred_empty()


def model_verdict(datastore: Datastore, model_type: str, model_id: str) -> Verdict:
    """Whether a method of this model runs somewhere: it holds the model's lease from before its record to after it."""
    if not datastore.synced:
        name = f"model-{model_type.replace('/', '+')}-{model_id}.lock"
        return by_lock(datastore.directory / ".locks" / name) or "dead"
    from swamp.commit.lease import model_key

    return by_lease(datastore, model_key(model_type, model_id), fresh=False)


def _within(seconds: float, look: Callable[[], Verdict]) -> Verdict | None:
    """The answer, if it comes in time: a read must not hang because a store does."""
    import threading

    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None
