"""The work inside tasks: plain `Iterator[RecordBatch] -> Iterator[RecordBatch]` functions, testable without Spark.

Each kernel is a frozen value with what it needs (a store's address, a directory, the beacon) and is called with
batches. File bodies are streamed by the worker and never enter Arrow. Everything written has a key of its own and is
harmless if nobody publishes it, so a task may run twice. inv[object.key-once]
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened
from swamp.bulk.schemas import DOWNLOADS, FINDINGS, GOT, HASHED, SENT
from swamp.cache.files import StatFingerprint
from swamp.cache.places import can_flush_together, flush_together
from swamp.env import SYSTEM
from swamp.errors import CorruptData, ObjectMissing, SwampError, Unavailable
from swamp.index.keys import object_of
from swamp.index.payload import open_payload
from swamp.store.port import ObjectStore
from swamp.sync import fetch, pack
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.pool import pooled
from swamp.sync.transfer import hash_one

if TYPE_CHECKING:
    import pyarrow as pa

Batches = Iterator["pa.RecordBatch"]
TASK_THREADS: Final = 16
VERIFY_SECONDS: Final = 30.0


def rows_of(batches: Batches) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


@dataclass(frozen=True)
class SendFiles:
    """Uploads -> what was sent, in the order in which they end."""

    store: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        with Beat(self.beacon) as beat:

            def send(group: list[Upload]) -> list[Sent]:
                # The store bounds each request of an upload by itself and tells nobody of its bytes.
                with beat.at_work(), room if len(group) > 1 else nullcontext():
                    sent = pack.upload_group(store, group)
                beat.add(len(sent), sum(one.size for one in sent))
                return sent

            room = threading.Semaphore(pack.AT_ONCE)
            jobs = (Upload(r["path"], r["file"], r["size"] or 0, bool(r["packed"])) for r in rows_of(batches))
            found = pooled(pack.groups(jobs), send, self.threads)
            yield from SENT.batches(map(sent_row, chain.from_iterable(found)), 500)


@dataclass(frozen=True)
class FetchFiles:
    """Downloads -> verified files in staging, durable before they are reported."""

    store: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        flush = _Flush()
        with Beat(self.beacon) as beat:

            def bring(group: list[Download]) -> list[Got]:
                with room if len(group) > 1 else nullcontext():
                    got = fetch.fetch_group(store, group, on_bytes=beat.sent)
                beat.add(len(got))
                return got

            room = threading.Semaphore(fetch.AT_ONCE)
            jobs = map(flush.later, map(download_of, rows_of(batches)))
            found = pooled(fetch.groups(jobs), bring, self.threads)
            for batch in GOT.batches(map(got_row, chain.from_iterable(found)), 500):
                flush.now()
                yield batch


@dataclass
class _Flush:
    """One flush for a batch of downloads, where this machine's file system keeps that promise."""

    directory: Path | None = None

    def later(self, job: Download) -> Download:
        """The job, relieved of its own flush if `now` will do it."""
        if self.directory is None or str(self.directory) != job.staging:
            if not can_flush_together(Path(job.staging)):
                return job
            self.directory = Path(job.staging)
        return replace(job, durable=False)

    def now(self) -> None:
        if self.directory is not None:
            flush_together(self.directory)


@dataclass(frozen=True)
class HashFiles:
    """Candidates -> hashed: only files whose hint did not prove equality come here."""

    beacon: Address | None = None
    threads: int = 2  # hashing is bound by the core of the task, reading ahead is all that a second thread brings

    def __call__(self, batches: Batches) -> Batches:
        with Beat(self.beacon) as beat:

            def read(job: Hash) -> Hashed:
                with beat.at_work():
                    hashed = hash_one(job)
                beat.add(1, hashed.size)
                return hashed

            jobs = (Hash(r["path"], r["file"], r["size"] or 0) for r in rows_of(batches))
            yield from HASHED.batches(map(hashed_row, pooled(jobs, read, self.threads)), 500)


@dataclass(frozen=True)
class VerifyEntries:
    """Entries -> findings: read, hash, compare. An entry without a hash is only read."""

    store: StoreAddress
    beacon: Address | None = None
    threads: int = TASK_THREADS

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        with Beat(self.beacon) as beat:

            def look(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
                with room if len(rows) > 1 else nullcontext():
                    found = verify_group(store, rows, beat)
                beat.add(len(rows))
                return found

            room = threading.Semaphore(fetch.AT_ONCE)
            jobs = chain.from_iterable(fetch.grouped(rows, _key_of) for rows in by_object(rows_of(batches)))
            yield from FINDINGS.batches(chain.from_iterable(pooled(jobs, look, self.threads)), 500)


def by_object(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The rows of one pack that come one after the other (`stages.balanced`) together, every other by itself."""
    for name, group in groupby(rows, lambda row: object_of(row["key"])):
        found = list(group)
        yield from ([found] if found[0]["key"] != name else ([row] for row in found))


def _key_of(row: dict[str, Any]) -> str:
    return str(row["key"])


def verify_group(store: ObjectStore, rows: list[dict[str, Any]], beat: Beat) -> list[dict[str, Any]]:
    """A finding for each file of one range of a pack; what one request does not show to be right is read by itself."""
    if len(rows) == 1:
        return [verify_one(store, rows[0], beat)]
    found = [{name: row.get(name) for name in FINDINGS.columns} for row in rows]
    try:
        sound = fetch.sound_slices(store, [(row["key"], row["size"], row["sha256"]) for row in rows])
    except ObjectMissing as error:
        return [{**finding, "problem": "missing", "detail": error.message} for finding in found]
    except SwampError:
        sound = [False] * len(rows)  # whoever reads it by itself is told why
    beat.add(size=sum(row["size"] for row, good in zip(rows, sound, strict=True) if good))
    good = {"problem": None, "detail": None}
    judged = zip(rows, found, sound, strict=True)
    return [{**finding, **good} if right else verify_one(store, row, beat) for row, finding, right in judged]


def verify_one(store: ObjectStore, row: dict[str, Any], beat: Beat) -> dict[str, Any]:
    """A finding for every entry; `problem` is null when the bytes are what the index promises."""
    finding = {name: row.get(name) for name in FINDINGS.columns}
    until = SYSTEM.clock.monotonic() + VERIFY_SECONDS
    while True:
        try:
            return {**finding, **_compared(store, row, beat)}
        except ObjectMissing as error:
            return {**finding, "problem": "missing", "detail": error.message}
        except CorruptData as error:
            return {**finding, "problem": "corrupt", "detail": error.message}
        except Unavailable as error:
            if SYSTEM.clock.monotonic() > until:
                # Not read is not rotten: only bytes that were seen can be called corrupt.
                return {**finding, "problem": "unread", "detail": error.message}
            SYSTEM.clock.sleep(SYSTEM.jitter(0.5))
        except SwampError as error:
            return {**finding, "problem": "unread", "detail": error.message}


def _compared(store: ObjectStore, row: dict[str, Any], beat: Beat) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    with open_payload(store, row["key"], row["size"]) as body:
        for chunk in body:
            digest.update(chunk)
            size += len(chunk)
            beat.add(size=len(chunk))
    if size != row["size"]:
        return {"problem": "corrupt", "detail": f"{size} bytes instead of {row['size']}"}
    found = digest.hexdigest()
    if row["sha256"] is not None and found != row["sha256"]:
        return {"problem": "corrupt", "detail": f"sha256 {found} instead of {row['sha256']}"}
    return {"problem": None, "detail": None}


def hint_row(hint: StatFingerprint | None) -> dict[str, Any]:
    if hint is None:
        return {}
    return {"h_size": hint.size, "h_mtime": hint.mtime_ns, "h_ctime": hint.ctime_ns, "h_inode": hint.inode}


def hint_from(row: dict[str, Any]) -> StatFingerprint | None:
    if row["h_size"] is None:
        return None
    return StatFingerprint(row["h_size"], row["h_mtime"], row["h_ctime"], row["h_inode"])


def sent_row(sent: Sent) -> dict[str, Any]:
    named = ("path", "key", "size", "sha256", "last_modified", "changed", "error", "cause")
    return {**{name: getattr(sent, name) for name in named}, **hint_row(sent.hint)}


def sent_from(row: dict[str, Any]) -> Sent:
    named = ("path", "key", "size", "sha256", "last_modified", "changed", "error", "cause")
    return Sent(**{name: row[name] for name in named}, hint=hint_from(row))


def download_of(row: dict[str, Any]) -> Download:
    named = ("path", "key", "size", "sha256", "staging", "mtime_ns")
    return Download(**{name: row[name] for name in named})


def got_row(got: Got) -> dict[str, Any]:
    return {name: getattr(got, name) for name in GOT.columns}


def got_from(row: dict[str, Any]) -> Got:
    return Got(**{name: row[name] for name in GOT.columns})


def hashed_row(hashed: Hashed) -> dict[str, Any]:
    named = ("path", "size", "sha256", "error")
    return {**{name: getattr(hashed, name) for name in named}, **hint_row(hashed.hint)}


def hashed_from(row: dict[str, Any]) -> Hashed:
    named = ("path", "size", "sha256", "error")
    return Hashed(**{name: row[name] for name in named}, hint=hint_from(row))


def upload_row(job: Upload | Hash) -> dict[str, Any]:
    packed = isinstance(job, Upload) and job.packed
    return {"path": job.path, "file": job.file, "size": job.size, "packed": packed}


def download_row(job: Download) -> dict[str, Any]:
    return {name: getattr(job, name) for name in DOWNLOADS.columns}
