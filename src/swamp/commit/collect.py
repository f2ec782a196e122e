"""Garbage: what no path names any more, for longer than the undo window. `mark` looks, `Sweeper` condemns and deletes.

A key is deleted only after a commit has put it into `collecting`: a writer that wants it sees that and gives it up.
Nothing is deleted because a list in the bucket says so: every key comes from a listing that was marked just now.
Ages are the store's own: the last-modified of log records and objects, against that of an object just written.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field
from itertools import chain, groupby
from typing import Final

from swamp.cache.paths import in_tier, is_internal, is_internal_object
from swamp.commit.bootstrap import tier_pages
from swamp.commit.build import PLACED_AGAIN, REBUILT_FROM, is_there
from swamp.commit.commit import Changes, Committer, Pace
from swamp.commit.log import Ages, names, put_log, refuse_later_formats
from swamp.env import is_ulid
from swamp.errors import ObjectMissing
from swamp.index.adopt import own_objects
from swamp.index.entry import PACK_PREFIX, Entry, is_pack, is_payload_key, object_of, path_of_key
from swamp.index.lookup import FetchSegment, all_rows, live_rows, rows_between, rows_since
from swamp.index.root import EVERYTHING, SEGMENT_PREFIX, Root, Span
from swamp.index.segment import AnyRow
from swamp.locks.decide import store_now
from swamp.store.keys import is_key
from swamp.store.port import ObjectMeta, ObjectStore, Token
from swamp.values import mutable, value

BATCH: Final = 1_000
KEPT_RECORDS: Final = 1_000
KEPT_RECORD_AGE: Final = dt.timedelta(days=30)
UNDO_WINDOW: Final = dt.timedelta(days=7)
_SUFFIX: Final = ".parquet"
Held = Mapping[str, frozenset[tuple[int, str]]]
"""Of plain keys: sizes and hashes of what commits of ours dropped there."""


@value
class Collected:
    candidates: int
    deleted: int
    bytes: int

    def __add__(self, more: Collected) -> Collected:
        return Collected(self.candidates, self.deleted + more.deleted, self.bytes + more.bytes)


@value
class Marked:
    """What may go, and the root that says so."""

    root: Root
    garbage: tuple[ObjectMeta, ...]
    records: tuple[ObjectMeta, ...] = ()
    """Log records beyond the newest 1,000 that are older than a month: nothing names them, so none is condemned."""
    held: Held = field(default_factory=dict)
    """What commits of ours dropped under the plain keys among the garbage."""

    @property
    def size(self) -> int:
        return sum(meta.size for meta in (*self.garbage, *self.records))


Marker = Callable[[Root, dt.timedelta], Marked]


def collect(
    committer: Committer,
    pace: Pace,
    *,
    keep: dt.timedelta = UNDO_WINDOW,
    dry_run: bool = False,
    marker: Marker | None = None,
) -> Collected:
    """Deletes what `mark` finds (or a `marker` that finds the same in bulk), in batches; looks again when the store
    has moved on too far meanwhile."""
    done = Collected(0, 0, 0)
    while True:
        read = committer.read()
        if read.root is None:
            return done
        refuse_later_formats(committer.store, read.root)  # what they name is not garbage
        # The newest commit may have no record yet: without one, what it dropped just now would have no age (L33).
        put_log(committer.store, committer.env, read.root, read.body)
        marked = marker(read.root, keep) if marker else mark(committer, read.root, keep)
        found = done.deleted + len(marked.garbage) + len(marked.records)
        if dry_run:
            return Collected(found, 0, marked.size)
        done = Collected(found, done.deleted, done.bytes)
        try:
            for part in _swept(committer, pace, marked):
                done += part
        except MovedTooFar:
            pace()
            continue
        if marked.records:
            committer.store.delete([m.key for m in marked.records])
        return done + Collected(0, len(marked.records), sum(m.size for m in marked.records))


def _swept(committer: Committer, pace: Pace, marked: Marked) -> Iterator[Collected]:
    """Deletes the garbage in batches. A dead collector's batch goes along as far as it was marked, and no further."""
    sweeper = Sweeper(committer, pace, marked.root, marked.held)
    garbage, inherited = marked.garbage, frozenset(marked.root.collecting)
    for start in range(0, len(garbage), BATCH):
        pace()
        batch = garbage[start : start + BATCH]
        gone = sweeper.sweep({m.key for m in batch})
        yield Collected(0, len(gone), sum(m.size for m in batch if m.key in gone))
    release(committer, pace, inherited)


def mark(committer: Committer, root: Root, keep: dt.timedelta) -> Marked:
    """Objects that no live row names: dropped, deleted or never published longer ago than `keep`."""
    terms = MarkTerms.now(committer.store, root, keep)
    claimed: dict[str, ObjectClaim] = {}
    for name, claim in chain(segments_live(root), claims(terms, root, committer.fetch)):
        claimed[name] = both(name, claimed[name], claim) if name in claimed else claim
    # Only below the tier directories, `_index/` and `_packs/`; never internal names, the log, other tenants (L34).
    listed = chain(own_objects(tier_pages(committer.store)), internal_objects(committer.store))
    found = ((meta, claimed.get(meta.key, UNCLAIMED)) for meta in listed)
    return terms.marked((meta, claim.held) for meta, claim in found if is_garbage(meta, claim, terms))


@value
class ObjectClaim:
    """What rows say of one object together, the strongest of `LIVE`, `WAITING` for the end of an undo window, and
    `EXPIRED`; and of a plain one what commits of ours dropped there."""

    state: int
    held: frozenset[tuple[int, str]] = frozenset()


NAMELESS, EXPIRED, WAITING, LIVE = range(4)
UNCLAIMED, _EXPIRED, _WAITING, _LIVE = map(ObjectClaim, (NAMELESS, EXPIRED, WAITING, LIVE))


@value
class MarkTerms:
    """By what one collection judges: its root, the commits' ages, and until when what no row names may go."""

    root: Root
    ages: Ages
    keep: dt.timedelta
    orphans: dt.datetime | None
    records: tuple[ObjectMeta, ...]

    @classmethod
    def now(cls, store: ObjectStore, root: Root, keep: dt.timedelta) -> MarkTerms:
        recorded = list(names(store))
        ages = Ages.of(recorded, store_now(store))
        old = (r.meta for r in recorded[:-KEPT_RECORDS] if ages.now - r.meta.last_modified >= KEPT_RECORD_AGE)
        return cls(root, ages, keep, orphans_until(root, ages, keep), tuple(old))

    def marked(self, garbage: Iterable[tuple[ObjectMeta, frozenset[tuple[int, str]]]]) -> Marked:
        found = sorted(garbage, key=lambda one: one[0].key)
        held = {meta.key: dropped for meta, dropped in found if dropped}
        return Marked(self.root, tuple(meta for meta, _ in found), self.records, held)


def claims(
    terms: MarkTerms, root: Root, fetch: FetchSegment, span: Span = EVERYTHING
) -> Iterator[tuple[str, ObjectClaim]]:
    """What the rows of a range of paths say of objects, an object perhaps several times: in process all of them, in a
    task its own."""
    live = (object_of(row.key) for row in rows_between(root, fetch, span) if isinstance(row, Entry))
    yield from ((name, _LIVE) for name, _ in groupby(live))  # the files of a pack are neighbours
    for row in all_rows(root, fetch, span):
        if not isinstance(row, Entry):
            name = object_of(row.key)
            claim = _EXPIRED if terms.ages.older(row.seq, terms.keep) else _WAITING
            plain = row.sha256 is not None and not is_own_key(name)
            yield name, ObjectClaim(claim.state, held_by((row,))[row.key]) if plain else claim


def segments_live(root: Root) -> Iterator[tuple[str, ObjectClaim]]:
    return ((ref.key, _LIVE) for ref in root.segments)


def both(name: str, one: ObjectClaim, other: ObjectClaim) -> ObjectClaim:
    """What two claims say of an object: it is live while any winning row has bytes in it. inv[pack.live-if-any]"""
    return ObjectClaim(max(one.state, other.state), one.held | other.held)


def is_garbage(meta: ObjectMeta, claim: ObjectClaim, terms: MarkTerms) -> bool:
    """Whether a listed object may go by all that the index says of it."""
    if claim.state > EXPIRED or not may_condemn(meta.key):
        return False
    if not is_own_key(meta.key):
        return claim.state == EXPIRED and may_hold(meta, claim.held)
    return claim.state == EXPIRED or (terms.orphans is not None and meta.last_modified <= terms.orphans)


def orphans_until(root: Root, ages: Ages, keep: dt.timedelta) -> dt.datetime | None:
    """Objects that no row names may go if they are from before then, and no lost commit can have named them; None: no
    such object may. inv[rebuild.keeps]"""
    until = ages.now - keep
    if REBUILT_FROM in root.extra:
        seq = root.extra[REBUILT_FROM]
    else:
        since, whole = _placed_again(root)
        if not whole or ages.older(whole, keep):
            return until
        seq = since  # nobody has had the undo window yet to look for what the lost commits named
    recorded = ages.at(seq) if isinstance(seq, int) and seq else None
    return None if recorded is None else min(until, recorded)


def _placed_again(root: Root) -> tuple[int, int]:
    """After which commit a rebuilt root knew nothing, and which one saw that it was whole; zeros where none did."""
    told = root.extra.get(PLACED_AGAIN)
    if isinstance(told, list) and len(told) == 2 and all(isinstance(seq, int) for seq in told):
        return told[0], told[1]
    return 0, 0


def may_hold(meta: ObjectMeta, held: frozenset[tuple[int, str]]) -> bool:
    """Whether a plain object has the size of something that we dropped there: the cheap half of the proof."""
    return any(size == meta.size for size, _ in held)


def held_by(rows: Iterable[AnyRow]) -> Held:
    """What commits of ours dropped under each plain key, as far as its hash was known."""
    found: dict[str, frozenset[tuple[int, str]]] = {}
    for row in rows:
        if row.sha256 is not None:
            found[row.key] = found.get(row.key, frozenset()) | {(row.size, row.sha256)}
    return found


def internal_objects(store: ObjectStore) -> Iterator[ObjectMeta]:
    """Segments and packs under our own names."""
    for prefix in (SEGMENT_PREFIX, PACK_PREFIX):
        for page in store.list(prefix):
            yield from (meta for meta in page if is_segment_key(meta.key) or is_pack(meta.key))


class MovedTooFar(Exception):
    """The root that was marked is no longer in the newest one's history: mark again."""


def may_condemn(key: str) -> bool:
    """Whether a key can be garbage at all. inv[gc.own-keys]

    Only what lies below a tier directory, and segments and packs under our own names: never the root, the log, leases,
    internal names, `.namespace.json`, or anything that no file of ours can be called.
    """
    if is_segment_key(key) or is_pack(key):
        return True
    return is_key(key) and in_tier(key) and not is_internal_object(key) and not is_internal(path_of_key(key))


def is_own_key(key: str) -> bool:
    """Whether only we can have written under this name: an upload, a pack or a segment. Nobody writes there twice."""
    return is_payload_key(key) or is_pack(key) or is_segment_key(key)


def is_segment_key(key: str) -> bool:
    """Whether a key is `_index/<ulid>.parquet`."""
    name = key.removeprefix(SEGMENT_PREFIX)
    return name != key and name.endswith(_SUFFIX) and is_ulid(name.removesuffix(_SUFFIX))


@mutable
class Sweeper:
    """Deletes keys that were marked against the root `seen`, a batch at a time."""

    committer: Committer
    pace: Pace
    seen: Root
    held: Held
    _spared: set[str] = field(default_factory=set)

    def sweep(self, keys: Collection[str]) -> set[str]:
        """Condemns the batch, deletes it, and takes it off the list again; what was deleted."""
        tokens = self._proven(keys)
        wanted = {key for key in keys if key in tokens or is_own_key(key)}
        batch: set[str] = set()

        def condemn(root: Root) -> Changes | None:
            self._spare(root)
            batch.clear()
            batch.update(key for key in wanted - self._spared if may_condemn(key))
            if not batch:
                return None
            return Changes(collecting=tuple(sorted(set(root.collecting) | batch)), gc_epoch_step=1)

        if self.committer.commit(condemn, self.pace) is None:
            return set()
        going = {key for key in batch if key not in tokens or self._holds(key, tokens[key])}
        self.committer.store.delete(sorted(going))

        def clear(root: Root) -> Changes | None:
            self._spare(root)
            left = tuple(k for k in root.collecting if k not in batch)
            return Changes(collecting=left, swept=frozenset(going))

        self.committer.commit(clear, self.pace)
        return going

    def _spare(self, root: Root) -> None:
        """Keys that a root newer than the last one seen brought to life are never condemned."""
        if root.op == self.seen.op:
            return
        if not root.knows_op(self.seen.op):
            raise MovedTooFar
        rows = rows_since(root, self.seen.seq, self.committer.fetch)
        self._spared |= {named_object(r.key) for r in rows if isinstance(r, Entry)} | {s.key for s in root.segments}
        self.seen = root

    def _proven(self, keys: Collection[str]) -> dict[str, Token]:
        """Plain keys that still hold the very bytes that we dropped, with the token that says so."""
        found: dict[str, Token] = {}
        for key in sorted(keys):  # a run of the simulator is the same in every process
            if is_own_key(key):
                continue
            self.pace()
            token = unchanged(self.committer.store, key, self.held.get(key, frozenset()))
            if token is not None:
                found[key] = token
        return found

    def _holds(self, key: str, token: Token) -> bool:
        """Another tool may have written there while the batch was committed."""
        try:
            return self.committer.store.head(key).token == token
        except ObjectMissing:
            return False


def named_object(key: str) -> str:
    """The object that a row's key keeps alive: `collecting`, listings and marks hold objects. inv[gc.objects]"""
    return object_of(key)


def unchanged(store: ObjectStore, key: str, dropped: frozenset[tuple[int, str]]) -> Token | None:
    """The token of a plain object whose bytes are those that a commit of ours dropped, by hash; else None.

    An adopted object that nobody ever read has no hash: it cannot be shown to be what was dropped, so it stays.
    inv[gc.plain-unchanged]
    """
    try:
        with store.open(key) as body:
            if all(size != body.meta.size for size, _ in dropped):
                return None
            digest = hashlib.sha256()
            for chunk in body:
                digest.update(chunk)
            known = (body.meta.size, digest.hexdigest()) in dropped
            return body.meta.token if known else None
    except ObjectMissing:
        return None


def release(committer: Committer, pace: Pace, inherited: frozenset[str]) -> None:
    """Takes off `collecting` what an earlier collector, or a damaged root, left there and nobody may or need delete.

    What this run may not delete *yet* stays listed: its collector may only be slow, and whoever took such a key off the
    list would let a writer use it under a delete that is still to come.
    """
    idle: set[str] = set()
    for key in sorted(inherited):
        if may_condemn(key):
            pace()
            if is_there(committer.store, key):
                continue
        idle.add(key)

    def propose(root: Root) -> Changes | None:
        left = [k for k in root.collecting if k not in idle]
        named = (named_object(row.key) for row in live_rows(root, committer.fetch)) if inherited & set(left) else ()
        live = inherited & set(named)
        left = [k for k in left if k not in live]
        return Changes(collecting=tuple(left)) if len(left) < len(root.collecting) else None

    if inherited:
        committer.commit(propose, pace)
