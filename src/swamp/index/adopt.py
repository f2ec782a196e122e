"""What a store holds that this version did not index: older index formats, and buckets filled by something else.

Everything here was written by others: every path is checked, and what cannot be a path of ours is handed to `refused`
and never written. Nothing here talks to a store; pages and shards come in as they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from swamp.cache.paths import fault_of, in_tier, is_internal, is_internal_object, is_part, is_safe, safe_path, shown
from swamp.env import rfc3339
from swamp.errors import CorruptData, ObjectMissing, StoreError, UsageError
from swamp.index.entry import Entry, is_payload_key, path_of_key
from swamp.index.root import REPAIR_HINT, ROOT_KEY, SEGMENT_PREFIX, parse_json
from swamp.store.port import ObjectMeta
from swamp.values import value

META_KEY: Final = SEGMENT_PREFIX + "_meta.json"
MAX_SIZE: Final = 2**63 - 1
MARKERS: Final = (ROOT_KEY, ".namespace.json")
_LAST_MARKER: Final = max(MARKERS)
_FOREIGN: Final = "another client's lock, or a file that it was still writing"


@value
class Refused:
    """Something that an index or a listing names and that cannot be a file of ours."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.reason}"


Report = Callable[[Refused], None]


# --- older index formats ------------------------------------------------------------------------------------------


def adopt_v1(body: bytes, *, refused: Report = lambda _: None) -> Iterator[Entry]:
    """The entries of a version 1 index: one document with all of them."""
    return _entries(_versioned(body, 1), refused)


def adopt_v2(meta: bytes, shard: Callable[[str], bytes], *, refused: Report = lambda _: None) -> Iterator[Entry]:
    """The entries of a version 2 index, a shard at a time: it wins over a version 1 index beside it, which is frozen.

    A shard that is not there stops the adoption: publishing the others would forget its files for good.
    """
    for key in shard_keys(meta):
        try:
            body = shard(key)
        except ObjectMissing as error:
            raise CorruptData(f"the old index names {shown(key)}, which is not there", hint=REPAIR_HINT) from error
        yield from _entries(_versioned(body, 1), refused)


def shard_keys(meta: bytes) -> list[str]:
    """Where the shards of a version 2 index lie, from its `_meta.json`."""
    partitions = _versioned(meta, 2).get("partitions")
    if not isinstance(partitions, list) or not all(isinstance(p, str) and is_safe(p) for p in partitions):
        raise CorruptData("the old index names partitions that cannot be", hint=REPAIR_HINT)
    return [f"{SEGMENT_PREFIX}{partition}.json" for partition in dict.fromkeys(partitions)]


def commit_seq(meta: bytes) -> int:
    """A version 2 index's own counter: it moves when an old client goes on writing."""
    found = _versioned(meta, 2).get("commitSeq", 0)
    return found if isinstance(found, int) else 0


def _versioned(body: bytes, version: int) -> dict[str, Any]:
    doc = parse_json(body)
    if doc.get("version") != version:
        raise CorruptData(f"an old index of version {version} was expected here", hint=REPAIR_HINT)
    return doc


def _entries(doc: Mapping[str, Any], refused: Report) -> Iterator[Entry]:
    entries = doc.get("entries")
    if not isinstance(entries, dict):
        raise CorruptData("an old index has no entries", hint=REPAIR_HINT)
    for path, fields in sorted(entries.items()):
        if is_safe(path) and is_internal(path):
            continue  # lock files and such that an old discovery captured (L22)
        try:
            if is_internal_object(path):
                raise ValueError(_FOREIGN)
            yield _old_entry(path, fields)
        except (UsageError, TypeError, ValueError) as error:
            refused(Refused(path, str(error)))


def _old_entry(path: str, fields: object) -> Entry:
    if not isinstance(fields, dict):
        raise TypeError("its entry is not an object")
    safe_path(path)
    size, at = fields.get("size"), fields.get("lastModified")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_SIZE:
        raise ValueError("its size is not a size")
    return Entry(path, _old_key(path, fields.get("key")), size, _hash(fields.get("sha256")), _text(at))


def _old_key(path: str, key: object) -> str:
    """Relative to the prefix, as all keys here are; old clients wrote it with the prefix in front."""
    if key is None or key == path or (isinstance(key, str) and key.endswith(f"/{path}")):
        return path
    if not isinstance(key, str) or not is_safe(key) or is_internal_object(key):
        raise ValueError("its key is not one that a payload can have")
    return key


def _hash(value: object) -> str | None:
    """A SHA-256 in hex, else unknown: and unknown means that the bytes are read before anything is decided."""
    if not isinstance(value, str) or len(value) != 64 or not set(value.lower()) <= set("0123456789abcdef"):
        return None
    return value.lower()


def _text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= 64 and value.isprintable() else ""


# --- buckets without an index -------------------------------------------------------------------------------------


def adopt_listing(pages: Iterable[Sequence[ObjectMeta]], *, refused: Report = lambda _: None) -> Iterator[Entry]:
    """The files in a listing of the tier directories, as they come, in their order.

    Left out: names that are ours by their place, and everything below a directory with a root or a `.namespace.json`
    of its own; other clients' locks and unfinished files are refused. One `~ulid` name means that a root was lost:
    CorruptData (L48).
    """
    for meta in own_objects(pages):
        if is_payload_key(meta.key):
            raise root_lost(meta.key)
        found = entry_of(meta)
        if isinstance(found, Entry):
            yield found
        elif found is not None:
            refused(found)


def root_lost(key: str) -> CorruptData:
    """The error for a store without a root that holds what only a store with one can hold (L48)."""
    return CorruptData(
        f"there is no index, but {shown(key)} was written by one: its root has been lost",
        hint=f"{REPAIR_HINT} --from-listing",
        details={"key": key},
    )


def entry_of(meta: ObjectMeta) -> Entry | Refused | None:
    """An object that something else wrote, as an entry; None for what is no file of a tier directory."""
    key = meta.key
    if not in_tier(key) or is_internal(key) or (key.endswith("/") and meta.size == 0):
        return None  # the last: a placeholder that some tools write for an empty directory
    if is_internal_object(key):
        return Refused(key, _FOREIGN)
    fault = fault_of(key)
    if fault is not None:
        return Refused(key, fault)
    return Entry(key, key, meta.size, None, rfc3339(meta.last_modified))


def is_proposed(key: str) -> bool:
    """Whether a listed key may stand for a file: one of our uploads, or a plain key that is no other client's own."""
    path = path_of_key(key)
    return is_safe(path) and not (is_internal(path) if is_payload_key(key) else is_internal_object(key))


def marks_store(key: str) -> bool:
    """Whether another store begins in this key's directory: its root or its owner's mark, and no part of a version
    that happens to be called so. inv[names.by-place]"""
    return key.rpartition("/")[2] in MARKERS and not is_part(key)


def own_objects(pages: Iterable[Sequence[ObjectMeta]]) -> Iterator[ObjectMeta]:
    """A listing in key order without the objects of stores that lie inside this one.

    A directory's markers come early in its listing; what comes before them (names that start with `#`, `-` and the
    like) is held back until the listing has passed them, and everything else goes through at once.
    """
    held: list[ObjectMeta] = []
    until, foreign, last = "", "", ""
    for meta in (m for page in pages for m in page):
        # Each tier directory is listed on its own, and within one the order decides what is whose.
        if meta.key <= last and _same_tier(last, meta.key):
            raise StoreError("the store lists its objects out of order", details={"key": meta.key})
        last = meta.key
        if foreign and meta.key.startswith(foreign):
            continue
        if marks_store(meta.key):
            foreign = f"{meta.key.rpartition('/')[0]}/"
            held = [m for m in held if not m.key.startswith(foreign)]
            continue
        if meta.key > until or not _same_tier(until, meta.key):
            yield from held
            held, until = [], ""
        until = max(until, _undecided_until(meta.key))
        if until:
            held.append(meta)
        else:
            yield meta
    yield from held


def _undecided_until(key: str) -> str:
    """The last marker, still to be listed, of a directory above `key`; empty if all of them would have been seen."""
    pending = ""
    for end in (i for i, letter in enumerate(key) if letter == "/"):
        if key[end + 1 :] < _LAST_MARKER:
            pending = max(pending, f"{key[:end]}/{_LAST_MARKER}")
    return pending


def _same_tier(one: str, other: str) -> bool:
    return one.partition("/")[0] == other.partition("/")[0]
