"""`datastore upgrade`: one commit that raises a store's format version; who wrote lately is named first.

There is no way back: every client that does not know the new version stops with exit 65 from then on.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from swamp.commit.build import Changes
from swamp.commit.log import LogName, names
from swamp.env import rfc3339
from swamp.errors import ObjectMissing
from swamp.index.formats import NEWEST
from swamp.index.root import Root, decode
from swamp.values import value

if TYPE_CHECKING:
    from swamp.commit.commit import Committer, Pace
    from swamp.env import Env
    from swamp.store.port import ObjectStore

LATELY: Final = dt.timedelta(days=30)
READ_AT_MOST: Final = 2_000
READERS: Final = 16


@value
class RecentWriter:
    """Somebody who has committed lately, with which version of swamp, and when last by the store's clock."""

    user: str
    host: str
    swamp: str
    commits: int
    last: dt.datetime

    def to_json(self) -> dict[str, Any]:
        known = {"user": self.user, "host": self.host, "swamp": self.swamp}
        return {**known, "commits": self.commits, "lastWriteAt": rfc3339(self.last)}

    def __str__(self) -> str:
        return f"{self.user}@{self.host} (swamp {self.swamp})"


@value
class Upgrade:
    """From which format version to which, and who has to upgrade their swamp for it. `before` 0: no index yet."""

    before: int
    after: int
    seq: int
    writers: tuple[RecentWriter, ...] = ()
    done: bool = False

    @property
    def is_due(self) -> bool:
        return 0 < self.before < self.after

    def to_json(self) -> dict[str, Any]:
        versions = {"from": self.before or None, "to": self.after, "upgraded": self.done, "seq": self.seq}
        return {**versions, "writers": [writer.to_json() for writer in self.writers]}


def plan_upgrade(committer: Committer) -> Upgrade:
    """What an upgrade would do. Only reads."""
    root = committer.read().root
    if root is None or root.version >= NEWEST:
        return Upgrade(root.version if root else 0, NEWEST, root.seq if root else 0)
    return Upgrade(root.version, NEWEST, root.seq, tuple(recent_writers(committer.store, committer.env)))


def upgrade(committer: Committer, pace: Pace, planned: Upgrade) -> Upgrade:
    """Commits the higher version; whoever was first, it is there afterwards."""
    done = committer.commit(_raise_version, pace)
    root = done.root if done else committer.read().root
    assert root is not None
    return Upgrade(planned.before, root.version, root.seq, planned.writers, done=done is not None)


def _raise_version(root: Root) -> Changes | None:
    return Changes(version=NEWEST) if root.version < NEWEST else None


def recent_writers(store: ObjectStore, env: Env) -> Iterator[RecentWriter]:
    """Who has committed in the last 30 days, last writer first.

    By the store's times. This machine's clock may only make the time longer: a clock that is ahead hides nobody.
    """
    recorded = list(names(store))
    if not recorded:
        return
    newest = max(name.meta.last_modified for name in recorded)
    since = min(env.clock.now(), newest) - LATELY
    lately = [name for name in recorded if name.meta.last_modified >= since][-READ_AT_MOST:]
    yield from sorted(_by_writer(store, lately), key=lambda writer: writer.last, reverse=True)


def _by_writer(store: ObjectStore, recorded: Iterable[LogName]) -> Iterator[RecentWriter]:
    def read(name: LogName) -> tuple[LogName, dict[str, Any]]:
        try:
            return name, dict(decode(store.get(name.key).body).writer)
        except ObjectMissing:
            return name, {}  # collected since it was listed

    seen: dict[tuple[str, str, str], list[dt.datetime]] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for name, writer in pool.map(read, recorded):
            if writer:
                who = (str(writer.get("user")), str(writer.get("host")), str(writer.get("swamp")))
                seen.setdefault(who, []).append(name.meta.last_modified)
    for (user, host, swamp), times in seen.items():
        yield RecentWriter(user, host, swamp, len(times), max(times))
