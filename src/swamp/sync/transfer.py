"""Sends a file, or many small ones as one pack; fetches one, hashes one. The same in process and inside Spark tasks.

A single file's trouble is its result, never an exception that stops the others: it is left out before a pack is sealed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final, TypeVar

from swamp.cache.files import Staged, StatFingerprint, fingerprint_of, hash_file, stage_file
from swamp.cache.paths import check_inside
from swamp.cache.places import Places
from swamp.env import SYSTEM, Env, rfc3339
from swamp.errors import (
    AccessDenied,
    CorruptData,
    Interrupted,
    Misconfigured,
    ObjectMissing,
    SwampError,
    Unavailable,
)
from swamp.index.entry import pack_key, payload_key, slice_of
from swamp.index.pack import PACK_BYTES, PACK_FILES, Packed, PackWriter, Trials, read_slice
from swamp.store.port import WHOLE_AT_MOST, ObjectMeta, ObjectStore, Uploaded
from swamp.store.retry import Backoff
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.progress import IdleTimeout
from swamp.sync.result import Cause
from swamp.sync.units import is_content

RETRY_SECONDS: Final = 30.0
FIRST_DELAY: Final = 0.1
LARGE: Final = 1024 * 1024  # streamed; and what a slow line may need longer for than the deadline without progress
# Trouble that every further file would have too: it stops the work instead of being reported once per file.
STOPPERS: Final = (AccessDenied, Misconfigured, Interrupted)

SMALL: Final = 256 << 10
"""Files up to this size share a pack; a larger one is an object of its own."""
PACKS_AT_ONCE: Final = 2
"""Packs in flight: what a push holds in memory, whatever the number of threads."""
_NOBODY_ELSE: Final[AbstractContextManager[Any]] = nullcontext()

T = TypeVar("T")


def ignored(size: int) -> None: ...


def _counted(chunks: Iterable[bytes], on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        on_bytes(len(chunk))
        yield chunk


def upload_one(store: ObjectStore, job: Upload, env: Env = SYSTEM, idle_timeout: IdleTimeout | None = None) -> Sent:
    """Every attempt goes to its own key, so that a late one can change nothing. inv[object.key-once]"""
    file = Path(job.file)

    def attempt() -> tuple[str, Uploaded]:
        key = payload_key(job.path, env.ulid())
        return key, store.put_file(key, file)

    try:
        if job.file.endswith(f"/{job.path}"):
            # A file of a tree: a link planted after the plan must not lead us out of it.
            check_inside(job.file[: -len(job.path) - 1], job.path)
        before = fingerprint_of(os.stat(job.file))  # noqa: PTH116  (ten thousand times)
        key, done = retried(attempt, env, idle_timeout)
        changed = fingerprint_of(os.stat(job.file)) != before or done.meta.size != before.size  # noqa: PTH116
    except STOPPERS:
        raise
    except (SwampError, OSError) as error:
        return Sent(job.path, error=said(error), cause=cause_of(error))
    at = rfc3339(done.meta.last_modified)
    return Sent(job.path, key, done.meta.size, done.sha256, at, before, changed)


def upload_groups(jobs: Iterable[Upload]) -> Iterator[list[Upload]]:
    """The uploads as they are sent: the small ones that may be packed about 8 MiB at a time, every other by itself."""
    some: list[Upload] = []
    size = 0
    for job in jobs:
        if not job.packed or job.size > SMALL:
            yield [job]
            continue
        if some and (size + job.size > PACK_BYTES or len(some) >= PACK_FILES):
            yield some
            some, size = [], 0
        some.append(job)
        size += job.size
    if some:
        yield some


def upload_group(
    store: ObjectStore,
    jobs: list[Upload],
    env: Env = SYSTEM,
    idle_timeout: IdleTimeout | None = None,
    turn: AbstractContextManager[Any] = _NOBODY_ELSE,
) -> list[Sent]:
    """Sends one file, or several as a pack.

    `turn` is held while a pack is made, not while it is sent: threads that read small files at the same time hand the
    interpreter to each other at every call of the system, and all of them together are slower than one.
    """
    if len(jobs) == 1 and not jobs[0].packed:
        return [upload_one(store, jobs[0], env, idle_timeout)]
    with turn:
        body, packed, told = _packed(jobs, lambda job: upload_one(store, job, env, idle_timeout))
    if not packed:
        return told

    def attempt() -> ObjectMeta:
        """Every attempt goes to its own key, so that a late one can change nothing. inv[object.key-once]"""
        return store.put(pack_key(env.ulid()), body)

    try:
        done = retried(attempt, env, idle_timeout)
    except STOPPERS:
        raise
    except SwampError as error:
        return told + [Sent(file.path, error=said(error), cause=cause_of(error)) for file, _ in packed]
    at = rfc3339(done.last_modified)
    return told + [Sent(f.path, f.key(done.key), f.size, f.sha256, at, hint) for f, hint in packed]


def _packed(
    jobs: list[Upload], send_alone: Callable[[Upload], Sent]
) -> tuple[bytes, list[tuple[Packed, StatFingerprint]], list[Sent]]:
    """A pack, the files in it with their stats from before they were read, and what became of all others."""
    writer, packed, told = PackWriter(), list[tuple[Packed, StatFingerprint]](), list[Sent]()
    for tree, some in _by_tree(jobs):
        if tree is None:
            told += map(send_alone, some)
            continue
        trials = Trials()
        with Places(Path(tree)) as places:
            for job in some:
                try:
                    read = places.read(job.path, SMALL)
                except SwampError as error:
                    told.append(Sent(job.path, error=said(error), cause=cause_of(error)))
                    continue
                if read is None:  # a link, or larger by now: it goes by itself, with every check
                    told.append(send_alone(job))
                    continue
                body, before, after = read
                if after != before or len(body) != before.size:  # inv[pack.left-out]
                    told.append(Sent(job.path, size=len(body), hint=before, changed=True))
                    continue
                digest = hashlib.sha256(body).hexdigest()
                packed.append((writer.add(job.path, body, digest, trials.compressed(job.path, body)), before))
    return writer.seal(), packed, told


def _by_tree(jobs: list[Upload]) -> Iterable[tuple[str | None, list[Upload]]]:
    """Metadata and records first, content behind them: who wants only those reads one range."""
    found: dict[str | None, list[Upload]] = {}
    for job in sorted(jobs, key=lambda job: is_content(job.path)):
        inside = job.file.endswith(f"/{job.path}")
        found.setdefault(job.file[: -len(job.path) - 1] if inside else None, []).append(job)
    return found.items()


def download_one(
    store: ObjectStore,
    job: Download,
    env: Env = SYSTEM,
    idle_timeout: IdleTimeout | None = None,
    on_bytes: Callable[[int], None] = ignored,
) -> Got:
    """The whole file in staging, verified (and durable, if the job wants it), or nothing there."""

    def attempt() -> Staged:
        cut = slice_of(job.key)
        if cut is not None:
            packed = read_slice(store, cut, job.size)
            on_bytes(len(packed))
            return staged_from((packed,))
        if job.size < LARGE:
            # One byte more than there should be tells a wrong object; the whole of it could be anything.
            body = store.get(job.key, length=max(job.size + 1, WHOLE_AT_MOST)).body
            on_bytes(len(body))
            return staged_from((body,))
        with store.open(job.key) as large:
            return staged_from(_counted(large, on_bytes))

    def staged_from(chunks: Iterable[bytes | memoryview]) -> Staged:
        return stage_file(job.staging, chunks, job.size, job.sha256, mtime_ns=job.mtime_ns, durable=job.durable)

    try:
        staged = retried(attempt, env, idle_timeout, also=CorruptData)
    except STOPPERS:
        raise
    except (SwampError, OSError) as error:
        return Got(job.path, job.key, error=said(error), cause=cause_of(error))
    return Got(job.path, job.key, staged.file, staged.size, staged.sha256)


def hash_one(job: Hash) -> Hashed:
    """The file's hash with the stat from before it was read."""
    try:
        found = hash_file(Path(job.file))
    except (SwampError, OSError) as error:
        return Hashed(job.path, error=said(error))
    return Hashed(job.path, found.size, found.sha256, fingerprint_of(found.stat))


def retried(
    attempt: Callable[[], T], env: Env, idle_timeout: IdleTimeout | None, *, also: type[SwampError] = Unavailable
) -> T:
    """Until it works, half a minute has passed (or less, where less without progress is the end), or nobody waits for
    it. Bytes that arrive wrong (`also`) are fetched once more.

    Nobody waits: another thread has told the user that nothing moves, and stands at the door until this one is out.
    """
    seconds = min(RETRY_SECONDS, idle_timeout.seconds) if idle_timeout is not None else RETRY_SECONDS
    backoff, wrong = Backoff(env, seconds, first=FIRST_DELAY), 0
    while True:
        began = env.clock.monotonic()
        try:
            return attempt()
        except (Unavailable, also) as error:
            wrong += isinstance(error, CorruptData)
            stop = idle_timeout is not None and idle_timeout.over
            lasted = env.clock.monotonic() - began  # a read may have been retried by the store already
            too_long = isinstance(error, Unavailable) and lasted > backoff.left
            if stop or wrong > 1 or too_long or not backoff.pause(error):
                raise


def cause_of(error: Exception) -> Cause | None:
    """What the store has to do with it; None for what went wrong on this machine."""
    for kind, cause in _CAUSES:
        if isinstance(error, kind):
            return cause
    return None


_CAUSES: Final[tuple[tuple[type[SwampError], Cause], ...]] = (
    (ObjectMissing, "missing"),
    (CorruptData, "corrupt"),
    (Unavailable, "away"),
)


def said(error: Exception) -> str:
    """What a report shows of a file that failed."""
    if isinstance(error, SwampError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return str(error)
