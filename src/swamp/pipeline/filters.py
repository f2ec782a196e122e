"""Spark's filters on metadata columns, evaluated where the rows are made: what does not match is never read or sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

Test = tuple[str, str, Any]
"""Column, operator, value: picklable and independent of Spark's classes."""

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "EqualTo": lambda have, want: have is not None and have == want,
    "EqualNullSafe": lambda have, want: have == want,
    "GreaterThan": lambda have, want: have is not None and have > want,
    "GreaterThanOrEqual": lambda have, want: have is not None and have >= want,
    "LessThan": lambda have, want: have is not None and have < want,
    "LessThanOrEqual": lambda have, want: have is not None and have <= want,
    "In": lambda have, want: have is not None and have in want,
    "IsNull": lambda have, want: have is None,
    "IsNotNull": lambda have, want: have is not None,
    "StringStartsWith": lambda have, want: have is not None and have.startswith(want),
    "StringEndsWith": lambda have, want: have is not None and have.endswith(want),
    "StringContains": lambda have, want: have is not None and want in have,
}


@dataclass(frozen=True)
class Tests:
    """All of them must hold."""

    tests: tuple[Test, ...] = ()

    def admit(self, row: Mapping[str, Any]) -> bool:
        return all(_OPERATORS[op](row.get(column), value) for column, op, value in self.tests)

    def on(self, columns: Iterable[str]) -> Tests:
        """Only those that can be decided from these columns: for pruning before a file is read."""
        known = set(columns)
        return Tests(tuple(test for test in self.tests if test[0] in known))


def split(filters: Sequence[Filter], columns: Iterable[str]) -> tuple[Tests, list[Filter]]:
    """What we evaluate, and what stays with Spark."""
    known, mine, rest = set(columns), [], []
    for found in filters:
        test = _test_of(found)
        if test is not None and test[0] in known:
            mine.append(test)
        else:
            rest.append(found)
    return Tests(tuple(mine)), rest


def _test_of(found: Filter) -> Test | None:
    kind = type(found).__name__
    path: tuple[str, ...] = getattr(found, "attribute", ())
    if kind not in _OPERATORS or len(path) != 1:
        return None
    return path[0], kind, getattr(found, "value", None)
