"""The small world of packs: a root, its log, objects with footers, and the programs of everybody who touches them.

Two files, `a` and `b`, lie in the pack P0. A root says of each path which content it is (identity), when that came
(number) and where it lies (object). `test_model_packs.py` lets casts of these programs interleave in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from exploring import Steps


class Row(NamedTuple):
    path: str
    content: str
    number: int
    place: str
    missing: bool = False


class Root(NamedTuple):
    seq: int
    rows: frozenset[Row]
    gone: frozenset[Row] = frozenset()
    collecting: frozenset[str] = frozenset()
    epoch: int = 0
    ops: frozenset[str] = frozenset()
    rebuilt_from: int = 0

    def at(self, path: str) -> Row | None:
        return next((row for row in self.rows if row.path == path), None)

    def put(self, *rows: Row, gone: tuple[Row, ...] = (), op: str = "") -> Root:
        paths = {row.path for row in (*rows, *gone)}
        kept = {row for row in self.rows if row.path not in paths}
        buried = frozenset(row for row in self.gone if row.path not in {r.path for r in rows})
        ops = self.ops | ({op} if op else frozenset())
        new = self._replace(rows=frozenset(kept | set(rows)), gone=buried | frozenset(gone), ops=ops)
        return new._replace(seq=self.seq + 1)


class Actor(NamedTuple):
    at: str = "idle"
    read: Root | None = None
    made: Any = None
    epoch: int = 0
    told: str = ""


class World(NamedTuple):
    root: Root
    log: tuple[Root, ...]
    """The oldest and the newest recorded root: whoever goes back goes back as far as can be."""
    objects: frozenset[str]
    held: frozenset[tuple[str, str, str]]
    """What footers say: (pack, path, content). A pack that is deleted keeps its line here and is not in `objects`."""
    actors: tuple[tuple[str, Actor], ...]
    young: frozenset[str] = frozenset()
    """Packs that were uploaded after the oldest record."""
    restored: bool = False
    rounds: int = 0
    wanted: frozenset[tuple[str, str]] = frozenset()
    """Paths and contents that a root from an older record still owes: they were alive when the root was lost."""

    def __getitem__(self, name: str) -> Actor:  # type: ignore[override]
        return dict(self.actors)[name]

    def act(self, name: str, **changes: Any) -> World:
        now = tuple((n, a._replace(**changes) if n == name else a) for n, a in self.actors)
        return self._replace(actors=now)

    def swap(self, root: Root) -> World:
        """Whoever builds on a root has made sure that its record exists."""
        return self._replace(root=root).recorded(self.root)

    def recorded(self, root: Root | None = None) -> World:
        root = root or self.root
        return self._replace(log=(self.log[0], max(self.log[-1], root, key=lambda old: old.seq)))

    def upload(self, pack: str, files: frozenset[tuple[str, str]]) -> World:
        held = self.held | {(pack, path, content) for path, content in files}
        return self._replace(objects=self.objects | {pack}, held=held, young=self.young | {pack})

    def holds(self, pack: str, path: str, content: str) -> bool:
        return pack in self.objects and (pack, path, content) in self.held


Rules = frozenset[str]
Program = Callable[[World, Rules], Steps[World]]


def answers(world: World, name: str, root: Root, told: str, on: Rules) -> Steps[World]:
    """A swap that won: its writer hears it, or does not, or is no more."""
    won = world.swap(root._replace(ops=root.ops | {name}))
    yield f"{name} swaps and records", won.recorded().act(name, at="done", read=None, made=None, epoch=0, told=told)
    yield f"{name} swaps and dies", won.act(name, at="dead", read=None, made=None, epoch=0, told="")
    lost = "unsure" if "read-back" in on else "done"
    word = told if "read-back" in on else f"failed {told}"
    yield f"{name} swaps, unheard", won.act(name, at=lost, read=None, told=word)


def asks(world: World, name: str, again: str) -> Steps[World]:
    """Whoever was not answered looks for its op: there, it has happened; not there, it begins again."""
    if name in world.root.ops:
        yield f"{name} finds its op", world.recorded().act(name, at="done", made=None, epoch=0)
    else:
        yield f"{name} begins again", world.act(name, at=again, read=None, told="")


def survives(world: World, me: Actor, pack: str, on: Rules) -> bool:
    """Whether an upload may be named by the root that was read: not condemned, and there after any collection."""
    assert me.read is not None
    condemned = "collecting-check" in on and pack in me.read.collecting
    missing = "epoch-check" in on and me.epoch != me.read.epoch and pack not in world.objects
    return not condemned and not missing


def writer(name: str, *paths: str) -> Program:
    files = frozenset((path, f"{path} of {name}") for path in paths)

    def steps(world: World, on: Rules) -> Steps[World]:
        me = world[name]
        if me.at == "idle":
            pack = f"P-{name}{me.told}"
            sent = world.upload(pack, files)
            yield f"{name} uploads", sent.act(name, at="sent", made=pack, epoch=world.root.epoch)
        elif me.at == "sent":
            yield f"{name} reads the root", world.act(name, at="check", read=world.root)
        elif me.at == "check" and me.read is not None:
            if survives(world, me, me.made, on):
                yield f"{name} has checked", world.act(name, at="ready", epoch=me.read.epoch)
            elif me.told == "":
                yield f"{name} uploads again", world.act(name, at="idle", made=None, read=None, told="'")
        elif me.at == "ready" and me.read is not None:
            if world.root.seq != me.read.seq:
                yield f"{name} looks again", world.act(name, at="sent", read=None)
                return
            rows = (Row(path, content, world.root.seq + 1, me.made) for path, content in sorted(files))
            yield from answers(world, name, world.root.put(*rows), "ok", on)
        elif me.at == "unsure":
            yield from asks(world, name, "sent")

    return steps


def deleter(name: str) -> Program:
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
            yield from answers(world, name, root.put(gone=(row,)), f"deleted {told}", on)
        elif me.at == "ready":
            yield f"{name} finds nothing", world.act(name, at="done", read=None, told="nothing")
        elif me.at == "unsure":
            yield from asks(world, name, "idle")

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
        back = root.put(me.made._replace(number=root.seq + 1))
        yield from answers(world._replace(restored=True), "undelete", back, "restored", on)
    elif me.at == "unsure":
        yield from asks(world, "undelete", "idle")


def repacker(name: str) -> Program:
    pack = f"P-{name}"

    def steps(world: World, on: Rules) -> Steps[World]:
        me, root = world[name], world.root
        if me.at == "idle" and any(row.place == "P0" for row in root.rows):
            yield f"{name} reads the root", world.act(name, at="copy", read=root, epoch=root.epoch)
        elif me.at == "copy":
            rows = frozenset(row for row in me.read.rows if row.place == "P0")  # type: ignore[union-attr]
            if "P0" not in world.objects:
                yield f"{name} finds no pack", world.act(name, at="done", read=None)
                return
            sent = world.upload(pack, frozenset((row.path, row.content) for row in rows))
            yield f"{name} copies", sent.act(name, at="look", read=None, made=rows)
        elif me.at == "look":
            yield f"{name} reads again", world.act(name, at="check", read=root)
        elif me.at == "check" and me.read is not None:
            at = "ready" if survives(world, me, pack, on) else "done"
            yield f"{name} checks", world.act(name, at=at, epoch=me.read.epoch)
        elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
            yield f"{name} looks again", world.act(name, at="look", read=None)
        elif me.at == "ready":
            yield from _repacked(world, name, pack, on)
        elif me.at == "unsure":
            yield from asks(world, name, "look")

    return steps


def _repacked(world: World, name: str, pack: str, on: Rules) -> Steps[World]:
    me, root = world[name], world.root
    moved = [row for row in me.made if row in root.rows or "moved-only-unchanged" not in on]
    if not moved:
        yield f"{name} has nothing to move", world.act(name, at="done", read=None, made=None)
        return
    number = {row: row.number if "keeps-number" in on else root.seq + 1 for row in moved}
    new = root.put(*(row._replace(place=pack, number=number[row]) for row in moved))
    yield from answers(world, name, new, "moved", on)
    if "uploads-kept" not in on:  # its answer is lost, it takes that for a failure and tidies up
        won = world.swap(new)
        yield f"{name} tidies up", won._replace(objects=won.objects - {pack}).act(name, at="done", read=None, made=None)


def healer(world: World, on: Rules) -> Steps[World]:
    """`verify --repair`: `a` was read and its bytes were not there; this cache has them and sends them again."""
    me, root = world["heal"], world.root
    if me.at == "idle":
        row = root.at("a")
        if row is not None and row.place == "P0":
            sent = world.upload("P-heal", frozenset({(row.path, row.content)}))
            yield "heal uploads", sent.act("heal", at="look", made=row, epoch=root.epoch)
    elif me.at == "look":
        yield "heal reads the root", world.act("heal", at="check", read=root)
    elif me.at == "check" and me.read is not None:
        at = "ready" if survives(world, me, "P-heal", on) or "heal.survives" not in on else "done"
        yield "heal checks", world.act("heal", at=at, epoch=me.read.epoch)
    elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
        yield "heal looks again", world.act("heal", at="look", read=None)
    elif me.at == "ready":
        same = root.at("a") == me.made or "verify.winner" not in on
        if not same:
            yield "heal finds another", world.act("heal", at="done", read=None, made=None)
            return
        number = me.made.number if "keeps-number" in on else root.seq + 1
        yield from answers(world, "heal", root.put(me.made._replace(place="P-heal", number=number)), "healed", on)
    elif me.at == "unsure":
        yield from asks(world, "heal", "look")


def marker(world: World, on: Rules) -> Steps[World]:
    """`verify --repair` without the bytes: P0 did not answer for a while, and what lies in it is marked as missing."""
    me, root = world["mark"], world.root
    if me.at == "idle":
        row = root.at("a")
        if row is not None and row.place == "P0":
            yield "mark finds nothing in P0", world.act("mark", at="look", made=row)
    elif me.at == "look":
        yield "mark reads the root", world.act("mark", at="ready", read=root)
    elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
        yield "mark looks again", world.act("mark", at="look", read=None)
    elif me.at == "ready":
        if root.at("a") != me.made and "verify.winner" in on:
            yield "mark finds another", world.act("mark", at="done", read=None, made=None)
            return
        number = me.made.number if "keeps-number" in on else root.seq + 1
        yield from answers(world, "mark", root.put(me.made._replace(missing=True, number=number)), "marked", on)
    elif me.at == "unsure":
        yield from asks(world, "mark", "look")


def collector(rounds: int) -> Program:
    def steps(world: World, on: Rules) -> Steps[World]:
        me, root = world["collect"], world.root
        if me.at == "idle" and world.rounds < rounds:
            batch = _garbage(world, on)
            if batch:
                yield "collect marks", world.act("collect", at="condemn", made=batch)
        elif me.at == "condemn":
            batch = me.made - _named(root, on)
            if not batch:
                yield "collect spares all", world._replace(rounds=world.rounds + 1).act("collect", at="idle", made=None)
                return
            new = root._replace(seq=root.seq + 1, collecting=frozenset(batch), epoch=root.epoch + 1)
            condemned = world.swap(new).act("collect", at="delete", made=frozenset(batch))
            yield "collect condemns", condemned.recorded() if "commit.logged" in on else condemned
            yield "collect condemns, unheard", world.swap(new).act("collect", at="unsure", made=frozenset(batch))
        elif me.at == "unsure":
            there = me.made <= root.collecting
            known = world.recorded() if there else world
            yield "collect asks", known.act("collect", at="delete" if there else "condemn")
        elif me.at == "delete":
            yield "collect deletes", world._replace(objects=world.objects - me.made).act("collect", at="clear")
        elif me.at == "clear":
            new = root._replace(seq=root.seq + 1, collecting=root.collecting - me.made)
            cleared = world.swap(new).recorded()._replace(rounds=world.rounds + 1)
            yield "collect clears", cleared.act("collect", at="idle", made=None)

    return steps


def _garbage(world: World, on: Rules) -> frozenset[str]:
    """What nothing names; after a rebuild from an older record, nothing that may have been uploaded after it."""
    unnamed = world.objects - _named(world.root, on)
    keeps = world.root.rebuilt_from and "rebuild.keeps" in on
    return unnamed - world.young if keeps else unnamed


def _named(root: Root, on: Rules) -> frozenset[str]:
    """Objects that are alive: those with a live slice; without the rule, only those of which all slices live."""
    named = [row.place for row in root.rows]
    whole = frozenset(place for place in named if place != "P0" or named.count("P0") == 2)
    return frozenset(named) if "live-if-any" in on else whole


def rebuilder(world: World, on: Rules) -> Steps[World]:
    """The root is lost at some moment, and comes back from the newest log record."""
    del on
    if world["rebuild"].at == "idle":
        last = world.log[-1]
        root = last._replace(seq=last.seq + 2, epoch=last.epoch + 2)
        yield "the root is lost and rebuilt", world._replace(root=root).recorded(root).act("rebuild", at="done")


def reverter(world: World, on: Rules) -> Steps[World]:
    """Root and newest record are lost, somebody agrees to an older one; then what lies elsewhere by now is placed.

    Under the lease of whoever tends the store, which a collector holds too: the older root has forgotten its list.
    """
    me, root = world["revert"], world.root
    busy = any(name == "collect" and actor.at != "idle" for name, actor in world.actors) and "revert.alone" in on
    if me.at == "idle" and world.log[-1] != world.log[0] and not busy:
        old = world.log[0]
        back = old._replace(seq=world.log[-1].seq + 2, epoch=world.log[-1].epoch + 2, rebuilt_from=old.seq)
        both = {(r.path, r.content) for r in root.rows} & {(r.path, r.content) for r in old.rows}
        wanted = frozenset(x for x in both if any(world.holds(pack, *x) for pack in world.objects))
        lost = world._replace(root=back, log=(old, back), wanted=wanted)
        yield "an older record becomes the root", lost.act("revert", at="place")
    elif me.at == "place":
        yield "repair reads the root", world.act("revert", at="ready", read=root, made=_found(world, root, on))
    elif me.at == "ready" and root.seq != me.read.seq:  # type: ignore[union-attr]
        yield "repair looks again", world.act("revert", at="place", read=None, made=None)
    elif me.at == "ready":
        placed = root.put(*me.made)
        if all(row.place in world.objects - root.collecting for row in placed.rows):
            placed = placed._replace(rebuilt_from=0)  # every row has its object: what is unnamed is an orphan again
        yield from answers(world, "revert", placed, "placed", on)
    elif me.at == "unsure":
        yield from asks(world, "revert", "place")


def _found(world: World, root: Root, on: Rules) -> tuple[Row, ...]:
    """For each row whose object is gone, a pack whose footer has that very content: path and hash."""
    found = []
    for row in sorted(root.rows):
        if row.place in world.objects:
            continue
        for pack, path, content in sorted(world.held):
            right = content == row.content or "place.by-hash" not in on
            if pack in world.objects - root.collecting and path == row.path and right:
                found.append(row._replace(place=pack))
                break
    return tuple(found)
