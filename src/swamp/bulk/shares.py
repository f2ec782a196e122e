"""How work is cut into shares: files by what they cost, a bucket by ranges of keys, an index by ranges of paths.

A file costs its bytes and a fixed amount for its requests. The largest go first, each to the emptiest bin, so that
one huge file has a bin of its own and holds up nobody.

A bucket is cut without listing it first: directories are opened level by level until there are enough pieces. A
directory that is flat and long is cut by the first character of its names, which never cuts through a directory below
it. What belongs to another store inside this one is left out where it is met.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.errors import ObjectMissing
from swamp.index.adopt import MARKERS, marks_store
from swamp.index.entry import object_of
from swamp.index.root import Span
from swamp.store.port import ObjectMeta, ObjectStore
from swamp.sync.bulk import Download, Hash, Upload
from swamp.sync.transfer import SMALL

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


def pack(items: Iterable[T], size: Callable[[T], int], bins: int) -> list[list[T]]:
    """The items in shares of about the same cost; the first holds the most expensive item and is scheduled first."""
    heap = [(0, number) for number in range(max(1, bins))]
    shares: list[list[T]] = [[] for _ in heap]
    for item in sorted(items, key=size, reverse=True):
        filled, number = heapq.heappop(heap)
        heapq.heappush(heap, (filled + cost_of(size(item)), number))
        shares[number].append(item)
    return list(filter(None, shares))


def by_size(jobs: Iterable[S], bins: int) -> list[list[S]]:
    """Shares of about the same cost."""
    return pack(jobs, lambda job: job.size, bins)


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
    shares = pack(objects.values(), lambda files: sum(job.size + SLICE_COST for job in files), bins)
    return [[job for files in share for job in files] for share in shares]


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


PAGE: Final = 1_000
DEPTH: Final = 6
CUTS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Keys that start with `prefix`, later than `after` and not later than `until`."""

    prefix: str
    after: str | None = None
    until: str | None = None


Listed = KeyRange | list[ObjectMeta]
"""What a task lists, or has at hand."""


@dataclass
class Pieces:
    """Ranges to be listed, and the objects that were met while cutting."""

    ranges: list[KeyRange]
    objects: list[ObjectMeta]

    @property
    def listed(self) -> list[Listed]:
        met = sorted(self.objects, key=lambda meta: meta.key)
        return [*self.ranges, *([met] if met else [])]


def cut(store: ObjectStore, wanted: int, tops: Sequence[str] = TIER_DIRECTORIES) -> Pieces:
    """At least `wanted` pieces where there is that much; the request count grows with the pieces, not the objects."""
    done: list[KeyRange] = []
    objects: list[ObjectMeta] = []
    waiting = [f"{top}/" for top in tops]
    for _ in range(DEPTH):
        if not waiting or len(done) + len(waiting) >= wanted:
            break
        waiting = [inner for prefix in waiting for inner in _opened(store, prefix, done, objects)]
    return Pieces(done + [KeyRange(prefix) for prefix in waiting if not _is_foreign(store, prefix)], objects)


def _opened(store: ObjectStore, prefix: str, done: list[KeyRange], objects: list[ObjectMeta]) -> list[str]:
    """The directories below; short and flat ones are done."""
    page = next(iter(store.list(prefix)), ())
    if len(page) < PAGE:
        if page:
            done.append(KeyRange(prefix))
        return []
    if _is_foreign(store, prefix):
        return []
    if all("/" not in meta.key[len(prefix) :] for meta in page):
        cuts = [f"{prefix}{letter}" for letter in CUTS]
        done += [KeyRange(prefix, *ends) for ends in zip([None, *cuts], [*cuts, None], strict=True)]
        return []
    level = store.level(prefix)
    objects.extend(level.objects)
    return [f"{directory}/" for directory in level.dirs]


def _is_foreign(store: ObjectStore, prefix: str) -> bool:
    """Whether another store begins here: its objects are not ours (L34)."""
    for marker in filter(marks_store, (prefix + name for name in MARKERS)):
        try:
            store.head(marker)
        except ObjectMissing:
            continue
        return True
    return False


def pages_of(store: ObjectStore, found: Listed) -> Iterator[list[ObjectMeta]]:
    """The listing of one range, a page at a time."""
    if isinstance(found, list):
        yield found
        return
    for page in store.list(found.prefix, start_after=found.after):
        inside = [meta for meta in page if found.until is None or meta.key <= found.until]
        yield inside
        if len(inside) < len(page):
            return


def by_weight(marks: Iterable[tuple[str, int]], wanted: int) -> list[Span]:
    """Spans of paths, at most `wanted`, of about the same weight; a mark weighs what follows it."""
    ordered = sorted(marks)
    each = sum(weight for _, weight in ordered) / max(1, wanted)
    cuts, filled = [""], 0
    for path, weight in ordered:
        if path > cuts[-1] and filled >= each * len(cuts) and len(cuts) < wanted:
            cuts.append(path)
        filled += weight
    return list(map(Span, cuts, [*cuts[1:], None]))
