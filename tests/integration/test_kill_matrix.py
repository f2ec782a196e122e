"""kill -9 of every command that changes something, at moments spread over its work; then on as a user would.

What was acknowledged is on a fresh machine with the right bytes, nothing is torn, nobody needs help. The long form is
in tests/soak; dataset writes are in tests/regressions/test_L54_restarted_job.py.
"""

from __future__ import annotations

import pytest

from kill_scenarios import SCENARIOS, run_matrix
from kills import Killer
from machines import Team

POINTS = 4


@pytest.mark.inv("cache.disposable")
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_moment_nothing_acknowledged_is_lost(name, killer: Killer, new_place, tmp_path, capsys):
    scenario = SCENARIOS[name](Team(tmp_path, new_place()), new_place)
    tally = run_matrix(scenario, killer, POINTS)
    with capsys.disabled():
        print(f"\n{tally}")
    assert tally.killed >= POINTS - 1, "the kills really happened"
    assert tally.at_risk * 2 >= tally.killed, "nothing was at risk in most of them"
