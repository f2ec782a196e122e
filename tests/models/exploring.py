"""Walk every reachable state of a small model, breadth first, and keep the shortest way to each kind of harm."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

State = TypeVar("State", bound=Hashable)
Steps = Iterator[tuple[str, State]]


@dataclass(frozen=True)
class Explored:
    """How much was seen, and for each harm the shortest story that leads to it."""

    states: int
    harms: dict[str, str] = field(default_factory=dict)


def explore(
    start: State,
    steps: Callable[[State], Iterable[tuple[str, State]]],
    harms: Callable[[State, bool], Iterable[str]],
    *,
    stop_at_first: bool = False,
    limit: int = 400_000,
) -> Explored:
    """Visit every state. `harms(state, quiet)` names what is wrong with it; quiet: nothing can happen any more.

    A harmful state is not explored further: what follows from it is the same harm. A model that outgrows `limit` is
    an error, because then nothing was shown.
    """
    before: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    found: dict[str, str] = {}
    while waiting:
        state = waiting.popleft()
        following = list(steps(state))
        wrong = list(harms(state, not following))
        for harm in wrong:
            found.setdefault(harm, _story(before, state))
        if wrong and stop_at_first:
            break
        for label, after in () if wrong else following:
            if after not in before:
                before[after] = (state, label)
                waiting.append(after)
        if len(before) > limit:
            raise AssertionError(f"more than {limit} states: not exhaustive")
    return Explored(len(before), found)


def _story(before: dict[State, tuple[State, str] | None], state: State) -> str:
    labels: list[str] = []
    while (origin := before[state]) is not None:
        state, label = origin
        labels.append(label)
    return " > ".join(reversed(labels))


def safe(explored: Explored, at_least: int) -> None:
    """No harm, and the model really moved."""
    assert explored.harms == {}
    assert explored.states >= at_least


def harmful(explored: Explored, harm: str) -> None:
    """The harm is reached; its story is printed, because it is the reason for the rule."""
    assert harm in explored.harms, f"expected {harm!r}, found {sorted(explored.harms) or 'nothing'}"
    print(f"{harm}: {explored.harms[harm]}")
