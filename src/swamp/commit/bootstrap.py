"""Gives a store its root: it has one, it lost one, it was filled by something else, or it is empty.

Only a definite not-found leads here (L21), and everything is published create-only or on the damaged root's own token,
so two machines that arrive at once end up with one root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from swamp.cache.paths import TIER_DIRECTORIES, is_internal_object
from swamp.commit.build import REBUILT_FROM, put_segment
from swamp.commit.commit import LAYER_ROWS, Committer, Pace, RootRead, rebuilt
from swamp.commit.log import LOG_PREFIX, log_status, names, newest_whole, put_log
from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.adopt import META_KEY, Refused, adopt_listing, adopt_v1, adopt_v2, commit_seq, root_lost
from swamp.index.entry import PACK_PREFIX, Entry
from swamp.index.pack import packs_of
from swamp.index.read import read_root
from swamp.index.root import (
    OLDEST,
    REPAIR_HINT,
    ROOT_KEY,
    SEGMENT_PREFIX,
    Root,
    SegmentRef,
    decode,
    parse_json,
    successor,
)
from swamp.store.port import Fetched, ObjectMeta, ObjectStore, Token
from swamp.values import value

SEGMENT_ROWS: Final = 100_000
SHOWN: Final = 5
ADOPTED: Final = "adoptedCommitSeq"
"""In a root that grew out of version 2 shards: their counter then. It moves when an old client goes on writing."""


@value
class Bootstrapped:
    """The root, and whether it was published just now from a listing, an older format or the log."""

    read: RootRead
    discovered: bool = False
    warnings: tuple[str, ...] = ()


Discover = Callable[[], Bootstrapped]
"""Publishes a root over the objects of a store without one, as `adopted` does; none when there are none."""


def bootstrap(
    committer: Committer,
    pace: Pace,
    *,
    create: bool,
    known: RootRead | None = None,
    discover: Discover | None = None,
    empty: bool = False,
) -> Bootstrapped:
    """Reads or makes the store's root. With `create` an empty store gets one; without, it stays as it is. `empty`:
    the caller has just looked through the store and found nothing."""
    try:
        read = known or committer.read()
    except CorruptData as damage:
        return _from_damage(committer, pace, damage)
    if read.root is not None:
        return Bootstrapped(read)
    if empty:
        return _created(committer, pace, create)
    try:
        return _without_root(committer, pace, create, discover)
    except CorruptData:
        # A listing is no snapshot: another machine may have published its first root, and uploaded, in between.
        read = committer.read()
        if read.root is None:
            raise
        return Bootstrapped(read)


def _without_root(committer: Committer, pace: Pace, create: bool, discover: Discover | None = None) -> Bootstrapped:
    opening = list(islice(committer.store.list(""), 2))
    if len(opening) < 2 and all(_may_precede_a_root(meta.key) for page in opening for meta in page):
        return _created(committer, pace, create)  # one listing tells it: no log, nothing older, nothing to adopt
    recorded = _recorded(committer)
    if recorded is not None:
        return _restored(committer, pace, recorded, None)
    counter = _old_counter(committer.store)
    if discover is not None and counter is None and len(opening) > 1:  # one page is read before anybody could share it
        done = discover()
    else:
        done = adopted(committer, pace, counter)
    if done.read.root is not None:
        return done
    return replace(_created(committer, pace, create), warnings=done.warnings)


def adopted(committer: Committer, pace: Pace, counter: int | None = None) -> Bootstrapped:
    """Publishes a first root over what something else has put into the store; none where that is nothing."""
    left = LeftOut()
    found = iter(_adoptable(committer, None, left))
    first = next(found, None)
    if first is None:
        return left.told(Bootstrapped(RootRead(None, None)))
    return left.told(_published(committer, pace, chain((first,), found), counter))


def _may_precede_a_root(key: str) -> bool:
    """What may stand in a store before its first root: leases, the clock, who owns the namespace."""
    return is_internal_object(key) and key != ROOT_KEY and not key.startswith((SEGMENT_PREFIX, PACK_PREFIX))


def refuse_packs(store: ObjectStore) -> None:
    """Raises CorruptData where packs lie in a bucket without a root: it has lost one (L48)."""
    for pack in packs_of(store):
        raise root_lost(pack.key)


def _recorded(committer: Committer) -> Root | None:
    """The newest whole record of a store whose root is gone; None for one that never had a root, by all that is there.
    Raises CorruptData where it had one and no record is whole."""
    recorded = newest_whole(committer.store)
    if recorded is None:
        if _has_log(committer):
            raise CorruptData(
                "the index root is gone and no record of it is whole",
                hint="run: swamp datastore doctor --repair --from-listing",
            )
        refuse_packs(committer.store)
    return recorded


def _created(committer: Committer, pace: Pace, create: bool) -> Bootstrapped:
    if not create:
        return Bootstrapped(RootRead(None, None))
    return Bootstrapped(committer.replace(RootRead(None, None), committer.first_root(), pace))


def _from_damage(committer: Committer, pace: Pace, damage: CorruptData) -> Bootstrapped:
    """A root that cannot be read: an older client's, or broken bytes. A newer one's never comes here."""
    repaired, fetched = _what_stands(committer)
    if repaired is not None:  # another machine was first: its root is not what is swapped out
        return Bootstrapped(RootRead(repaired, fetched.meta.token, fetched.body))
    if _is_old(committer, fetched.body, damage):
        counter, left = _old_counter(committer.store), LeftOut()
        found = _adoptable(committer, fetched.body, left)
        return left.told(_published(committer, pace, found, counter, on=fetched.meta.token))
    recorded = newest_whole(committer.store)
    if recorded is None:
        raise damage
    keep_damaged(committer, fetched.body)
    return _restored(committer, pace, recorded, fetched.meta.token)


def _is_old(committer: Committer, body: bytes, damage: CorruptData) -> bool:
    """Whether an older version's index stands there, to be adopted. Raises where it must be left alone."""
    try:
        version = parse_json(body).get("version")
    except CorruptData:
        return False
    if not isinstance(version, int) or version >= OLDEST:
        return False
    if _has_log(committer):
        raise CorruptData(
            "an older client has overwritten the index root",
            hint=REPAIR_HINT + " (it restores the root and lists what the old client added)",
        ) from damage
    return True


def preview(committer: Committer) -> Root | None:
    """The root that `bootstrap` would put where none can be read, in memory; None where nothing is. Only reads."""
    old: bytes | None = None
    try:
        read = committer.read()
        if read.root is not None:
            return read.root
    except CorruptData as damage:
        body = committer.store.get(ROOT_KEY).body
        old = body if _is_old(committer, body, damage) else None
        if old is None and newest_whole(committer.store) is None:
            raise
    if old is not None:
        refuse_packs(committer.store)
    elif (recorded := _recorded(committer)) is not None:
        return recorded
    entries = {entry.path: entry.at(1) for entry in _adoptable(committer, old, LeftOut())}
    return replace(committer.first_root(), entries=entries) if entries else None


def repair(committer: Committer, pace: Pace) -> Bootstrapped:
    """Rebuilds the root from the newest whole log record, whatever stands there now. Idempotent (L09)."""
    recorded = newest_whole(committer.store, of_latest_format=True, older=True)
    if recorded is None:
        hint = "run: swamp datastore doctor --repair --from-listing"
        raise CorruptData("there is no whole log record to rebuild the root from", hint=hint)
    try:
        current, fetched = _what_stands(committer)
    except ObjectMissing:
        return _restored(committer, pace, recorded, None)
    if current is not None:
        stands = committer.enforced or log_status(committer.store, current) != "rolled back"
        read = RootRead(current, fetched.meta.token, fetched.body)
        if current.version < recorded.version:
            return _taken_back(committer, pace, read, recorded)
        if current.seq >= recorded.seq and stands:
            return _acknowledged(committer, pace, read)
    keep_damaged(committer, fetched.body)
    return _restored(committer, pace, recorded, fetched.meta.token)


def _what_stands(committer: Committer) -> tuple[Root | None, Fetched]:
    """What is at the root's place: a root, or damage. What another machine rebuilt between two looks is a root."""
    with suppress(CorruptData):
        return read_root(committer.store)
    fetched = committer.store.get(ROOT_KEY)
    with suppress(CorruptData):
        return decode(fetched.body), fetched
    return None, fetched


def _taken_back(committer: Committer, pace: Pace, old: RootRead, recorded: Root) -> Bootstrapped:
    """The newest commit of the store's own format again, above whatever an old client, which cannot read it, has
    committed beside it. inv[format.newer]"""
    assert old.root is not None
    keep_damaged(committer, old.body)
    step = max(old.root.seq - recorded.seq, 0) + 2
    read = committer.replace(RootRead(None, old.token), rebuilt(recorded, committer.env, committer.writer, step), pace)
    later = (entry for entry in old.root.entries.values() if entry.seq > old.root.oldest_known_seq)
    theirs = sorted(e.path for e in later if (row := recorded.row(e.path)) is None or row.key != e.key)
    shown = f": {', '.join(theirs[:SHOWN])}{' …' if len(theirs) > SHOWN else ''}" if theirs else ""
    warning = (
        f"an older client had put back an index of format version {old.root.version}; commit {recorded.seq} was "
        f"restored from the log. {len(theirs)} files that it committed are not in it{shown}. Upgrade that client: "
        "its next sync delivers them"
    )
    return Bootstrapped(read, discovered=True, warnings=(warning,))


OLD_CLIENT: Final = "an older client goes on writing to this store's old index"


def refuse_old_client(committer: Committer, root: Root) -> None:
    """A client of the version that this index was adopted from must not go on writing beside it (L41)."""
    if ADOPTED in root.extra and old_client_wrote(committer.store, root):
        raise CorruptData(
            OLD_CLIENT,
            hint=REPAIR_HINT + " (it lists what the old client added, to adopt or to leave), and upgrade that client",
        )


def old_client_wrote(store: ObjectStore, root: Root) -> bool:
    """Whether the index of version 2 beside this one has moved, or has come, since it was last looked at (L76)."""
    return _old_counter(store) not in (None, root.extra.get(ADOPTED))


def _acknowledged(committer: Committer, pace: Pace, read: RootRead) -> Bootstrapped:
    """What an old client wrote meanwhile has been looked at: from its counter now, pushes go on."""
    counter, root = _old_counter(committer.store), read.root
    if root is None or counter is None or root.extra.get(ADOPTED) == counter:
        return Bootstrapped(read)
    env = committer.env
    put_log(committer.store, env, root, read.body)
    new = successor(root, env.ulid(), rfc3339(env.clock.now()), committer.writer)
    warning = "an older client has written to the old index; its files are not in this one"
    told = replace(new, extra={**root.extra, ADOPTED: counter})
    return Bootstrapped(committer.replace(read, told, pace), warnings=(warning,))


def _old_counter(store: ObjectStore) -> int | None:
    """The counter of version 2 shards; None where there are none, -1 where it cannot be read."""
    try:
        return commit_seq(store.get(META_KEY).body)
    except ObjectMissing:
        return None
    except CorruptData:
        return -1  # a damaged index of an old client must not stop every push for good


def _restored(committer: Committer, pace: Pace, recorded: Root, on: Token | None) -> Bootstrapped:
    last = max((name.seq for name in names(committer.store, after_seq=recorded.seq)), default=recorded.seq)
    root = rebuilt(recorded, committer.env, committer.writer, last - recorded.seq + 2)
    if last > recorded.seq:
        # Later commits are known and cannot be read: what they named is nobody's garbage. inv[rebuild.keeps]
        root = replace(root, extra={**root.extra, REBUILT_FROM: recorded.seq})
    committer.word.hear(recorded)
    read = committer.replace(RootRead(None, on), root, pace)
    warning = f"the index root was lost or damaged and has been rebuilt from the log (commit {recorded.seq})"
    return Bootstrapped(read, discovered=_is(read, root), warnings=(warning,))


def _is(read: RootRead, root: Root) -> bool:
    """Whether it was me who published: another machine may have been first, and then its root is the root."""
    return read.root is not None and read.root.knows_op(root.op)


def keep_damaged(committer: Committer, body: bytes) -> None:
    committer.store.put(f"{SEGMENT_PREFIX}corrupt-{committer.env.ulid()}.json", body)


def _published(
    committer: Committer, pace: Pace, entries: Iterable[Entry], counter: int | None, on: Token | None = None
) -> Bootstrapped:
    """A first root over adopted entries: a few stand in the root itself, many in segments."""
    stream = iter(entries)
    root = committer.first_root()
    root = replace(root, extra={ADOPTED: counter} if counter is not None else {})
    head = list(islice(stream, LAYER_ROWS + 1))
    if len(head) <= LAYER_ROWS:
        root = replace(root, entries={e.path: e.at(root.seq) for e in head})
    else:
        root = replace(root, segments=tuple(_segments(committer, pace, chain(head, stream), root.seq)))
    read = committer.replace(RootRead(None, on), root, pace)
    return Bootstrapped(read, discovered=_is(read, root))


def _segments(committer: Committer, pace: Pace, entries: Iterator[Entry], seq: int) -> Iterator[SegmentRef]:
    from swamp.index.segment import write_segment

    while rows := list(islice(entries, SEGMENT_ROWS)):
        pace()
        yield put_segment(committer.store, committer.env, write_segment(rows), seq)


def _has_log(committer: Committer) -> bool:
    return any(page for page in committer.store.list(LOG_PREFIX))


class LeftOut:
    """Keys that cannot be a file's path: counted, the first few named, none of them in the index."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def __call__(self, refused: Refused) -> None:
        self.add(1, [str(refused)])

    def add(self, count: int, first: Sequence[str]) -> None:
        """What was left out of another part of the same listing."""
        self.count += count
        self.first += first[: SHOWN - len(self.first)]

    def told(self, done: Bootstrapped) -> Bootstrapped:
        if not self.count:
            return done
        more = f" and {self.count - SHOWN} more" if self.count > SHOWN else ""
        what = f"{self.count} objects cannot be files here and were left out: {'; '.join(self.first)}{more}"
        return replace(done, warnings=(*done.warnings, what))


def _adoptable(committer: Committer, old_root: bytes | None, refused: LeftOut) -> Iterator[Entry]:
    """What something else left here: version 2 shards win over the version 1 monolith beside them, then a listing."""
    store = committer.store
    try:
        meta = store.get(META_KEY).body
    except ObjectMissing:
        if old_root is not None:
            return adopt_v1(old_root, refused=refused)
        return adopt_listing(tier_pages(store), refused=refused)
    return adopt_v2(meta, lambda key: store.get(key).body, refused=refused)


def tier_pages(store: ObjectStore) -> Iterator[Sequence[ObjectMeta]]:
    """A listing of the tier directories and nothing else, page by page."""
    for tier in TIER_DIRECTORIES:
        yield from store.list(f"{tier}/")
