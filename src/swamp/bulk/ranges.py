"""How a bucket is cut into pieces that tasks can list at the same time, without listing it first.

Directories are opened level by level until there are enough pieces. A directory that is flat and long is cut by the
first character of its names, which never cuts through a directory below it. What belongs to another store inside this
one is left out where it is met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.errors import ObjectMissing
from swamp.index.root import ROOT_KEY
from swamp.store.port import ObjectMeta, ObjectStore

PAGE: Final = 1_000
DEPTH: Final = 6
MARKERS: Final = (ROOT_KEY, ".namespace.json")
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
        done.extend(_by_character(prefix))
        return []
    level = store.level(prefix)
    objects.extend(level.objects)
    return [f"{directory}/" for directory in level.dirs]


def _by_character(prefix: str) -> Iterator[KeyRange]:
    cuts = [f"{prefix}{letter}" for letter in CUTS]
    for after, until in zip([None, *cuts], [*cuts, None], strict=True):
        yield KeyRange(prefix, after, until)


def _is_foreign(store: ObjectStore, prefix: str) -> bool:
    """Whether another store begins here: its objects are not ours (L34)."""
    for marker in MARKERS:
        try:
            store.head(prefix + marker)
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


def by_weight(marks: Iterable[tuple[str, int]], wanted: int) -> list[tuple[str, str | None]]:
    """Path ranges `[start, stop)`, at most `wanted`, of about the same weight; a mark weighs what follows it."""
    ordered = sorted(marks)
    each = sum(weight for _, weight in ordered) / max(1, wanted)
    cuts, filled = [""], 0
    for path, weight in ordered:
        if path > cuts[-1] and filled >= each * len(cuts):
            cuts.append(path)
        filled += weight
    return list(zip(cuts, [*cuts[1:], None], strict=True))
