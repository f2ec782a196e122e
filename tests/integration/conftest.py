"""Teams of machines on every kind of bucket."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from machines import Place, Team

PLACES = ("file", "moto", "ministack", "azurite")


def place_on(name: str, servers, tmp_path: Path, fresh_prefix: Callable[[], str]) -> Place:
    if name == "file":
        return Place((tmp_path / "bucket").as_uri())
    running = servers[name]
    return Place(f"{running.url}/{fresh_prefix()}", dict(running.config), dict(running.environ))


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
