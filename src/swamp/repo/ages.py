"""Tells the age of versions where that decides what is deleted: by the store's clock, never by this machine's alone."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from swamp.data.lifetimes import Times
from swamp.data.names import VersionRef
from swamp.errors import Failed

if TYPE_CHECKING:
    from swamp.repo.datastore import Datastore

MOST_SKEW: Final = dt.timedelta(minutes=5)


def times_of(datastore: Datastore) -> Times:
    """What to measure ages with. Raises Failed when this machine's clock and the store's are too far apart.

    A plain directory has no clock but this machine's.
    """
    if not datastore.synced:
        return Times(datastore.context.env.clock.now())
    return Times(checked_now(datastore), lambda refs: _written(datastore, refs))


def store_clock(datastore: Datastore) -> dt.datetime:
    """What time it is: by the store's clock where there is a store."""
    from swamp.locks.acquire import store_now

    return store_now(datastore.store) if datastore.synced else datastore.context.env.clock.now()


def checked_now(datastore: Datastore) -> dt.datetime:
    """The store's time, if this machine's is about the same. inv[age.store-clock]"""
    clock = datastore.context.env.clock
    before, stamp, after = clock.now(), store_clock(datastore), clock.now()
    ahead = before - stamp if before > stamp else after - stamp if after < stamp else dt.timedelta(0)
    if abs(ahead) > MOST_SKEW:
        which = "ahead of" if ahead > dt.timedelta(0) else "behind"
        raise Failed(
            f"this machine's clock is {_span(abs(ahead))} {which} the store's: nothing is deleted by its age",
            hint="set this machine's clock (`swamp datastore doctor` shows the difference), then run it again",
            details={"clockSkewSeconds": ahead.total_seconds()},
        )
    return stamp


def _span(span: dt.timedelta) -> str:
    if span.days:
        return f"{span.days} days"
    return f"{span.seconds // 3600} hours" if span.seconds >= 7200 else f"{span.seconds // 60} minutes"


def _written(datastore: Datastore, refs: Sequence[VersionRef]) -> Mapping[VersionRef, dt.datetime]:
    """When each version's metadata was committed, by the store's clock: that of the commit's log record."""
    from swamp.commit.collect import Ages
    from swamp.commit.log import names
    from swamp.index.lookup import lookup

    committer = datastore.must_sync().committer
    root = committer.read().root
    if root is None:
        return {}
    ages = Ages.of(list(names(committer.store)), dt.datetime.max.replace(tzinfo=dt.UTC))
    rows = lookup(root, [ref.metadata_path for ref in refs], committer.fetch)
    known = {ref: rows[ref.metadata_path].seq for ref in refs if ref.metadata_path in rows}
    return {ref: at for ref, seq in known.items() if (at := ages.at(seq)) is not None}
