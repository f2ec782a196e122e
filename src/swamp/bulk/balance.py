"""Sharing work out so that tasks end at about the same time: by bytes, not by count.

A file costs its bytes and a fixed amount for its requests. The largest go first, each to the emptiest bin, so that
one huge file has a bin of its own and holds up nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from swamp.index.keys import object_of
from swamp.sync.bulk import Download, Hash, Upload
from swamp.sync.pack import SMALL

T = TypeVar("T")
S = TypeVar("S", Upload, Hash)
FILE_COST: Final = 256 * 1024
"""What a request costs, in bytes that could have been sent meanwhile."""
BIN_COST: Final = 1024 * 1024 * 1024
"""What a task takes on: a few seconds' work, so that what starting a task costs does not count."""
SLICE_COST: Final = 8 * 1024
"""What a file in a pack costs beside its bytes: it is opened, hashed and closed, but nobody is asked for it."""
LEAST_PACKED: Final = 256
"""Fewer small files than these are not shared out: each task's share is a pack of its own."""
ROUNDS: Final = 2
"""Tasks per core, if there is that much: enough to even out what was estimated wrongly."""
ALONE: Final = 64 * 1024 * 1024
"""A file of this size is dealt out by itself where nobody can look at all of them first."""

MOST_TASKS: Final = 10_000
"""Tasks of one job, whatever an index says of rows and sizes: what is planned, the driver holds."""


def cost_of(size: int) -> int:
    return size + FILE_COST


def bins_for(files: int, size: int, parallelism: int) -> int:
    """How many bins: a few large ones. A task runs many files at once, so more of them would only start more often."""
    cost = size + files * FILE_COST
    return int(min(max(-(-cost // BIN_COST), parallelism * ROUNDS), max(files, 1), MOST_TASKS))


def tasks_for(rows: int, each: int, least: int = 1) -> int:
    """How many tasks so many rows are, with `each` rows in one; at least so many."""
    return min(max(least, -(-rows // each)), MOST_TASKS)


def pack(items: Iterable[T], size: Callable[[T], int], bins: int) -> list[tuple[int, T]]:
    """Each item with the number of its bin; bin 0 holds the most expensive item and is scheduled first."""
    ordered = sorted(items, key=size, reverse=True)
    heap = [(0, number) for number in range(max(1, bins))]
    placed: list[tuple[int, T]] = []
    for item in ordered:
        filled, number = heapq.heappop(heap)
        heapq.heappush(heap, (filled + cost_of(size(item)), number))
        placed.append((number, item))
    return placed


def by_size(jobs: Iterable[S], bins: int) -> list[list[S]]:
    """Shares of about the same cost."""
    return _gathered(pack(jobs, lambda job: job.size, bins))


def by_pack(jobs: Iterable[Upload], bins: int) -> list[list[Upload]]:
    """Uploads in shares of about the same cost. Small files that share packs stay in their order, so that what lies
    side by side in the tree lies in one pack; each task packs its own share."""
    small: list[Upload] = []
    others: list[Upload] = []
    for job in jobs:
        (small if job.packed and job.size <= SMALL else others).append(job)
    return by_size(others, bins) + _runs(small, min(bins, -(-len(small) // LEAST_PACKED)))


def by_object(jobs: Iterable[Download], bins: int) -> list[list[Download]]:
    """Downloads in shares of about the same cost: those of one object together, so that no pack is fetched twice."""
    objects: dict[str, list[Download]] = {}
    for job in jobs:
        objects.setdefault(object_of(job.key), []).append(job)
    placed = pack(objects.values(), lambda files: sum(job.size + SLICE_COST for job in files), bins)
    return [[job for files in share for job in files] for share in _gathered(placed)]


def _gathered(placed: Iterable[tuple[int, T]]) -> list[list[T]]:
    shares: dict[int, list[T]] = {}
    for number, item in placed:
        shares.setdefault(number, []).append(item)
    return [shares[number] for number in sorted(shares)]


def _runs(jobs: list[Upload], bins: int) -> list[list[Upload]]:
    """Neighbours stay together: `bins` runs that cost about the same."""
    each = sum(job.size + SLICE_COST for job in jobs) / max(1, bins)
    runs: list[list[Upload]] = []
    cost = 0
    for job in jobs:
        if cost >= each * len(runs):
            runs.append([])
        runs[-1].append(job)
        cost += job.size + SLICE_COST
    return runs


def by_count(items: Sequence[T], most: int) -> list[Sequence[T]]:
    """At most so many shares of about as many items."""
    shares = min(len(items), most)
    return [items[number::shares] for number in range(shares)]
