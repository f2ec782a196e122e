"""Repairs a store for `doctor --repair`: rebuilds its index from a listing, adopts files that lie beside it, corrects
what it says of conditional writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from swamp.commit.bootstrap import REBUILT_FROM, tier_pages
from swamp.commit.build import Changes
from swamp.commit.commit import Committer, Pace, RootRead
from swamp.commit.log import newest_whole
from swamp.env import rfc3339
from swamp.errors import CorruptData, Failed, ObjectMissing, UsageError
from swamp.index.adopt import is_proposed, own_objects
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.formats import NEEDS
from swamp.index.keys import PACK_PREFIX, is_pack, slice_of
from swamp.index.pack import upload_of
from swamp.index.payload import propose_packed
from swamp.index.root import ENFORCED, IGNORED, ROOT_KEY, SEGMENT_PREFIX, Root, SegmentRef
from swamp.repo.probe import probe_again
from swamp.store.port import ObjectMeta, ObjectStore
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
    newest: Proposal = {}
    listed = (_entry(path_of_key(m.key), m) for m in own_objects(tier_pages(committer.store)) if is_proposed(m.key))
    for entry in (*listed, *_packed(committer.store)):
        if entry.path not in newest or _age(entry) > _age(newest[entry.path]):
            newest[entry.path] = entry
    return newest


def _packed(store: ObjectStore) -> Iterator[Entry]:
    """What packs say they hold, one ranged request each."""
    for meta in (m for page in store.list(PACK_PREFIX) for m in page if is_pack(m.key)):
        yield from propose_packed(store, meta)


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
