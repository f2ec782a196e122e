"""What only the store can tell: its leases, whether who holds one still works (never by a pid, K08), and the age of
versions where that decides what is deleted (by the store's clock, never by this machine's alone)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from swamp.data.lifetimes import Times
from swamp.data.names import VersionRef
from swamp.errors import CorruptData, Failed, ObjectMissing, StoreError, SwampError
from swamp.locks.flock import Verdict, by_lock
from swamp.repo.ask import in_time

if TYPE_CHECKING:
    from swamp.data.records import Output, OutputRepository
    from swamp.locks.flock import DirectoryLeases
    from swamp.locks.leases import StoreLeases
    from swamp.repo.datastore import Datastore


STALE_TTLS: Final = 3
INTERRUPTED: Final = "interrupted: the process that ran it is gone"
LOOK_SECONDS: Final = 5.0


def by_lease(datastore: Datastore, key: str, *, fresh: bool) -> Verdict:
    """By what stands in the store and the store's own clock; `unknown` after a while. inv[lease.no-clock]

    `fresh`: the record was pulled just now, so that a missing lease cannot mean a newer record elsewhere.
    """
    try:
        return in_time(LOOK_SECONDS, lambda: _look(datastore, key, fresh))
    except SwampError:
        return "unknown"  # a read must not hang, or fail, because a store does


def _look(datastore: Datastore, key: str, fresh: bool) -> Verdict:
    from swamp.locks.decide import read_lease, store_now

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
    from swamp.locks.decide import model_key

    return by_lease(datastore, model_key(model_type, model_id), fresh=False)


def with_interrupted(datastore: Datastore, records: OutputRepository, outputs: Iterable[Output]) -> Iterator[Output]:
    """The same outputs, but one that says `running` and that nobody works on was interrupted. Nothing is written.

    Each model is looked at once, and only if one of its outputs says `running`.
    """

    @cache
    def verdict(model_type: str, model_id: str) -> Verdict:
        return model_verdict(datastore, model_type, model_id)

    for output in outputs:
        if output.status == "running" and verdict(output.model_type, output.definition_id) == "dead":
            output = records.get(output.id)  # it may have ended after it was read, and nobody had its lease then either
            if output.status == "running":
                output = replace(output, status="failed", error=output.error or INTERRUPTED)
        yield output


def directory_leases(datastore: Datastore) -> DirectoryLeases:
    """Makes the leases of a plain directory: between the processes that see it."""
    from swamp.locks.flock import DirectoryLeases

    context = datastore.context
    return DirectoryLeases(datastore.directory / ".locks", context.env, context.settings.lock_timeout, context.notify)


def store_leases(datastore: Datastore) -> StoreLeases:
    """Makes the leases of a bucket: between machines."""
    from swamp.locks.decide import Holder
    from swamp.locks.leases import AWAY_S, StoreLeases

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


# -- how old things are

MOST_SKEW: Final = dt.timedelta(minutes=5)


def times_of(datastore: Datastore) -> Times:
    """What to measure ages with. Raises Failed when this machine's clock and the store's are too far apart.

    A plain directory has no clock but this machine's.
    """
    if not datastore.synced:
        return Times(datastore.context.env.clock.now())
    return Times(_checked_now(datastore), lambda refs: _written(datastore, refs))


def store_clock(datastore: Datastore) -> dt.datetime:
    """What time it is: by the store's clock where there is a store."""
    from swamp.locks.decide import store_now

    return store_now(datastore.store) if datastore.synced else datastore.context.env.clock.now()


def _checked_now(datastore: Datastore) -> dt.datetime:
    """The store's time, if this machine's is about the same. inv[age.store-clock]"""
    clock = datastore.context.env.clock
    before, stamp, after = clock.now(), store_clock(datastore), clock.now()
    ahead = before - stamp if before > stamp else after - stamp if after < stamp else dt.timedelta(0)
    if abs(ahead) > MOST_SKEW:
        which, size = "ahead of" if ahead > dt.timedelta(0) else "behind", abs(ahead)
        minutes = f"{size.seconds // 3600} hours" if size.seconds >= 7200 else f"{size.seconds // 60} minutes"
        span = f"{size.days} days" if size.days else minutes
        raise Failed(
            f"this machine's clock is {span} {which} the store's: nothing is deleted by its age",
            hint="set this machine's clock (`swamp datastore doctor` shows the difference), then run it again",
            details={"clockSkewSeconds": ahead.total_seconds()},
        )
    return stamp


def _written(datastore: Datastore, refs: Sequence[VersionRef]) -> Mapping[VersionRef, dt.datetime]:
    """When each version's metadata was committed, by the store's clock: that of the commit's log record."""
    from swamp.commit.log import Ages, names
    from swamp.index.lookup import lookup

    committer = datastore.must_sync().committer
    root = committer.read().root
    if root is None:
        return {}
    ages = Ages.of(list(names(committer.store)), dt.datetime.max.replace(tzinfo=dt.UTC))
    rows = lookup(root, [ref.metadata_path for ref in refs], committer.fetch)
    known = {ref: rows[ref.metadata_path].seq for ref in refs if ref.metadata_path in rows}
    return {ref: at for ref, seq in known.items() if (at := ages.at(seq)) is not None}
