"""Documents of the index as a store holds them: what cannot be read is read again before anybody calls it damaged."""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from swamp.errors import CorruptData
from swamp.index.root import ROOT_KEY, Root, SegmentRef, decode
from swamp.store.port import Fetched, ObjectStore

if TYPE_CHECKING:
    from swamp.index.footer import Proven

LOOKS: Final = 4
FOOTER: Final = 1 << 20


def read_root(store: ObjectStore, fetched: Fetched | None = None, key: str = ROOT_KEY) -> tuple[Root, Fetched]:
    """The root (or the record at `key`) and the bytes it was read from; `fetched` is a reading that was made already.

    inv[read.twice]: one bad reading is the line's or a proxy's, and who repairs after it writes over a sound root. So
    CorruptData means: two readings have brought the same bytes, and they are no index.
    """
    found = store.get(key) if fetched is None else fetched
    for _ in range(LOOKS):
        try:
            return decode(found.body), found
        except CorruptData:
            again = store.get(key)
            if again.body == found.body:
                raise
            found = again
    return decode(found.body), found


def read_segment(store: ObjectStore, ref: SegmentRef) -> Proven:
    """A segment's bytes with their hash; whoever reads rows out of them compares it first. inv[read.twice]"""
    from swamp.index.footer import Proven

    found = Proven(store.get(ref.key).body)
    for _ in range(LOOKS):
        if found.sha256 == ref.sha256:
            break
        again = store.get(ref.key).body
        if again == found.data:
            break
        found = Proven(again)
    return found


def row_groups(store: ObjectStore, ref: SegmentRef, each: int) -> list[tuple[str, int]]:
    """Paths at which a segment of more than `each` rows can be cut, with the rows that follow: its row groups.

    By one ranged request for its footer, which nobody has verified: for sharing work out, never for what is true.
    """
    from swamp.index.footer import Raw, read_footer

    whole = [(ref.min_path, ref.rows)]
    if ref.rows <= each:
        return whole
    length = min(FOOTER, ref.bytes)
    end = store.get(ref.key, start=ref.bytes - length, length=length).body
    try:
        groups = read_footer(Raw(end, ref.bytes - len(end))).groups
        return [((group.columns[0].lowest or b"").decode(errors="ignore"), group.rows) for group in groups] or whole
    except (ValueError, LookupError, TypeError, OverflowError, struct.error):
        return whole  # whoever reads its rows tells what is wrong with it


# -- segments that a driver keeps, which looks into the same ones for every question: they are known by their hash, so
# that what lies here cannot be out of date

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
    if read.sha256 == ref.sha256 and len(read.data) <= KEPT_BYTES:  # what is larger than all of that is not kept
        with _lock:
            _kept[read.sha256] = read
            while sum(len(one.data) for one in _kept.values()) > KEPT_BYTES:
                _kept.popitem(last=False)  # it was asked for longest ago
    return read
