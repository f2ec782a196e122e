"""Why no payload key is ever written twice: collectors that stall, and DELETE requests that arrive late.

A writer uploads, checks the root, swaps. A collector condemns what no root names, deletes it, clears its mark; a
second one adopts the batch of a first that seems dead. A DELETE that timed out may land at any later time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Writer(NamedTuple):
    at: str = "idle"
    key: str = ""
    epoch: int = 0
    read: int = 0


class Collector(NamedTuple):
    at: str = "idle"
    read: int = 0
    batch: frozenset[str] = frozenset()


class World(NamedTuple):
    seq: int
    names: frozenset[str]
    collecting: frozenset[str]
    epoch: int
    objects: frozenset[str]
    late: frozenset[str]
    uploads: int
    writers: tuple[Writer, ...]
    collectors: tuple[Collector, ...]

    def writer(self, i: int, **changes: Any) -> World:
        mine = self.writers[i]._replace(**changes)
        return self._replace(writers=(*self.writers[:i], mine, *self.writers[i + 1 :]))

    def collector(self, j: int, **changes: Any) -> World:
        mine = self.collectors[j]._replace(**changes)
        return self._replace(collectors=(*self.collectors[:j], mine, *self.collectors[j + 1 :]))


UPLOADS = 3


def upload(key_once: bool, world: World, i: int) -> World:
    """Put the payload of the one path `p`: under a key of its own, or under the plain one while that looks free."""
    if not key_once and "p" not in world.objects:
        key, uploads = "p", world.uploads
    else:
        key, uploads = f"p~{world.uploads}", world.uploads + 1
    sent = world._replace(objects=world.objects | {key}, uploads=uploads)
    return sent.writer(i, at="uploaded", key=key, epoch=world.epoch)


def writing(key_once: bool, world: World, i: int) -> Steps[World]:
    writer = world.writers[i]
    match writer.at:
        case "idle":
            yield f"w{i} uploads", upload(key_once, world, i)
        case "uploaded":
            if i == 0:
                yield "w0 dies", world.writer(0, at="dead")
            yield f"w{i} reads", world.writer(i, at="check", read=world.seq)
        case "check" if world.seq != writer.read:
            yield f"w{i} is refused", world.writer(i, at="uploaded")
        case "check":
            gone = world.epoch != writer.epoch and writer.key not in world.objects
            if writer.key not in world.collecting and not gone:
                won = world._replace(seq=world.seq + 1, names=world.names | {writer.key})
                yield f"w{i} swaps", won.writer(i, at="done")
            elif world.uploads < UPLOADS:
                yield f"w{i} uploads again", upload(key_once, world, i)


def sweeping(late: bool, world: World, j: int) -> Steps[World]:
    gc = world.collectors[j]
    match gc.at:
        case "idle" if world.objects - world.names:
            yield f"g{j} reads", world.collector(j, at="mark", read=world.seq)
        case "mark" if world.seq != gc.read:
            yield f"g{j} steps back", world.collector(j, at="end")
        case "mark":
            batch = (world.objects - world.names) | world.collecting
            marked = world._replace(seq=world.seq + 1, collecting=batch, epoch=world.epoch + 1)
            yield f"g{j} commits its batch", marked.collector(j, at="delete", batch=batch)
        case "delete":
            swept = world._replace(objects=world.objects - gc.batch).collector(j, at="clear")
            yield f"g{j} deletes", swept
            if late:
                yield f"g{j} deletes, one copy delayed", swept._replace(late=world.late | gc.batch)
        case "clear":
            cleared = world._replace(seq=world.seq + 1, collecting=world.collecting - gc.batch)
            yield f"g{j} clears", cleared.collector(j, at="end", batch=frozenset())


def harms(world: World, quiet: bool) -> Iterator[str]:
    if not world.names <= world.objects:
        yield "DANGLING"


def check(*, key_once: bool, late: bool = False, collectors: int = 1) -> Explored:
    def steps(world: World) -> Steps[World]:
        for i in range(len(world.writers)):
            yield from writing(key_once, world, i)
        for j in range(len(world.collectors)):
            yield from sweeping(late, world, j)
        for key in world.late:
            gone = world._replace(objects=world.objects - {key}, late=world.late - {key})
            yield f"DELETE {key} arrives late", gone

    nothing: frozenset[str] = frozenset()
    start = World(0, nothing, nothing, 0, nothing, nothing, 0, (Writer(),) * 2, (Collector(),) * collectors)
    return explore(start, steps, harms, stop_at_first=True)


@pytest.mark.inv("object.key-once")
@pytest.mark.parametrize(("late", "collectors"), [(True, 1), (False, 2)])
def test_own_keys_survive_late_deletes_and_a_stalled_collector(late: bool, collectors: int) -> None:
    safe(check(key_once=True, late=late, collectors=collectors), at_least=2_000)


@pytest.mark.inv("object.key-once")
def test_a_key_written_twice_is_removed_by_a_late_delete() -> None:
    harmful(check(key_once=False, late=True), "DANGLING")


@pytest.mark.inv("object.key-once")
def test_a_key_written_twice_is_removed_by_a_stalled_collector() -> None:
    harmful(check(key_once=False, collectors=2), "DANGLING")
