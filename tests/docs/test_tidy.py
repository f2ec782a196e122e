"""The limits that keep the house readable: nothing is listed as an exception."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from reading import REPO

MODULE = 400
FUNCTION = 45
SOURCES = sorted((REPO / "src").rglob("*.py"))


def functions() -> Iterator[tuple[str, int]]:
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file.relative_to(REPO)}: {node.name}", (node.end_lineno or 0) - node.lineno + 1


def test_no_module_is_too_long() -> None:
    lengths = {str(file.relative_to(REPO)): len(file.read_text().splitlines()) for file in SOURCES}
    assert {name: lines for name, lines in lengths.items() if lines > MODULE} == {}


def test_no_function_is_too_long() -> None:
    assert {name: lines for name, lines in functions() if lines > FUNCTION} == {}


def test_no_class_name_is_given_twice() -> None:
    """A name that two classes bear says of neither what it is."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(file.relative_to(REPO)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
