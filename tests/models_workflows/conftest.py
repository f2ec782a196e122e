"""Repositories for models and workflows: in process on a plain directory, or as machines that share a bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from benches import Bench, open_bench

from machines import Machine, Place, Team


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    with open_bench(tmp_path / "repo") as opened:
        yield opened


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One machine on the embedded default, driven through the command line."""
    return Machine.make(tmp_path, "one")


@pytest.fixture(params=["file", "moto"])
def team(request, servers, tmp_path: Path, fresh_prefix: Callable[[], str]) -> Team:
    if request.param == "file":
        return Team(tmp_path, Place((tmp_path / "bucket").as_uri()))
    running = servers[request.param]
    return Team(tmp_path, Place(f"{running.url}/{fresh_prefix()}", dict(running.config), dict(running.environ)))


@pytest.fixture
def file_team(tmp_path: Path) -> Team:
    return Team(tmp_path, Place((tmp_path / "bucket").as_uri()))
