"""Every invariant is written down, upheld by a line of code, and defended by a test."""

from __future__ import annotations

import re

import pytest
from reading import REPO

NAME = r"[a-z]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z]+)*"


def written() -> list[str]:
    """Names in the tables of INVARIANTS.md."""
    text = (REPO / "docs" / "design" / "INVARIANTS.md").read_text()
    return re.findall(rf"^\| `({NAME})` \|", text, re.MULTILINE)


def upheld() -> set[str]:
    """Names in the code. Lint rules uphold some: their configuration counts as code."""
    files = [*(REPO / "src").rglob("*.py"), REPO / "pyproject.toml"]
    return {name for file in files for name in re.findall(rf"inv\[({NAME})\]", file.read_text())}


def defended() -> set[str]:
    files = (REPO / "tests").rglob("*.py")
    return {name for f in files for name in re.findall(rf"mark\.inv\(\s*\"({NAME})\"", f.read_text())}


def test_no_invariant_is_written_down_twice() -> None:
    assert sorted(set(written())) == sorted(written())


def test_every_invariant_has_a_line_of_code_that_upholds_it() -> None:
    assert sorted(set(written()) - upheld()) == []


def test_every_invariant_has_a_test_that_defends_it() -> None:
    assert sorted(set(written()) - defended()) == []


def test_no_name_in_code_or_tests_is_unknown() -> None:
    assert sorted((upheld() | defended()) - set(written())) == []


def test_every_name_in_the_protocol_is_an_invariant() -> None:
    protocol = (REPO / "docs" / "design" / "PROTOCOL.md").read_text()
    named = set(re.findall(rf"`\[({NAME})\]`", protocol))
    assert named <= set(written())
    assert len(named) >= 20


@pytest.mark.parametrize("text", ["# inv[journal.first]", "inv[commit.unknown-is-not-failure]: read again"])
def test_a_mark_is_found_in_a_comment_and_in_a_docstring(text: str) -> None:
    assert re.findall(rf"inv\[({NAME})\]", text)
