"""What `@value` promises: a frozen dataclass for mypy, a cheap one for the interpreter."""

from __future__ import annotations

import pickle
from dataclasses import field, replace
from functools import cached_property

import pytest

from swamp.values import mutable, value


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


@value
class Sized:
    name: str

    @cached_property
    def size(self) -> int:
        return len(self.name)


def test_a_value_can_remember_what_it_computed_once():
    one = Sized("abc")
    assert one.size == 3 and one == Sized("abc") and "size" in vars(one)


@mutable
class Counter:
    start: int
    steps: list[int] = field(default_factory=list)
    total: int = field(init=False)
    quiet: bool = field(default=True, init=False, repr=False)

    def __post_init__(self) -> None:
        self.total = self.start


@mutable
class Doubling(Counter):
    by: int = 2

    def step(self) -> None:
        self.total *= self.by


def test_what_changes_is_equal_only_to_itself_and_shares_nothing():
    one, two = Counter(1), Counter(1)
    one.steps.append(1)
    assert one != two and two.steps == [] and one.total == 1 and one.quiet
    assert repr(one) == "Counter(start=1, steps=[1], total=1)"


def test_a_class_adds_fields_to_the_one_that_it_extends():
    one = Doubling(3, by=3)
    one.step()
    assert (one.total, one.steps) == (9, []) and Counter(3).total == 3


@mutable
class Shadowed:
    _steps: int
    steps: list[int] = field(default_factory=list)


def test_a_field_is_not_taken_for_the_default_of_another():
    assert (Shadowed(3)._steps, Shadowed(3).steps) == (3, [])


@pytest.mark.parametrize("kind", [Place, Counter])
def test_the_first_and_the_second_wrong_call_are_told_alike(kind):
    for _ in range(2):
        with pytest.raises(TypeError, match=f"{kind.__name__}.__init__.*missing 1 required positional argument"):
            kind()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        kind("a", nothing=1)
