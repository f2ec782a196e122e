"""As many seeds again as in tests/simulation: here they fill the time in which other tests wait for servers and Java.

There everybody would wait for them, because nothing of the second stage begins before the first one has passed.
"""

from __future__ import annotations

import pytest

from sim.chunks import LATER, NAMES, play


@pytest.mark.inv("sync.derived")
@pytest.mark.inv("journal.survives")
@pytest.mark.inv("crash.resolved")
@pytest.mark.inv("commit.single-winner")
@pytest.mark.parametrize("chunk", LATER)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_acknowledged_is_lost_and_everybody_converges_later_too(name: str, chunk: int) -> None:
    play(name, chunk)
