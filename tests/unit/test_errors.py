"""Errors are grouped by what the caller does next, carry a next step, and survive the way from a Spark task."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from swamp import errors
from swamp.errors import SwampError

KINDS = sorted(
    (c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, SwampError)),
    key=lambda c: c.__name__,
)
LINE = re.compile(r"^(?P<lead>[ │├└─]*)(?P<name>[A-Z]\w+)(?:\s+(?P<code>\d+))?")


def drawn() -> dict[str, tuple[str | None, int | None]]:
    """Name -> (parent, exit code as drawn) of the tree in the module's docstring."""
    tree: dict[str, tuple[str | None, int | None]] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if not match or not line.startswith("    "):
            continue
        depth = len(match["lead"])
        path = [(d, n) for d, n in path if d < depth]
        tree[match["name"]] = (path[-1][1] if path else None, int(match["code"]) if match["code"] else None)
        path.append((depth, match["name"]))
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    actual = {c.__name__: c.__base__.__name__ if c is not SwampError else None for c in KINDS}
    assert {name: parent for name, (parent, _) in drawn().items()} == actual


def test_the_exit_codes_in_the_docstring_are_those_of_the_classes() -> None:
    codes = {name: code for name, (_, code) in drawn().items() if code is not None}
    assert codes == {c.__name__: c.exit_code for c in KINDS if c.__name__ in codes}
    assert len(codes) >= 10


def test_exit_codes_are_those_of_the_command_line_contract() -> None:
    assert {c.exit_code for c in KINDS} == {1, 2, 65, 69, 75, 130}


def test_kinds_are_distinct_because_scripts_switch_on_them() -> None:
    kinds = [c.kind for c in KINDS]
    assert sorted(set(kinds)) == sorted(kinds)


@pytest.mark.parametrize("kind", KINDS, ids=lambda c: c.__name__)
def test_an_error_survives_pickling_with_everything_it_says(kind: type[SwampError]) -> None:
    error = kind("the bucket is gone", hint="create it", details={"status": 404, "key": "data/x"})
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.message, copy.hint, copy.details) == (error.message, error.hint, error.details)
    assert str(copy) == "the bucket is gone"
    assert (copy.kind, copy.exit_code) == (kind.kind, kind.exit_code)


def test_details_are_a_copy_so_that_a_later_change_does_not_rewrite_the_error() -> None:
    details = {"status": 500}
    error = errors.Unavailable("no answer", details=details)
    details["status"] = 200
    assert error.details == {"status": 500}


def test_an_unknown_outcome_is_caught_where_unavailability_is() -> None:
    with pytest.raises(errors.Unavailable) as caught:
        raise errors.OutcomeUnknown("nobody can say")
    assert caught.value.exit_code == 69
