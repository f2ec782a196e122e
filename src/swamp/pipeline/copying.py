"""Payloads from one bucket to another, by executors that see both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swamp.errors import ObjectMissing, SwampError
from swamp.pipeline.beacon import Address, Beat
from swamp.pipeline.clients import StoreAddress, opened
from swamp.pipeline.kernels import TASK_THREADS, Batches, rows_of
from swamp.pipeline.schemas import FINDINGS
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Download
from swamp.sync.pool import pooled
from swamp.sync.transfer import download_one


@dataclass(frozen=True)
class CopyObjects:
    """Entries -> a finding each: copied under the same key, verified on the way, skipped where it already is."""

    source: StoreAddress
    target: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, batches: Batches) -> Batches:
        source, target = opened(self.source), opened(self.target)
        with tempfile.TemporaryDirectory(prefix="swamp-copy-") as folder, Beat(self.beacon) as beat:

            def copy(row: dict[str, Any]) -> dict[str, Any]:
                with beat.at_work():
                    problem = _copied(source, target, row, folder)
                beat.add(1, row["size"])
                return {**{k: row[k] for k in ("path", "key", "size", "sha256")}, **problem}

            results: Iterator[dict[str, Any]] = pooled(rows_of(batches), copy, self.threads)
            yield from FINDINGS.batches(results, 500)


def _copied(source: ObjectStore, target: ObjectStore, row: dict[str, Any], folder: str) -> dict[str, Any]:
    """Keys are never re-used, so an object of that key and size there is this one."""
    try:
        if target.head(row["key"]).size == row["size"]:
            return {}
    except ObjectMissing:
        pass
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
