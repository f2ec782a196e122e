"""Every failure that systems of this kind have had is tried on ours: each id has a test, and none is skipped."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from reading import REPO

LISTED = {"L": 77, "K": 14, "S": 24, "C": 26, "P": 9}
IDS = [f"{letter}{n:02d}" for letter, last in LISTED.items() for n in range(1, last + 1)]
NAMED = re.compile(r"^test_((?:[LKSCP]\d\d_)+)")
LEFT_OUT = re.compile(r"pytest\.(skip|xfail|importorskip)|mark\.(skip|skipif|xfail)")


@cache
def regressions() -> list[tuple[str, str, ast.FunctionDef]]:
    """Every test that is named after a failure, once for each id in its name: the id, its file, its code."""
    found = []
    for file in sorted((REPO / "tests" / "regressions").rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := NAMED.match(node.name)):
                node.file = str(file)  # type: ignore[attr-defined]
                found += [(id_, file.name, node) for id_ in match[1].strip("_").split("_")]
    return found


def test_every_failure_of_the_list_has_a_test() -> None:
    assert sorted(set(IDS) - {id_ for id_, _, _ in regressions()}) == []


def test_no_test_is_named_after_a_failure_that_nobody_listed() -> None:
    assert sorted({id_ for id_, _, _ in regressions()} - set(IDS)) == []


WITHIN_A_COMMAND = frozenset("L17 L28 L35 L36 L38 L43 L50 L51 L55 L56 L57 L71 L72 L74 S12 S19 P04 P05 P07 P08".split())
"""Shown by the engine on real stores: they need two things in a chosen order within one command, or no answer of a
command shows them. Everything else is shown by commands."""


def test_what_a_command_can_show_is_shown_by_a_command() -> None:
    shown = {id_ for id_, _, node in regressions() if "engine" not in Path(node.file).parts}  # type: ignore[attr-defined]
    assert sorted(set(IDS) - shown - WITHIN_A_COMMAND) == []
    assert sorted(shown & WITHIN_A_COMMAND) == [], "shown by a command: take it off this list"


def test_every_id_finds_its_tests_as_the_readme_says() -> None:
    """`pytest tests/regressions -k L01_` matches names of tests, files and folders: each id, by the name of a test."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-o", "addopts=--strict-markers -q", "tests/regressions"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=200,
    )
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert done.returncode == 0 and names, done.stdout[-2000:] + done.stderr[-2000:]
    assert [id_ for id_ in IDS if not any(f"{id_}_" in name for name in names)] == []


def test_none_of_them_is_skipped() -> None:
    """Not by a mark and not from within; a server that is missing fails the run by SWAMP_REQUIRE."""
    assert [(file, node.name) for _, file, node in regressions() if LEFT_OUT.search(ast.unparse(node))] == []
    marked = [
        f for f in (REPO / "tests" / "regressions").rglob("*.py") if re.search(r"pytestmark.*skip", f.read_text())
    ]
    assert marked == []


@pytest.mark.parametrize("id_", IDS)
def test_the_promise_stands_in_the_reference(id_: str) -> None:
    """docs/reference/promises.md is made from the same tests (docs/generate.py)."""
    assert f"| {id_} |" in (REPO / "docs" / "reference" / "promises.md").read_text()
