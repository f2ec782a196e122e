"""Two machines and a store that enforces conditions or ignores them: why there is one verdict, made of evidence.

The adversary interleaves everything, chooses what an error makes a machine believe where errors may count, and, on a
store without conditions, lets one late write put the first root back. Harm: an acknowledged write is not in the newest
log record (LOST), which is what everybody restores from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Root(NamedTuple):
    seq: int = 0
    names: frozenset[int] = frozenset()
    ignored: bool | None = None  # the word; None: a root without it


class Machine(NamedTuple):
    at: str = "idle"
    belief: bool | None = None  # what it has measured: whether conditions are ignored
    seen: bool = False  # whether a root has told it "ignored"
    read: Root = Root()
    leased: bool = False
    told: str = ""


class World(NamedTuple):
    root: Root
    logged: frozenset[int]
    lease: int | None
    late: bool  # whether the late write is still to come
    machines: tuple[Machine, ...]

    def machine(self, i: int, **changes: Any) -> World:
        mine = self.machines[i]._replace(**changes)
        return self._replace(machines=(*self.machines[:i], mine, *self.machines[i + 1 :]))


@dataclass(frozen=True)
class Rules:
    condition: bool = True  # conditions are sent whatever is believed
    evidence: bool = True  # an error says nothing: who cannot tell stops; off: it may make one believe anything
    one_verdict: bool = True  # the root's word decides; off: each machine works by what it has measured
    sticky: bool = True  # "ignored" is remembered when a root has lost the word


ALL = Rules()
WORST = 3


def beliefs(rules: Rules, ignores: bool) -> tuple[bool | None, ...]:
    """What a probe may end with; None: nobody knows, and nothing is written."""
    return (ignores, None) if rules.evidence else (True, False)


def mode(rules: Rules, machine: Machine, root: Root) -> bool:
    """Whether this machine works as on a store that ignores conditions."""
    if not rules.one_verdict:
        return bool(machine.belief)
    return bool(root.ignored) or (rules.sticky and machine.seen)


def acting(rules: Rules, ignores: bool, world: World, i: int) -> Steps[World]:
    me = world.machines[i]
    match me.at:
        case "idle":
            for belief in beliefs(rules, ignores):
                end = {"at": "done", "told": "unknown"} if belief is None else {"at": "looks"}
                yield f"m{i} measures {belief}", world.machine(i, belief=belief, **end)
        case "looks":
            seen = me.seen or bool(world.root.ignored)
            alone = mode(rules, me._replace(seen=seen), world.root)
            yield f"m{i} reads", world.machine(i, at="lease" if alone else "swap", seen=seen, read=world.root)
        case "lease" if world.lease is None:
            root = world.root
            if root.names != world.logged:  # rolled back: the newest record is put in its place
                root = Root(root.seq + WORST, world.logged, True)
            held = world._replace(lease=i, root=root)
            yield f"m{i} takes the lease and reads", held.machine(i, at="swap", leased=True, read=root)
        case "swap":
            yield from swapping(rules, ignores, world, i)


def swapping(rules: Rules, ignores: bool, world: World, i: int) -> Steps[World]:
    me = world.machines[i]
    let_go = world._replace(lease=None) if me.leased else world
    conditional = rules.condition or not me.leased
    if conditional and not ignores and world.root.seq != me.read.seq:
        yield f"m{i} is refused", let_go.machine(i, at="looks", leased=False)
        return
    word = True if me.leased and ignores else me.read.ignored
    root = Root(me.read.seq + 1, me.read.names | {i}, word)
    done = let_go._replace(root=root, logged=root.names)
    yield f"m{i} commits", done.machine(i, at="done", leased=False, told="ok")


def explored(rules: Rules, ignores: bool, word: bool | None, *, late: bool = False) -> Explored:
    start = World(Root(1, frozenset(), word), frozenset(), None, late, (Machine(), Machine()))

    def steps(world: World) -> Iterator[tuple[str, World]]:
        for i in range(len(world.machines)):
            yield from acting(rules, ignores, world, i)
        if world.late:
            yield "a late write lands", world._replace(root=Root(0, frozenset(), None), late=False)

    def harms(world: World, quiet: bool) -> Iterator[str]:
        for i, machine in enumerate(world.machines):
            if quiet and machine.told == "ok" and i not in world.logged:
                yield "LOST"

    return explore(start, steps, harms)


@pytest.mark.inv("store.one-verdict")
@pytest.mark.inv("probe.evidence")
@pytest.mark.inv("commit.condition")
@pytest.mark.parametrize("ignores", [False, True])
def test_with_every_rule_nothing_is_lost(ignores: bool) -> None:
    safe(explored(ALL, ignores, ignores), 20)


def test_l60_an_unconditional_root_by_who_believes_that_conditions_are_ignored() -> None:
    """The store enforces conditions; an error made one machine believe otherwise."""
    harmful(explored(Rules(condition=False, evidence=False, one_verdict=False), False, None), "LOST")


def test_conditions_that_are_always_sent_make_that_belief_harmless() -> None:
    safe(explored(Rules(evidence=False, one_verdict=False), False, None), 20)


def test_l61_two_beliefs_about_a_store_that_ignores_conditions() -> None:
    harmful(explored(Rules(evidence=False, one_verdict=False), True, True), "LOST")


def test_a_word_without_evidence() -> None:
    """Whoever made the root took an error for a refusal."""
    harmful(explored(replace(ALL, evidence=False), True, False), "LOST")


def test_a_root_that_has_lost_its_word() -> None:
    harmful(explored(replace(ALL, sticky=False), True, True, late=True), "LOST")


def test_what_a_machine_has_seen_is_not_taken_back_by_a_late_write() -> None:
    """Of a machine that has seen the word. One that never saw it measures when it is set up, and stops."""
    seen = Machine(seen=True)
    start = World(Root(1, frozenset(), True), frozenset(), None, True, (seen, seen))

    def steps(world: World) -> Iterator[tuple[str, World]]:
        for i in range(2):
            yield from acting(ALL, True, world, i)
        if world.late and all(machine.at != "swap" for machine in world.machines):
            yield "a late write lands", world._replace(root=Root(0, frozenset(), None), late=False)

    def harms(world: World, quiet: bool) -> Iterator[str]:
        lost = any(m.told == "ok" and i not in world.logged for i, m in enumerate(world.machines))
        if quiet and lost:
            yield "LOST"

    safe(explore(start, steps, harms), 20)
