"""Teams of machines on every kind of bucket."""

from __future__ import annotations

import pytest

from machines import Machine, Place, Team, be, place_on

PLACES = ("file", "moto", "ministack", "azurite")


@pytest.fixture(params=PLACES)
def place(request, servers, tmp_path, fresh_prefix) -> Place:
    return place_on(request.param, servers, tmp_path, fresh_prefix)


@pytest.fixture
def team(place, tmp_path) -> Team:
    return Team(tmp_path, place)


@pytest.fixture
def local_team(tmp_path) -> Team:
    """On a bucket in a directory: the fastest place with all the promises."""
    return Team(tmp_path, Place((tmp_path / "bucket").as_uri()))


@pytest.fixture
def a(local_team: Team) -> Machine:
    return local_team.machine("a")


@pytest.fixture
def alone(a: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The only machine there is, and this process works as it does."""
    be(a, monkeypatch)
    return a
