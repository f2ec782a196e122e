"""ARCHITECTURE.md draws the house as it stands."""

from __future__ import annotations

import ast
import re
import tomllib
from graphlib import TopologicalSorter

import pytest
from reading import REPO

TEXT = (REPO / "ARCHITECTURE.md").read_text()
PACKAGE = REPO / "src" / "swamp"
NAMES = 34  # columns of the picture that hold names; what they mean stands to their right


def test_every_file_it_names_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)+[\w*]+\.py)`", TEXT))
    assert sorted(name for name in named if not list(PACKAGE.glob(name))) == []
    assert len(named) > 15


def test_every_room_and_module_of_the_package_is_in_the_picture() -> None:
    picture = TEXT.split("```")[1]
    rooms = {p.stem for p in PACKAGE.iterdir() if p.is_dir() or p.suffix == ".py"} - {"__init__", "__pycache__"}
    assert sorted(room for room in rooms if not re.search(rf"\b{room}\b", picture)) == []


def test_the_picture_and_the_import_contract_are_the_same() -> None:
    config = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["importlinter"]
    contract = [set(re.findall(r"\w+", layer)) for layer in config["contracts"][0]["layers"]]
    lines = [line for line in TEXT.split("```")[1].splitlines() if line.strip()]
    assert [set(line[:NAMES].split()) for line in lines] == contract


@pytest.mark.parametrize("room", ["bulk", "datasets"])
def test_no_cycle_hides_in_imports_inside_functions(room: str) -> None:
    """The import contract is about rooms; within these two, files had imported each other where they were called."""
    needs = {file.stem: set(_imported(file.read_text(), room)) for file in (PACKAGE / room).glob("*.py")}
    assert sum(map(len, needs.values())) > len(needs)
    TopologicalSorter(needs).prepare()  # raises CycleError, which names the files


def _imported(text: str, room: str) -> list[str]:
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    inside = [node.module.split(".")[2] for node in found if (node.module or "").startswith(f"swamp.{room}.")]
    return inside + [name.name for node in found if node.module == f"swamp.{room}" for name in node.names]


def test_every_folder_of_tests_is_explained() -> None:
    folders = {p.name for p in (REPO / "tests").iterdir() if p.is_dir() and list(p.rglob("test_*.py"))}
    assert sorted(name for name in folders if f"`tests/{name}`" not in TEXT) == []
