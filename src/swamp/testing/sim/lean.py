"""Kinds of runs, each leaning towards some rules, and which kind shows the absence of which rule."""

from __future__ import annotations

from typing import Final

from swamp.testing.sim.mix import DEFAULT, NO_SABOTAGE, Mix

_ONE_FILE: Final = {"write": 12, "delete": 5, "push": 12, "pull": 6, "sync": 8, "wait": 2}

MIXES: Final[tuple[Mix, ...]] = (DEFAULT,)


def mixes() -> list[Mix]:
    return list(MIXES)


def mix_named(name: str) -> Mix:
    found = {m.name: m for m in MIXES}
    if name not in found:
        raise SystemExit(f"no mix called {name}; there are: {', '.join(sorted(found))}")
    return found[name]
