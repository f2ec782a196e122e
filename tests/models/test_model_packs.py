"""Why packs need their rules: several files in one object, and everybody who touches them at once.

Two files, `a` and `b`, lie in the pack P0. A root says of each path which content it is (identity), when that came
(number) and where it lies (object). Actors, each a small program, whose steps interleave in every order; some may die:

    write     uploads a pack with new content for some paths, checks the root, swaps; its answer may be lost
    delete    a pending delete of `a`, of what it once pulled; its answer may be lost
    undelete  brings `a` back while its object waits
    repack    copies what lives in P0 to a pack of its own and swaps; there may be two; its answer may be lost
    heal      verify has seen P0 without its bytes, uploads `a` again from a cache, swaps
    collect   condemns objects that nothing names, deletes them, clears its list; the undo window is over at once
    rebuild   the root is lost at some moment and comes back from the newest log record

DANGLING: an entry names an object that is gone. LOST: an acknowledged write is nowhere. RISEN: an acknowledged delete
is undone by who only moves. WRONG: a delete took content it was not of. REFUSED: a delete was refused although nobody
changed the content. UNTRUE: somebody was told that it failed, and it had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Row(NamedTuple):
    path: str
    content: str
    number: int
    place: str


class Root(NamedTuple):
    seq: int
    rows: frozenset[Row]
    gone: frozenset[Row] = frozenset()
    collecting: frozenset[str] = frozenset()
    epoch: int = 0
    ops: frozenset[str] = frozenset()

    def at(self, path: str) -> Row | None:
        return next((row for row in self.rows if row.path == path), None)

    def put(self, *rows: Row, gone: tuple[Row, ...] = ()) -> Root:
        paths = {row.path for row in (*rows, *gone)}
        kept = {row for row in self.rows if row.path not in paths}
        buried = frozenset(row for row in self.gone if row.path not in {r.path for r in rows})
        return self._replace(seq=self.seq + 1, rows=frozenset(kept | set(rows)), gone=buried | frozenset(gone))


class Actor(NamedTuple):
    at: str = "idle"
    read: Root | None = None
    made: Any = None
    epoch: int = 0
    told: str = ""


class World(NamedTuple):
    root: Root
    logged: Root
    objects: frozenset[str]
    actors: tuple[tuple[str, Actor], ...]
    restored: bool = False
    rounds: int = 0

    def __getitem__(self, name: str) -> Actor:  # type: ignore[override]
        return dict(self.actors)[name]

    def act(self, name: str, **changes: Any) -> World:
        now = tuple((n, a._replace(**changes) if n == name else a) for n, a in self.actors)
        return self._replace(actors=now)

    def swap(self, root: Root) -> World:
        """Whoever builds on a root has made sure that its record exists."""
        return self._replace(root=root, logged=self.root)

    def recorded(self) -> World:
        return self._replace(logged=self.root)


Rules = frozenset[str]
ALL: Rules = frozenset(
    "live-if-any moved-only-unchanged identity keeps-number gc.objects collecting-check epoch-check "
    "commit.logged read-back uploads-kept verify.winner".split()
)


def writer(name: str, *paths: str) -> Callable[[World, Rules], Steps[World]]:
    def steps(world: World, on: Rules) -> Steps[World]:
        me = world[name]
        if me.at == "idle":
            pack = f"P-{name}{me.told}"
            sent = world._replace(objects=world.objects | {pack})
            yield f"{name} uploads", sent.act(name, at="sent", made=pack, epoch=world.root.epoch)
        elif me.at == "sent":
            yield f"{name} reads the root", world.act(name, at="check", read=world.root)
        elif me.at == "check" and me.read is not None:
            condemned = "collecting-check" in on and me.made in me.read.collecting
            missing = "epoch-check" in on and me.epoch != me.read.epoch and me.made not in world.objects
            if not condemned and not missing:
                yield f"{name} has checked", world.act(name, at="ready", epoch=me.read.epoch)
            elif me.told == "":
                yield f"{name} uploads again", world.act(name, at="idle", made=None, read=None, told="'")
        elif me.at == "ready" and me.read is not None:
            yield from _written(world, name, paths)

    return steps


def _written(world: World, name: str, paths: tuple[str, ...]) -> Steps[World]:
    me = world[name]
    if world.root.seq != me.read.seq:  # type: ignore[union-attr]
        yield f"{name} looks again", world.act(name, at="sent", read=None)
        return
    new = world.root.put(*(Row(p, f"{p} of {name}", world.root.seq + 1, me.made) for p in paths))
    yield f"{name} swaps and records", world.swap(new).recorded().act(name, at="done", read=None, told="ok")
    yield f"{name} swaps and dies", world.swap(new).act(name, at="dead", read=None)


def deleter(name: str) -> Callable[[World, Rules], Steps[World]]:
    def steps(world: World, on: Rules) -> Steps[World]:
        me, root = world[name], world.root
        row = root.at("a")
        if me.at == "idle":
            yield f"{name} reads the root", world.act(name, at="ready", read=root)
        elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
            yield f"{name} looks again", world.act(name, at="idle", read=None)
        elif me.at == "ready" and row is not None:
            mine = (row.content, row.number) == ("old a", 1) if "identity" in on else row.place == "P0"
            told = row.content + (" restored" if world.restored else "")
            if not mine:
                yield f"{name} is refused", world.act(name, at="done", read=None, told=f"refused {told}")
                return
            gone = world.swap(root.put(gone=(row,))._replace(ops=root.ops | {name}))
            yield f"{name} deletes", gone.recorded().act(name, at="done", read=None, told=f"deleted {told}")
            yield f"{name} deletes, unheard", gone.act(name, at="unsure", read=None, told=told)
        elif me.at == "ready":
            yield f"{name} finds nothing", world.act(name, at="done", read=None, told="nothing")
        elif me.at == "unsure":
            if "read-back" not in on:
                yield f"{name} gives up", world.act(name, at="done", told="failed")
            elif name in root.ops:
                yield f"{name} finds its op", world.recorded().act(name, at="done", told=f"deleted {me.told}")
            else:
                yield f"{name} begins again", world.act(name, at="idle", told="")

    return steps


def restorer(world: World, on: Rules) -> Steps[World]:
    me, root = world["undelete"], world.root
    if me.at == "idle" and root.at("a") is None:
        for row in root.gone:
            if row.path == "a":
                yield "undelete reads the root", world.act("undelete", at="look", read=root, made=row)
    elif me.at == "look":
        condemned = "gc.objects" in on and me.made.place in me.read.collecting  # type: ignore[union-attr]
        there = not condemned and me.made.place in world.objects
        yield "undelete looks", world.act("undelete", at="ready" if there else "done", read=me.read if there else None)
    elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
        yield "undelete looks again", world.act("undelete", at="idle", read=None, made=None)
    elif me.at == "ready":
        back = world.swap(root.put(me.made._replace(number=root.seq + 1))).recorded()
        yield "undelete swaps", back._replace(restored=True).act("undelete", at="done", read=None, made=None)


def repacker(name: str) -> Callable[[World, Rules], Steps[World]]:
    pack = f"P-{name}"

    def steps(world: World, on: Rules) -> Steps[World]:
        me, root = world[name], world.root
        if me.at == "idle" and any(row.place == "P0" for row in root.rows):
            yield f"{name} reads the root", world.act(name, at="copy", read=root, epoch=root.epoch)
        elif me.at == "copy":
            there = "P0" in world.objects
            sent = world._replace(objects=world.objects | {pack}) if there else world
            rows = frozenset(row for row in me.read.rows if row.place == "P0")  # type: ignore[union-attr]
            yield f"{name} copies", sent.act(name, at="look" if there else "done", read=None, made=rows)
        elif me.at == "look":
            yield f"{name} reads again", world.act(name, at="check", read=root)
        elif me.at == "check" and me.read is not None:
            condemned = "collecting-check" in on and pack in me.read.collecting
            missing = "epoch-check" in on and me.read.epoch != me.epoch and pack not in world.objects
            yield f"{name} checks", world.act(name, at="done" if condemned or missing else "ready")
        elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
            yield f"{name} looks again", world.act(name, at="look", read=None)
        elif me.at == "ready":
            yield from _repacked(world, name, pack, on)

    return steps


def _repacked(world: World, name: str, pack: str, on: Rules) -> Steps[World]:
    me, root = world[name], world.root
    moved = [row for row in me.made if row in root.rows or "moved-only-unchanged" not in on]
    if not moved:
        yield f"{name} has nothing to move", world.act(name, at="done", read=None, made=None)
        return
    number = {row: row.number if "keeps-number" in on else root.seq + 1 for row in moved}
    new = world.swap(root.put(*(row._replace(place=pack, number=number[row]) for row in moved)))
    yield f"{name} swaps", new.recorded().act(name, at="done", read=None, made=None)
    yield f"{name} swaps and dies", new.act(name, at="dead", read=None, made=None)
    if "uploads-kept" not in on:  # its answer is lost, it takes that for a failure and tidies up
        unheard = new.recorded()
        yield (
            f"{name} swaps, unheard",
            unheard._replace(objects=unheard.objects - {pack}).act(name, at="done", read=None),
        )


def healer(world: World, on: Rules) -> Steps[World]:
    """`a` was read and its bytes were not there; this cache has them."""
    me, root = world["heal"], world.root
    if me.at == "idle":
        row = root.at("a")
        if row is not None and row.place == "P0":
            sent = world._replace(objects=world.objects | {"P-heal"})
            yield "heal uploads", sent.act("heal", at="look", made=row)
    elif me.at == "look":
        yield "heal reads the root", world.act("heal", at="ready", read=root)
    elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
        yield "heal looks again", world.act("heal", at="look", read=None)
    elif me.at == "ready":
        same = root.at("a") == me.made or "verify.winner" not in on
        if not same:
            yield "heal finds another", world.act("heal", at="done", read=None, made=None)
            return
        number = me.made.number if "keeps-number" in on else root.seq + 1
        healed = root.put(me.made._replace(place="P-heal", number=number))
        yield "heal swaps", world.swap(healed).recorded().act("heal", at="done", read=None, made=None)


def collector(rounds: int) -> Callable[[World, Rules], Steps[World]]:
    def steps(world: World, on: Rules) -> Steps[World]:
        me, root = world["collect"], world.root
        if me.at == "idle" and world.rounds < rounds:
            batch = world.objects - _named(root, on)
            if batch:
                yield "collect marks", world.act("collect", at="condemn", made=frozenset(batch))
        elif me.at == "condemn":
            batch = me.made - _named(root, on)
            if not batch:
                yield "collect spares all", world._replace(rounds=world.rounds + 1).act("collect", at="idle", made=None)
                return
            new = root._replace(seq=root.seq + 1, collecting=frozenset(batch), epoch=root.epoch + 1)
            condemned = world.swap(new).act("collect", at="delete", made=frozenset(batch))
            yield "collect condemns", condemned.recorded() if "commit.logged" in on else condemned
        elif me.at == "delete":
            yield "collect deletes", world._replace(objects=world.objects - me.made).act("collect", at="clear")
        elif me.at == "clear":
            new = root._replace(seq=root.seq + 1, collecting=root.collecting - me.made)
            cleared = world.swap(new).recorded()._replace(rounds=world.rounds + 1)
            yield "collect clears", cleared.act("collect", at="idle", made=None)

    return steps


def _named(root: Root, on: Rules) -> frozenset[str]:
    """Objects that are alive: those with a live slice; without the rule, only those of which all slices live."""
    named = [row.place for row in root.rows]
    whole = frozenset(place for place in named if place != "P0" or named.count("P0") == 2)
    return frozenset(named) if "live-if-any" in on else whole


def rebuilder(world: World, on: Rules) -> Steps[World]:
    del on
    if world["rebuild"].at == "idle":
        root = world.logged._replace(seq=world.logged.seq + 2, epoch=world.logged.epoch + 2)
        yield "the root is lost and rebuilt", world._replace(root=root, logged=root).act("rebuild", at="done")


PROGRAMS: dict[str, Callable[[World, Rules], Steps[World]]] = {
    "write": writer("write", "a", "b"),
    "overwrite": writer("overwrite", "a"),
    "delete": deleter("delete"),
    "delete too": deleter("delete too"),
    "undelete": restorer,
    "repack": repacker("repack"),
    "repack too": repacker("repack too"),
    "heal": healer,
    "collect": collector(1),
    "collect twice": collector(2),
    "rebuild": rebuilder,
}
OLD = frozenset({Row("a", "old a", 1, "P0"), Row("b", "old b", 1, "P0")})


def harms(world: World) -> Iterator[str]:
    live = {row.content for row in world.root.rows}
    known = live | {row.content for row in world.root.gone}
    if not {row.place for row in world.root.rows} <= world.objects:
        yield "DANGLING"
    told = {name: actor.told for name, actor in world.actors}
    if told.get("write") == "ok" and "b of write" not in known:
        yield "LOST"
    if told.get("overwrite") == "ok" and told.get("write") != "ok" and "a of overwrite" not in known:
        yield "LOST"
    for name in ("delete", "delete too"):
        said = told.get(name, "")
        if said == "deleted old a" and not world.restored and "old a" in live:
            yield "RISEN"
        if said.startswith("deleted ") and said != "deleted old a":
            yield "WRONG"
        if said == "refused old a":
            yield "REFUSED"
        if said == "failed" and "old a" not in live:
            yield "UNTRUE"


def check(cast: str, without: str = "", limit: int = 400_000) -> Explored:
    names = [name.strip() for name in cast.split(",")]
    actors = tuple(("collect" if name == "collect twice" else name, Actor()) for name in names)
    first = Root(1, OLD)
    start = World(first, first, frozenset({"P0"}), actors)
    on = ALL - {without}

    def steps(world: World) -> Steps[World]:
        for name in names:
            yield from PROGRAMS[name](world, on)

    return explore(start, steps, lambda world, quiet: harms(world), stop_at_first=True, limit=limit)


CASTS = {
    "write, delete, repack, collect": 5_000,
    "overwrite, delete, repack, collect": 3_000,
    "delete, delete too, undelete, repack": 500,
    "delete, undelete, repack, collect twice": 1_000,
    "repack, repack too, delete, collect twice": 3_000,
    "heal, overwrite, delete, repack": 2_000,
    "overwrite, undelete, delete, collect, rebuild": 3_000,
    "repack, delete, undelete, collect, rebuild": 3_000,
}


@pytest.mark.inv("pack.live-if-any")
@pytest.mark.parametrize("cast", CASTS)
def test_with_every_rule_nobody_comes_to_harm(cast):
    safe(check(cast), at_least=CASTS[cast])


@pytest.mark.inv("pack.moved-only-unchanged")
@pytest.mark.parametrize(
    ("rule", "cast", "harm"),
    [
        ("live-if-any", "delete, undelete, repack, collect twice", "DANGLING"),
        ("moved-only-unchanged", "overwrite, repack, collect", "LOST"),
        ("moved-only-unchanged", "repack, repack too, delete, collect twice", "RISEN"),
        ("identity", "delete, delete too, undelete, repack", "WRONG"),
        ("identity", "delete, repack", "REFUSED"),
        ("identity", "heal, overwrite, delete, repack", "REFUSED"),
        ("keeps-number", "write, delete, repack, collect", "REFUSED"),
        ("keeps-number", "heal, overwrite, delete, repack", "REFUSED"),
        ("gc.objects", "delete, undelete, repack, collect twice", "DANGLING"),
        ("collecting-check", "write, delete, repack, collect", "DANGLING"),
        ("epoch-check", "write, delete, repack, collect", "DANGLING"),
        ("commit.logged", "repack, delete, undelete, collect, rebuild", "DANGLING"),
        ("read-back", "delete, undelete, repack, collect twice", "UNTRUE"),
        ("uploads-kept", "repack, repack too, delete, collect twice", "DANGLING"),
        ("verify.winner", "heal, overwrite, repack", "LOST"),
        ("verify.winner", "heal, delete", "RISEN"),
    ],
)
def test_without_one_somebody_does(rule, cast, harm):
    harmful(check(cast, rule), harm)
