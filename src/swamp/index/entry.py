"""What the index says of one path (it is here, it was deleted, or an older payload of it was dropped), and the keys
under which its bytes lie: `<path>~<ulid>`, an adopted `<path>`, or a slice of a pack. Nobody else parses a key.

A slice is `_packs/<ulid>@<offset>+<length>`, with `.z` behind it when those bytes are a zstd frame. The key says
everything that is needed to read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from swamp.env import ULID_LENGTH, is_ulid
from swamp.errors import CorruptData
from swamp.values import value

ROOT_KEY: Final = ".datastore-index.json"
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


def payload_key(path: str, ulid: str) -> str:
    """A key that no other upload call will ever use. inv[object.key-once]"""
    return f"{path}~{ulid}"


def is_payload_key(key: str) -> bool:
    """Whether a name ends in `~` and a ULID: ours, never a user's."""
    return key[-ULID_LENGTH - 1 : -ULID_LENGTH] == "~" and len(key) > ULID_LENGTH + 1 and is_ulid(key[-ULID_LENGTH:])


def path_of_key(key: str) -> str:
    """The path a payload key was uploaded for; a plain (adopted) key is its own path."""
    return key[: -ULID_LENGTH - 1] if is_payload_key(key) else key


class Known:
    """What is the same of every row that names content: its identity is not its place. inv[pack.identity]

    `id` is the key under which the content was first committed, "" where that is `key`; `id_seq` the number with which
    it came to its path, 0 where that is `seq`.
    """

    __slots__ = ()
    key: str
    seq: int
    id: str
    id_seq: int

    @property
    def identity(self) -> str:
        """Which content this is, wherever it lies now."""
        return self.id or self.key

    @property
    def number(self) -> int:
        """When this content came to its path, however often it was moved since."""
        return self.id_seq or self.seq


@value
class Entry(Known):
    """A live path. `key` says where its bytes are; `sha256` is None while an adopted object is unread.

    `missing` marks a payload that `verify` did not find: the entry and its hash stay. inv[entry.keeps]
    `extra` is the canonical JSON of fields that a newer version wrote ("" = none): they survive a rewrite, in the
    root and in segments alike.
    """

    path: str
    key: str
    size: int
    sha256: str | None
    last_modified: str
    seq: int = 0
    missing: bool = False
    extra: str = ""
    id: str = ""
    id_seq: int = 0

    def at(self, seq: int) -> Entry:
        # Not dataclasses.replace: a bulk commit numbers every row, and this is ten times as fast.
        return Entry(
            self.path, self.key, self.size, self.sha256, self.last_modified, seq, self.missing, self.extra, self.id,
            self.id_seq,
        )  # fmt: skip

    def rewritten(self, key: str, *, missing: bool = False) -> Entry:
        """The same content, for a commit that brings nothing new: moved, healed, or marked as missing. It keeps its
        identity and its number, so that nobody takes it for a change. inv[pack.identity]"""
        identity = self.id or self.key
        return replace(
            self, key=key, missing=missing, id="" if identity == key else identity, id_seq=self.id_seq or self.seq
        )


@value
class Tombstone(Known):
    """A deleted path; `key` is where what was deleted lies, kept for the undo window."""

    path: str
    key: str
    size: int
    sha256: str | None
    seq: int = 0
    id: str = ""
    id_seq: int = 0

    def at(self, seq: int) -> Tombstone:
        return Tombstone(self.path, self.key, self.size, self.sha256, seq, self.id, self.id_seq)

    @classmethod
    def of(cls, entry: Entry, sha256: str | None = None) -> Tombstone:
        """What deletes `entry`: the same content in the place where it is now; `sha256` where only the caller knows it.
        inv[pack.place-now]"""
        return cls(entry.path, entry.key, entry.size, entry.sha256 or sha256, id=entry.id)

    def moved(self, key: str) -> Tombstone:
        """The same deletion of the same content, which now lies elsewhere. inv[pack.identity]"""
        identity = self.id or self.key
        return replace(self, key=key, id="" if identity == key else identity, id_seq=self.id_seq or self.seq)

    def restored(self) -> Entry:
        """What brings it back: the same content under a new number, so that an older delete does not match it."""
        return Entry(self.path, self.key, self.size, self.sha256, "", id=self.id)


@value
class Unreferenced:
    """A key that no path names any more (`dropped` in the format): overwritten payload, an unlisted segment, or a whole
    pack (`path` is then empty). `id` is the content's identity where that is not the key: it proves to its uploader
    that it landed.

    Of a plain key also the size and hash that were dropped: another tool may write there again, and then it is not
    ours to delete. inv[gc.plain-unchanged]
    """

    key: str
    path: str
    seq: int = 0
    size: int = 0
    sha256: str | None = None
    id: str = ""

    @property
    def identity(self) -> str:
        return self.id or self.key

    @classmethod
    def of(cls, row: Entry | Tombstone | Unreferenced, sha256: str | None = None) -> Unreferenced:
        """The dropped row of what `row` named; `sha256` where the caller knows the hash and the row does not."""
        known = row.sha256 or sha256
        if known is None or is_payload_key(row.key) or object_of(row.key) != row.key:
            return cls(row.key, row.path, row.seq, id=row.id)
        return cls(row.key, row.path, row.seq, row.size, known, row.id)

    def at(self, seq: int) -> Unreferenced:
        return Unreferenced(self.key, self.path, seq, self.size, self.sha256, self.id)


Row = Entry | Tombstone
"""What decides a path: per path the row with the highest seq wins. inv[index.highest-seq]"""
