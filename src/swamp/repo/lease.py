"""The leases of a datastore: in its directory, or in its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swamp.commit.lease_scope import Leases as StoreLeases
    from swamp.repo.datastore import Datastore
    from swamp.repo.leases import DirectoryLeases


def directory_leases(datastore: Datastore) -> DirectoryLeases:
    """Those of a plain directory: between the processes that see it."""
    from swamp.repo.leases import DirectoryLeases

    context = datastore.context
    folder, timeout = datastore.directory / ".locks", context.settings.lock_timeout
    return DirectoryLeases(folder, context.env, timeout, context.notify)


def store_leases(datastore: Datastore) -> StoreLeases:
    """Those of a bucket: between machines."""
    from swamp.commit.lease import AWAY_S, Holder
    from swamp.commit.lease_scope import Leases as StoreLeases

    context = datastore.context
    limits = context.settings.sync_timeout, context.settings.request_timeout
    return StoreLeases(
        datastore.store,
        Holder.of_process(),
        context.env,
        timeout_s=context.settings.lock_timeout,
        capabilities=datastore.capabilities,
        local_lock_dir=context.settings.home / "locks",
        on_lost=lambda why: context.notify(f"Warning: the lease was lost: {why}"),
        away_s=min(AWAY_S, *limits),
        on_waiting=context.notify,
    )
