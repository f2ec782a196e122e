"""Makes classes out of their fields: values, which mypy keeps frozen, and what changes; cheap to import and to make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """As `@dataclass(frozen=True, slots=True)`, at a quarter of the price for each value and a tenth for the class.

    mypy refuses every assignment, so the interpreter need not do it once more for each field; and of what `dataclass`
    compiles for a class only `__init__` is worth it, when the first value is made: a command imports far more classes
    than it makes values of (docs/decisions/0016-plain-values.md).
    """
    cls.__doc__ = cls.__doc__ or cls.__name__  # or `dataclass` makes up one, by way of `inspect`
    remembers = any(isinstance(each, cached_property) for each in vars(cls).values())  # in a dictionary of its own
    made: Any = dataclass(slots=not remembers, eq=False, repr=False, init=False)(cls)
    told = _told(tuple(f.name for f in fields(made) if f.compare))

    def equal(self: Any, other: object) -> bool:
        return told(self) == told(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(told(self))

    made.__init__, made.__eq__, made.__hash__, made.__repr__ = _first_init(made), equal, hashed, _shown
    return made  # type: ignore[no-any-return]


@dataclass_transform(field_specifiers=(field,))
def mutable(cls: type[T]) -> type[T]:
    """As `@dataclass(eq=False)`, for what changes while it works; its `__init__` is compiled when one is made."""
    cls.__doc__ = cls.__doc__ or cls.__name__
    made: Any = dataclass(eq=False, repr=False, init=False)(cls)
    made.__init__, made.__repr__ = _first_init(made), _shown
    return made  # type: ignore[no-any-return]


def _first_init(cls: Any) -> Callable[..., None]:
    """Make the `__init__` that replaces itself by the compiled one as soon as it is called."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _init(cls)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _init(cls: Any) -> Callable[..., None]:
    """Compile the `__init__` of a class: takes its fields, assigns each, then calls `__post_init__` if there is one."""
    known: dict[str, Any] = {"MISSING": MISSING}
    arguments, body = ["self"], []
    for f in fields(cls):
        made_anew = f.default_factory is not MISSING
        by_default = f"default__of__{f.name}"  # `_name` might be another field
        known[by_default] = default = f.default_factory if made_anew else f.default
        if f.init:
            arguments.append(f.name if default is MISSING else f"{f.name}={'MISSING' if made_anew else by_default}")
            body.append(
                f"self.{f.name} = {f'{by_default}() if {f.name} is MISSING else ' if made_anew else ''}{f.name}"
            )
        elif default is not MISSING:
            body.append(f"self.{f.name} = {by_default}{'()' if made_anew else ''}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(body or ["pass"]), known)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def camel(name: str) -> str:
    """What a field is called in a JSON document: `started_at` is `startedAt` there."""
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


def as_document(made: Any) -> dict[str, Any]:
    """The fields of a value as a JSON document."""
    return {camel(f.name): getattr(made, f.name) for f in fields(made)}


def _told(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """What two values are compared by."""
    return attrgetter(*names) if names else type


def _shown(self: Any) -> str:
    told = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(told)})"
