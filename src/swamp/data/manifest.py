"""The parts of one version: a few stand in its metadata, many in a manifest of their own beside it.

The manifest is a file of the index's own kind (FORMAT.md): columns, sorted by name, written and read as a stream, and
what it claims is checked before it is believed. So what can be written can be read, however much it is (L75).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.files import disk_error, hash_file, sync_directory
from swamp.data.document import damaged
from swamp.errors import CorruptData

if TYPE_CHECKING:
    from swamp.index.entry import Entry

INLINE_PARTS: Final = 1000
"""So many parts stand in `metadata.yaml`; more would make every reader of metadata read them too."""
GROUP: Final = 16_384


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a multi-part artifact; `name` is its path below `raw`."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What metadata says of a manifest: how many parts, and the very bytes that list them."""

    parts: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Content:
    """What a version holds, as its metadata will say it: one file, or parts that are listed here or in a manifest."""

    size: int
    checksum: str
    parts: tuple[Part, ...] = ()
    manifest: Manifest | None = None


class PartsWriter:
    """Takes parts in the order of their names; more than a few of them go to `file` as they come."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._held: list[Part] = []
        self._written: Any = None
        self._count = self._size = 0
        self._last = ""

    def __enter__(self) -> PartsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._written is not None:
            self._written.close()

    def add(self, part: Part) -> None:
        if part.name <= self._last:
            raise AssertionError(f"{part.name!r} came after {self._last!r}: parts are out of order")
        self._last = part.name
        self._digest.update(_line(part))
        self._count += 1
        self._size += part.size
        self._held.append(part)
        if len(self._held) > (INLINE_PARTS if self._written is None else GROUP):
            self._spill()

    def _spill(self) -> None:
        """One row group; the first one loads Arrow, which a small artifact never does."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from swamp.index.columns import segment_schema
        from swamp.index.segment import WRITTEN_BY_ARROW, batch_of

        if self._written is None:
            self._written = pq.ParquetWriter(self._file, segment_schema(), **WRITTEN_BY_ARROW)
        self._written.write_batch(pa.record_batch(batch_of([_entry(part) for part in self._held])))
        self._held.clear()

    def done(self) -> Content:
        """All of it, durable."""
        checksum = self._digest.hexdigest()
        if self._written is None:
            return Content(self._size, checksum, tuple(self._held))
        if self._held:
            self._spill()
        self._written.close()
        self._written = None
        hashed = durable_hash(self._file)
        return Content(self._size, checksum, manifest=Manifest(self._count, hashed[0], hashed[1]))


def durable_hash(file: Path) -> tuple[int, str]:
    """Size and hash of a file whose bytes and name then survive a power cut."""
    import os

    found = hash_file(file)
    try:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        sync_directory(file.parent)
    except OSError as error:
        raise disk_error(error, "flush", str(file)) from error
    return found.size, found.sha256


def read_manifest(file: Path, manifest: Manifest, path: str) -> Iterator[Part]:
    """The parts that a manifest lists, in name order, a batch at a time. Raises CorruptData if it is not the one that
    the metadata names; `path` is what an error calls it."""
    from swamp.index.entry import Entry
    from swamp.index.root import SegmentRef
    from swamp.index.segment import listed_rows

    last = "\U0010ffff"
    ref = SegmentRef(path, manifest.parts, manifest.size, manifest.sha256, "", last, 1)
    try:
        for row in listed_rows(ref, file, dropped=False):
            if isinstance(row, Entry):
                yield Part(row.path, row.size, row.sha256 or "")
    except CorruptData as error:
        raise damaged(path, error.message) from error


def combined_checksum(parts: Iterator[Part] | tuple[Part, ...] | list[Part]) -> str:
    """The checksum of a multi-part artifact: of its parts' names and checksums, in name order."""
    digest = hashlib.sha256()
    for part in sorted(parts, key=lambda p: p.name):
        digest.update(_line(part))
    return digest.hexdigest()


def _line(part: Part) -> bytes:
    return f"{part.name}\0{part.checksum}\n".encode()


def _entry(part: Part) -> Entry:
    from swamp.index.entry import Entry

    return Entry(part.name, "", part.size, part.checksum, "")
