"""The seeds that the tests play, cut into pieces, so that several workers and both stages of `make test` share them."""

from __future__ import annotations

from sim.lean import MIXES, mix_named
from sim.run import run

NAMES = [mix.name for mix in MIXES]
FIRST, LATER = range(2), range(2, 4)
SEEDS_PER_CHUNK = 25
FLOOR = {"operations": 10.0, "faults": 0.2, "crashes": 0.0, "roots": 2.0}


def play(name: str, chunk: int) -> None:
    """Plays one piece of one mix. A failing seed says its whole trace and the command that plays it again."""
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
