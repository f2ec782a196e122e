"""One file at a time: send it, fetch it, hash it. The same three functions run in process and inside Spark tasks.

A single file's trouble is its result, never an exception that stops the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from swamp.cache.files import Staged, hash_file, hint_of, stage_file
from swamp.cache.paths import check_inside
from swamp.env import SYSTEM, ULID_LENGTH, Env, rfc3339
from swamp.errors import (
    AccessDenied,
    CorruptData,
    Interrupted,
    Misconfigured,
    ObjectMissing,
    SwampError,
    Unavailable,
)
from swamp.index.entry import payload_key
from swamp.rules import rule
from swamp.store.port import WHOLE_AT_MOST, ObjectStore, Uploaded
from swamp.store.retry import pause_after
from swamp.sync.bulk import Download, Got, Hash, Hashed, Sent, Upload
from swamp.sync.pool import THREADS, pooled
from swamp.sync.progress import Cancel, Patience
from swamp.sync.result import Cause, EngineName

RETRY_SECONDS: Final = 30.0
FIRST_DELAY: Final = 0.1
LARGE: Final = 1024 * 1024  # streamed; and what a slow line may need longer for than the deadline without progress
# Trouble that every further file would have too: it stops the work instead of being reported once per file.
STOPPERS: Final = (AccessDenied, Misconfigured, Interrupted)

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")


def _ignored(size: int) -> None:
    del size


def _counted(chunks: Iterable[bytes], on_bytes: Callable[[int], None]) -> Iterator[bytes]:
    for chunk in chunks:
        on_bytes(len(chunk))
        yield chunk


def upload_one(store: ObjectStore, job: Upload, env: Env = SYSTEM, patience: Patience | None = None) -> Sent:
    """Every attempt goes to its own key, so that a late one can change nothing. inv[object.key-once]"""
    file = Path(job.file)

    def attempt() -> tuple[str, Uploaded]:
        once = env.ulid()
        key = payload_key(job.path, once if rule("object.key-once") else "0" * ULID_LENGTH)
        return key, store.put_file(key, file)

    try:
        if job.file.endswith(f"/{job.path}"):
            # A file of a tree: a link planted after the plan must not lead us out of it.
            check_inside(job.file[: -len(job.path) - 1], job.path)
        before = hint_of(os.stat(job.file))  # noqa: PTH116  (ten thousand times)
        key, done = _retried(attempt, env, patience)
        changed = hint_of(os.stat(job.file)) != before or done.meta.size != before.size  # noqa: PTH116
    except STOPPERS:
        raise
    except (SwampError, OSError) as error:
        return Sent(job.path, error=_said(error), cause=_cause(error))
    at = rfc3339(done.meta.last_modified)
    return Sent(job.path, key, done.meta.size, done.sha256, at, before, changed)


def download_one(
    store: ObjectStore,
    job: Download,
    env: Env = SYSTEM,
    patience: Patience | None = None,
    on_bytes: Callable[[int], None] = _ignored,
) -> Got:
    """The whole file in staging, verified (and durable, if the job wants it), or nothing there."""

    def attempt() -> Staged:
        if job.size < LARGE:
            # One byte more than there should be tells a wrong object; the whole of it could be anything.
            body = store.get(job.key, length=max(job.size + 1, WHOLE_AT_MOST)).body
            on_bytes(len(body))
            return staged_from((body,))
        with store.open(job.key) as large:
            return staged_from(_counted(large, on_bytes))

    def staged_from(chunks: Iterable[bytes]) -> Staged:
        return stage_file(job.staging, chunks, job.size, job.sha256, mtime_ns=job.mtime_ns, durable=job.durable)

    try:
        staged = _retried(attempt, env, patience, also=CorruptData)
    except STOPPERS:
        raise
    except (SwampError, OSError) as error:
        return Got(job.path, job.key, error=_said(error), cause=_cause(error))
    return Got(job.path, job.key, staged.file, staged.size, staged.sha256)


def unwanted(got: Got) -> None:
    """A file that nobody will place does not stay in staging."""
    if got.file is not None:
        Path(got.file).unlink(missing_ok=True)


def hash_one(job: Hash) -> Hashed:
    """The file's hash with the stat from before it was read."""
    try:
        found = hash_file(Path(job.file))
    except (SwampError, OSError) as error:
        return Hashed(job.path, error=_said(error))
    return Hashed(job.path, found.size, found.sha256, hint_of(found.stat))


def _retried(
    attempt: Callable[[], T], env: Env, patience: Patience | None, *, also: type[SwampError] = Unavailable
) -> T:
    """Until it works, half a minute has passed, or nobody waits for it. Bytes that arrive wrong (`also`) are fetched
    once more.

    Nobody waits: another thread has told the user that nothing moves, and stands at the door until this one is out.
    """
    until = env.clock.monotonic() + RETRY_SECONDS
    delay, wrong = FIRST_DELAY, 0
    while True:
        try:
            return attempt()
        except (Unavailable, also) as error:
            wrong += isinstance(error, CorruptData)
            stop = patience is not None and patience.over
            if stop or wrong > 1 or env.clock.monotonic() + delay > until:
                raise
            pause = pause_after(error, delay, env)
        env.clock.sleep(pause)
        delay = min(delay * 2, 5.0)


def _cause(error: Exception) -> Cause | None:
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


def _said(error: Exception) -> str:
    """What a report shows of a file that failed."""
    if isinstance(error, SwampError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return str(error)


@dataclass
class Inline:
    """The executor without Spark: a pool of threads in this process (one thread: the caller's own)."""

    store: ObjectStore
    env: Env = SYSTEM
    threads: int = THREADS
    reason: str = ""
    name: EngineName = "inline"
    reports_progress: bool = False

    def upload(self, jobs: Iterable[Upload], patience: Patience) -> Iterator[Sent]:
        return self._each(jobs, *self.sending(patience), patience, gather=True)

    def download(self, jobs: Iterable[Download], patience: Patience) -> Iterator[Got]:
        return self._each(jobs, *self.fetching(patience), patience, discard=unwanted, gather=True)

    def sending(self, patience: Patience) -> tuple[Callable[[Upload], Sent], Callable[[], None]]:
        """How a file is sent, and what to do while waiting for that."""
        large: set[str] = set()

        def send(job: Upload) -> Sent:
            if job.size < LARGE:
                return upload_one(self.store, job, self.env, patience)
            large.add(job.path)
            try:
                return upload_one(self.store, job, self.env, patience)
            finally:
                large.discard(job.path)

        def tick() -> None:
            # The store bounds each request of a large upload by itself; between requests it tells nobody.
            if large:
                patience.progressed()
            patience.check()

        return send, tick

    def fetching(self, patience: Patience) -> tuple[Callable[[Download], Got], Callable[[], None]]:
        """How a file is fetched, and what to do while waiting for that."""

        def fetch(job: Download) -> Got:
            return download_one(self.store, job, self.env, patience, lambda _: patience.progressed())

        return fetch, patience.check

    def hash(self, jobs: Iterable[Hash], patience: Patience) -> Iterator[Hashed]:
        return self._each(jobs, hash_one, patience.cancel.check, patience)

    def report(self) -> dict[str, Any] | None:
        return None

    def _each(
        self,
        jobs: Iterable[J],
        work: Callable[[J], R],
        tick: Callable[[], None],
        patience: Patience,
        discard: Callable[[R], None] | None = None,
        *,
        gather: bool = False,
    ) -> Iterator[R]:
        feed = _until_cancelled(jobs, patience.cancel)
        for result in pooled(feed, work, self.threads, tick, discard, gather=gather):
            patience.progressed()
            yield result
            patience.cancel.check()
        patience.cancel.check()


def _until_cancelled(jobs: Iterable[J], cancel: Cancel) -> Iterator[J]:
    """Stop starting work when asked to; what has begun ends by itself."""
    for job in jobs:
        if cancel.requested:
            return
        yield job
