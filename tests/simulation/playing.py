"""Plays a chunk of seeds of one mix. Three test files share the mixes, so that as many workers share the time."""

from __future__ import annotations

from swamp.testing.sim.lean import MIXES, mix_named
from swamp.testing.sim.run import run

CHUNKS = 4
SEEDS_PER_CHUNK = 40
FLOOR = {"operations": 10.0, "faults": 0.2, "crashes": 0.0, "roots": 2.0}


def share(part):
    """Every third mix."""
    return [mix.name for mix in MIXES][part::3]


def play(name, chunk):
    """A failing seed prints its whole trace and the command that plays it again."""
    mix = mix_named(name)
    seeds = range(chunk * SEEDS_PER_CHUNK, (chunk + 1) * SEEDS_PER_CHUNK)
    seen = dict.fromkeys(FLOOR, 0)
    for seed in seeds:
        outcome = run(seed, mix)
        assert outcome.ok, outcome.report()
        seen["operations"] += sum(outcome.operations.values())
        seen["faults"] += sum(outcome.faults.values())
        seen["crashes"] += outcome.crashes
        seen["roots"] += outcome.roots
    print(f"\n{name}: {len(seeds)} seeds, {seen}")
    for what, floor in FLOOR.items():
        assert seen[what] >= floor * len(seeds), f"{name} tests too little: {seen}"
