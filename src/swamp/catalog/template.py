"""`${{ CEL }}` inside documents: a whole value keeps its type, a part of a text becomes text."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from swamp.catalog.expression import Expression, Scope, compile_expression, plain
from swamp.errors import UsageError

OPEN: Final = "${{"
CLOSE: Final = "}}"


@dataclass(frozen=True)
class Template:
    """A text cut into literal pieces and expressions."""

    pieces: tuple[str | Expression, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Expression))

    def render(self, scope: Scope) -> Any:
        """The typed value if the text is one expression, else text."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Expression):
            return _value(self.pieces[0], scope)
        return "".join(piece if isinstance(piece, str) else as_text(_value(piece, scope)) for piece in self.pieces)


def _value(expression: Expression, scope: Scope) -> Any:
    if scope.lazy is None:
        expression.check(scope.variables.keys(), scope.functions.keys())
    return plain(expression.evaluate(scope))


@functools.lru_cache(maxsize=4096)
def parse_template(text: str) -> Template:
    """The template in a text. Raises UsageError for an expression that does not end or does not parse."""
    return Template(tuple(_pieces(text)))


def _pieces(text: str) -> Iterator[str | Expression]:
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        if start > position:
            yield text[position:start]
        end = _end_of(text, start + len(OPEN))
        yield compile_expression(text[start + len(OPEN) : end].strip())
        position = end + len(CLOSE)
    if position < len(text) or not text:
        yield text[position:]


def _end_of(text: str, position: int) -> int:
    """Where the `}}` of an expression stands: not inside a text, and not the end of a map in a map."""
    depth, quote = 0, ""
    while position < len(text):
        char = text[position]
        if quote:
            if char == "\\":
                position += 1
            elif char == quote:
                quote = ""
        elif char in "\"'":
            quote = char
        elif depth == 0 and text.startswith(CLOSE, position):
            return position
        elif char in "{}":
            depth += 1 if char == "{" else -1
        position += 1
    raise UsageError("an expression `${{ … }}` is not closed", hint="end it with `}}`", details={"text": text})


def has_expression(value: Any) -> bool:
    """Whether anything in a document is to be evaluated."""
    if isinstance(value, str):
        return OPEN in value
    if isinstance(value, dict):
        return any(has_expression(item) for pair in value.items() for item in pair)
    return isinstance(value, list) and any(has_expression(item) for item in value)


def render(value: Any, scope: Scope) -> Any:
    """The document with every expression in it resolved, keys included."""
    if isinstance(value, str):
        return parse_template(value).render(scope) if OPEN in value else value
    if isinstance(value, dict):
        return {render(key, scope): render(item, scope) for key, item in value.items()}
    if isinstance(value, list):
        return [render(item, scope) for item in value]
    return value


def expressions_in(value: Any) -> Iterator[Expression]:
    """Every expression in a document, for checks before anything runs."""
    if isinstance(value, str) and OPEN in value:
        yield from parse_template(value).expressions
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from expressions_in(key)
            yield from expressions_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from expressions_in(item)


def as_text(value: Any) -> str:
    """How a value reads inside a text: null is nothing, lists and maps are JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)
