"""Downloads grouped by object: the files of a pack come with few requests, and each is checked by itself.

The same functions run in process and inside Spark tasks. A bad slice is one file's trouble.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, TypeVar

from swamp.cache.files import stage_bytes
from swamp.env import SYSTEM, Env
from swamp.errors import CorruptData, ObjectMissing, SwampError, Unavailable
from swamp.index.entry import Slice, slice_of
from swamp.index.pack import holds, ranges, unpacked
from swamp.store.port import ObjectStore
from swamp.sync.bulk import Download, Got
from swamp.sync.progress import IdleTimeout
from swamp.sync.second import SecondWriter
from swamp.sync.transfer import STOPPERS, cause_of, download_one, ignored, said

GAP: Final = 32 << 10
"""Neighbours so far apart come with one request: the bytes between them cost less than another."""
MOST: Final = 16 << 20
AT_ONCE: Final = 4
"""Ranges in flight: what a pull holds in memory, whatever the number of threads."""
NEARLY_ALL: Final = 2 / 3
"""A pack of which more than this is wanted comes whole."""

_NOBODY_ELSE: Final[AbstractContextManager[Any]] = nullcontext()

T = TypeVar("T")
Group = list[tuple[Slice | None, Download]]
"""What one request brings: the files of a pack with their slices, or one file (None, where it is no slice)."""


def groups(jobs: Iterable[Download]) -> Iterator[Group]:
    """The downloads as they are asked for: files of one pack that one request brings, every other by itself."""
    return grouped(jobs, lambda job: job.key)


def grouped(jobs: Iterable[T], key_of: Callable[[T], str]) -> Iterator[list[tuple[Slice | None, T]]]:
    """Anything with a key in the groups that one request brings, those of a pack in the order of their offsets."""
    packs: dict[str, list[tuple[Slice, T]]] = {}
    for job in jobs:
        try:
            cut = slice_of(key_of(job))
        except CorruptData:
            cut = None  # whoever fetches it is told
        if cut is None:
            yield [(None, job)]
        elif (parts := packs.get(cut.pack)) is None:
            packs[cut.pack] = [(cut, job)]
        else:
            parts.append((cut, job))
    for parts in packs.values():
        yield from _requests(parts)


def _requests(parts: list[tuple[Slice, T]]) -> Iterator[list[tuple[Slice | None, T]]]:
    parts.sort(key=lambda part: part[0].offset)
    cuts = list(map(itemgetter(0), parts))
    whole = sum(cut.length for cut in cuts) > NEARLY_ALL * (max(cut.end for cut in cuts) - cuts[0].offset)
    begin = 0
    for group in ranges(cuts, MOST if whole else GAP, MOST):
        yield [*parts[begin : begin + len(group)]]
        begin += len(group)


def brought(store: ObjectStore, cuts: Sequence[Slice]) -> list[memoryview]:
    """The stored bytes of slices of one group by one request; too few of them where the pack ends before."""
    start, end = cuts[0].offset, max(cut.end for cut in cuts)
    body = memoryview(store.get(cuts[0].pack, start=start, length=end - start).body)
    return [body[cut.offset - start : cut.end - start] for cut in cuts]


def fetch_group(
    store: ObjectStore,
    group: Group,
    env: Env = SYSTEM,
    idle_timeout: IdleTimeout | None = None,
    on_bytes: Callable[[int], None] = ignored,
    turn: AbstractContextManager[Any] = _NOBODY_ELSE,
    second: SecondWriter | None = None,
) -> list[Got]:
    """One file, or the files of one range of a pack, each verified in staging; what is wrong with one is its result.

    `turn` is held while the files are written, not while their bytes come: as when a pack is made (`upload_group`). A
    `second` process writes them, if there is one; what it does not confirm is done here.
    """
    if len(group) == 1:
        return [download_one(store, group[0][1], env, idle_timeout, on_bytes)]
    parts = [(cut, job) for cut, job in group if cut is not None]
    cuts = list(map(itemgetter(0), parts))
    try:
        stored = brought(store, cuts)
    except STOPPERS:
        raise
    except ObjectMissing as error:
        return [Got(job.path, job.key, error=said(error), cause=cause_of(error)) for _, job in parts]
    except (Unavailable, CorruptData):
        return list(_one_by_one(store, [job for _, job in parts], env, idle_timeout, on_bytes))
    on_bytes(sum(map(len, stored)))
    with turn:
        files = second.stage(parts, stored) if second else repeat(None)
        return [
            Got(job.path, job.key, file, job.size, job.sha256)
            if file
            else _cut(store, job, cut, part, env, idle_timeout)
            for (cut, job), part, file in zip(parts, stored, files, strict=False)
        ]


def _one_by_one(
    store: ObjectStore,
    jobs: Iterable[Download],
    env: Env,
    idle_timeout: IdleTimeout | None,
    on_bytes: Callable[[int], None],
) -> Iterator[Got]:
    """Files of a range that did not come, on a line that may be too slow for megabytes. Where a single one does not
    come either, nor would the next: half a minute each, for nothing. C09"""
    last: Got | None = None
    for job in jobs:
        if last is not None and last.cause == "away":
            last = replace(last, path=job.path, key=job.key)
        else:
            last = download_one(store, job, env, idle_timeout, on_bytes)
        yield last


def _cut(
    store: ObjectStore, job: Download, cut: Slice, stored: memoryview, env: Env, idle_timeout: IdleTimeout | None
) -> Got:
    """One file of what has come; what did not come right is fetched once more, by itself. inv[pack.each-checked]"""
    try:
        body = unpacked(cut, stored, job.size)
        staged = stage_bytes(job.staging, body, job.size, job.sha256, job.mtime_ns, job.durable)
        return Got(job.path, job.key, staged.file, staged.size, staged.sha256)
    except CorruptData:
        return download_one(store, job, env, idle_timeout)
    except SwampError as error:
        return Got(job.path, job.key, error=said(error), cause=cause_of(error))


def sound_slices(store: ObjectStore, wanted: list[tuple[str, int, str | None]]) -> list[bool]:
    """Which of these files (key, size, hash) of one group one request shows to be right. The others may be, too.

    Raises ObjectMissing: then all of them are.
    """
    cuts = [cut for cut in (slice_of(key) for key, _, _ in wanted) if cut is not None]
    try:
        stored = brought(store, cuts)
    except (Unavailable, CorruptData):
        return [False] * len(wanted)
    return [holds(cut, part, *row[1:]) for cut, part, row in zip(cuts, stored, wanted, strict=True)]
