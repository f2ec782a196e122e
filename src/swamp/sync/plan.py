"""(base, local, remote) + policy -> Plan. Pure: `--dry-run` prints what comes out, tests build what goes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

from swamp.cache.paths import ancestors, fold
from swamp.cache.scan import collisions
from swamp.index.entry import Entry
from swamp.sync.decide import Facts, Verb
from swamp.sync.result import Mode
from swamp.sync.units import is_content, is_record, is_version, metadata_of, unit_of
from swamp.values import value


@value
class Action:
    """What is to be done about one path, and why."""

    facts: Facts
    verb: Verb
    why: str

    @property
    def path(self) -> str:
        return self.facts.path

    @property
    def size(self) -> int:
        """Bytes that would move or go."""
        if self.verb in ("push", "conflict", "bury") and self.facts.local:
            return self.facts.local.size
        return self.facts.remote.size if self.facts.remote else 0


@value
class UnitPlan:
    """The actions of one unit: all of them happen, or none."""

    unit: str
    actions: tuple[Action, ...]

    @property
    def verbs(self) -> frozenset[Verb]:
        return frozenset([a.verb for a in self.actions])

    @property
    def is_record(self) -> bool:
        return is_record(self.unit)


@value
class Plan:
    """Whole units in path order; `held` are units that wait, with the reason."""

    units: tuple[UnitPlan, ...] = ()
    held: dict[str, str] = field(default_factory=dict)
    deletes_held: int = 0
    waiting: tuple[Facts, ...] = ()
    """The facts of held units: what the root says of them must not be forgotten."""

    def unfinished(self) -> frozenset[str]:
        """Held versions that do not exist yet: whoever finishes one announces it again, so no row need remember it."""
        deleting = {unit_of(f.path) for f in self.waiting if f.deleted}
        return frozenset(u for u, why in self.held.items() if why == UNFINISHED and u not in deleting)

    def actions(self, *verbs: Verb) -> Iterator[Action]:
        for unit in self.units:
            for action in unit.actions:
                if not verbs or action.verb in verbs:
                    yield action

    def to_json(self, mode: Mode) -> dict[str, Any]:
        wanted = [a for a in self.actions() if a.verb in MODE_VERBS[mode]]
        totals: dict[str, dict[str, int]] = {}
        for action in wanted:
            total = totals.setdefault(action.verb, {"files": 0, "bytes": 0})
            total["files"] += 1
            total["bytes"] += action.size
        rows = [{"path": a.path, "action": a.verb, "reason": a.why, "size": a.size} for a in wanted]
        held = [{"path": unit, "reason": why} for unit, why in sorted(self.held.items())]
        return {"mode": mode, "plan": rows, "totals": totals, "held": held, "deletesHeld": self.deletes_held}


UNFINISHED = "its metadata is not written yet"
_LEAVING: frozenset[Verb] = frozenset({"aside", "bury"})
_BOTH: frozenset[Verb] = frozenset({"adopt", "forget", "conflict", "bury"})
MODE_VERBS: dict[Mode, frozenset[Verb]] = {
    "push": _BOTH | {"push", "delete"},
    "pull": _BOTH | {"pull", "restore", "aside"},
    "sync": _BOTH | {"push", "delete", "pull", "restore", "aside"},
}

Clash = Callable[[str, frozenset[str]], str | None]
"""The path already in the store that cannot stand beside this one, if any; paths that are leaving do not count."""


@value
class PlanPolicy:
    lazy: bool = False
    leave_large: bool = False
    """Large parts of Spark datasets stay in the store, too."""
    delete_fraction: float = 0.2
    delete_floor: int = 100
    allow_deletes: int | None = None
    index_size: int = 0
    confirmed: Callable[[str], bool] = lambda path: False


def plan(
    facts: Iterable[Facts],
    policy: PlanPolicy,
    clash: Clash = lambda p, leaving: None,
    blocked: frozenset[str] = frozenset(),
) -> Plan:
    """Decides every path, then every unit, then the cap. `blocked` units hold something that could not be read."""
    units: list[UnitPlan] = []
    held: dict[str, str] = {}
    waiting: list[Facts] = []
    ordered = sorted(((unit_of(f.path), f.path, f) for f in facts), key=itemgetter(0, 1))
    room = _Room(clash, [f for _, _, f in ordered])
    for unit, group in groupby(ordered, key=itemgetter(0)):
        actions = [_act(f, policy) for _, _, f in group]
        planned = "something in it cannot be read" if unit in blocked else _whole(unit, actions, room)
        if isinstance(planned, str):
            held[unit] = planned
            waiting += [a.facts for a in actions]
        elif planned.actions:
            units.append(planned)
    return _capped(Plan(tuple(units), held, waiting=tuple(waiting)), policy)


def _act(facts: Facts, policy: PlanPolicy) -> Action:
    decision = facts.decision()
    verb, why = decision.verb, decision.why
    stays = is_content(facts.path) if policy.lazy else policy.leave_large and facts.large_part
    if stays and verb in ("pull", "restore") and facts.local is None:
        return Action(facts, "adopt", "stays remote until it is read")
    if isinstance(facts.remote, Entry):
        if facts.remote.missing and facts.equal:
            return Action(facts, "push", "the bucket has lost these bytes and this cache has them")
        if verb == "nothing" and facts.base is not None and facts.remote.seq != facts.base.seq:
            return Action(facts, "adopt", "seen again under a new number")
    return Action(facts, verb, why)


def _whole(unit: str, actions: list[Action], room: _Room) -> UnitPlan | str:
    """The rules that hold for a unit as a whole. A text says why it waits. inv[unit.whole]"""
    if len(actions) == 1 and actions[0].path == unit:
        return _alone(actions[0], room)
    version = any(is_version(unit, a.path) for a in actions)
    actions = _edit_beats_delete(actions)
    actions = _deleted_for_good(unit, actions) if version else actions
    actions = actions if _is_rewritten(unit, actions) else _all_deletes_or_none(actions)
    clashing = room.clash_of(actions)
    if clashing is not None:
        actions = [
            replace(a, verb="conflict", why=f"cannot stand beside {clashing}") if a.facts.local else a for a in actions
        ]
    if any(a.verb == "conflict" for a in actions) or (version and _mixed(actions)):
        actions = [_conflicted(a) for a in actions]
    if version and any(a.verb == "push" for a in actions) and not _has_metadata(unit, actions):
        return UNFINISHED
    for a in actions:
        if a.verb == "push":
            room.take(a.path)
    return UnitPlan(unit, tuple(a for a in actions if a.verb != "nothing" or _announced(a.facts)))


def _alone(action: Action, room: _Room) -> UnitPlan:
    """The same for a file that is a unit of its own: nothing but another name can stand in its way."""
    if action.verb == "push":
        clashing = room.clash(action)
        if clashing is None:
            room.take(action.path)
        else:
            action = replace(action, verb="conflict", why=f"cannot stand beside {clashing}")
    return UnitPlan(action.path, (action,) if action.verb != "nothing" or _announced(action.facts) else ())


def _announced(facts: Facts) -> bool:
    """Something about this path is recorded or was learned that state should know when nothing is to be done."""
    return facts.edited or facts.deleted or facts.owed or facts.sha256 is not None


def _edit_beats_delete(actions: list[Action]) -> list[Action]:
    """A unit that is changed here and deleted there comes back whole if it was edited, and goes aside whole if its
    changes were only found: never a part of it."""
    if not any(a.verb in _LEAVING for a in actions) or not any(a.verb == "push" for a in actions):
        return actions
    if any(a.verb == "push" and a.facts.edited for a in actions):
        return [replace(a, verb="push", why="an edit beats a delete") if a.verb in _LEAVING else a for a in actions]
    why = "its unit was deleted remotely; this older file is kept aside"
    return [replace(a, verb="conflict", why=why) if a.verb == "push" else a for a in actions]


def _is_rewritten(unit: str, actions: list[Action]) -> bool:
    """Deleted and written again before any push: what is gone goes together with what is new."""
    meta = next((a.facts for a in actions if a.path == metadata_of(unit)), None)
    announced = meta is not None and meta.local is not None and meta.edited
    return announced and any(a.verb == "push" for a in actions)


def _deleted_for_good(unit: str, actions: list[Action]) -> list[Action]:
    """Deleted here, and whoever wrote it again died before its metadata: the delete holds, and what was begun stays
    here, unfinished. The old metadata over new bytes would be a version nobody wrote."""
    meta = next((a for a in actions if a.path == metadata_of(unit)), None)
    begun = [a for a in actions if a.verb == "push"]
    if meta is None or meta.verb != "delete" or not begun or any(a.facts.remote_label == "newer" for a in actions):
        return actions
    if any(isinstance(a.facts.remote, Entry) and not a.facts.deleted for a in begun):
        return actions  # nobody announced that this one goes: only a part was deleted. inv[delete.intent]
    why = "its version was deleted; what was begun anew is not finished"
    verbs: dict[str, Verb] = {a.path: "delete" if isinstance(a.facts.remote, Entry) else "nothing" for a in begun}
    return [replace(a, verb=verbs[a.path], why=why) if a.path in verbs else a for a in actions]


def _all_deletes_or_none(actions: list[Action]) -> list[Action]:
    """Delete rows of a unit apply all or none; otherwise its missing files come back. inv[delete.intent]"""
    if not any(a.verb == "delete" for a in actions):
        return actions
    staying = [a for a in actions if isinstance(a.facts.remote, Entry) and a.verb != "delete"]
    if not staying:
        return actions
    return [_brought_back(a, "only part of its unit was deleted") if a.verb == "delete" else a for a in actions]


def _brought_back(action: Action, why: str) -> Action:
    """The remote file again; what was written here in its place since is kept beside it. inv[conflict.keeps-both]"""
    return replace(action, verb="restore" if action.facts.local is None else "conflict", why=why)


def _mixed(actions: list[Action]) -> bool:
    """Files of one version from here and from there: together they would be a version nobody wrote."""
    pushed = any(a.verb == "push" for a in actions)
    newer = (a.facts.remote_label == "newer" and not a.facts.equal for a in actions)
    return pushed and (any(a.verb == "restore" for a in actions) or any(newer))


def _conflicted(action: Action) -> Action:
    """In a conflicted unit nothing of ours is pushed or deleted: the remote keeps the path."""
    if action.verb == "push":
        return replace(action, verb="conflict", why="its unit changed on both sides")
    if action.verb == "delete":
        return _brought_back(action, "its unit changed on both sides")
    return action


def _has_metadata(unit: str, actions: list[Action]) -> bool:
    """Whether the version will have its metadata in the bucket after this push."""
    meta = metadata_of(unit)
    for a in actions:
        if a.path == meta:
            return a.verb == "push" or (a.verb != "delete" and isinstance(a.facts.remote, Entry))
    return False


class _Room:
    """Which paths are taken, in the store and by this plan: two that cannot coexist are a conflict for the later."""

    def __init__(self, clash: Clash, facts: Iterable[Facts]) -> None:
        self._clash = clash
        self._facts = facts
        self._folds: dict[str, str] = {}
        self._directories: dict[str, str] = {}

    @cached_property
    def _leaving(self) -> frozenset[str]:
        """What goes; all else that the store has is taken from here on. Only a push asks, so a pull of everything
        folds no name."""
        leaving: set[str] = set()
        for f in self._facts:
            if f.local is None and f.deleted:
                leaving.add(f.path)  # a file may be renamed to another case of itself in one push
            elif isinstance(f.remote, Entry):
                self._occupy(f.path)
        return frozenset(leaving)

    def clash_of(self, actions: list[Action]) -> str | None:
        """A path beside which one that is to be pushed cannot stand: in the store, in this plan or in its own unit."""
        pushed = [a for a in actions if a.verb == "push"]
        found = next((other for a in pushed if (other := self.clash(a)) is not None), None)
        if found is None and len(pushed) > 1:  # inv[coexist.unit]
            inside = collisions(a.path for a in pushed)
            found = inside[0].second if inside else None
        return found

    def clash(self, action: Action) -> str | None:
        if isinstance(action.facts.remote, Entry):
            return None
        path, leaving = action.path, self._leaving
        folded = fold(path)
        other = self._folds.get(folded)
        if other is not None and other != path:
            return other
        for above in ancestors(folded):
            if above in self._folds:
                return self._folds[above]
        return self._directories.get(folded) or self._clash(path, leaving)

    def take(self, path: str) -> None:
        _ = self._leaving  # what the store has is taken first
        self._occupy(path)

    def _occupy(self, path: str) -> None:
        folded = fold(path)
        self._folds[folded] = path
        if folded.rpartition("/")[0] in self._directories:
            return  # and so is every directory above it
        for above in ancestors(folded):
            self._directories.setdefault(above, path)


def _capped(planned: Plan, policy: PlanPolicy) -> Plan:
    """Deletes beyond the cap wait for a confirmation; everything else goes on (L44)."""
    deletes = [a for a in planned.actions("delete") if not policy.confirmed(a.path)]
    limit = max(policy.delete_floor, int(policy.index_size * policy.delete_fraction))
    if policy.allow_deletes is not None:
        limit = policy.allow_deletes
    if len(deletes) <= limit:
        return planned
    waiting = {a.path for a in deletes}
    units = [
        replace(u, actions=tuple(a for a in u.actions if a.path not in waiting)) if "delete" in u.verbs else u
        for u in planned.units
    ]
    held = planned.held | {unit_of(p): "held back by the delete cap" for p in waiting}
    left = (*planned.waiting, *(a.facts for a in deletes))
    return Plan(tuple(u for u in units if u.actions), held, deletes_held=len(waiting), waiting=left)
