"""The public surface is pinned: changing it is a decision, written in CHANGELOG.md."""

from __future__ import annotations

from pathlib import Path

import pytest

import swamp

REPO = Path(__file__).parents[2]


def test_the_public_names_are_these() -> None:
    assert sorted(swamp.__all__) == [
        "Listing",
        "NamedWorkflow",
        "Repo",
        "Repository",
        "SavedVersion",
        "StartedRun",
        "__version__",
        "errors",
        "open",
        "open_repo",
    ]


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in swamp.__all__:
        assert getattr(swamp, name) is not None
    with pytest.raises(AttributeError):
        _ = swamp.nonsense
    assert swamp.open_repo.__doc__
    assert swamp.Repo.__doc__


def test_the_version_is_that_of_the_package_and_of_the_changelog() -> None:
    from importlib.metadata import version

    assert swamp.__version__ == version("swamp")
    assert f"## {swamp.__version__}" in (REPO / "CHANGELOG.md").read_text()
