"""The failure list through the CLI, on a bucket in a directory."""

from __future__ import annotations

import pytest

from machines import Place, Team


@pytest.fixture
def team(tmp_path) -> Team:
    return Team(tmp_path, Place((tmp_path / "bucket").as_uri()))
