"""The last resort: root and log are gone, the payloads are not. A listing *proposes* what the index was.

Nothing here can know which upload of a path was the committed one, or what had been deleted: the newest upload of each
path is a guess, so a person agrees to it first (L48).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from swamp.cache.paths import is_internal, is_safe
from swamp.commit.commit import Committer, Pace
from swamp.commit.establish import tier_pages
from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing, UsageError
from swamp.index.adopt import own_objects
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.root import ROOT_KEY, SEGMENT_PREFIX, Root, SegmentRef, first_root
from swamp.store.port import ObjectMeta

Proposal = dict[str, Entry]


def propose_from_listing(committer: Committer) -> Proposal:
    """The newest upload of each path, held in memory."""
    refuse_whole(committer)
    newest: dict[str, ObjectMeta] = {}
    for meta in own_objects(tier_pages(committer.store)):
        path = path_of_key(meta.key)
        if is_safe(path) and not is_internal(path) and _is_newer(meta, newest.get(path)):
            newest[path] = meta
    return {path: _entry(path, meta) for path, meta in newest.items()}


def refuse_whole(committer: Committer) -> None:
    """Raises UsageError when the store has a root: then there is nothing to guess."""
    try:
        whole = committer.read().root is not None
    except CorruptData:
        whole = False
    if whole:
        raise UsageError(f"the store has an index ({ROOT_KEY})", hint="run doctor --repair without --from-listing")


def _is_newer(meta: ObjectMeta, than: ObjectMeta | None) -> bool:
    """A ULID sorts by time; a plain key, which we never write, gives way to any upload of ours."""
    return than is None or (is_payload_key(meta.key), meta.key) > (is_payload_key(than.key), than.key)


def _entry(path: str, meta: ObjectMeta) -> Entry:
    return Entry(path, meta.key, meta.size, None, rfc3339(meta.last_modified))


def publish_proposal(committer: Committer, pace: Pace, proposal: Proposal) -> None:
    """Makes the proposal the root: everything stands in it."""
    _publish(committer, pace, lambda root: replace(root, entries={p: e.at(root.seq) for p, e in proposal.items()}))


def publish_segments(committer: Committer, pace: Pace, write: Callable[[int], list[SegmentRef]]) -> None:
    """Makes segments that `write` makes the root's: for a proposal that is too large to be held."""
    _publish(committer, pace, lambda root: replace(root, segments=tuple(write(root.seq))))


def _publish(committer: Committer, pace: Pace, filled: Callable[[Root], Root]) -> None:
    """Create-only: a root that came back meanwhile stays. A new identity, so that every cache compares everything and
    removes nothing. inv[state.bound]"""
    env = committer.env
    root = filled(first_root(env.uuid(), env.ulid(), rfc3339(env.clock.now()), committer.writer))
    _move_damage_away(committer)
    committer.create(root, pace)


def _move_damage_away(committer: Committer) -> None:
    """A root that cannot be read, and that no record can replace, is kept beside and makes room."""
    store = committer.store
    try:
        damaged = store.get(ROOT_KEY)
    except ObjectMissing:
        return
    store.put(f"{SEGMENT_PREFIX}corrupt-{committer.env.ulid()}.json", damaged.body)
    store.delete([ROOT_KEY])
