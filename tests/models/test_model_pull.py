"""Two pulls in one cache while the root moves on: the older one must not have the last word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe

OLD, FIRST, SECOND = 4, 5, 6


class Pull(NamedTuple):
    at: str = "idle"
    root: int = 0
    base: int = 0


class Cache(NamedTuple):
    tree: int = OLD
    base: int = OLD
    pulled: int = OLD
    root: int = FIRST
    pulls: tuple[Pull, Pull] = (Pull(), Pull())

    def turn(self, i: int, pull: Pull) -> Cache:
        return self._replace(pulls=(pull, self.pulls[1]) if i == 0 else (self.pulls[0], pull))


def pulling(cache: Cache, i: int, *, one_at_a_time: bool, base_as_read: bool) -> Steps[Cache]:
    pull, other = cache.pulls[i], cache.pulls[1 - i]
    match pull.at:
        case "idle" if not (one_at_a_time and other.at in ("planned", "renamed")):
            yield f"{i} plans {cache.root}", cache.turn(i, Pull("planned", cache.root, cache.base))
        case "planned" if base_as_read and cache.base != pull.base:
            yield f"{i} plans again", cache.turn(i, Pull())
        case "planned":
            renamed = cache._replace(tree=pull.root, base=pull.root)
            yield f"{i} renames {pull.root}", renamed.turn(i, pull._replace(at="renamed"))
        case "renamed":
            # The mark only grows: that alone is not enough, as the last test shows.
            marked = cache._replace(pulled=max(cache.pulled, pull.root))
            yield f"{i} marks {pull.root}", marked.turn(i, pull._replace(at="end"))


def harms(cache: Cache, quiet: bool) -> Iterator[str]:
    if quiet and cache.pulled == cache.root and cache.tree != cache.root:
        yield "STALE"


def check(*, one_at_a_time: bool, base_as_read: bool) -> Explored:
    def steps(cache: Cache) -> Steps[Cache]:
        if cache.root == FIRST:
            yield "the root moves on", cache._replace(root=SECOND)
        for i in (0, 1):
            yield from pulling(cache, i, one_at_a_time=one_at_a_time, base_as_read=base_as_read)

    return explore(Cache(), steps, harms, stop_at_first=True)


@pytest.mark.inv("sync.derived")
@pytest.mark.parametrize(("one_at_a_time", "base_as_read"), [(True, True), (True, False), (False, True)])
def test_either_rule_keeps_the_newer_file(one_at_a_time: bool, base_as_read: bool) -> None:
    safe(check(one_at_a_time=one_at_a_time, base_as_read=base_as_read), at_least=15)


@pytest.mark.inv("sync.derived")
def test_without_both_rules_a_cache_is_in_sync_and_stale_for_ever() -> None:
    harmful(check(one_at_a_time=False, base_as_read=False), "STALE")
