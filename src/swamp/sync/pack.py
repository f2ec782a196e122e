"""Many small files as one upload: read, hashed and compressed into a pack, which goes to the bucket with one request.

The same functions run in process and inside Spark tasks. A single file's trouble is its result: it is left out before
the pack is sealed, and the others go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from swamp.cache.files import StatFingerprint
from swamp.cache.places import Places
from swamp.env import SYSTEM, Env, rfc3339
from swamp.errors import SwampError
from swamp.index.entry import pack_key
from swamp.index.pack import PACK_BYTES, PACK_FILES, Packed, PackWriter, Trials
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.sync.bulk import Sent, Upload
from swamp.sync.progress import IdleTimeout
from swamp.sync.transfer import STOPPERS, cause_of, retried, said, upload_one
from swamp.sync.units import is_content

SMALL: Final = 256 << 10
"""Files up to this size share a pack; a larger one is an object of its own."""
_NOBODY_ELSE: Final[AbstractContextManager[Any]] = nullcontext()
AT_ONCE: Final = 2
"""Packs in flight: what a push holds in memory, whatever the number of threads."""


def groups(jobs: Iterable[Upload]) -> Iterator[list[Upload]]:
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
    told = _PackOutcome(store, env, idle_timeout)
    with turn:
        body = _packed(jobs, told)
    if not told.packed:
        return told.sent

    def attempt() -> ObjectMeta:
        """Every attempt goes to its own key, so that a late one can change nothing. inv[object.key-once]"""
        return store.put(pack_key(env.ulid()), body)

    try:
        done = retried(attempt, env, idle_timeout)
    except STOPPERS:
        raise
    except SwampError as error:
        failed = (Sent(file.path, error=said(error), cause=cause_of(error)) for file, _ in told.packed)
        return [*told.sent, *failed]
    at = rfc3339(done.last_modified)
    return told.sent + [Sent(f.path, f.key(done.key), f.size, f.sha256, at, hint) for f, hint in told.packed]


def _packed(jobs: list[Upload], told: _PackOutcome) -> bytes:
    writer = PackWriter()
    for tree, some in _by_tree(jobs):
        if tree is None:
            told.alone(some)
        else:
            with Places(Path(tree)) as places:
                _add(writer, places, some, told)
    return writer.seal()


class _PackOutcome:
    """What became of each file so far."""

    def __init__(self, store: ObjectStore, env: Env, idle_timeout: IdleTimeout | None) -> None:
        self._send: Callable[[Upload], Sent] = lambda job: upload_one(store, job, env, idle_timeout)
        self.sent: list[Sent] = []
        self.packed: list[tuple[Packed, StatFingerprint]] = []

    def alone(self, jobs: Iterable[Upload]) -> None:
        self.sent += map(self._send, jobs)


def _by_tree(jobs: list[Upload]) -> Iterator[tuple[str | None, list[Upload]]]:
    """Metadata and records first, content behind them: who wants only those reads one range."""
    found: dict[str | None, list[Upload]] = {}
    for job in sorted(jobs, key=lambda job: is_content(job.path)):
        inside = job.file.endswith(f"/{job.path}")
        found.setdefault(job.file[: -len(job.path) - 1] if inside else None, []).append(job)
    yield from found.items()


def _add(writer: PackWriter, places: Places, jobs: list[Upload], told: _PackOutcome) -> None:
    trials = Trials()
    for job in jobs:
        try:
            read = places.read(job.path, SMALL)
        except SwampError as error:
            told.sent.append(Sent(job.path, error=said(error), cause=cause_of(error)))
            continue
        if read is None:  # a link, or larger by now: it goes by itself, with every check
            told.alone([job])
            continue
        body, before, after = read
        if after != before or len(body) != before.size:  # inv[pack.left-out]
            told.sent.append(Sent(job.path, size=len(body), hint=before, changed=True))
            continue
        digest = hashlib.sha256(body).hexdigest()
        told.packed.append((writer.add(job.path, body, digest, trials.compressed(job.path, body)), before))
