"""Thousands of seeds: peers, crashes, lost answers and disasters, and everything stays where it belongs.

`make sim SEEDS=100000` plays more.
"""

from __future__ import annotations

import pytest

from sim.chunks import FIRST, LATER, NAMES, SEEDS_PER_CHUNK, play
from sim.lean import mix_named
from sim.run import run


@pytest.mark.inv("sync.derived")
@pytest.mark.inv("journal.survives")
@pytest.mark.inv("crash.resolved")
@pytest.mark.inv("commit.single-winner")
@pytest.mark.parametrize("chunk", FIRST)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_acknowledged_is_lost_and_everybody_converges(name, chunk):
    """The other half of the seeds is in tests/seeds."""
    play(name, chunk)


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
    assert len({*FIRST, *LATER}) * SEEDS_PER_CHUNK * len(NAMES) >= 2000
