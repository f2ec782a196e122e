"""Thousands of seeds: peers, crashes, lost answers and disasters, and everything stays where it belongs.

`make sim SEEDS=100000` plays more.
"""

from __future__ import annotations

import pytest

from sim.lean import MIXES, mix_named
from sim.run import run

CHUNKS = 4  # so that several workers share the time
SEEDS_PER_CHUNK = 25
FLOOR = {"operations": 10.0, "faults": 0.2, "crashes": 0.0, "roots": 2.0}


@pytest.mark.inv("sync.derived")
@pytest.mark.inv("journal.survives")
@pytest.mark.inv("crash.resolved")
@pytest.mark.inv("commit.single-winner")
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", [mix.name for mix in MIXES])
def test_nothing_acknowledged_is_lost_and_everybody_converges(name, chunk):
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


@pytest.mark.inv("crash.resolved")
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("default", 1547),
        ("amnesia", 213),
        ("adopted", 205),
        ("hostile", 11),
        ("overtaken", 5177),
        ("away", 9116),
        ("moved", 700452),
        ("collector", 700427),
        ("lost-root", 701495),
        ("disaster", 700589),
    ],
)
def test_seeds_that_once_failed(name, seed):
    """1547: an upload that had landed was forgotten because a younger tombstone has its size, and rose again.

    213: a cache that lost its state deleted a file again: the oracle held the delete to what it had said before.
    5177: a delete was forgotten by the log's names alone, while a commit of its own stood there without its record.
    700452: a delete was refused whose machine had not seen that its file was undeleted: the oracle took that for wrong.
    701495: two machines met a damaged root, and the second swapped out what the first had just rebuilt.
    700427: a pack went out in two attempts, its user deleted a file between them: the oracle believed in the second.
    700589: the simulated user claimed a version number without the pull that every run makes first.
    9116: a read brought a version into a directory that somebody had announced and not yet pushed.
    """
    outcome = run(seed, mix_named(name))
    assert outcome.ok, outcome.report()


def test_there_are_at_least_two_thousand_seeds():
    assert CHUNKS * SEEDS_PER_CHUNK * len(MIXES) >= 2000
