"""The root document: the one object that says what is true. Encoding, decoding, and the versions of the format.

A store has the version of its root, and every commit keeps it, until somebody upgrades the store
(`swamp datastore upgrade`). What an older client could not understand, and would work against, needs a higher version:
such a client then stops instead. Versions 1 and 2 are older formats that `adopt` reads once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, Literal

from swamp.errors import CorruptData, NewerFormat
from swamp.index.entry import ROOT_KEY as ROOT_KEY
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced, object_of
from swamp.values import as_document, value

OLDEST: Final = 3
NEWEST: Final = 4
"""What new stores are made in."""
REPAIR_HINT: Final = "run: swamp datastore doctor --repair"

Feature = Literal["ignored", "slices"]
NEEDS: Final[dict[Feature, int]] = {
    "ignored": 4,  # the root says that conditions are ignored: who does not know the word would swap without a lease
    "slices": 4,  # a key names a part of an object: who does not know that would ask for an object of that name
}
"""The first version in which a store can have it."""


def allows(version: int, feature: Feature) -> bool:
    """Whether a store of this version may use `feature`."""
    return version >= NEEDS[feature]


class UnreadFormat(CorruptData):
    """A root or record of a version that no swamp of ours reads: an older client's, or nobody's."""


def check_version(version: object) -> int:
    """The version of a root or log record, if it is read here.

    Raises NewerFormat for a later one, which is never taken for damage, and CorruptData for everything else.
    inv[format.newer]
    """
    if isinstance(version, int) and OLDEST <= version <= NEWEST:
        return version
    if isinstance(version, int) and version > NEWEST:
        raise NewerFormat(
            f"the store's index has format version {version}, this swamp knows versions up to {NEWEST}",
            hint="upgrade swamp on this machine: the store is whole, a later version wrote it; nothing was changed",
            details={"version": version, "known": NEWEST},
        )
    raise UnreadFormat(
        f"the index has version {version!r}, this swamp reads versions {OLDEST} to {NEWEST}",
        hint=REPAIR_HINT,
        details={"version": version if isinstance(version, int | str) else None},
    )


SEGMENT_PREFIX: Final = "_index/"
RECENT_OPS: Final = 256
ENFORCED: Final = "enforced"
IGNORED: Final = "ignored"
MAX_ROOT: Final = 128 << 20
MAX_NUMBER: Final = (1 << 63) - 1
"""What SQLite, Arrow and Spark can count to."""


@value
class SegmentRef:
    """Where an immutable part of the index lies. Its numberless rows take `added_seq`. inv[segment.added-seq]"""

    key: str
    rows: int
    bytes: int
    sha256: str
    min_path: str
    max_path: str
    added_seq: int = 0

    def covers(self, path: str) -> bool:
        return self.min_path <= path <= self.max_path


@value
class Span:
    """Paths from `start` up to, not including, `stop`: how several readers share one index."""

    start: str = ""
    stop: str | None = None

    @classmethod
    def below(cls, directory: str) -> Span:
        """All at or below a directory, and names beside it that begin like it."""
        return cls(directory, directory + "0") if directory else cls()  # "0" follows "/"

    def holds(self, path: str) -> bool:
        return self.start <= path and (self.stop is None or path < self.stop)

    def meets(self, ref: SegmentRef) -> bool:
        return ref.max_path >= self.start and (self.stop is None or ref.min_path < self.stop)


EVERYTHING: Final = Span()


@value
class Writer:
    """Who wrote a root: for people and for the log, never for decisions."""

    repo_id: str
    host: str
    user: str
    pid: int
    swamp: str
    command: str = ""
    """Such as `data put`: what people ask first of a commit. Never an argument, which may be a secret."""

    def to_json(self) -> dict[str, Any]:
        return {key: told for key, told in as_document(self).items() if key != "command" or told}


@value
class Root:
    """One state of the store. `op` makes every root's bytes unique; unknown fields are kept in `extra`."""

    store_id: str
    seq: int
    op: str
    prev_op: str
    committed_at: str
    writer: Mapping[str, Any]
    recent_ops: tuple[tuple[str, int], ...] = ()
    gc_epoch: int = 0
    horizon_seq: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    deleted: Mapping[str, Tombstone] = field(default_factory=dict)
    dropped: Mapping[str, Unreferenced] = field(default_factory=dict)
    segments: tuple[SegmentRef, ...] = ()
    collecting: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: int = NEWEST
    """The store's format version: every commit keeps it, only an upgrade raises it."""
    conditions: str = ""
    """What this store does with conditional writes: `enforced` or `ignored`. Absent means enforced."""
    conditions_op: str = ""
    """The commit that changed that word, if one did."""

    def row(self, path: str) -> Row | None:
        """What the newest layer says of `path`, if it says anything."""
        entry, tomb = self.entries.get(path), self.deleted.get(path)
        if entry is None or tomb is None:
            return entry or tomb
        return entry if entry.seq >= tomb.seq else tomb

    def knows_op(self, op: str) -> bool:
        return any(known == op for known, _ in self.recent_ops)

    @cached_property
    def condemned(self) -> frozenset[str]:
        """The objects that a collector is about to delete. inv[gc.objects]"""
        return frozenset(map(object_of, self.collecting))

    def condemns(self, key: str) -> bool:
        """Whether the bytes of a row with this key are about to be deleted."""
        return bool(self.collecting) and object_of(key) in self.condemned

    def has_collected_since(self, epoch: int) -> bool:
        """Whether a collector has been at work since this epoch: what was uploaded before it may be gone."""
        return self.gc_epoch != epoch

    @property
    def oldest_known_seq(self) -> int:
        """From here on `recent_ops` is complete."""
        return self.recent_ops[-1][1] if self.recent_ops else self.seq

    @property
    def files_at_most(self) -> int:
        """No fewer than there are files: a path may have a row in several segments."""
        return len(self.entries) + sum(ref.rows for ref in self.segments)

    @property
    def layer_rows(self) -> int:
        return len(self.entries) + len(self.deleted) + len(self.dropped)


def first_root(store_id: str, op: str, at: str, writer: Writer, conditions: str = ENFORCED) -> Root:
    """An empty store's root, before anything is in it."""
    return Root(store_id, 1, op, "", at, writer.to_json(), recent_ops=((op, 1),), conditions=conditions)


def successor(root: Root, op: str, at: str, writer: Writer, *, step: int = 1) -> Root:
    """The same content under the next number: callers add their rows to it."""
    seq = root.seq + step
    return replace(
        root,
        seq=seq,
        op=op,
        prev_op=root.op,
        committed_at=at,
        writer=writer.to_json(),
        recent_ops=((op, seq), *root.recent_ops)[:RECENT_OPS],
    )


def encode(root: Root) -> bytes:
    """The bytes of a root: readable JSON, one row per line, so that a person can look at it."""
    doc: dict[str, Any] = {
        **root.extra,
        "version": root.version,
        "storeId": root.store_id,
        "seq": root.seq,
        "op": root.op,
        "prevOp": root.prev_op,
        "committedAt": root.committed_at,
        "writer": dict(root.writer),
        "recentOps": [list(pair) for pair in root.recent_ops],
        **({"conditions": root.conditions} if root.conditions else {}),
        **({"conditionsOp": root.conditions_op} if root.conditions_op else {}),
        "gcEpoch": root.gc_epoch,
        "horizonSeq": root.horizon_seq,
        "entries": {p: _row_json(e) for p, e in sorted(root.entries.items())},
        "deleted": {p: _row_json(t) for p, t in sorted(root.deleted.items())},
        "dropped": {k: _dropped_json(d) for k, d in sorted(root.dropped.items())},
        "segments": [dict(zip(_SEGMENT, _SEGMENT_FIELDS(s), strict=True)) for s in root.segments],
        "collecting": list(root.collecting),
    }
    return json.dumps(doc, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decode(body: bytes) -> Root:
    """The root in `body`. Raises NewerFormat on one of a later version, CorruptData on what is no whole root."""
    doc = parse_json(body)
    check_version(doc.get("version"))
    try:
        return _from_json(doc)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptData(f"the index root is damaged: {error!r}", hint=REPAIR_HINT) from error


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object, or CorruptData: never a traceback on hostile bytes."""
    if len(body) > MAX_ROOT:  # JSON takes many times its bytes in memory
        raise CorruptData(f"the index root has {len(body):,} bytes", hint=REPAIR_HINT)
    try:
        doc = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptData("the index root is not readable JSON", hint=REPAIR_HINT) from error
    if not isinstance(doc, dict):
        raise CorruptData("the index root is not a JSON object", hint=REPAIR_HINT)
    return doc


_KNOWN = frozenset(
    "version storeId seq op prevOp committedAt writer recentOps gcEpoch horizonSeq entries deleted dropped "
    "segments collecting conditions conditionsOp".split()
)
_KNOWN_ENTRY = frozenset("key size sha256 lastModified seq missing id idSeq".split())


def _from_json(doc: dict[str, Any]) -> Root:
    conditions = _text(doc.get("conditions", ""))
    if conditions not in ("", ENFORCED, IGNORED):  # damage, not a reason to write as if conditions were enforced
        raise ValueError(f"conditions: {conditions!r:.40}")
    return Root(
        store_id=_text(doc["storeId"]),
        seq=_number(doc["seq"]),
        op=_text(doc["op"]),
        prev_op=_text(doc.get("prevOp") or ""),
        committed_at=_text(doc["committedAt"]),
        writer=dict(doc["writer"]),
        recent_ops=tuple((_text(op), _number(seq)) for op, seq in doc["recentOps"]),
        gc_epoch=_number(doc["gcEpoch"]),
        horizon_seq=_number(doc.get("horizonSeq", 0)),
        entries={_text(p): _entry_from(p, e) for p, e in doc["entries"].items()},
        deleted={_text(p): _tombstone_from(p, t) for p, t in doc["deleted"].items()},
        dropped={_text(k): _dropped_from(k, d) for k, d in doc["dropped"].items()},
        segments=tuple(SegmentRef(*(kind(s[name]) for name, kind in _SEGMENT.items())) for s in doc["segments"]),
        collecting=tuple(_text(k) for k in doc["collecting"]),
        extra={k: v for k, v in doc.items() if k not in _KNOWN},
        version=check_version(doc["version"]),
        conditions=conditions,
        conditions_op=_text(doc.get("conditionsOp", "")),
    )


def _row_json(row: Row) -> dict[str, Any]:
    """A row without its path. Which content it is stands there where place and number do not say so.
    inv[pack.identity]"""
    entry = row if isinstance(row, Entry) else None
    doc: dict[str, Any] = json.loads(entry.extra) if entry and entry.extra else {}
    doc |= {"key": row.key, "size": row.size}
    if row.sha256 is not None:
        doc["sha256"] = row.sha256
    if entry:
        doc["lastModified"] = entry.last_modified
    doc["seq"] = row.seq
    if entry and entry.missing:
        doc["missing"] = True
    if row.id:
        doc["id"] = row.id
    if row.id_seq and row.id_seq != row.seq:
        doc["idSeq"] = row.id_seq
    return doc


def _entry_from(path: str, doc: dict[str, Any]) -> Entry:
    unknown = {k: v for k, v in doc.items() if k not in _KNOWN_ENTRY}
    return Entry(
        path,
        _text(doc["key"]),
        _number(doc["size"]),
        _hash(doc.get("sha256")),
        _text(doc.get("lastModified") or ""),
        _number(doc["seq"]),
        missing=bool(doc.get("missing", False)),
        extra=json.dumps(unknown, sort_keys=True) if unknown else "",
        id=_text(doc.get("id", "")),
        id_seq=_number(doc.get("idSeq", 0)),
    )


def _tombstone_from(path: str, doc: dict[str, Any]) -> Tombstone:
    return Tombstone(
        path,
        _text(doc["key"]),
        _number(doc["size"]),
        _hash(doc.get("sha256")),
        _number(doc["seq"]),
        _text(doc.get("id", "")),
        _number(doc.get("idSeq", 0)),
    )


def _dropped_json(dropped: Unreferenced) -> dict[str, Any]:
    doc: dict[str, Any] = {"path": dropped.path, "seq": dropped.seq}
    doc |= {"id": dropped.id} if dropped.id else {}
    return doc if dropped.sha256 is None else {**doc, "size": dropped.size, "sha256": dropped.sha256}


def _dropped_from(key: str, doc: dict[str, Any]) -> Unreferenced:
    size, sha256 = _number(doc.get("size", 0)), _hash(doc.get("sha256"))
    return Unreferenced(key, _text(doc["path"]), _number(doc["seq"]), size, sha256, _text(doc.get("id", "")))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_NUMBER:
        raise TypeError(f"expected a number, found {value!r:.40}")
    return value


def _hash(value: object) -> str | None:
    return None if value is None else _text(value)


_SEGMENT: Final[dict[str, Callable[[object], Any]]] = {
    name: _number if name in ("rows", "bytes", "addedSeq") else _text
    for name in ("key", "rows", "bytes", "sha256", "minPath", "maxPath", "addedSeq")
}
_SEGMENT_FIELDS: Final = attrgetter("key", "rows", "bytes", "sha256", "min_path", "max_path", "added_seq")
