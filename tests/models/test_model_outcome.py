"""A swap whose answer is lost, and a machine that dies after it: when may anything be said or built on it?"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Swap(NamedTuple):
    """One writer whose requests time out and land later if their condition still holds; another that commits once."""

    token: str = "t0"
    history: tuple[str, ...] = ()
    in_flight: frozenset[tuple[str, str]] = frozenset()
    matched: str = ""
    at: str = "ready"
    op: int = 1
    tries: int = 0
    told: str = ""


def resolve(s: Swap, *, unchanged_is_unknown: bool) -> tuple[str, Swap]:
    """Read the root. Its token tells whether the request can still land; the op tells whether it has."""
    mine = f"me{s.op}" in s.history
    if mine:
        return "my op is there", s._replace(at="end", told="ok")
    if unchanged_is_unknown and s.matched == s.token:
        if s.tries < 2:
            return "unchanged: same bytes again", s._replace(tries=s.tries + 1)
        return "deadline: unknown", s._replace(at="end", told="unknown")
    if unchanged_is_unknown:
        return "moved, not mine: again on the new root", s._replace(at="ready" if s.tries < 2 else "end")
    if s.tries < 1:
        return "not there: plan anew", s._replace(at="ready", tries=s.tries + 1, op=s.op + 1)
    return "not there: failed", s._replace(at="end", told="failed")


def outcomes(*, unchanged_is_unknown: bool) -> Explored:
    def steps(s: Swap) -> Steps[Swap]:
        if s.at == "ready":
            sent = s.in_flight | {(f"me{s.op}", s.token)}
            yield "swap times out", s._replace(in_flight=sent, at="unclear", matched=s.token)
        for op, token in s.in_flight:
            landed = s._replace(in_flight=s.in_flight - {(op, token)})
            if token == s.token:
                landed = landed._replace(token=op, history=(*s.history, op))
            yield f"{op} {'lands' if token == s.token else 'is refused'}", landed
        if "x" not in s.history:
            yield "other commits", s._replace(token="x", history=(*s.history, "x"))
        if s.at == "unclear":
            yield resolve(s, unchanged_is_unknown=unchanged_is_unknown)

    def harms(s: Swap, quiet: bool) -> Iterator[str]:
        mine = [op for op in s.history if op.startswith("me")]
        if s.told == "failed" and mine:
            yield "FALSE FAILURE"
        if len(mine) > 1:
            yield "COMMITTED TWICE"

    return explore(Swap(), steps, harms)


@pytest.mark.inv("commit.unknown-is-not-failure")
def test_an_unchanged_root_proves_nothing_and_the_outcome_stays_unknown() -> None:
    safe(outcomes(unchanged_is_unknown=True), at_least=30)


@pytest.mark.inv("commit.unknown-is-not-failure")
@pytest.mark.parametrize("harm", ["FALSE FAILURE", "COMMITTED TWICE"])
def test_absence_taken_for_proof_reports_failure_or_commits_twice(harm: str) -> None:
    harmful(outcomes(unchanged_is_unknown=False), harm)


def forgotten(order: tuple[str, ...]) -> list[str]:
    """Crash after each step of `order`; lose the root or not; rebuild it from the log. Where is the edit forgotten?"""
    found = []
    for done, root_lost in product(range(1, len(order) + 1), (False, True)):
        steps = order[:done]
        in_root = "swap" in steps if not root_lost else "log" in steps
        journaled = "record" not in steps
        if not in_root and not journaled:
            found.append(f"crash after {steps[-1]}, root lost")
    return found


@pytest.mark.inv("commit.logged")
def test_log_before_record_keeps_an_edit_when_the_root_is_lost() -> None:
    assert forgotten(("swap", "log", "record")) == []


@pytest.mark.inv("commit.logged")
def test_record_before_log_forgets_an_edit_when_the_root_is_lost() -> None:
    assert forgotten(("swap", "record", "log")) == ["crash after record, root lost"]
