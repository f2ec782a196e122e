"""Reads files for an upload: hashed as they go, and within a bound on memory whatever the number of threads."""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

MIB: Final = 1024 * 1024
PART_BYTES: Final = 8 * MIB
"""Files up to this size are one PUT; larger ones go in parts, and reads in ranges, of this size."""
IN_FLIGHT_BYTES: Final = 96 * MIB
SMALL_BYTES: Final = 128 * 1024
"""As many of these as there are threads are nothing beside the bound: they need not ask for leave."""


class ByteBudget:
    """Lets work in while its bytes fit; a piece larger than everything waits until it is alone."""

    def __init__(self, total: int = IN_FLIGHT_BYTES) -> None:
        self._total = total
        self._free = total
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """inv[store.bounded-memory]: nothing is read into memory before its bytes were granted here."""
        size = min(size, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


def part_bytes(size: int) -> int:
    """The part size for an object: S3 allows 10,000 parts, so very large ones need larger parts."""
    needed = -(-size // 9_000)
    return max(PART_BYTES, -(-needed // MIB) * MIB)


def read_whole(path: Path, size: int) -> bytes | memoryview:
    """A file's bytes, at most `size`, in memory that goes back to the system at once.

    What malloc frees after megabytes it keeps, once per thread; an anonymous mapping it never sees.
    """
    if size < SMALL_BYTES:
        return _read_small(path, size)
    mapped = mmap.mmap(-1, size)
    with path.open("rb", buffering=0) as file:
        filled = 0
        while read := file.readinto(memoryview(mapped)[filled:]):
            filled += read
    return memoryview(mapped)[:filled]


def _read_small(path: Path, size: int) -> bytes:
    """Without a buffer between: ten thousand small files feel it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read = os.read(descriptor, size)
        while len(read) < size and (more := os.read(descriptor, size - len(read))):
            read += more
        return read
    finally:
        os.close(descriptor)


class HashedFile:
    """A file in pieces; what was handed out is what was hashed. inv[store.hash-of-sent]"""

    def __init__(self, file: BinaryIO, piece: int) -> None:
        self._file = file
        self._piece = piece
        self.sha256 = hashlib.sha256()
        self.sent = self.pieces = 0

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._file.read(self._piece):
            self.sha256.update(piece)
            self.sent += len(piece)
            self.pieces += 1
            yield piece


class HashingReader(io.RawIOBase):
    """A file that hashes what is read from it, once and in order. inv[store.hash-of-sent]"""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hashed = 0
        self.sha256 = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        data = self._file.read(size)
        fresh = data[max(0, self._hashed - at) :]  # a chunk that is sent again was hashed already
        self.sha256.update(fresh)
        self._hashed += len(fresh)
        return data

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)
