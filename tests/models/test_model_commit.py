"""Two writers, one root, a collector: what each part of the commit is for.

The adversary may interleave everything, kill a writer anywhere, let a lease expire under a live holder, and lose the
answer to a swap that took effect. Harms: an acknowledged write is not in the root (LOST), the root names an object
that is gone (DANGLING), a write was reported as failed and is there (FALSE FAILURE).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Root(NamedTuple):
    seq: int = 0
    by: str = "-"
    names: frozenset[int] = frozenset()
    collecting: frozenset[int] = frozenset()
    epoch: int = 0


class Writer(NamedTuple):
    at: str = "idle"
    read: Root = Root()
    epoch: int = 0
    rebased: int = 0
    told: str = ""


class Collector(NamedTuple):
    at: str = "idle"
    read: Root = Root()
    batch: frozenset[int] = frozenset()
    rounds: int = 0


class World(NamedTuple):
    root: Root
    objects: frozenset[int]
    lease: int | None
    writers: tuple[Writer, ...]
    collector: Collector

    def writer(self, i: int, **changes: Any) -> World:
        mine = self.writers[i]._replace(**changes)
        return self._replace(writers=(*self.writers[:i], mine, *self.writers[i + 1 :]))


@dataclass(frozen=True)
class Rules:
    condition: bool = True  # the root is swapped on the token that was read; off: a lease alone protects it
    read_back: bool = True  # a refused swap is resolved by looking for the own op; off: refused means failed
    keep_uploads: bool = True  # own uploads are never deleted on failure
    collecting: bool = True  # a collector commits its batch before it deletes
    check_collecting: bool = True  # a writer gives a condemned key up
    check_epoch: bool = True  # a writer looks again for uploads that are older than the last collection


ALL = Rules()
REBASES = 2
ROUNDS = 2


def leased(world: World, i: int) -> Steps[World]:
    """A writer that trusts a lease and puts the root without a condition."""
    writer = world.writers[i]
    if world.lease == i and writer.at not in ("idle", "done"):
        yield f"lease of {i} expires", world._replace(lease=None)
    match writer.at:
        case "idle" if world.lease is None:
            yield f"w{i} takes the lease", world._replace(lease=i).writer(i, at="held")
        case "held":
            yield f"w{i} reads", world.writer(i, at="read", read=world.root)
        case "read":
            yield f"w{i} uploads", world._replace(objects=world.objects | {i}).writer(i, at="uploaded")
        case "uploaded":
            root = writer.read._replace(seq=writer.read.seq + 1, names=writer.read.names | {i})
            yield f"w{i} puts the root", world._replace(root=root).writer(i, at="release", told="ok")
        case "release":
            lease = None if world.lease == i else world.lease
            yield f"w{i} releases", world._replace(lease=lease).writer(i, at="done")


def swapping(rules: Rules, world: World, i: int) -> Steps[World]:
    """A writer that stages, checks, swaps on what it read, and reads back."""
    writer = world.writers[i]
    match writer.at:
        case "idle":
            staged = world._replace(objects=world.objects | {i})
            yield f"w{i} uploads", staged.writer(i, at="uploaded", epoch=world.root.epoch)
        case "uploaded":
            yield f"w{i} reads", world.writer(i, at="check", read=world.root)
        case "check":
            yield from checking(rules, world, i)
        case "swap" if world.root[:2] == writer.read[:2]:
            root = world.root._replace(seq=world.root.seq + 1, by=f"w{i}", names=world.root.names | {i})
            yield f"w{i} swaps", world._replace(root=root).writer(i, at="done", told="ok")
            yield f"w{i} swaps, answer lost", world._replace(root=root).writer(i, at="refused")
        case "swap":
            yield f"w{i} is refused", world.writer(i, at="refused")
        case "refused":
            yield resolved(rules, world, i)


def checking(rules: Rules, world: World, i: int) -> Steps[World]:
    writer = world.writers[i]
    if rules.check_collecting and i in writer.read.collecting:
        yield f"w{i} is condemned, reads again", world.writer(i, at="uploaded")
    elif rules.check_epoch and writer.read.epoch != writer.epoch:
        healed = world._replace(objects=world.objects | {i})
        yield f"w{i} looks and uploads again", healed.writer(i, at="swap", epoch=writer.read.epoch)
    else:
        yield f"w{i} checks", world.writer(i, at="swap")


def resolved(rules: Rules, world: World, i: int) -> tuple[str, World]:
    if not rules.read_back:
        objects = world.objects if rules.keep_uploads else world.objects - {i}
        return f"w{i} reports failure", world._replace(objects=objects).writer(i, at="done", told="failed")
    if i in world.root.names:
        return f"w{i} finds its op", world.writer(i, at="done", told="ok")
    rebased = world.writers[i].rebased
    if rebased < REBASES:
        return f"w{i} rebases", world.writer(i, at="uploaded", rebased=rebased + 1)
    return f"w{i} gives up", world.writer(i, at="done", told="failed")


def collecting(rules: Rules, world: World) -> Steps[World]:
    """Delete what the root that was read does not name; with the rule, only what a commit has condemned."""
    gc = world.collector
    ended = gc._replace(at="idle", batch=frozenset(), rounds=gc.rounds + 1)
    if gc.rounds >= ROUNDS:
        return
    match gc.at:
        case "idle":
            yield "gc reads", world._replace(collector=gc._replace(at="mark", read=world.root))
        case "mark":
            batch = world.objects - gc.read.names - gc.read.collecting
            yield marked(rules, world, batch, ended)
        case "delete":
            after = gc._replace(at="clear") if rules.collecting else ended
            yield "gc deletes", world._replace(objects=world.objects - gc.batch, collector=after)
        case "clear":
            root = world.root
            root = root._replace(seq=root.seq + 1, by="gc", collecting=root.collecting - gc.batch)
            yield "gc commits the batch away", world._replace(root=root, collector=ended)


def marked(rules: Rules, world: World, batch: frozenset[int], ended: Collector) -> tuple[str, World]:
    gc, root = world.collector, world.root
    chosen = gc._replace(at="delete", batch=batch)
    if not rules.collecting:
        return "gc marks", world._replace(collector=chosen)
    if root[:2] != gc.read[:2] or not batch:
        return "gc steps back", world._replace(collector=ended)
    root = Root(root.seq + 1, "gc", root.names, root.collecting | batch, root.epoch + 1)
    return "gc commits its batch", world._replace(root=root, collector=chosen)


def harms(world: World, quiet: bool) -> Iterator[str]:
    if not world.root.names <= world.objects:
        yield "DANGLING"
    for i, writer in enumerate(world.writers):
        if writer.told == "ok" and i not in world.root.names:
            yield "LOST"
        if writer.told == "failed" and i in world.root.names:
            yield "FALSE FAILURE"


def check(rules: Rules = ALL, *, writers: int = 2, gc: bool = False, stop_at_first: bool = True) -> Explored:
    def steps(world: World) -> Steps[World]:
        for i, writer in enumerate(world.writers):
            if writer.at not in ("idle", "done", "dead"):
                yield f"w{i} dies", world.writer(i, at="dead")
            yield from swapping(rules, world, i) if rules.condition else leased(world, i)
        if gc:
            yield from collecting(rules, world)

    start = World(Root(), frozenset(), None, (Writer(),) * writers, Collector())
    return explore(start, steps, harms, stop_at_first=stop_at_first)


@pytest.mark.inv("commit.single-winner")
@pytest.mark.inv("commit.root-last")
def test_a_conditional_swap_loses_nothing_with_three_writers() -> None:
    safe(check(writers=3), at_least=5_000)


@pytest.mark.inv("commit.single-winner")
def test_a_lease_alone_loses_an_acknowledged_write() -> None:
    harmful(check(replace(ALL, condition=False)), "LOST")


@pytest.mark.inv("commit.unknown-is-not-failure")
def test_a_refused_swap_taken_for_failure_reports_failure_of_what_is_there() -> None:
    harmful(check(replace(ALL, read_back=False)), "FALSE FAILURE")


@pytest.mark.inv("commit.unknown-is-not-failure")
def test_cleaning_up_after_a_supposed_failure_leaves_the_root_dangling() -> None:
    harmful(check(replace(ALL, read_back=False, keep_uploads=False)), "DANGLING")


@pytest.mark.inv("commit.root-last")
def test_a_collector_beside_two_writers_is_safe_with_every_rule() -> None:
    safe(check(gc=True), at_least=20_000)


@pytest.mark.parametrize("rule", ["collecting", "check_collecting", "check_epoch"])
def test_collection_without_one_of_its_rules_deletes_a_live_object(rule: str) -> None:
    harmful(check(replace(ALL, **{rule: False}), gc=True), "DANGLING")
