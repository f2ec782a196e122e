"""Every rule of the protocol is needed: take it out of the real code, and a seed fails."""

from __future__ import annotations

import pytest

from swamp.rules import RULES, rules_off
from swamp.testing.sim.lean import COMPANIONS, SHOWN_BY
from swamp.testing.sim.run import run

BOUND = 400


def first_failing_seed(rule, mix, companions):
    for seed in range(BOUND):
        with rules_off(rule, *companions):
            outcome = run(seed, mix)
        if outcome.ok:
            continue
        with rules_off(*companions):
            if run(seed, mix).ok:  # the rule alone makes the difference
                return outcome
    return None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_seed_fails_without(rule, capsys):
    mix, companions = SHOWN_BY[rule], COMPANIONS.get(rule, ())
    outcome = first_failing_seed(rule, mix, companions)
    assert outcome is not None, f"{rule} can be removed and {BOUND} seeds of {mix.name} do not notice"
    with capsys.disabled():
        also = f" (with {', '.join(companions)} off too)" if companions else ""
        print(f"\n  without {rule}{also}: seed {outcome.seed} of {mix.name}: {outcome.violation[:120]}")
