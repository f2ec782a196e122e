"""Two caches, one path, and everything a machine remembers: journal row, base, staged upload; crashes and lost state.

A push stages, swaps (deciding on the root it swaps on) and records; a pull renames and then writes base. A crash may
come after each step, the user may act in between, `state.db` may be lost. Every user write is a new content. Harms:
the root holds a content that a committed delete had removed (RESURRECTED); an acknowledged content is in no root, tree
or conflicts/ although nobody who had seen it replaced or deleted it (LOST); all is quiet and a deleted content is live
and nobody was told (DELETE LOST); all is quiet and the two differ (NOT CONVERGED).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe

FRESH = "bcdef"


class Held(NamedTuple):
    """Bytes under a key: what a root names, what base proves, what was uploaded."""

    key: int
    content: str


class Machine(NamedTuple):
    local: str | None
    base: Held | None
    row: str = ""  # "", "write" or "delete"
    newest: int = 0  # grows with every announcement
    staged: Held | None = None
    at: str = "idle"
    snapshot: int = 0  # `newest` when the plan looked
    target: Held | None = None  # what a pull is bringing
    seen: frozenset[str] = frozenset()


class Budget(NamedTuple):
    writes: int
    deletes: int
    crashes: int
    losses: int


class World(NamedTuple):
    root: Held | None
    tombstone: Held | None
    committed: frozenset[Held]
    machines: tuple[Machine, Machine]
    next_key: int
    left: Budget
    killed: frozenset[str] = frozenset()
    acked: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()

    def machine(self, i: int, **changes: Any) -> World:
        mine = self.machines[i]._replace(**changes)
        return self._replace(machines=(mine, self.machines[1]) if i == 0 else (self.machines[0], mine))

    def spend(self, kind: str) -> World:
        return self._replace(left=self.left._replace(**{kind: getattr(self.left, kind) - 1}))


@dataclass(frozen=True)
class Rules:
    staged_proves: bool = True  # a key of mine in the store's history proves my commit: it is base
    found_waits: bool = True  # a file that nobody announced does not beat a tombstone
    newer_survives: bool = True  # a record leaves rows that are newer than its snapshot


ALL = Rules()


def base_of(rules: Rules, machine: Machine, world: World) -> Held | None:
    staged = machine.staged
    landed = rules.staged_proves and staged is not None and staged in world.committed
    if landed and staged is not None and (machine.base is None or machine.base.key < staged.key):
        return staged
    return machine.base


def decide(rules: Rules, machine: Machine, world: World) -> str:
    """The decision table, for one path."""
    base, remote, local = base_of(rules, machine, world), world.root, machine.local
    same = remote == base
    if local is None:
        if remote is None:
            return "forget"
        return "delete" if machine.row == "delete" and same else "pull"
    if remote is not None and local == remote.content:
        return "adopt"
    if base is not None and local == base.content:
        if same:
            return "nothing"
        return "pull" if remote else ("aside" if world.tombstone else "nothing")
    if remote is not None and not same:
        return "conflict"
    found = machine.row != "write" and rules.found_waits
    return "aside" if remote is None and world.tombstone and found else "push"


def using(world: World, i: int, name: str) -> Steps[World]:
    """The user writes or deletes; `tree.lock` keeps that out of a pull's rename."""
    machine, left = world.machines[i], world.left
    if machine.at == "renamed":
        return
    gone = frozenset({machine.local}) if machine.local else frozenset[str]()
    announced = world._replace(replaced=world.replaced | gone)
    newest = machine.newest + 1
    if left.writes:
        content = FRESH[left.writes - 1]
        wrote = announced.machine(i, local=content, row="write", newest=newest, seen=machine.seen | {content})
        yield f"{name} writes {content}", wrote.spend("writes")
    if left.deletes and machine.local:
        removed = announced._replace(deleted=world.deleted | gone)
        yield (
            f"{name} deletes {machine.local}",
            removed.machine(i, local=None, row="delete", newest=newest).spend("deletes"),
        )


def planning(rules: Rules, world: World, i: int, name: str) -> Steps[World]:
    """One step of a sync from rest: what the table says for this path."""
    machine, root = world.machines[i], world.root
    action = decide(rules, machine, world)
    if action == "push":
        assert machine.local is not None
        reusable = machine.staged is not None and machine.staged.content == machine.local
        if reusable and machine.staged not in world.committed:
            yield f"{name} stages again", world.machine(i, at="staged", snapshot=machine.newest)
        else:
            upload = Held(world.next_key, machine.local)
            staged = world.machine(i, staged=upload, at="staged", snapshot=machine.newest)
            yield f"{name} stages {machine.local}", staged._replace(next_key=world.next_key + 1)
    elif action == "delete":
        assert root is not None
        swapped = world._replace(root=None, tombstone=root, killed=world.killed | {root.content})
        yield f"{name} swaps a delete", swapped.machine(i, at="deleted", snapshot=machine.newest)
    elif action in ("pull", "conflict"):
        yield from taking(world, i, name, conflict=action == "conflict")
    elif action == "aside":
        assert machine.local is not None
        aside = world._replace(kept=world.kept | {machine.local})
        yield f"{name} moves {machine.local} aside", aside.machine(i, local=None, base=None, row="")
    else:
        proven = {"adopt": root, "forget": None, "nothing": base_of(rules, machine, world)}[action]
        unsettled = machine.row if action == "nothing" else (proven, "") != (machine.base, machine.row)
        if unsettled:
            yield f"{name}: {action}", world.machine(i, base=proven, row="")


def taking(world: World, i: int, name: str, *, conflict: bool) -> Steps[World]:
    machine, root = world.machines[i], world.root
    assert root is not None
    seen = machine.seen | {root.content}
    if conflict:
        assert machine.local is not None
        kept = world._replace(kept=world.kept | {machine.local})
        yield f"{name} keeps both", kept.machine(i, local=root.content, base=root, row="", seen=seen)
        return
    # A delete whose file has changed elsewhere is reported, and the file comes back.
    told = world._replace(kept=world.kept | {"reported"}) if machine.row == "delete" else world
    yield (
        f"{name} renames {root.content}",
        told.machine(i, local=root.content, at="renamed", snapshot=machine.newest, target=root, seen=seen),
    )


def continuing(rules: Rules, world: World, i: int, name: str) -> Steps[World]:
    """The later steps of a push or a pull."""
    machine = world.machines[i]
    unchanged = machine.newest == machine.snapshot
    row = "" if unchanged or not rules.newer_survives else machine.row
    match machine.at:
        case "staged" if unchanged and decide(rules, machine, world) == "push":
            assert machine.staged is not None
            known = world.root is not None and world.root.content in machine.seen
            over = frozenset({world.root.content}) if world.root and known else frozenset[str]()
            swapped = world._replace(
                root=machine.staged,
                tombstone=None,
                committed=world.committed | {machine.staged},
                replaced=world.replaced | over,
            )
            yield f"{name} swaps {machine.staged.content}", swapped.machine(i, at="swapped")
        case "staged":
            yield f"{name} plans again", world.machine(i, at="idle")
        case "swapped":
            assert machine.staged is not None
            recorded = world._replace(acked=world.acked | {machine.staged.content})
            yield f"{name} records", recorded.machine(i, base=machine.staged, row=row, at="idle")
        case "deleted":
            yield f"{name} records the delete", world.machine(i, base=None, row=row, at="idle")
        case "renamed":
            kept_row = "" if unchanged else machine.row
            yield f"{name} writes base", world.machine(i, base=machine.target, row=kept_row, at="idle")


def harms(world: World, quiet: bool) -> Iterator[str]:
    live = world.root.content if world.root else None
    if live in world.killed:
        yield "RESURRECTED"
    somewhere = {live, *world.kept, *(m.local for m in world.machines)}
    if world.acked - world.replaced - somewhere:
        yield "LOST"
    if quiet and live in world.deleted and not world.kept:
        yield "DELETE LOST"
    if quiet and {m.local for m in world.machines} != {live}:
        yield "NOT CONVERGED"


def check(rules: Rules = ALL, *, writes: int = 2, deletes: int = 2, crashes: int = 0, losses: int = 0) -> Explored:
    def steps(world: World) -> Steps[World]:
        for i, name in enumerate("AB"):
            yield from using(world, i, name)
            machine = world.machines[i]
            if machine.at == "idle":
                yield from planning(rules, world, i, name)
                if world.left.losses:
                    lost = world.machine(i, base=None, row="", staged=None)
                    yield f"{name} loses state.db", lost.spend("losses")
                continue
            yield from continuing(rules, world, i, name)
            if world.left.crashes:
                yield f"{name} crashes", world.machine(i, at="idle").spend("crashes")

    first = Held(0, "a")
    machine = Machine("a", first, seen=frozenset("a"))
    budget = Budget(writes, deletes, crashes, losses)
    start = World(first, None, frozenset({first}), (machine, machine), 1, budget, acked=frozenset("a"))

    def judged(world: World, quiet: bool) -> Iterator[str]:
        # A delete that was never pushed is gone with the state that announced it: that is work, not shared data.
        return (harm for harm in harms(world, quiet) if not (losses and harm == "DELETE LOST"))

    return explore(start, steps, judged, stop_at_first=True)


@pytest.mark.inv("crash.resolved")
@pytest.mark.inv("conflict.keeps-both")
@pytest.mark.parametrize("deletes", [1, 2])
def test_with_every_rule_a_crash_anywhere_harms_nobody(deletes: int) -> None:
    safe(check(deletes=deletes, crashes=1), at_least=8_000)


@pytest.mark.inv("cache.disposable")
def test_with_every_rule_losing_the_local_state_resurrects_and_loses_nothing() -> None:
    safe(check(losses=1), at_least=30_000)


@pytest.mark.inv("crash.resolved")
def test_forgetting_what_was_staged_resurrects_a_deleted_file() -> None:
    harmful(check(replace(ALL, staged_proves=False), crashes=1), "RESURRECTED")


@pytest.mark.inv("cache.disposable")
def test_pushing_a_found_file_against_a_tombstone_resurrects_it() -> None:
    harmful(check(replace(ALL, found_waits=False), losses=1), "RESURRECTED")


@pytest.mark.inv("journal.survives")
def test_a_record_that_takes_newer_rows_with_it_loses_a_delete() -> None:
    harmful(check(replace(ALL, newer_survives=False)), "DELETE LOST")
