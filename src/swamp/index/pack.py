"""Packs: the bytes of many files in one object, which explains itself.

    magic, version | the files' bytes, metadata and records first | footer | its two lengths | magic

A slice is a file's bytes, or a zstd frame of them where that saves an eighth. The footer says of each what it is: path,
offset, length, size, sha256, codec, identity. It is a zstd frame of JSON, a list for each column. A pack comes from a
bucket into which others may write: what it claims is checked before anybody believes it (L59).

Of zstd frames, in packs and in the pages of segments, nobody makes room for more than they are said to hold.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any, Final

from swamp.cache.paths import is_internal, is_safe
from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.adopt import is_proposed
from swamp.index.entry import (
    MAX_PACK,
    MAX_SLICE,
    PACK_PREFIX,
    Entry,
    Slice,
    is_pack,
    is_payload_key,
    object_of,
    path_of_key,
    slice_key,
    slice_of,
)
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.values import value

MAGIC: Final = b"swamppak"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sI")
TAIL: Final = struct.Struct("<II8s")
SAVES: Final = 8
"""A frame is kept where it saves this part of the bytes."""
TRIED: Final = 8
"""So many files of a kind that did not shrink are enough to try only one of so many from then on."""
TAIL_BYTES: Final = 512 << 10
"""Read from a pack's end at first: the footer of 8 MiB of small files is a third of it."""
PACK_BYTES: Final = 8 << 20
PACK_FILES: Final = 20_000
"""What a pack is filled with. No more of them than one commit of a repack moves: a pack is moved as a whole."""
MAX_FOOTER: Final = 64 << 20
MAX_FILES: Final = 1_000_000
LEVEL: Final = 1
"""Level 3 takes twice the time on what does not compress, and saves 2 % more on what does."""
_mine = threading.local()


@cache
def zstd() -> Any:
    """Python's module from 3.14 on, until then its backport, a megabyte. Loaded where files are packed: 20 ms."""
    if sys.version_info >= (3, 14):
        from compression import zstd as module
    else:
        from backports import zstd as module
    return module


def framed(body: bytes) -> bytes:
    """One frame of these bytes, with its size and a checksum."""
    if not hasattr(_mine, "compressor"):  # one for each thread: making one costs more than a small file
        known = zstd().CompressionParameter
        options = {known.compression_level: LEVEL, known.checksum_flag: 1}
        _mine.compressor = zstd().ZstdCompressor(options=options)
    made: bytes = _mine.compressor.compress(body, _mine.compressor.FLUSH_FRAME)
    return made


def expand(frame: bytes | memoryview, size: int) -> bytes:
    """The `size` bytes of one frame; room is made for no more of them. Raises ValueError on everything else."""
    try:
        reader = zstd().ZstdDecompressor()
        found: bytes = reader.decompress(frame, size + 1)  # the one more that tells a frame which goes on
    except zstd().ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
    if len(found) != size or not reader.eof or reader.unused_data:
        raise ValueError(f"a zstd frame that does not hold {size} bytes")
    return found


@value
class Packed:
    """One file in a pack. `id` is its identity where that is not the key of this slice."""

    path: str
    offset: int
    length: int
    size: int
    sha256: str
    zstd: bool = False
    id: str = ""

    def key(self, pack: str) -> str:
        """What a row says of it once the pack has its name."""
        return slice_key(pack, self.offset, self.length, self.zstd)


class PackWriter:
    """Collects slices and seals them into the bytes of a pack. It does not know the pack's name: whoever has to send
    it again does so under another one. inv[object.key-once]"""

    def __init__(self) -> None:
        self._body = bytearray(HEAD.pack(MAGIC, VERSION))  # not a list of bodies: a thread's allocator keeps their room
        self._files: list[Packed] = []

    def add(self, path: str, body: bytes, sha256: str, frame: bytes | None = None) -> Packed:
        """A file's bytes, or what `compressed` made of them; an empty file takes a byte (L72). inv[pack.own-offset]"""
        stored = frame or body or b"\0"
        made = Packed(path, len(self._body), len(stored), len(body), sha256, frame is not None)
        return self._append(made, stored)

    def copy(self, file: Packed, stored: bytes, id: str) -> Packed:  # noqa: A002
        """A slice of another pack as it is: for who moves content without reading it."""
        moved = Packed(file.path, len(self._body), file.length, file.size, file.sha256, file.zstd, id)
        return self._append(moved, stored)

    def _append(self, file: Packed, stored: bytes) -> Packed:
        self._body += stored
        self._files.append(file)
        return file

    def seal(self) -> bytes:
        """The whole pack."""
        columns = {name: [getattr(f, name) for f in self._files] for name in _COLUMNS}
        text = json.dumps(columns, ensure_ascii=False, separators=(",", ":")).encode()
        footer = framed(text)
        return b"".join((self._body, footer, TAIL.pack(len(footer), len(text), MAGIC)))


_COLUMNS: Final = ("path", "offset", "length", "size", "sha256", "zstd", "id")


def compressed(body: bytes) -> bytes | None:
    """A zstd frame of these bytes, if it saves an eighth of them."""
    if len(body) < 64:
        return None
    frame = framed(body)
    return frame if len(frame) <= len(body) - len(body) // SAVES else None


class Trials:
    """Compresses what is worth it. Of a kind of file (by its ending) that did not shrink a few times in a row only one
    in a few is tried: a trial costs more than reading the file did."""

    def __init__(self) -> None:
        self._failed: dict[str, int] = {}

    def compressed(self, path: str, body: bytes) -> bytes | None:
        kind = path[path.rfind(".", path.rfind("/") + 1) :]
        failed = self._failed.get(kind, 0)
        if failed >= TRIED and failed % TRIED:
            self._failed[kind] = failed + 1
            return None
        frame = compressed(body)
        self._failed[kind] = failed + 1 if frame is None else 0
        return frame


def unpacked(cut: Slice, stored: bytes | memoryview, size: int) -> bytes | memoryview:
    """A file's bytes from its slice. Raises CorruptData on what cannot be `size` bytes; the hash is the caller's."""
    if len(stored) != cut.length:
        raise CorruptData(f"{cut.key}: {len(stored)} bytes arrived", details={"key": cut.key})
    if size > MAX_SLICE if cut.zstd else cut.length != max(size, 1):
        raise CorruptData(f"{cut.key} cannot hold a file of {size} bytes", details={"key": cut.key})
    if not cut.zstd:
        return stored[:size]
    try:
        return expand(stored, size)
    except ValueError as error:
        raise CorruptData(f"{cut.key} cannot be unpacked: {error}", details={"key": cut.key}) from error


def read_footer(end: bytes, size: int) -> list[Packed]:
    """The files of a pack of `size` bytes whose last bytes are `end`. Raises `FooterIsLonger` if those are too few."""
    if len(end) < TAIL.size or size > MAX_PACK:
        raise _damaged("it is too short or too long")
    length, unpacked_length, magic = TAIL.unpack_from(end, len(end) - TAIL.size)
    if magic != MAGIC:
        raise _damaged("it does not end as one")
    if not 0 < length <= size - HEAD.size - TAIL.size or length > MAX_FOOTER or not 0 < unpacked_length <= MAX_FOOTER:
        raise _damaged("its footer has an impossible length")
    if length + TAIL.size > len(end):
        raise FooterIsLonger(length + TAIL.size)
    frame = end[len(end) - TAIL.size - length : len(end) - TAIL.size]
    return _files(_columns(frame, unpacked_length), size - TAIL.size - length)


class FooterIsLonger(Exception):
    """The footer is longer than what was read: so many bytes from the end hold it."""

    def __init__(self, length: int) -> None:
        super().__init__(f"{length} bytes")
        self.length = length


def _columns(frame: bytes, length: int) -> list[Sequence[Any]]:
    try:
        doc = json.loads(expand(frame, length))
        columns = [doc[name] for name in _COLUMNS]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(f"its footer cannot be read: {error!r:.80}") from error
    lengths = {len(column) if isinstance(column, list) else -1 for column in columns}
    if len(lengths) != 1 or not 0 <= lengths.pop() <= MAX_FILES:
        raise _damaged("its footer's columns are not of one length")
    return columns


def _files(columns: list[Sequence[Any]], end: int) -> list[Packed]:
    """Rows that could be: slices between the two ends in order, none on top of another. inv[pack.refused]"""
    files = [Packed(*values) for values in zip(*columns, strict=True)]
    at = HEAD.size
    for file in files:
        if not _plausible(file) or file.offset < at or file.offset + file.length > end:
            raise _damaged(f"its footer names a slice that cannot be: {file.path!r:.80}")
        at = file.offset + file.length
    return files


def _plausible(file: Packed) -> bool:
    whole = all(type(n) is int for n in (file.offset, file.length, file.size))
    texts = all(isinstance(t, str) for t in (file.path, file.sha256, file.id))
    if not whole or not texts or type(file.zstd) is not bool or not is_safe(file.path):
        return False
    if not 0 < file.length <= MAX_SLICE or not 0 <= file.size <= MAX_SLICE:
        return False
    if len(file.sha256) != 64 or not set(file.sha256) <= set("0123456789abcdef") or len(file.id) > 2048:
        return False
    return file.zstd or file.length == max(file.size, 1)


def upload_of(identity: str) -> str:
    """What sorts identities by when they were uploaded: the ULID in them. Empty for an adopted one."""
    name = object_of(identity)
    return name.rpartition("/")[2] if name != identity else identity[len(path_of_key(identity)) + 1 :]


def holds(cut: Slice, stored: bytes | memoryview, size: int, sha256: str | None) -> bool:
    """Whether the bytes of a slice are the file of `size` bytes that a row promises."""
    try:
        body = unpacked(cut, stored, size)
    except CorruptData:
        return False
    return len(body) == size and (sha256 is None or hashlib.sha256(body).hexdigest() == sha256)


def _damaged(why: str) -> CorruptData:
    return CorruptData(f"a pack is damaged: {why}")


def ranges(slices: Iterable[Slice], gap: int, most: int) -> Iterator[list[Slice]]:
    """Slices of one pack in order, in groups that one request brings: neighbours at most `gap` apart, at most `most`
    bytes. A group is never empty."""
    group: list[Slice] = []
    last = 0
    for cut in sorted(slices, key=attrgetter("offset")):
        end = cut.end
        if group and (cut.offset - last > gap or end - group[0].offset > most):
            yield group
            group = []
        group.append(cut)
        last = end
    if group:
        yield group


def read_slice(store: ObjectStore, cut: Slice, size: int) -> bytes | memoryview:
    """The bytes of one packed file: one ranged request."""
    body = store.get(cut.pack, start=cut.offset, length=cut.length).body
    return unpacked(cut, body, size)


@contextmanager
def open_payload(store: ObjectStore, key: str, size: int) -> Iterator[Iterator[bytes | memoryview]]:
    """The bytes of a file of `size` bytes as they come. Raises ObjectMissing, CorruptData."""
    cut = slice_of(key)
    if cut is not None:
        yield iter((read_slice(store, cut, size),))
        return
    with store.open(key) as body:
        yield iter(body)


def read_payload(store: ObjectStore, key: str, size: int) -> bytes:
    """All of a file's bytes in memory."""
    cut = slice_of(key)
    return store.get(key).body if cut is None else bytes(read_slice(store, cut, size))


def fetch_footer(store: ObjectStore, pack: ObjectMeta) -> list[Packed]:
    """The files that a pack says it holds: one ranged request, unless they are very many."""
    length = min(TAIL_BYTES, pack.size)
    while True:
        end = store.get(pack.key, start=pack.size - length, length=length).body
        if len(end) != length:
            raise CorruptData(f"{pack.key} is not as long as the listing says", details={"key": pack.key})
        try:
            return read_footer(end, pack.size)
        except FooterIsLonger as more:
            length = more.length


def packs_of(store: ObjectStore) -> Iterator[ObjectMeta]:
    """The packs of a store, in key order; other names below `_packs/` are somebody else's."""
    return (meta for page in store.list(PACK_PREFIX) for meta in page if is_pack(meta.key))


def packed_bytes(store: ObjectStore, pack: ObjectMeta) -> int | None:
    """The bytes of a pack's slices, from its footer; None where it cannot be read, which `verify` tells."""
    try:
        return sum(file.length for file in fetch_footer(store, pack))
    except (CorruptData, ObjectMissing):
        return None


def propose_listed(objects: Iterable[ObjectMeta]) -> Iterator[Entry]:
    """An entry for every listed object that could be a file's content, where the index is lost."""
    for meta in objects:
        if is_proposed(meta.key):
            yield Entry(path_of_key(meta.key), meta.key, meta.size, None, rfc3339(meta.last_modified))


def newest_upload(entries: Iterable[Entry]) -> Entry:
    """Of what is proposed for one path, what was uploaded last, not what lies in the newest object: a repacked old file
    is not newer than a later upload (L73). A plain key, which we never write, gives way to any upload of ours.
    inv[rebuild.newest-identity]"""

    def age(entry: Entry) -> tuple[bool, str, str]:
        return is_payload_key(entry.key) or slice_of(entry.key) is not None, upload_of(entry.identity), entry.key

    return max(entries, key=age)


def propose_packed(store: ObjectStore, pack: ObjectMeta) -> Iterator[Entry]:
    """The files that a pack says it holds, where the index is lost; one that cannot be read proposes nothing."""
    try:
        files = fetch_footer(store, pack)
    except (CorruptData, ObjectMissing):
        return
    at = rfc3339(pack.last_modified)
    for file in files:
        key = file.key(pack.key)
        if is_safe(file.path) and not is_internal(file.path):  # one of ours, whatever others call theirs
            yield Entry(file.path, key, file.size, file.sha256, at, id="" if file.id == key else file.id)
