"""Payloads from one bucket to another, by executors that see both."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened, spool_dir
from swamp.bulk.kernels import TASK_THREADS, Batches, by_object, rows_of
from swamp.bulk.schemas import FINDINGS
from swamp.env import SYSTEM
from swamp.errors import CorruptData, ObjectMissing, SwampError
from swamp.index.keys import object_of, slice_of
from swamp.index.pack import unpacked, verified
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Download
from swamp.sync.fetch import AT_ONCE
from swamp.sync.pool import pooled
from swamp.sync.transfer import download_one, retried

Row = dict[str, Any]


@dataclass(frozen=True)
class CopyObjects:
    """Entries -> a finding each: its object copied under the same key, verified on the way, skipped where it is.

    The files of a pack come one after the other (`stages.balanced`), and the pack is copied once, as it is.
    """

    source: StoreAddress
    target: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, batches: Batches) -> Batches:
        source, target = opened(self.source), opened(self.target)
        room = threading.Semaphore(AT_ONCE)  # packs in memory
        with tempfile.TemporaryDirectory(prefix="swamp-copy-", dir=spool_dir()) as folder, Beat(self.beacon) as beat:

            def copy(rows: list[Row]) -> list[Row]:
                with beat.at_work():
                    if object_of(rows[0]["key"]) == rows[0]["key"]:
                        problem = _copied(source, target, rows[0], folder)
                    else:
                        with room:
                            problem = _copied_pack(source, target, rows)
                beat.add(len(rows), sum(row["size"] for row in rows))
                return [{**{k: row[k] for k in ("path", "key", "size", "sha256")}, **problem} for row in rows]

            results: Iterator[list[Row]] = pooled(by_object(rows_of(batches)), copy, self.threads)
            yield from FINDINGS.batches(chain.from_iterable(results), 500)


def _copied_pack(source: ObjectStore, target: ObjectStore, rows: list[Row]) -> Row:
    """The whole pack, once every file in it that the index names has been seen to be right."""
    pack = object_of(rows[0]["key"])
    try:
        if _is_there(target, pack, source.head(pack).size):
            return {}
        target.put(pack, retried(lambda: _checked_pack(source, pack, rows), SYSTEM, None, also=CorruptData))
    except ObjectMissing as error:
        return {"problem": "missing", "detail": error.message}
    except SwampError as error:
        return {"problem": "unread", "detail": error.message}
    return {}


def _checked_pack(source: ObjectStore, pack: str, rows: list[Row]) -> bytes:
    """Raises CorruptData for the first file that is not what the index says."""
    body = source.get(pack).body
    view = memoryview(body)
    for row in rows:
        cut = slice_of(row["key"])
        assert cut is not None
        if not verified(unpacked(cut, view[cut.offset : cut.end], row["size"]), row["size"], row["sha256"]):
            raise CorruptData(f"{row['path']} in {pack} is not what the index says", details={"key": row["key"]})
    return body


def _is_there(target: ObjectStore, key: str, size: int) -> bool:
    """Keys are never re-used, so an object of that key and size there is this one."""
    try:
        return target.head(key).size == size
    except ObjectMissing:
        return False


def _copied(source: ObjectStore, target: ObjectStore, row: Row, folder: str) -> Row:
    if _is_there(target, row["key"], row["size"]):
        return {}
    got = download_one(source, Download(row["path"], row["key"], row["size"], row["sha256"], folder))
    if got.file is None:
        return {"problem": "missing" if got.cause == "missing" else "unread", "detail": got.error}
    try:
        target.put_file(row["key"], Path(got.file))
    except SwampError as error:
        return {"problem": "unread", "detail": error.message}
    finally:
        Path(got.file).unlink(missing_ok=True)
    return {}
