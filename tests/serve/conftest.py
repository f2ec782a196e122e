"""Machines that serve, on a bucket in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from machines import Machine, Place, Team
from serving import Serving, add_hooks, add_workflow, serving


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path, Place((tmp_path / "bucket").as_uri()))


@pytest.fixture
def machine(team: Team) -> Machine:
    made = team.machine("a")
    add_workflow(made)
    add_hooks(made)
    return made


@pytest.fixture
def server(machine: Machine) -> Iterator[Serving]:
    with serving(machine) as found:
        yield found
