"""Every rule of the protocol is needed: break the function that upholds it, and a seed fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sim.broken import ALSO, ELSEWHERE, RULES, broken, found
from sim.lean import COMPANIONS, SHOWN_BY
from sim.run import run

BOUND = 400
SHOWN_LATE = {
    "compact.tombstones": 81,
    "delete.by-key": 80,
    "found.tombstone": 154,
    "gc.collecting-check": 40,
    "pack.live-if-any": 114,
    "staged.mine": 46,
    "tree-lock.rename": 49,
}
"""The seed that showed it last time, where it was a late one: it is tried first, and if it shows nothing any more, all
are. What a rule has to show is the same."""


@pytest.mark.parametrize("where", sorted({where for lines in RULES.values() for where, _ in lines}))
def test_what_upholds_a_rule_is_where_the_table_says(where):
    found(where)


def test_nothing_stays_broken():
    before = {where: vars(found(where)[0])[found(where)[1]] for lines in RULES.values() for where, _ in lines}
    with broken(*RULES):
        assert any(vars(found(where)[0])[found(where)[1]] is not right for where, right in before.items())
    assert {where: vars(found(where)[0])[found(where)[1]] for where in before} == before


def test_every_rule_has_a_kind_of_run_that_shows_its_absence():
    assert sorted(SHOWN_BY) == sorted(RULES)


def test_only_rules_have_a_seed_that_is_tried_first():
    assert set(SHOWN_LATE) <= set(RULES) and all(0 <= seed < BOUND for seed in SHOWN_LATE.values())


def test_every_rule_of_the_protocol_can_be_broken():
    protocol = (Path(__file__).parents[2] / "docs" / "design" / "PROTOCOL.md").read_text()
    named = set(re.findall(r"`\[([a-z-]+\.[a-z-]+)\]`", protocol))
    assert sorted(named - set(RULES) - set(ALSO) - ELSEWHERE) == []
    assert set(ALSO.values()) <= set(RULES)
    assert sorted((set(ALSO) | ELSEWHERE) - named) == [], "what the protocol does not name"


def first_failing_seed(rule, mix, companions):
    for seed in (*([SHOWN_LATE[rule]] if rule in SHOWN_LATE else []), *range(BOUND)):
        with broken(rule, *companions):
            outcome = run(seed, mix)
        if outcome.ok:
            continue
        with broken(*companions):
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
