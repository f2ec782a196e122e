"""Where a file's bytes are: `<path>~<ulid>`, an adopted `<path>`, or a slice of a pack. Nobody else parses a key.

A slice is `_packs/<ulid>@<offset>+<length>`, with `.z` behind it when those bytes are a zstd frame. The key says
everything that is needed to read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from swamp.env import is_ulid
from swamp.errors import CorruptData
from swamp.values import value

PACK_PREFIX: Final = "_packs/"
MAX_SLICE: Final = 16 << 20
"""More than any slice that a swamp has written: 256 KiB of file, or less where it was compressed."""
MAX_PACK: Final = 1 << 30
_SLICE: Final = re.compile(r"(_packs/[0-9A-HJKMNP-TV-Z]{26})@(0|[1-9][0-9]{0,9})\+([1-9][0-9]{0,9})(\.z)?", re.ASCII)
_PACK_LENGTH: Final = len(PACK_PREFIX) + 26


@value
class Slice:
    """`length` bytes of the object `pack` from `offset` on; `zstd`: they are a zstd frame."""

    pack: str
    offset: int
    length: int
    zstd: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def key(self) -> str:
        return slice_key(self.pack, self.offset, self.length, self.zstd)


def slice_key(pack: str, offset: int, length: int, zstd: bool) -> str:
    return f"{pack}@{offset}+{length}{'.z' if zstd else ''}"


def pack_key(ulid: str) -> str:
    return PACK_PREFIX + ulid


def is_pack(key: str) -> bool:
    """Whether this is exactly the name of a pack: any other name below `_packs/` is somebody else's."""
    return key.startswith(PACK_PREFIX) and is_ulid(key[len(PACK_PREFIX) :])


def object_of(key: str) -> str:
    """The object that holds the bytes of a row's key. Total, also for a lie: what it seems to name stays alive."""
    return key[:_PACK_LENGTH] if _names_slice(key) else key


def slice_of(key: str) -> Slice | None:
    """The slice that a key names; None for a key that is an object of its own. Raises CorruptData on absurd ones.
    inv[pack.refused]"""
    found = _SLICE.fullmatch(key) if key.startswith(PACK_PREFIX) else None
    if found is None:
        if not _names_slice(key):
            return None
        raise CorruptData(f"the index names a slice that cannot be: {key[:80]!r}", details={"key": key[:200]})
    pack, offset, length, zstd = found.groups()
    start, size = int(offset), int(length)
    if size > MAX_SLICE or start + size > MAX_PACK:
        raise CorruptData(f"the index names a slice of absurd size: {key}", details={"key": key})
    return Slice(pack, start, size, zstd is not None)


def cut_of(key: str) -> Slice | None:
    """The slice that a key names; None for an object of its own, and for a slice that cannot be."""
    try:
        return slice_of(key)
    except CorruptData:
        return None


def live_in_packs(keys: Iterable[str]) -> dict[str, int]:
    """Bytes of each pack that these keys of live files name; a million of them within a second or two.

    A slice that cannot be is not counted: `verify` tells it.
    """
    live: dict[str, int] = {}
    for found in filter(None, map(_SLICE.fullmatch, keys)):
        pack, length = found.group(1, 3)
        live[pack] = live.get(pack, 0) + int(length)
    return live


def _names_slice(key: str) -> bool:
    return key.startswith(PACK_PREFIX) and key[_PACK_LENGTH : _PACK_LENGTH + 1] == "@" and is_pack(key[:_PACK_LENGTH])
