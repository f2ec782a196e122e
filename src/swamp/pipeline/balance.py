"""Sharing work out so that tasks end at about the same time: by bytes, not by count.

A file costs its bytes and a fixed amount for its requests. The largest go first, each to the emptiest bin, so that
one huge file has a bin of its own and holds up nobody.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
FILE_COST: Final = 256 * 1024
"""What a request costs, in bytes that could have been sent meanwhile."""
BIN_COST: Final = 1024 * 1024 * 1024
"""What a task takes on: a few seconds' work, so that what starting a task costs does not count."""
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


def chunked(items: Sequence[T], length: int) -> list[Sequence[T]]:
    """Pieces of at most `length`: how a directory with a million names becomes many rows."""
    return [items[i : i + length] for i in range(0, len(items), length)]
