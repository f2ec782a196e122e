"""kill -9 of every command that changes something, at moments spread over its work; then on as a user would.

What was acknowledged is on a fresh machine with the right bytes, nothing is torn, nobody needs help. The long form is
in tests/soak; dataset writes are in tests/regressions/test_L54_restarted_job.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kill_scenarios import SCENARIOS, run_matrix
from kills import Killer
from machines import Place, Team
from swamp.testing.proxy import FaultProxy

POINTS = 4


@pytest.fixture(params=["file", "moto"])
def killer(request, servers, tmp_path) -> Iterator[Killer]:
    if request.param == "file":
        yield Killer(tmp_path)
        return
    with FaultProxy(servers["moto"].endpoint) as proxy:
        yield Killer(tmp_path, proxy)


@pytest.fixture
def new_place(killer: Killer, servers, tmp_path, fresh_prefix):
    def make() -> Place:
        if killer.proxy is None:
            return Place((tmp_path / fresh_prefix()).as_uri())
        moto = servers["moto"]
        config = {**moto.config, "endpoint": killer.proxy.endpoint}
        return Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ))

    return make


@pytest.mark.inv("cache.disposable")
@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_at_any_moment_nothing_acknowledged_is_lost(name, killer: Killer, new_place, tmp_path, capsys):
    scenario = SCENARIOS[name](Team(tmp_path, new_place()), new_place)
    tally = run_matrix(scenario, killer, POINTS)
    with capsys.disabled():
        print(f"\n{tally}")
    assert tally.killed >= POINTS - 1, "the kills really happened"
    assert tally.at_risk * 2 >= tally.killed, "nothing was at risk in most of them"
