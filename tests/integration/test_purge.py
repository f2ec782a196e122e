"""`datastore gc --purge`: a deleted secret is gone from the store at once, and nothing else is."""

from __future__ import annotations

import os

import pytest

from machines import Machine, Team, read_tree
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie

SECRET, OTHER = os.urandom(3000), os.urandom(3000)


@pytest.fixture
def team(double_team: Team) -> Team:
    return double_team


def with_a_deleted_secret(team: Team) -> tuple[Machine, str]:
    """Four files in one pack: one lives, one is a deleted secret, one has its bytes, one was deleted by mistake."""
    a = team.machine("a", joined=False)
    for name, content in {"kept": OTHER, "secret": SECRET, "copy": SECRET, "mistake": OTHER[::-1]}.items():
        a.put("web", name, content)
    a.setup(*team.place.setup_args)
    path = next(p for p in team.place.root()["entries"] if p.endswith("/secret/1/raw")).removesuffix("/raw")
    return a, path


def delete(machine: Machine, *names: str) -> None:
    for name in names:
        machine("data", "delete", "web", name, "--yes").ok()


def kinds(document: dict) -> set[str]:
    return {one["kind"] for one in document["remaining"]}


def is_anywhere(team: Team, content: bytes) -> bool:
    return any(content in body for body in team.place.objects().values())


@pytest.mark.inv("pack.live-if-any")
def test_a_purged_secret_is_nowhere_in_the_store_and_nobody_else_loses_anything(team: Team):
    a, path = with_a_deleted_secret(team)
    refused = a("datastore", "gc", "--purge", path, "--yes").failed(2)
    assert "delete it first" in refused["hint"]
    delete(a, "secret", "copy", "mistake")
    a("datastore", "gc", "--purge", path).failed(2)  # nobody is there to be asked
    before = team.place.objects()
    planned = a("datastore", "gc", "--purge", path, "--dry-run").ok()
    assert planned["wouldDelete"] and planned["deleted"] == [] and team.place.objects() == before
    copy = path.replace("/secret/", "/copy/")
    assert copy + "/raw" in {one["where"] for one in planned["remaining"] if one["kind"] == "same-bytes"}

    done = a("datastore", "gc", "--purge", path, copy, "--yes").ok()
    assert done["deleted"] == planned["wouldDelete"] and done["moved"] >= 4
    assert not is_anywhere(team, SECRET) and is_anywhere(team, OTHER)
    assert {"names", "machines"} <= kinds(done) and "same-bytes" not in kinds(done) and "object" not in kinds(done)
    b = team.machine("b")
    assert OTHER in read_tree(b.tree).values() and b("datastore", "verify").ok()["missing"] == []
    mistake = path.replace("/secret/", "/mistake/")
    assert a("datastore", "undelete", mistake).ok()["gone"] == [], "another deletion can still be taken back"
    assert is_anywhere(team, OTHER[::-1])
    assert a("datastore", "undelete", path).json["restored"] == []
    assert a("datastore", "gc", "--purge", "data/nothing/of/this").code == 1


def test_a_purge_that_was_cut_off_goes_on_when_it_is_repeated(team: Team, double: S3Double):
    a, path = with_a_deleted_secret(team)
    delete(a, "secret", "copy")
    double.lies.append(Lie("refuse", "POST", "*", times=None))
    quick = {"SWAMP_REQUEST_TIMEOUT_MS": "1500", "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "3000"}
    cut = a("datastore", "gc", "--purge", path, path.replace("/secret/", "/copy/"), "--yes", env=quick)
    assert cut.code != 0 and is_anywhere(team, SECRET)
    double.lies.clear()
    b = team.machine("b")
    assert sorted(name for _, name in b.names()) == ["kept", "mistake"]
    done = b("datastore", "gc", "--purge", path, path.replace("/secret/", "/copy/"), "--yes").ok()
    assert done["deleted"] and not is_anywhere(team, SECRET) and is_anywhere(team, OTHER)
    assert b("datastore", "verify").ok()["missing"] == [] and not team.place.root()["collecting"]
