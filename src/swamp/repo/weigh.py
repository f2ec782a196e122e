"""Weighs the packs of a store: how many there are, and how many of their bytes live or are dead."""

from __future__ import annotations

from typing import Any, Final

from swamp.index.keys import PACK_PREFIX, is_pack, live_in_packs
from swamp.index.lookup import FetchSegment, live_rows
from swamp.index.payload import packed_bytes
from swamp.index.root import Root
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.sync.pool import pooled
from swamp.values import value

FOOTERS: Final = 1000
"""Footers that are read at most, of the packs with most to gain; of others the footer counts as dead."""


@value
class Weighed:
    """The packs of a store as a listing and the index tell; `missing` are those that a live file lies in."""

    count: int
    live: int
    dead: int
    missing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "liveBytes": self.live, "deadBytes": self.dead}


def weigh(store: ObjectStore, root: Root, fetch: FetchSegment) -> Weighed:
    """Reads the index, lists the packs, and reads the footers of those in which something seems dead."""
    live = live_in_packs(row.key for row in live_rows(root, fetch))
    packs = [meta for page in store.list(PACK_PREFIX) for meta in page if is_pack(meta.key)]

    def gain(meta: ObjectMeta) -> int:
        return meta.size - live.get(meta.key, 0)

    used = sorted((meta for meta in packs if meta.key in live), key=gain, reverse=True)
    held = pooled(used[:FOOTERS], lambda meta: (meta.key, packed_bytes(store, meta)))
    sizes = {meta.key: meta.size for meta in packs} | {key: size for key, size in held if size is not None}
    dead = sum(max(0, size - live.get(key, 0)) for key, size in sizes.items())
    return Weighed(len(packs), sum(live.values()), dead, tuple(sorted(live.keys() - sizes.keys())))
