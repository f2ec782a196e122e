"""Values: frozen for whoever checks types, plain for the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """As `@dataclass(frozen=True, slots=True)`, at a quarter of the price for each value and a third for the class.

    mypy refuses every assignment, so the interpreter need not do it once more for each field; and of what `dataclass`
    compiles for a class only `__init__` is worth it (docs/decisions/0016-plain-values.md).
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # or `dataclass` makes up one, by way of `inspect`
    made: Any = dataclass(slots=True, eq=False, repr=False)(cls)
    told = _told(tuple(f.name for f in fields(made) if f.compare))

    def equal(self: Any, other: object) -> bool:
        return told(self) == told(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(told(self))

    made.__eq__, made.__hash__, made.__repr__ = equal, hashed, _shown
    return made  # type: ignore[no-any-return]


def _told(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """What two values are compared by."""
    return attrgetter(*names) if names else type


def _shown(self: Any) -> str:
    told = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"
