"""Following commits: each root sequence is an offset, and a version is new when its metadata first appears.

What a batch holds is computed from the recorded roots at its two ends, never from the newest one: the same two offsets
give the same rows after a restart, whatever has happened since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from swamp.commit.log import log_key
from swamp.data.names import VersionRef, version_of
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.entry import Entry
from swamp.index.lookup import lookup, rows_since
from swamp.index.root import Root, decode
from swamp.pipeline.clients import opened
from swamp.pipeline.place import Bucket, FileRef

Offset = dict[str, Any]
BEGINNING: Final[Offset] = {"seq": 0, "op": ""}
VERSIONS_PER_TASK: Final = 50


def offset_of(root: Root) -> Offset:
    return {"seq": root.seq, "op": root.op}


def root_at(bucket: Bucket, offset: Offset) -> Root | None:
    """The root of that commit: the newest one, or its log record. None for the beginning."""
    if not offset["seq"]:
        return None
    if bucket.root.seq == offset["seq"] and bucket.root.op == offset["op"]:
        return bucket.root
    try:
        return decode(opened(bucket.spec).get(log_key(offset["seq"], offset["op"])).body)
    except ObjectMissing as error:
        raise CorruptData(
            f"the record of commit {offset['seq']} is gone, so this stream cannot tell what is new since then",
            hint="start the stream with a new checkpoint; log records younger than 30 days are kept",
        ) from error


@dataclass(frozen=True)
class NewVersion:
    """A version that appeared between two offsets, with the file that describes it."""

    ref: VersionRef
    metadata: FileRef


def new_versions(bucket: Bucket, start: Offset, end: Offset) -> list[NewVersion]:
    """Versions that exist at `end` and were never known at `start`: heals, undeletes and learned hashes are not new."""
    after = root_at(bucket, end)
    before = root_at(bucket, start)
    if after is None:
        return []
    found = list(_metadata_rows(after, bucket, start["seq"]))
    if before is not None:
        # Known includes deleted: a tombstone says that the version has been seen.
        known = lookup(before, [row.path for row in found], bucket.fetch)
        found = [row for row in found if row.path not in known]
    made = ((version_of(row.path), row) for row in found)
    return [NewVersion(ref, FileRef(r.path, r.key, r.size, r.sha256)) for ref, r in made if ref is not None]


def _metadata_rows(root: Root, bucket: Bucket, seq: int) -> Iterator[Entry]:
    for row in rows_since(root, seq, bucket.fetch):
        if isinstance(row, Entry) and row.path.startswith("data/") and row.path.endswith("/metadata.yaml"):
            yield row
