"""What stands beside the code for people who use, change and publish it, held to the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import swamp
from swamp.cli.program import PARTS

REPO = Path(__file__).parents[2]
CONTAINER = (REPO / "Containerfile").read_text()
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]


def test_the_container_runs_as_nobody_special_and_installs_extras_that_exist():
    last = CONTAINER.rpartition("FROM ")[2]
    assert re.search(r"^USER (?!0)\d+$", last, re.MULTILINE) and last.index("USER") < last.index("ENTRYPOINT")
    extras = set(re.findall(r'extras="\[([^]]+)\]"', CONTAINER)[0].split(","))
    assert extras <= set(PROJECT["optional-dependencies"])
    copied = re.findall(r"^COPY (?!--from)(.+) \./\S*$", CONTAINER, re.MULTILINE)
    assert all((REPO / name).exists() for line in copied for name in line.split()) and len(copied) == 2


def test_the_container_opens_the_port_of_the_server():
    serve = next(part for part in PARTS if part.name == "serve").load()
    port = next(p for p in serve.params if "--port" in p.opts)
    assert f"EXPOSE {port.default if isinstance(port.default, int) else _port(port.help)}" in CONTAINER


def _port(text: str) -> str:
    return re.findall(r"default (\d+)", text)[0]


def test_the_changelog_has_a_heading_per_version_newest_first():
    headings = re.findall(r"^## (.+)$", (REPO / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [tuple(map(int, re.match(r"(\d+)\.(\d+)\.(\d+)\b", heading).groups())) for heading in headings]
    assert versions == sorted(set(versions), reverse=True)
    assert any(heading.split()[0] == swamp.__version__ == PROJECT["version"] for heading in headings)


@pytest.mark.parametrize("path", sorted((REPO / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem)
def test_issue_templates_are_forms(path):
    form = yaml.safe_load(path.read_text())
    if path.stem != "config":
        assert {"name", "description", "body"} <= set(form)
        assert all(part["type"] in {"markdown", "textarea", "dropdown", "input"} for part in form["body"])


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "docs/reference/stability.md"])
def test_links_lead_somewhere(name):
    page = REPO / name
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == [] and links


def test_what_is_called_stable_for_plugins_and_programs_can_be_imported():
    import importlib

    text = (REPO / "docs" / "reference" / "stability.md").read_text()
    named = {name for name in re.findall(r"`(swamp(?:\.\w+)+)`", text) if name != "swamp.__all__"}
    assert {"swamp.errors", "swamp.store.port", "swamp.testing.contract"} <= named
    for name in named:
        importlib.import_module(name)
