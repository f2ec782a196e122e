"""The decision table: every case has exactly one row, and what must never happen has none."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from swamp.sync.decide import TABLE, Local, Remote, Verb, decide

LOCALS, REMOTES = get_args(Local), get_args(Remote)
CASES = list(product(LOCALS, REMOTES, (True, False)))


def possible(local: str, remote: str, equal: bool) -> bool:
    """Equal bytes need bytes on both sides."""
    return not equal or (local in ("same", "edited", "found") and remote in ("same", "newer"))


@pytest.mark.inv("decide.one-table")
@pytest.mark.parametrize(("local", "remote", "equal"), [c for c in CASES if possible(*c)])
def test_every_case_has_exactly_one_row(local, remote, equal):
    rows = [r for r in TABLE if local in r.local and remote in r.remote and r.equal in (None, equal)]
    assert len(rows) == 1, rows
    assert decide(local, remote, equal) is rows[0]


def test_every_verb_is_used_and_every_row_says_why():
    assert {r.verb for r in TABLE} == set(get_args(Verb))
    assert all(r.why for r in TABLE)


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize(("local", "remote", "equal"), [c for c in CASES if possible(*c)])
def test_a_delete_needs_a_delete_row_and_the_very_object_that_was_deleted(local, remote, equal):
    if decide(local, remote, equal).verb == "delete":
        assert (local, remote) == ("deleted", "same")


@pytest.mark.parametrize(("local", "remote", "equal"), [c for c in CASES if possible(*c)])
def test_nothing_that_is_only_here_is_overwritten_or_dropped(local, remote, equal):
    verb = decide(local, remote, equal).verb
    if local in ("edited", "found") and not equal:
        assert verb in ("push", "bury", "conflict"), "unshared bytes are shared or kept aside"
    if local in ("edited", "found", "same"):
        assert verb not in ("forget", "restore", "delete")


@pytest.mark.parametrize(("local", "remote", "equal"), [c for c in CASES if possible(*c)])
def test_a_push_never_overwrites_what_it_has_not_seen(local, remote, equal):
    if decide(local, remote, equal).verb == "push":
        assert remote != "newer"
