"""What the index says of one path: it is here, it was deleted, or an older payload of it was dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from swamp.env import ULID_LENGTH, is_ulid
from swamp.index.keys import object_of
from swamp.values import value

ROOT_KEY: Final = ".datastore-index.json"


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
            self.path,
            self.key,
            self.size,
            self.sha256,
            self.last_modified,
            seq,
            self.missing,
            self.extra,
            self.id,
            self.id_seq,
        )

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


def payload_key(path: str, ulid: str) -> str:
    """A key that no other upload call will ever use. inv[object.key-once]"""
    return f"{path}~{ulid}"


def is_payload_key(key: str) -> bool:
    """Whether a name ends in `~` and a ULID: ours, never a user's."""
    return key[-ULID_LENGTH - 1 : -ULID_LENGTH] == "~" and len(key) > ULID_LENGTH + 1 and is_ulid(key[-ULID_LENGTH:])


def path_of_key(key: str) -> str:
    """The path a payload key was uploaded for; a plain (adopted) key is its own path."""
    return key[: -ULID_LENGTH - 1] if is_payload_key(key) else key
