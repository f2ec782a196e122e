"""Whether uploads of mine have survived a collector: asked of every root that is to name them.

Until a root names it an upload is an orphan, and a collection with a short undo window may take it: segments, moved
packs and healed payloads just as a push's own uploads.
"""

from __future__ import annotations

from collections.abc import Iterable

from swamp.errors import ObjectMissing
from swamp.index.root import Root
from swamp.store.port import ObjectStore


def survive(store: ObjectStore, root: Root, names: Iterable[str], epoch: int) -> bool:
    """Whether a commit on `root` may name these objects, uploaded when the collections had come to `epoch`: none is
    condemned, and after another collection each is still there. inv[gc.uploads-survive]"""
    uploads = sorted(names)
    if any(root.condemns(name) for name in uploads):
        return False
    return not root.has_collected_since(epoch) or all(is_there(store, name) for name in uploads)


def is_there(store: ObjectStore, name: str) -> bool:
    """Whether an object exists; an unclear answer is an error, not a no."""
    try:
        store.head(name)
    except ObjectMissing:
        return False
    return True
