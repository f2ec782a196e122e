"""Deletes marked garbage: condemn a batch in a commit, look once more, delete it, take it off the list again.

Nothing is deleted because a list in the bucket says so: every key comes from a listing that was marked just now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Final

from swamp.cache.paths import in_tier, is_internal, is_internal_object
from swamp.commit.build import is_there
from swamp.commit.commit import Changes, Committer, Pace
from swamp.env import is_ulid
from swamp.errors import ObjectMissing
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.keys import is_pack, object_of
from swamp.index.lookup import live_rows, rows_since
from swamp.index.root import SEGMENT_PREFIX, Root
from swamp.store.keys import is_key
from swamp.store.port import ObjectStore, Token
from swamp.values import mutable

Held = Mapping[str, frozenset[tuple[int, str]]]
"""Of plain keys: sizes and hashes of what commits of ours dropped there."""
_SUFFIX: Final = ".parquet"


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
