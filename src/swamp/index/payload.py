"""Reads a row's bytes by its key, wherever they lie: an object of its own, or a slice of a pack. Proposes rows of what
lies there, where the index is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.adopt import is_proposed
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.keys import Slice, slice_of
from swamp.index.pack import TAIL_BYTES, FooterIsLonger, Packed, read_footer, unpacked, upload_of
from swamp.store.port import ObjectMeta, ObjectStore


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
        if is_proposed(file.path):
            yield Entry(file.path, key, file.size, file.sha256, at, id="" if file.id == key else file.id)
