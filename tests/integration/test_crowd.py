"""The short form of `make soak`: a few machines on one bucket at once, killed and disturbed. Nothing is lost."""

from __future__ import annotations

import pytest

from crowds import Crowd
from machines import Team
from networks import BadNetwork, place_behind, place_beside

MACHINES, SECONDS = 3, 15


@pytest.mark.timeout(900)
@pytest.mark.inv("commit.single-winner")
@pytest.mark.inv("journal.survives")
def test_machines_that_work_at_once_and_are_killed_lose_nothing(moto, tmp_path, fresh_prefix, capsys):
    with BadNetwork(moto.endpoint) as network:
        prefix = fresh_prefix()
        team = Team(tmp_path, place_behind(network, moto, prefix))
        crowd = Crowd.make(team, place_beside(moto, prefix), MACHINES)
        network.rage(1, 0.03)
        crowd.work(SECONDS)
        network.calm()
        lost = crowd.prove()
    with capsys.disabled():
        print(f"\ncrowd: {crowd.said(network)}, bytes lost {lost}")
    assert lost == 0 and crowd.record.acknowledged
    assert crowd.at_risk * 2 >= crowd.kills, "nothing was at risk in most of the kills"
