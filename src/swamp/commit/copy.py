"""Copies slices of packs into new packs, each checked on the way. The same inside Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from itertools import groupby
from typing import Final

from swamp.env import Env
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Row
from swamp.index.keys import Slice, object_of, pack_key, slice_of
from swamp.index.pack import Packed, PackWriter, unpacked, verified
from swamp.store.port import ObjectStore
from swamp.values import mutable

PACK_BYTES: Final = 8 << 20
PACK_FILES: Final = 20_000
"""No more of them than one commit moves: a pack is moved as a whole."""


@mutable
class PackCopier:
    """Reads old packs, each once, and sends new ones; at most one of each is in memory."""

    store: ObjectStore
    env: Env
    send: Callable[[str, bytes], object]
    _waiting: list[tuple[Row, Slice, bytes]] = field(default_factory=list)
    _size: int = 0

    def copy(self, rows: Iterable[Row], pace: Callable[[], None]) -> Iterator[tuple[Row, str]]:
        """Each row with the slice that holds its bytes now too, those of one old pack one after the other.

        What is not there, or not right, stays where it is for `verify` to find: a move would only hide it.
        """
        for pack, entries in groupby(sorted(rows, key=_by_pack), key=lambda row: object_of(row.key)):
            pace()
            for found in self._read(pack, entries):
                self._waiting.append(found)
                self._size += found[1].length
                if len(self._waiting) >= PACK_FILES or self._size >= PACK_BYTES:
                    yield from self._sealed()
        yield from self._sealed()

    def _read(self, pack: str, entries: Iterable[Row]) -> Iterator[tuple[Row, Slice, bytes]]:
        try:
            body = self.store.get(pack).body
        except ObjectMissing:
            return
        for entry in entries:
            cut = cut_of(entry.key)
            if cut is not None and _holds(body, cut, entry):
                yield entry, cut, body[cut.offset : cut.end]

    def _sealed(self) -> Iterator[tuple[Row, str]]:
        """Uploads a pack under a key of its own, before anything names it. inv[commit.root-last]"""
        if not self._waiting:
            return
        writer, files = PackWriter(), dict[Row, Packed]()
        for entry, cut, stored in sorted(self._waiting, key=lambda found: _is_content(found[0].path)):
            file = Packed(entry.path, 0, cut.length, entry.size, entry.sha256 or "", cut.zstd)
            files[entry] = writer.copy(file, stored, entry.identity)
        key = pack_key(self.env.ulid())
        self.send(key, writer.seal())
        moved = [(entry, files[entry].key(key)) for entry, _, _ in self._waiting]
        self._waiting, self._size = [], 0
        yield from moved


def _by_pack(row: Row) -> tuple[str, str]:
    return object_of(row.key), row.path


def _is_content(path: str) -> bool:
    """Metadata and records come first: who wants only those reads one range."""
    return path.endswith("/raw") or "/raw/" in path


def cut_of(key: str) -> Slice | None:
    """The slice that a key names; None for an object of its own, and for a slice that cannot be."""
    try:
        return slice_of(key)
    except CorruptData:
        return None


def _holds(body: bytes, cut: Slice, entry: Row) -> bool:
    """Whether the slice has the bytes that the row promises: nothing is moved that was not checked."""
    try:
        return entry.sha256 is not None and verified(
            unpacked(cut, body[cut.offset : cut.end], entry.size), entry.size, entry.sha256
        )
    except CorruptData:
        return False
