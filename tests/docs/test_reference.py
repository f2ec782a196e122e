"""docs/reference is what the code says: `make docs` would change nothing."""

from __future__ import annotations

import importlib.util
from functools import cache

from reading import REPO


@cache
def pages() -> dict[str, str]:
    """What the code says now. Not when this file is read: every worker reads it, and one needs them."""
    spec = importlib.util.spec_from_file_location("generate", REPO / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.pages())


def test_the_pages_are_up_to_date() -> None:
    reference = REPO / "docs" / "reference"
    assert [name for name, text in pages().items() if (reference / name).read_text() != text] == [], "run: make docs"


def test_the_command_line_reference_has_every_command_of_the_contract() -> None:
    """The groups and commands that scripts depend on."""
    contract = """
        repo init
        datastore setup, sync, status, doctor, verify, gc, compact, undelete, log
        datastore lock status, release
        datastore namespace set, unset, list
        data list, get, versions, put, search, query, delete, rename, gc, prune
        model create, get, list, edit, delete, validate
        model type list, describe
        model method run
        model output list, get, logs
        workflow create, get, list, edit, delete, validate, run, resume, approve, reject, cancel
        workflow history get
    """
    missing = []
    for line in contract.strip().splitlines():
        *group, first = line.strip().split(",")[0].split()
        for command in [first, *(c.strip() for c in line.split(",")[1:])]:
            name = " ".join(["swamp", *group, command])
            if f" {name}\n" not in pages()["cli.md"]:
                missing.append(name)
    assert missing == []
    assert "## swamp sql\n" in pages()["cli.md"]


def test_what_each_backend_enforces_was_measured_and_is_what_the_contract_suite_expects() -> None:
    """The probe tells stores that enforce conditions from those that accept and ignore them."""
    from servers.start import SAFE, STARTERS

    text = (REPO / "docs" / "reference" / "backends.md").read_text()
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    verdicts = {row[0]: row[-1] for row in cells[1:]}
    expected = {name: "any number of writers" if name in SAFE else "one writer at a time" for name in STARTERS}
    assert verdicts == expected
