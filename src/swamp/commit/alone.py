"""One committer at a time, where the store does not enforce conditions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from swamp.commit.lease import Holder, Terms, acquire
from swamp.commit.lease_hold import HeldLease
from swamp.env import Env
from swamp.store.port import Capabilities, ObjectStore

COMMIT_LEASE: Final = ".datastore-commit.lock"
TERMS = Terms()


NOT_ENFORCED: Final = Capabilities(create_only=False, compare_and_swap=False)


def commit_lease(
    store: ObjectStore, env: Env, *, timeout: float = 60.0, local: Path | None = None
) -> Callable[[], HeldLease]:
    """Opens the lease that every commit on such a store is made under, beside the leases of users' commands."""

    def lease() -> HeldLease:
        return acquire(
            store,
            COMMIT_LEASE,
            holder=Holder.of_process(),
            env=env,
            timeout_s=timeout,
            capabilities=NOT_ENFORCED,
            local_lock_dir=local,
            inherited=(),
            terms=TERMS,
        )

    return lease
