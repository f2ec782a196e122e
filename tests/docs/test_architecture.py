"""ARCHITECTURE.md draws the house as it stands."""

from __future__ import annotations

import re
import tomllib

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


def test_every_folder_of_tests_is_explained() -> None:
    folders = {p.name for p in (REPO / "tests").iterdir() if p.is_dir() and list(p.rglob("test_*.py"))}
    assert sorted(name for name in folders if f"`tests/{name}`" not in TEXT) == []
