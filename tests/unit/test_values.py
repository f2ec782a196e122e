"""What `@value` promises: a frozen dataclass for mypy, a cheap one for the interpreter."""

from __future__ import annotations

import pickle
from dataclasses import field, replace

from swamp.values import value


@value
class Place:
    name: str
    size: int = 0
    secret: str = field(default="hidden", repr=False)


@value
class Counted:
    name: str
    times: int = field(default=0, compare=False)


@value
class Nothing:
    """No field at all."""


@value
class Other:
    name: str
    size: int = 0
    secret: str = "hidden"


def test_values_are_equal_by_what_they_hold_and_by_kind():
    assert Place("a", 1) == Place("a", 1) != Place("a", 2)
    assert len({Place("a"), Place("a"), Place("b")}) == 2
    assert Place("a") != Other("a") and Other("a") != "a"
    assert Counted("a", 1) == Counted("a", 2) and hash(Counted("a", 1)) == hash(Counted("a", 2))
    assert Nothing() == Nothing() and len({Nothing(), Nothing()}) == 1


def test_secrets_are_not_shown():
    assert repr(Place("a", 3)) == "Place(name='a', size=3)" and repr(Nothing()) == "Nothing()"


def test_they_travel_and_are_replaced():
    assert pickle.loads(pickle.dumps(Place("a", 3))) == Place("a", 3)
    assert replace(Place("a"), size=4) == Place("a", 4)
    assert not hasattr(Place("a"), "__dict__")
