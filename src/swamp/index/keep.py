"""Keeps segments that were read lately, for who asks the same index again and again: they are known by their hash.

A driver that plans a read looks into one segment for definitions, for names and for files, and into the same ones for
the next read. Whatever lies here has the hash that the root names, so it cannot be out of date.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from swamp.index.footer import Proven
from swamp.index.read import read_segment
from swamp.index.root import SegmentRef
from swamp.store.port import ObjectStore

KEPT_BYTES: Final = 64 << 20
_kept: OrderedDict[str, Proven] = OrderedDict()
_lock: Final = threading.Lock()


def kept_segment(store: ObjectStore, ref: SegmentRef) -> Proven:
    """A segment as `read_segment` brings it, without a request when this process has lately read the same bytes."""
    with _lock:
        found = _kept.get(ref.sha256)
        if found is not None:
            _kept.move_to_end(ref.sha256)
            return found
    read = read_segment(store, ref)
    if read.sha256 == ref.sha256:
        _keep(read)
    return read


def _keep(read: Proven) -> None:
    """Those that were asked for longest ago make room for it; what is larger than all of that is not kept."""
    if len(read.data) > KEPT_BYTES:
        return
    with _lock:
        _kept[read.sha256] = read
        while sum(len(one.data) for one in _kept.values()) > KEPT_BYTES:
            _kept.popitem(last=False)
