"""The last resort: root and log are gone, the payloads are not. A listing *proposes* what the index was.

Nothing here can know which upload of a path was the committed one, or what had been deleted: the newest upload of each
path is a guess, so a person agrees to it first (L48).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from swamp.commit.commit import Committer, Pace, RootRead
from swamp.commit.establish import REBUILT_FROM, tier_pages
from swamp.commit.log import newest_whole
from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing, UsageError
from swamp.index.adopt import is_proposed, own_objects
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.keys import PACK_PREFIX, is_pack, slice_of
from swamp.index.pack import upload_of
from swamp.index.payload import fetch_footer
from swamp.index.root import ROOT_KEY, SEGMENT_PREFIX, Root, SegmentRef
from swamp.store.port import ObjectMeta, ObjectStore

Proposal = dict[str, Entry]


def propose_from_listing(committer: Committer) -> Proposal:
    """The newest content of each path, held in memory: objects of their own, and what the footers of packs tell."""
    refuse_whole(committer)
    newest: Proposal = {}
    listed = (_entry(path_of_key(m.key), m) for m in own_objects(tier_pages(committer.store)) if is_proposed(m.key))
    for entry in (*listed, *_packed(committer.store)):
        if entry.path not in newest or _age(entry) > _age(newest[entry.path]):
            newest[entry.path] = entry
    return newest


def has_packs(store: ObjectStore) -> bool:
    return any(is_pack(meta.key) for page in store.list(PACK_PREFIX) for meta in page)


def _packed(store: ObjectStore) -> Iterator[Entry]:
    """What packs say they hold, one ranged request each. One that cannot be read proposes nothing and stays."""
    for meta in (m for page in store.list(PACK_PREFIX) for m in page if is_pack(m.key)):
        try:
            files = fetch_footer(store, meta)
        except (CorruptData, ObjectMissing):
            continue
        at = rfc3339(meta.last_modified)
        for file in files:
            key = file.slice(meta.key).key
            if is_proposed(file.path):
                yield Entry(file.path, key, file.size, file.sha256, at, id="" if file.id == key else file.id)


def _age(entry: Entry) -> tuple[bool, str, str]:
    """By when its content was first uploaded, not by where it lies: a repacked old file is not newer than a later
    upload (L73). A plain key, which we never write, gives way to any upload of ours. inv[rebuild.newest-identity]"""
    return is_payload_key(entry.key) or slice_of(entry.key) is not None, upload_of(entry.identity), entry.key


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


def _entry(path: str, meta: ObjectMeta) -> Entry:
    return Entry(path, meta.key, meta.size, None, rfc3339(meta.last_modified))


def publish_proposal(committer: Committer, pace: Pace, proposal: Proposal) -> None:
    """Makes the proposal the root: everything stands in it."""
    _publish(committer, pace, lambda root: replace(root, entries={p: e.at(root.seq) for p, e in proposal.items()}))


def publish_segments(committer: Committer, pace: Pace, write: Callable[[int], list[SegmentRef]]) -> None:
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
    store = committer.store
    try:
        damaged = store.get(ROOT_KEY)
    except ObjectMissing:
        return RootRead(None, None)
    refuse_whole(committer)
    store.put(f"{SEGMENT_PREFIX}corrupt-{committer.env.ulid()}.json", damaged.body)
    return RootRead(None, damaged.meta.token)
