"""Thousands of seeds, part 1 of 3: peers, crashes, lost answers and disasters, and everything stays where it belongs.

`make sim SEEDS=100000` plays more.
"""

from __future__ import annotations

import pytest
from playing import CHUNKS, SEEDS_PER_CHUNK, play, share

from swamp.testing.sim.lean import MIXES


@pytest.mark.inv("sync.derived")
@pytest.mark.inv("journal.survives")
@pytest.mark.inv("crash.resolved")
@pytest.mark.inv("commit.single-winner")
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("name", share(0))
def test_nothing_acknowledged_is_lost_and_everybody_converges(name, chunk):
    play(name, chunk)


def test_there_are_at_least_two_thousand_seeds():
    assert CHUNKS * SEEDS_PER_CHUNK * len(MIXES) >= 2000
