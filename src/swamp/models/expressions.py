"""`${{ CEL }}` inside values: checked, and resolved twice, for the work and for the record.

The record never sees the environment: where an expression reads `env`, the record keeps the expression as written, and
so it does for what was computed from such a value. inv[secrets.never-written]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from swamp.catalog import expression as cel
from swamp.catalog.expression import OPEN, Expression, has_expression, parse_template
from swamp.catalog.syntax import Node, free_names, walk
from swamp.data.names import suggest
from swamp.errors import SwampError, UsageError
from swamp.models.document import Path, spell
from swamp.models.mask import Masker
from swamp.values import value

if TYPE_CHECKING:
    from swamp.models.context import Lookup

__all__ = ["Evaluated", "Scope", "check_expressions", "evaluate", "has_expression", "truth"]

VARIABLES = ("inputs", "self", "run", "env", "model", "data")
FUNCTIONS = ("data.latest", "data.version", "data.query")


@value
class Scope:
    """What an expression can see. `shown_self` is what a record may know of `self`."""

    masker: Masker
    environment: Mapping[str, str]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    self_: Mapping[str, Any] = field(default_factory=dict)
    shown_self: Mapping[str, Any] | None = None
    run: Mapping[str, Any] = field(default_factory=dict)
    data: Lookup | None = None
    models: Callable[[], Mapping[str, Any]] = dict

    def with_self(self, real: Mapping[str, Any], shown: Mapping[str, Any] | None = None) -> Scope:
        return replace(self, self_=real, shown_self=shown)

    def open(self, names: frozenset[str], *, shown: bool = False) -> cel.CelScope:
        """The CEL side of it, with nothing in it that `names` does not ask for."""
        own = self.shown_self if shown and self.shown_self is not None else self.self_
        variables: dict[str, Any] = {"inputs": dict(self.inputs), "self": dict(own), "run": dict(self.run)}
        variables["env"] = dict(self.environment) if "env" in names and not shown else {}
        variables["model"] = dict(self.models()) if "model" in names else {}
        functions: dict[str, Callable[..., Any]] = {}
        if self.data is not None:
            lookups = (self.data.latest, self.data.version, self.data.query)
            functions = dict(zip(FUNCTIONS, lookups, strict=True))
        return cel.CelScope(variables, functions)


@value
class Evaluated:
    """A value twice: as the work needs it, and as a record may show it."""

    value: Any
    shown: Any


def evaluate(value: Any, scope: Scope, path: Path = ()) -> Evaluated:
    """`value` with every expression in it resolved. Raises UsageError that names the place and the expression."""
    if isinstance(value, str):
        return _evaluate_text(value, scope, path) if OPEN in value else Evaluated(value, value)
    if isinstance(value, Mapping):
        pairs = [
            (evaluate(key, scope, path), evaluate(inner, scope, (*path, str(key)))) for key, inner in value.items()
        ]
        return Evaluated({k.value: v.value for k, v in pairs}, {k.shown: v.shown for k, v in pairs})
    if isinstance(value, list | tuple):
        found = [evaluate(inner, scope, (*path, position)) for position, inner in enumerate(value)]
        return Evaluated([f.value for f in found], [f.shown for f in found])
    return Evaluated(value, value)


def _evaluate_text(text: str, scope: Scope, path: Path) -> Evaluated:
    with _located(path, scope):
        template = parse_template(text)
        names = frozenset().union(*(expression.names for expression in template.expressions))
        using = [expression for expression in template.expressions if "env" in expression.names]
        for expression in using:  # what it can see of the environment is a secret from now on
            scope.masker.learn(scope.environment.get(name, "") for name in env_names(expression, scope.environment))
        value = template.render(scope.open(names))
        if using:
            named = [] if isinstance(value, bool) else using  # what a comparison says is not the value
            for name in (name for expression in named for name in _named_uses(expression)):
                scope.masker.must_learn(f"the environment variable {name}", scope.environment.get(name, ""))
            return Evaluated(value, text)
        shown = value
        if "self" in names and scope.shown_self is not None:
            try:
                shown = template.render(scope.open(names, shown=True))
            except UsageError:
                shown = text  # it needs the real value: the record keeps the question instead of the answer
        return Evaluated(value, scope.masker.value(shown))


def truth(value: Any, scope: Scope, path: Path = ()) -> bool:
    """A guard or an assertion: CEL with or without `${{ }}`. Anything but true or false is an error."""
    if isinstance(value, bool):
        return value
    text = str(value) if OPEN in str(value) else f"{OPEN} {value} }}}}"
    found = evaluate(text, scope, path).value
    if isinstance(found, bool):
        return found
    raise UsageError(
        f"{_place(path)}`{value}` is neither true nor false", hint="compare it with something: ==, !=, <, >, in"
    )


@contextmanager
def _located(path: Path, scope: Scope) -> Iterator[None]:
    """Errors of expressions get the place in the document, and lose the secrets that a message might repeat."""
    try:
        yield
    except SwampError as error:
        if isinstance(error, UsageError):
            error.message = _place(path) + error.message
        scope.masker.error(error)
        raise


def _place(path: Path) -> str:
    return f"{spell(path)}: " if path else ""


# -- what an expression reads


def env_names(expression: Expression, environment: Mapping[str, str]) -> set[str]:
    """The variables it can see: the named ones, or all of them when it computes a name or takes `env` as a whole."""
    uses = [node for node in free_names(expression.tree) if node.word == "env"] if expression.tree else [expression]
    named = list(_named_uses(expression))
    return set(named) if len(named) >= len(uses) else set(environment)


def _named_uses(expression: Expression) -> Iterator[str]:
    for node in walk(expression.tree) if expression.tree is not None else ():
        match node:
            case Node("select", name, (Node("name", "env"),)) | Node(
                "index", _, (Node("name", "env"), Node("string", name))
            ):
                yield name


# -- checking without evaluating


def texts_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Every text below `value`, with its place."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts_in(inner, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            yield from texts_in(inner, (*path, position))


def check_expressions(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Every expression below `value` that is not CEL or names something unknown, with its place."""
    for where, text in texts_in(value, path):
        if OPEN in text and (message := _fault(text)) is not None:
            yield where, message


def _fault(text: str) -> str | None:
    try:
        template = parse_template(text)
    except UsageError as error:
        return error.message
    for expression in template.expressions:
        for name in expression.unknown(VARIABLES, FUNCTIONS):
            meant = suggest(name, VARIABLES)
            said = f"; did you mean `{meant}`?" if meant else f" (there is {', '.join(VARIABLES)})"
            return f"`{expression.source}`: there is no `{name}`{said}"
    return None
