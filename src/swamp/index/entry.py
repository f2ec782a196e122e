"""What the index says of one path: it is here, it was deleted, or an older payload of it was dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from swamp.env import ULID_LENGTH, is_ulid

ROOT_KEY: Final = ".datastore-index.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """A live path. `key` is the file's remote identity; `sha256` is None while an adopted object is unread.

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

    def at(self, seq: int) -> Entry:
        # Not dataclasses.replace: a bulk commit numbers every row, and this is ten times as fast.
        return Entry(self.path, self.key, self.size, self.sha256, self.last_modified, seq, self.missing, self.extra)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted path; `key` is what was deleted, kept for the undo window."""

    path: str
    key: str
    size: int
    sha256: str | None
    seq: int = 0

    def at(self, seq: int) -> Tombstone:
        return Tombstone(self.path, self.key, self.size, self.sha256, seq)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A key that no path names any more: overwritten payload or an unlisted segment (`path` is then empty)."""

    key: str
    path: str
    seq: int = 0

    def at(self, seq: int) -> Dropped:
        return Dropped(self.key, self.path, seq)


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
