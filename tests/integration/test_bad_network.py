"""Two machines behind a network that delays, throttles, resets, forgets answers, refuses, cuts and stalls.

Every command ends in time, with success only if it is true. The long form is in tests/soak.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from machines import Team
from networks import BadNetwork, Pair, place_behind, run_rounds

ROUNDS = 8


@pytest.fixture
def network(moto) -> Iterator[BadNetwork]:
    with BadNetwork(moto.endpoint) as made:
        yield made


@pytest.mark.timeout(900)
@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.inv("store.no-blind-retry")
def test_nothing_acknowledged_is_lost_on_a_bad_network(network, moto, tmp_path, fresh_prefix, capsys):
    pair = Pair.make(Team(tmp_path, place_behind(network, moto, fresh_prefix())))
    run_rounds(pair, network, range(ROUNDS))
    with capsys.disabled():
        print(f"\nbad network: {pair.said(network)}")
    assert sum(network.faults.values()) >= ROUNDS, "hardly anything went wrong"
    assert len(pair.record.acknowledged) >= ROUNDS / 2, "hardly anything got through"
