"""What a delete row may remove: the file the user saw, through the user's own push in flight, and nothing newer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from exploring import Explored, Steps, explore, harmful, safe


class Own(NamedTuple):
    """One cache whose push of p is in flight while its user deletes p. Keys are names; None is "not there"."""

    base: str | None
    root: str | None
    here: bool = True
    row_key: str | None = None  # base at the moment of the announcement
    deleted: bool = False
    push: str = "idle"
    synced: bool = False


def own_delete(new_file: bool, *, row_remembers_key: bool) -> Explored:
    """A delete is matched against base as the *plan* reads it; or, against the rule, as the announcement read it."""

    def steps(s: Own) -> Steps[Own]:
        if s.push == "idle" and not s.deleted:
            yield "push stages", s._replace(push="staged")
        if s.push == "staged":
            yield "push swaps", s._replace(root="k2", push="swapped")
        if s.push == "swapped":
            yield "push records", s._replace(base="k2", push="end")
        if not s.deleted:
            yield f"user deletes, base {s.base}", s._replace(here=False, deleted=True, row_key=s.base)
        if s.deleted and s.push in ("idle", "end") and not s.synced:
            expected = s.row_key if row_remembers_key else s.base
            if s.root is None or s.root == expected:
                yield "sync deletes remotely", s._replace(root=None, synced=True)
            else:
                yield f"sync pulls {s.root} back", s._replace(here=True, synced=True)

    def harms(s: Own, quiet: bool) -> Iterator[str]:
        if quiet and s.deleted and (s.here or s.root):
            yield "DELETE LOST"

    key = None if new_file else "k1"
    return explore(Own(key, key), steps, harms, stop_at_first=True)


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize("new_file", [True, False])
def test_a_delete_holds_through_the_users_own_push_in_flight(new_file: bool) -> None:
    safe(own_delete(new_file, row_remembers_key=False), at_least=7)


@pytest.mark.inv("delete.intent")
@pytest.mark.parametrize("new_file", [True, False])
def test_a_delete_row_that_remembers_a_key_loses_the_delete(new_file: bool) -> None:
    harmful(own_delete(new_file, row_remembers_key=True), "DELETE LOST")


class Two(NamedTuple):
    """A deletes p; B deletes p and creates it again with the same bytes. `root` is the key, the bytes never change."""

    root: str | None = "k1"
    a: str = "idle"
    b: str = "idle"
    acked: frozenset[str] = frozenset()


def recreated(*, by_key: bool) -> Explored:
    def steps(s: Two) -> Steps[Two]:
        if s.a == "idle":
            yield "A deletes, offline", s._replace(a="row")
        if s.a == "row" and s.root:
            mine = s.root == "k1" if by_key else True
            yield "A syncs", s._replace(a="end", root=None if mine else s.root)
        if s.b == "idle":
            yield "B deletes and pushes", s._replace(b="gone", root=None)
        if s.b == "gone":
            yield "B writes the same bytes, pushes", s._replace(b="end", root="k2", acked=frozenset({"k2"}))

    def harms(s: Two, quiet: bool) -> Iterator[str]:
        if "k2" in s.acked and s.root != "k2":
            yield "NEWER FILE DELETED"

    return explore(Two(), steps, harms, stop_at_first=True)


@pytest.mark.inv("delete.by-key")
def test_a_delete_by_key_leaves_a_recreated_file_alone() -> None:
    safe(recreated(by_key=True), at_least=8)


@pytest.mark.inv("delete.by-key")
def test_a_delete_by_content_removes_a_recreated_file() -> None:
    harmful(recreated(by_key=False), "NEWER FILE DELETED")
