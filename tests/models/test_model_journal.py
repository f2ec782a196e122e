"""One cache, one path: a user who writes, a push in the background, the user's own push, a pull, another machine.

Contents are numbers: 0 at the start, 9 what the other machine commits, 1 and 2 what the user writes, 0.5 more while
a write is half done. Pushes and pulls take turns (`sync.lock`); announcements do not wait for them. Harms: the user's
last write is nowhere and will never be pushed (LOST), half a file is in the root (TORN), the cache calls itself in
sync and is not (STALE).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe

THEIRS = 9.0
WRITES = 2


class Push(NamedTuple):
    at: str = "idle"
    rows: frozenset[int] = frozenset()
    base: float = 0
    local: float = 0
    committed: float | None = None


class Pull(NamedTuple):
    at: str = "idle"
    root: float = 0
    base: float = 0


class World(NamedTuple):
    tree: float = 0
    base: float = 0
    root: float = 0
    pulled: float = 0
    rows: frozenset[int] = frozenset()
    deferred: bool = False
    kept: frozenset[float] = frozenset()
    user: str = "idle"
    last: float = 0
    writes: int = 0
    background: Push = Push()
    own: Push = Push()
    pull: Pull = Pull()

    def announcing(self) -> bool:
        return self.user in ("announced", "half", "written")

    def syncing(self) -> bool:
        return any(p.at not in ("idle", "end") for p in (self.background, self.own, self.pull))


def turned(world: World, who: str, push: Push) -> World:
    return world._replace(background=push) if who == "background" else world._replace(own=push)


@dataclass(frozen=True)
class Rules:
    first: bool = True  # rows are on disk before the first byte changes
    survives: bool = True  # a record drops only rows that its snapshot saw, and only if there is no newer one
    plan_locked: bool = True  # nobody mutates while a plan looks
    rename_locked: bool = True  # nobody mutates between a pull's last look and its rename
    deferred: bool = True  # what a pull could not bring is remembered


ALL = Rules()


def using(rules: Rules, world: World) -> Steps[World]:
    """Announce, write in two halves (or write the same bytes), let go; perhaps again; perhaps die on the way."""
    number = world.writes + 1
    row = world._replace(rows=world.rows | {number})
    begun = world._replace(tree=number - 0.5, last=number, user="half")
    ended = world._replace(tree=number, writes=number, user="written")
    match world.user:
        case "idle" if world.writes < WRITES:
            if rules.first:
                yield f"user announces {number}", row._replace(user="announced")
            else:
                yield f"user begins {number}", begun
            yield "user is done", world._replace(user="done")
        case "idle":
            yield "user is done", world._replace(user="done")
        case "announced":
            yield f"user begins {number}", begun
            yield "user writes the same bytes", world._replace(writes=number, user="written")
        case "half":
            yield f"user ends {number}", ended
        case "written":
            yield "user dies", world._replace(user="dead")
            after = world if rules.first else world._replace(rows=world.rows | {world.writes})
            yield "user lets go", after._replace(user="idle")


def pushing(rules: Rules, world: World, who: str) -> Steps[World]:
    push: Push = getattr(world, who)

    def with_push(state: World, **changes: Any) -> World:
        return turned(state, who, push._replace(**changes))

    match push.at:
        case "idle" if not world.syncing() and (who == "background" or world.user == "done"):
            looked = with_push(world, at="look", rows=world.rows, base=world.base)
            if not rules.plan_locked:
                yield f"{who} reads rows", looked
            elif not world.announcing():
                seen = with_push(world, at="decide", rows=world.rows, base=world.base, local=world.tree)
                yield f"{who} looks: {world.tree}", seen
        case "look":
            yield f"{who} looks: {world.tree}", with_push(world, at="decide", local=world.tree)
        case "decide":
            yield decided(world, who, push)
        case "record":
            base = world.base if push.committed is None else push.committed
            settled = not rules.survives or (world.rows <= push.rows and world.tree == base)
            rows = frozenset() if settled else world.rows
            yield f"{who} records", with_push(world._replace(base=base, rows=rows), at="end", rows=frozenset())


def decided(world: World, who: str, push: Push) -> tuple[str, World]:
    """The decision table for one path, on the root as it is now."""
    local, base, remote = push.local, push.base, world.root

    def then(state: World, **changes: Any) -> World:
        return turned(state, who, push._replace(**changes))

    if not push.rows:
        return f"{who}: nothing announced", then(world, at="end")
    if local == remote:
        return f"{who} adopts {remote}", then(world, at="record", committed=remote)
    if local == base:
        return f"{who}: no change", then(world, at="record")
    if remote == base:
        return f"{who} commits {local}", then(world._replace(root=local), at="record", committed=local)
    if world.announcing() or world.tree != local or not world.rows <= push.rows:
        return f"{who}: conflict, but it moved; later", then(world, at="end")
    kept = world._replace(kept=world.kept | {local}, tree=remote, base=remote, rows=frozenset())
    return f"{who}: conflict, keeps {local}", then(kept, at="end")


def pulling(rules: Rules, world: World) -> Steps[World]:
    pull = world.pull
    free = not world.rows and world.base == pull.base and world.tree == world.base
    taken = world._replace(tree=pull.root, base=pull.root, pull=pull._replace(at="mark"))
    skipped = world._replace(deferred=rules.deferred, pull=pull._replace(at="mark"))
    match pull.at:
        case "idle" if not world.syncing():
            planned = Pull("rename" if world.root != world.base else "mark", world.root, world.base)
            yield f"pull plans {world.root}", world._replace(pull=planned)
        case "rename" if not rules.rename_locked and free:
            yield "pull checks", world._replace(pull=pull._replace(at="checked"))
        case "rename" if not free:
            yield "pull skips", skipped
        case "rename" if not world.announcing():
            yield f"pull renames {pull.root}", taken
        case "checked":
            yield f"pull renames {pull.root}", taken
        case "mark":
            yield f"pull marks {pull.root}", world._replace(pulled=pull.root, pull=pull._replace(at="end"))


def harms(world: World, quiet: bool) -> Iterator[str]:
    if world.root % 1:
        yield "TORN"
    will_be_pushed = world.tree == world.last and world.rows
    if quiet and world.last not in {0, world.root} | world.kept and not will_be_pushed:
        yield "LOST"
    believes = not world.rows and not world.deferred and world.pulled == world.root
    if quiet and believes and world.tree != world.root:
        yield "STALE"


def check(rules: Rules = ALL) -> Explored:
    def steps(world: World) -> Steps[World]:
        yield from using(rules, world)
        yield from pushing(rules, world, "background")
        yield from pushing(rules, world, "own")
        yield from pulling(rules, world)
        if world.root == 0:
            yield "other machine commits", world._replace(root=THEIRS)

    return explore(World(), steps, harms, stop_at_first=True)


@pytest.mark.inv("journal.first")
@pytest.mark.inv("journal.survives")
@pytest.mark.inv("sync.derived")
def test_with_every_rule_no_write_is_lost_torn_or_hidden() -> None:
    safe(check(), at_least=1_000)


@pytest.mark.parametrize(
    ("rule", "harm"),
    [
        pytest.param("first", "LOST", marks=pytest.mark.inv("journal.first")),
        pytest.param("survives", "LOST", marks=pytest.mark.inv("journal.survives")),
        ("plan_locked", "TORN"),
        ("rename_locked", "LOST"),
        pytest.param("deferred", "STALE", marks=pytest.mark.inv("sync.derived")),
    ],
)
def test_without_one_rule_of_the_journal_there_is_harm(rule: str, harm: str) -> None:
    harmful(check(replace(ALL, **{rule: False})), harm)
