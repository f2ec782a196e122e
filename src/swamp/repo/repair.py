"""Changes a store on somebody's word. `doctor --repair` rebuilds its index from a listing, adopts files that lie beside
it, corrects what it says of conditional writes; `upgrade` raises its format version; `gc --purge` deletes for good."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.files import hash_file
from swamp.commit.bootstrap import keep_damaged, tier_pages
from swamp.commit.build import REBUILT_FROM, Changes
from swamp.commit.commit import Committer, Pace, RootRead
from swamp.commit.log import LogName, names, newest_whole
from swamp.commit.restore import Findings, Purged, below, find_deleted, purge
from swamp.env import Env, rfc3339
from swamp.errors import CorruptData, Failed, ObjectMissing, UsageError
from swamp.index.adopt import own_objects
from swamp.index.entry import Entry
from swamp.index.lookup import winning_rows
from swamp.index.pack import newest_upload, packs_of, propose_listed, propose_packed
from swamp.index.read import read_root
from swamp.index.root import ENFORCED, IGNORED, NEEDS, NEWEST, ROOT_KEY, Root, SegmentRef
from swamp.repo.ask import probe_again
from swamp.store.port import ObjectStore
from swamp.values import value

if TYPE_CHECKING:
    from swamp.commit.appeared import Appeared
    from swamp.repo.datastore import Datastore

Proposal = dict[str, Entry]


def propose_from_listing(committer: Committer) -> Proposal:
    """The newest content of each path, held in memory: objects of their own, and what the footers of packs tell.

    The last resort, when root and log are gone and the payloads are not. Nothing here can know which upload of a path
    was the committed one, or what had been deleted: it is a guess, so a person agrees to it first (L48).
    """
    refuse_whole(committer)
    store = committer.store
    packed = (entry for meta in packs_of(store) for entry in propose_packed(store, meta))  # one ranged request each
    newest: Proposal = {}
    for entry in chain(propose_listed(own_objects(tier_pages(store))), packed):
        newest[entry.path] = newest_upload((entry, newest.get(entry.path, entry)))
    return newest


def refuse_whole(committer: Committer) -> None:
    """Raises UsageError when the store has a root: then there is nothing to guess. Nor where a later version of swamp
    has recorded one (NewerFormat): this one cannot read it, and must not guess instead. inv[format.newer]"""
    try:
        whole = committer.read().root is not None
    except CorruptData:
        whole = False
    if whole:
        raise UsageError(f"the store has an index ({ROOT_KEY})", hint="run doctor --repair without --from-listing")
    newest_whole(committer.store, older=True)


def publish_proposal(committer: Committer, pace: Pace, proposal: Proposal) -> None:
    """Makes the proposal the root: everything stands in it."""
    _publish(committer, pace, lambda root: replace(root, entries={p: e.at(root.seq) for p, e in proposal.items()}))


def publish_segments(committer: Committer, pace: Pace, write: Callable[[int], Sequence[SegmentRef]]) -> None:
    """Makes segments that `write` makes the root's: for a proposal that is too large to be held."""
    _publish(committer, pace, lambda root: replace(root, segments=tuple(write(root.seq))))


def _publish(committer: Committer, pace: Pace, filled: Callable[[Root], Root]) -> None:
    """Create-only, or on the damaged root's own token: a root that came back meanwhile stays. A new identity, so that
    every cache compares everything and removes nothing. inv[state.bound]"""
    root = filled(committer.first_root())
    # Nobody knows what else the lost index named: gc takes nothing that only it can have known. inv[rebuild.keeps]
    root = replace(root, extra={**root.extra, REBUILT_FROM: 0})
    committer.replace(_kept_aside(committer), root, pace)


def _kept_aside(committer: Committer) -> RootRead:
    """Where a root cannot be read, a copy of it is kept, and its own token is what the new one is swapped on: a root
    that somebody has repaired meanwhile is not touched. inv[commit.single-winner]"""
    try:
        damaged = committer.store.get(ROOT_KEY)
    except ObjectMissing:
        return RootRead(None, None)
    refuse_whole(committer)
    keep_damaged(committer, damaged.body)
    return RootRead(None, damaged.meta.token)


@value
class Beside:
    """What appeared beside the index, what of it was adopted, and what could not be."""

    found: tuple[Appeared, ...] = ()
    adopted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        left = [one.to_json() for one in self.found if one.path not in self.adopted]
        return {"appeared": left, "adopted": list(self.adopted), "refused": list(self.refused)}


Decide = Callable[[Sequence["Appeared"]], Sequence["Appeared"]]


def look_beside(datastore: Datastore, decide: Decide) -> Beside:
    """Lists what appeared beside the index and adopts what `decide` picks of it. Running it again changes nothing."""
    from swamp.commit.appeared import adopt, appeared

    committer, pace = datastore.must_sync().committer, datastore.context.cancel.check
    root = committer.read().root
    if root is None:
        raise Failed("the store has no index yet", hint="run: swamp datastore sync")
    found = tuple(appeared(committer, root))
    adopted, refused = adopt(committer, pace, tuple(decide(found)))
    return Beside(found, tuple(adopted), tuple(refused))


LOOK_AGAIN: Final = 2
"""Added to `gcEpoch`, so that every writer looks again for what it has uploaded."""


def change_word(datastore: Datastore, agree: Callable[[str], None]) -> list[str]:
    """Measures, and where the root says otherwise changes its word in a commit of its own, once somebody has agreed.

    `agree` raises when nobody does. The commit is made under the lease of a store without conditions whichever way the
    word changes: until it has won, one of the two may be true. inv[store.one-verdict]
    """
    committer = datastore.must_sync().committer
    root = committer.read().root
    if root is None:
        return []
    word = ENFORCED if probe_again(datastore).capabilities.safe else IGNORED
    if word == (root.conditions or ENFORCED) and not committer.word.has_lost(root):
        return []
    agree(_question(root, word))

    def propose(now: Root) -> Changes | None:
        if now.conditions == word and now.op != root.op:
            return None  # somebody else did it meanwhile
        return Changes(conditions=word, gc_epoch_step=LOOK_AGAIN)

    with committer.word.changing():
        done = committer.commit(propose, datastore.context.cancel.check)
    now = done.root if done else committer.read().root
    if now is not None:
        committer.word.hear(now)
    return [f"the index says now that conditional writes are {word} here (commit {done.root.seq})"] if done else []


def _question(root: Root, word: str) -> str:
    if word == ENFORCED:
        return (
            "This store was seen to enforce conditional writes, and its index says that it ignores them. "
            "Let machines write at the same time again?"
        )
    higher = ""
    if root.version < NEEDS["ignored"]:
        higher = f" The store gets format version {NEEDS['ignored']} with that: older clients stop with exit 65."
    return (
        "This store was seen to ignore conditional writes, and its index says that it enforces them. Change the "
        f"index's word, so that every machine commits under a lease, and no two machines write at once?{higher}"
    )


# -- `datastore upgrade`: one commit that raises the format version; who wrote lately is named first. There is no way
# back: every client that does not know the new version stops with exit 65 from then on.

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
    done = committer.commit(lambda root: Changes(version=NEWEST) if root.version < NEWEST else None, pace)
    root = done.root if done else committer.read().root
    assert root is not None
    return Upgrade(planned.before, root.version, root.seq, planned.writers, done=done is not None)


def recent_writers(store: ObjectStore, env: Env) -> list[RecentWriter]:
    """Who has committed in the last 30 days, last writer first.

    By the store's times. This machine's clock may only make the time longer: a clock that is ahead hides nobody.
    """
    recorded = list(names(store))
    if not recorded:
        return []
    newest = max(name.meta.last_modified for name in recorded)
    since = min(env.clock.now(), newest) - LATELY
    lately = [name for name in recorded if name.meta.last_modified >= since][-READ_AT_MOST:]

    def read(name: LogName) -> tuple[LogName, dict[str, Any]]:
        try:
            return name, dict(read_root(store, key=name.key)[0].writer)
        except ObjectMissing:
            return name, {}  # collected since it was listed

    seen: dict[tuple[str, str, str], list[dt.datetime]] = {}
    with ThreadPoolExecutor(READERS) as pool:
        for name, writer in pool.map(read, lately):
            if writer:
                who = (str(writer.get("user")), str(writer.get("host")), str(writer.get("swamp")))
                seen.setdefault(who, []).append(name.meta.last_modified)
    found = [RecentWriter(*who, len(times), max(times)) for who, times in seen.items()]
    return sorted(found, key=lambda writer: writer.last, reverse=True)


# -- `datastore gc --purge`


def _remains(kind: str, where: str, what: str) -> dict[str, str]:
    """One place where something of a purged file still is."""
    return {"kind": kind, "where": where, "what": what}


class Purging:
    """One `datastore gc --purge`: what it found, what it does, and what it cannot reach."""

    def __init__(self, datastore: Datastore, paths: Sequence[str]) -> None:
        self._datastore = datastore
        self._committer = datastore.must_sync().committer
        self._paths = tuple(path.strip("/") for path in paths)
        self.found: Findings = find_deleted(self._committer, self._paths)

    def planned(self) -> Purged:
        """What `run` would do; nothing is moved by it, and how much would be is not known before."""
        size = sum(meta.size for meta in self.found.objects.values())
        return Purged(len(self.found.packs), 0, tuple(sorted(self.found.objects)), size)

    def run(self) -> Purged:
        return purge(self._committer, self._datastore.idle_timeout().check, self._paths, self.found)

    def document(self, done: Purged, *, dry_run: bool) -> dict[str, Any]:
        """What `gc --purge --json` prints."""
        told = "their caches until they sync, and their conflicts/ after that; running readers; copies of the bucket"
        return {
            "paths": sorted({row.path for row in self.found.rows}),
            "packs": done.packs,
            "moved": done.moved,
            "deleted": [] if dry_run else list(done.deleted),
            "wouldDelete": list(done.deleted) if dry_run else [],
            "bytes": done.bytes,
            "remaining": [*self._in_the_store(done), *self._here(), _remains("machines", "other machines", told)],
            "dryRun": dry_run,
        }

    def _in_the_store(self, done: Purged) -> Iterator[dict[str, str]]:
        root, wanted = self._committer.read().root, below(self._paths)
        for row in winning_rows(root, self._committer.fetch) if root is not None else ():
            if row.sha256 in self.found.hashes and not wanted(row.path):
                state = "a live file" if isinstance(row, Entry) else "a deleted file"
                yield _remains("same-bytes", row.path, f"{state} with the same bytes")
        for key in done.left:
            yield _remains("object", key, "it could not be deleted: something else in it cannot be moved or is in use")
        for key in self.found.unread:
            yield _remains("pack", key, "its footer cannot be read, so what it holds is not known")
        records = sum(1 for _ in names(self._committer.store))
        segments = len(root.segments) if root else 0
        told = f"{records} log records and {segments} segments may name it: path, size and hash"
        yield _remains("names", "_index/", told)

    def _here(self) -> Iterator[dict[str, str]]:
        cache = self._datastore.cache
        sizes = {row.size for row in self.found.rows if row.sha256 is not None}
        for file in sorted(p for p in cache.conflicts.rglob("*") if p.is_file()):
            path = "/".join(file.relative_to(cache.conflicts).parts[1:])
            holds_it = file.stat().st_size in sizes and hash_file(file).sha256 in self.found.hashes
            if below(self._paths)(path) or holds_it:
                yield _remains("conflicts", str(file), "bytes that were moved aside on this machine")
        for file in sorted(p for path in self._paths for p in (cache.tree / path, *(cache.tree / path).rglob("*"))):
            if file.is_file():
                yield _remains("cache", str(file), "a file in this machine's cache that no sync has removed yet")
