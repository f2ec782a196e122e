"""What a datastore on a database is made of, for plug-ins: bodies in numbered chunks, and listings by seeking.

A database gives back rows in the order of their keys. Whoever can answer "the next rows from this key on" has `list`
and `level` from here; whoever keeps bodies as chunks of `CHUNK_BYTES` has ranges, streams and hashed files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from swamp.errors import ConditionFailed, ObjectMissing
from swamp.store.keys import check_prefix, prefix_end
from swamp.store.port import Level, ObjectMeta
from swamp.values import mutable, value

CHUNK_BYTES: Final = 1 << 20
Seek = Callable[[str, str | None], Sequence[ObjectMeta]]
"""The next objects in key order, at most a page, whose keys are at least the first and below the second argument."""
_NEXT: Final = "\x01"
"""Added to a key it sorts after that key and before every other: no key holds a control character."""


def seek_pages(seek: Seek, prefix: str, start_after: str | None) -> Iterator[Sequence[ObjectMeta]]:
    """`ObjectStore.list` by seeking: every page begins where the one before ended, whatever was written meanwhile."""
    end = prefix_end(check_prefix(prefix))
    at = prefix if start_after is None else max(prefix, start_after + _NEXT)
    while page := seek(at, end):
        yield page
        at = page[-1].key + _NEXT


def seek_level(seek: Seek, prefix: str) -> Level:
    """`ObjectStore.level` by seeking: over a directory that goes on after its page, the rest is jumped."""
    end = prefix_end(check_prefix(prefix))
    dirs: set[str] = set()
    objects: list[ObjectMeta] = []
    at = prefix
    while page := seek(at, end):
        for meta in page:
            name, slash, _ = meta.key[len(prefix) :].partition("/")
            if slash:
                dirs.add(prefix + name)
            else:
                objects.append(meta)
        at = f"{prefix}{name}{_AFTER_SLASH}" if slash else page[-1].key + _NEXT
    return Level(tuple(sorted(dirs)), tuple(objects))


_AFTER_SLASH: Final = chr(ord("/") + 1)


def chunk_numbers(start: int, length: int | None) -> tuple[int, int | None]:
    """The first and the last chunk that hold a range; None: to the end. An empty range has its first after its last."""
    first = start // CHUNK_BYTES
    if length is None:
        return first, None
    return first, (start + length - 1) // CHUNK_BYTES if length else first - 1


def cut_range(chunks: Iterable[bytes], start: int, length: int | None) -> bytes:
    """The bytes of a range, of the chunks that `chunk_numbers` named."""
    skip = start % CHUNK_BYTES
    body = b"".join(chunks)
    return body[skip:] if length is None else body[skip : skip + length]


@value
class ChunkedBody:
    """An object as it is streamed: a `Body` whose chunks are asked for one by one."""

    meta: ObjectMeta
    chunks: Iterable[bytes]
    start: int = 0

    def __iter__(self) -> Iterator[bytes]:
        skip = self.start % CHUNK_BYTES
        for chunk in self.chunks:
            yield chunk[skip:] if skip else chunk
            skip = 0


def split(body: bytes) -> Iterator[bytes]:
    return (body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES))


@mutable
class FileChunks:
    """A file's chunks, read once; afterwards `size` and `sha256` are those of the bytes that were handed out."""

    path: Path
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        return str(self._digest.hexdigest())

    def __iter__(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                self._digest.update(chunk)
                self.size += len(chunk)
                yield chunk


def missing(url: str, key: str) -> ObjectMissing:
    return ObjectMissing(f"no object {key!r} in {url}", hint="check the name", details={"key": key, "store": url})


def lost_race(url: str, key: str) -> ConditionFailed:
    return ConditionFailed(
        f"{key} was written by somebody else first",
        hint="read it again and decide again",
        details={"key": key, "store": url},
    )
