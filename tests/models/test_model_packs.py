"""Why packs need their rules: several files in one object, and everybody who touches them at once.

The programs (`packed.py`), whose steps interleave in every order; any of them may die after its swap, or never hear
the answer to it:

    write     uploads a pack with new content for some paths, checks the root, swaps
    delete    a pending delete of `a`, of what it once pulled
    undelete  brings `a` back while its object waits
    repack    copies what lives in P0 to a pack of its own and swaps; there may be two
    heal      verify has seen P0 without its bytes, uploads `a` again from a cache, swaps
    mark      verify has seen the same and has no bytes: the row is marked
    collect   condemns objects that nothing names, deletes them, clears its list; the undo window is over at once
    rebuild   the root is lost at some moment and comes back from the newest log record
    revert    the newest records are lost too: an older one becomes the root, and footers tell where its files are

DANGLING: an entry names an object that is gone. LOST: an acknowledged write is nowhere. RISEN: an acknowledged delete
is undone by who only moves. WRONG: a delete took content it was not of. REFUSED: a delete was refused although nobody
changed the content. UNTRUE: somebody was told that it failed, and it had happened. NOWHERE: what was alive when the
root was lost lies in no pack any more. ANOTHER: an entry names a slice with other content.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from exploring import Explored, Steps, explore, harmful, safe
from packed import (
    Actor,
    Program,
    Root,
    Row,
    Rules,
    World,
    collector,
    deleter,
    healer,
    marker,
    rebuilder,
    repacker,
    restorer,
    reverter,
    writer,
)

ALL: Rules = frozenset(
    "live-if-any moved-only-unchanged identity keeps-number gc.objects collecting-check epoch-check heal.survives "
    "commit.logged read-back uploads-kept verify.winner rebuild.keeps place.by-hash revert.alone".split()
)
PROGRAMS: dict[str, Program] = {
    "write": writer("write", "a", "b"),
    "overwrite": writer("overwrite", "a"),
    "delete": deleter("delete"),
    "delete too": deleter("delete too"),
    "undelete": restorer,
    "repack": repacker("repack"),
    "repack too": repacker("repack too"),
    "heal": healer,
    "mark": marker,
    "collect": collector(1),
    "collect twice": collector(2),
    "rebuild": rebuilder,
    "revert": reverter,
}
OLD = frozenset({Row("a", "old a", 1, "P0"), Row("b", "old b", 1, "P0")})


def harms(world: World) -> Iterator[str]:
    live = {row.content for row in world.root.rows}
    known = live | {row.content for row in world.root.gone}
    reverted = world.root.rebuilt_from or any(n == "revert" and a.at != "idle" for n, a in world.actors)
    if not reverted and not {row.place for row in world.root.rows} <= world.objects:
        yield "DANGLING"
    if any(r.place in world.objects and (r.place, r.path, r.content) not in world.held for r in world.root.rows):
        yield "ANOTHER"
    for path, content in world.wanted:
        named = any((row.path, row.content) == (path, content) for row in world.root.rows)
        if named and not any(world.holds(pack, path, content) for pack in world.objects):
            yield "NOWHERE"
    if not reverted:
        yield from _told(world, live, known)


def _told(world: World, live: set[str], known: set[str]) -> Iterator[str]:
    told = {name: actor.told for name, actor in world.actors if actor.at == "done"}
    if told.get("write") == "ok" and "b of write" not in known:
        yield "LOST"
    if told.get("overwrite") == "ok" and told.get("write", "") == "" and "a of overwrite" not in known:
        yield "LOST"
    for name in ("delete", "delete too"):
        said = told.get(name, "")
        if said == "deleted old a" and not world.restored and "old a" in live:
            yield "RISEN"
        if said.startswith("deleted ") and said != "deleted old a":
            yield "WRONG"
        if said == "refused old a":
            yield "REFUSED"
        if said == "failed deleted old a" and "old a" not in live:
            yield "UNTRUE"
    if told.get("write") == "failed ok" and "b of write" in live:
        yield "UNTRUE"


def check(cast: str, without: str = "", limit: int = 400_000) -> Explored:
    names = [name.strip() for name in cast.split(",")]
    actors = tuple(("collect" if name == "collect twice" else name, Actor()) for name in names)
    first = Root(1, OLD)
    held = frozenset(("P0", row.path, row.content) for row in OLD)
    start = World(first, (first, first), frozenset({"P0"}), held, actors)
    on = ALL - {without}

    def steps(world: World) -> Steps[World]:
        for name in names:
            yield from PROGRAMS[name](world, on)

    return explore(start, steps, lambda world, quiet: harms(world), stop_at_first=True, limit=limit)


CASTS = {
    "write, delete, repack, collect": 40_000,
    "overwrite, delete, repack, collect": 40_000,
    "delete, delete too, undelete, repack": 4_000,
    "delete, undelete, repack, collect twice": 5_000,
    "repack, repack too, delete, collect": 20_000,
    "repack, repack too, collect twice": 4_000,
    "heal, overwrite, delete, repack": 10_000,
    "heal, overwrite, collect": 1_500,
    "heal, repack, collect": 1_500,
    "mark, delete, undelete, overwrite": 2_500,
    "mark, repack, delete, collect": 8_000,
    "mark, heal, repack": 500,
    "overwrite, delete, collect, rebuild": 3_000,
    "repack, delete, undelete, collect, rebuild": 40_000,
    "repack, heal, collect, rebuild": 3_000,
    "revert, repack, collect twice": 250,
    "revert, write, collect twice": 1_000,
    "revert, heal, collect": 100,
    "revert, repack, repack too": 250,
}


@pytest.mark.inv("pack.live-if-any")
@pytest.mark.inv("rebuild.keeps")
@pytest.mark.parametrize("cast", CASTS)
def test_with_every_rule_nobody_comes_to_harm(cast):
    safe(check(cast), at_least=CASTS[cast])


@pytest.mark.inv("pack.moved-only-unchanged")
@pytest.mark.parametrize(
    ("rule", "cast", "harm"),
    [
        ("live-if-any", "delete, undelete, repack, collect twice", "DANGLING"),
        ("moved-only-unchanged", "overwrite, repack, collect", "LOST"),
        ("moved-only-unchanged", "repack, repack too, delete, collect", "RISEN"),
        ("identity", "delete, delete too, undelete, repack", "WRONG"),
        ("identity", "delete, repack", "REFUSED"),
        ("identity", "heal, overwrite, delete, repack", "REFUSED"),
        ("keeps-number", "write, delete, repack, collect", "REFUSED"),
        ("keeps-number", "heal, overwrite, delete, repack", "REFUSED"),
        ("keeps-number", "mark, delete", "REFUSED"),
        ("gc.objects", "delete, undelete, repack, collect twice", "DANGLING"),
        ("collecting-check", "write, delete, repack, collect", "DANGLING"),
        ("epoch-check", "write, delete, repack, collect", "DANGLING"),
        ("heal.survives", "heal, collect", "DANGLING"),
        ("commit.logged", "repack, delete, undelete, collect, rebuild", "DANGLING"),
        ("read-back", "delete, undelete, repack, collect twice", "UNTRUE"),
        ("read-back", "write, collect", "UNTRUE"),
        ("uploads-kept", "repack, repack too, delete, collect", "DANGLING"),
        ("verify.winner", "heal, overwrite, repack", "LOST"),
        ("verify.winner", "heal, delete", "RISEN"),
        ("verify.winner", "mark, overwrite", "LOST"),
        ("verify.winner", "mark, delete", "RISEN"),
        ("rebuild.keeps", "revert, repack, collect twice", "NOWHERE"),
        ("place.by-hash", "revert, write, collect twice", "ANOTHER"),
        ("revert.alone", "revert, repack, collect twice", "NOWHERE"),
    ],
)
def test_without_one_somebody_does(rule, cast, harm):
    harmful(check(cast, rule), harm)
