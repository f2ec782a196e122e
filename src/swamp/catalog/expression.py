"""CEL in one place: queries, models and workflows compile, check and evaluate their expressions here."""

from __future__ import annotations

import datetime as dt
import functools
import importlib.machinery
import importlib.util
import itertools
import json
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from swamp.catalog.syntax import MACROS, Node, NotUnderstood, free_names, is_loop, parse, tokens, walk
from swamp.data.names import suggest
from swamp.env import SYSTEM, rfc3339
from swamp.errors import MissingTool, SwampError, UsageError
from swamp.values import value

MAX_LENGTH: Final = 8192
_POSITION = re.compile(r"<input>:(\d+):(\d+): (?:Syntax error: )?(.*)")
_UNDEFINED = re.compile(r"Undefined variable or function: '([^']*)'")
_COUNT: Final = "swamp_count_"
_TICK: Final = "swamp_tick_"
_LOOP: Final = re.compile(r"\.\s*(?:" + "|".join(sorted(MACROS)) + r")\s*\(")
DEFAULT_SECONDS: Final = 60.0
_UNANSWERED: Final = (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError)


class NoAnswer(UsageError):
    """The expression is well formed and has no value here: a missing key, a wrong type, a division by zero."""


@value
class CelScope:
    """What an expression may use. `lazy` is asked for a variable when it is needed, and None means: not mine."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    lazy: Callable[[str], Any] | None = None


class Budget:
    """How long expressions may be evaluated, all in all: a loop in a loop never ends. inv[query.bounded]"""

    def __init__(self, seconds: float = DEFAULT_SECONDS) -> None:
        self.seconds = seconds
        self._left = seconds
        self._since: float | None = None

    def __enter__(self) -> None:
        self._since = SYSTEM.clock.monotonic()

    def __exit__(self, *_: object) -> None:
        self._left -= self._spent()
        self._since = None

    def tick(self) -> int:
        """Called from inside loops, so that a signal is heard there too. Raises UsageError when the time is up."""
        if self._spent() > self._left:
            raise UsageError(
                f"the expression was evaluated for {self.seconds:g} s and was stopped",
                hint="loop over less: narrow it with conditions on name, model or tags, or raise the time limit "
                "(--timeout, SWAMP_QUERY_TIMEOUT_MS)",
            )
        return 0

    def _spent(self) -> float:
        return 0.0 if self._since is None else SYSTEM.clock.monotonic() - self._since


class Expression:
    """A compiled CEL expression. Compile once, evaluate often, from any thread."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_LENGTH:  # the parser behind this recurses: a text without bound could end the process
            raise UsageError(f"the expression is longer than {MAX_LENGTH} characters")
        self.source = source
        self.tree: Node | None = None
        with suppress(NotUnderstood):
            self.tree = parse(source)
        if self.tree is None and len(_LOOP.findall(source)) > 1:
            raise UsageError(
                "the expression is too involved: its loops cannot be bounded", hint="write it with fewer nested parts"
            )
        self._program = _compile(source, _counted(_ticking(source, self.tree)) if self.tree is not None else source)

    @property
    def names(self) -> frozenset[str]:
        """The variables it mentions, without those that its macros bind."""
        if self.tree is None:
            return frozenset(self._program.variables())
        return frozenset(node.word for node in free_names(self.tree))

    def unknown(self, known: Collection[str], functions: Collection[str] = ()) -> list[str]:
        """The variables that it mentions and nobody knows; `data` in `data.latest(…)` is part of a function."""
        if self.tree is None:
            return []
        calls = (node for node in walk(self.tree) if node.kind == "method" and node.parts[0].kind == "name")
        spaces = {id(call.parts[0]) for call in calls if f"{call.parts[0].word}.{call.word}" in functions}
        found = (node.word for node in free_names(self.tree) if id(node) not in spaces)
        return sorted({name for name in found if name not in known})

    def check(self, known: Collection[str], functions: Collection[str] = (), what: str = "name") -> None:
        """Raises UsageError if it mentions something unknown; the error lists what there is."""
        unknown = self.unknown(known, functions)
        if unknown:
            raise _unknown(unknown[0], known, what)

    def evaluate(self, scope: CelScope, budget: Budget | None = None) -> Any:
        """The value, as plain Python. Raises NoAnswer; errors of the scope's own functions come through as they are."""
        raised: list[BaseException] = []
        unread: list[BaseException] = []
        budget = budget or Budget()
        context = _context(scope, budget, raised, unread)
        try:
            with budget:
                value = self._program.execute(context)
        except _UNANSWERED as error:
            if "KeyboardInterrupt" in str(error):  # a signal while one of our functions was called
                raise KeyboardInterrupt from error
            ours = unread or [found for found in raised[-1:] if isinstance(found, SwampError)]
            raise (ours[0] if ours else self._no_answer(error, scope)) from error
        if unread:  # where a variable could not be read, the library goes on with null
            raise unread[0]
        return value

    def _no_answer(self, error: Exception, scope: CelScope) -> UsageError:
        missing = _UNDEFINED.search(str(error))
        if missing and missing[1] not in scope.variables and self.tree is None:
            return _unknown(missing[1], scope.variables, "name")
        reason = f"there is no key {error}" if isinstance(error, KeyError) else str(error).split(". ")[0]
        return NoAnswer(
            f"`{self.source}` has no answer: {reason}",
            hint="guard optional values with has(…)",
            details={"expression": self.source},
        )


@functools.lru_cache(maxsize=1024)
def compile_expression(source: str) -> Expression:
    """The expression of a text. Raises UsageError with the position of what is wrong."""
    return Expression(source)


def evaluate(source: str, scope: CelScope) -> Any:
    """Compile, check names, evaluate."""
    expression = compile_expression(source)
    if scope.lazy is None:
        expression.check(scope.variables.keys(), scope.functions.keys())
    return expression.evaluate(scope)


def plain(value: Any) -> Any:
    """A result as JSON has it: times as RFC 3339, spans in seconds, bytes as text, maps sorted by key."""
    if isinstance(value, dt.datetime):
        return rfc3339(value)
    if isinstance(value, dt.timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in sorted((str(k), v) for k, v in value.items())}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def _ticking(source: str, tree: Node) -> str:
    """Every loop around another loop calls us once per round: `x.all(a, BODY)` as `x.all(a, [BODY][tick()])`."""
    bodies = [body for loop in walk(tree) if is_loop(loop) for body in loop.parts[2:]]
    outer = [body for body in bodies if any(is_loop(inner) for inner in walk(body))]
    marks = [(body.start, "[") for body in outer] + [(body.end, f"][{_TICK}()]") for body in outer]
    for place, mark in sorted(marks, key=lambda mark: (mark[0], mark[1] == "["), reverse=True):
        source = source[:place] + mark + source[place:]
    return source


def _counted(source: str) -> str:
    """`size` of the library counts the bytes of a text; CEL counts its characters, so ours stands in."""
    words = tokens(source)
    calls = [a for a, b in itertools.pairwise(words) if (a.kind, a.text, b.text) == ("name", "size", "(")]
    for word in reversed(calls):
        source = source[: word.start] + _COUNT + source[word.end :]
    return source


def _compile(source: str, actual: str) -> Any:
    try:
        return _library().compile(actual)
    except (ValueError, RuntimeError, UnicodeError) as error:
        if actual != source:
            return _compile(source, source)  # only for its message, which must show what the user wrote
        raise _syntax_error(source, str(error)) from error


def _syntax_error(source: str, message: str) -> UsageError:
    found = _POSITION.search(message)
    line, column, what = (int(found[1]), int(found[2]), found[3]) if found else (1, 1, "it is not valid CEL")
    shown = source.splitlines()[line - 1] if source.splitlines() else ""
    pointer = " " * (column - 1) + "^"
    return UsageError(
        f"the expression does not parse at line {line}, column {column}: {what}\n  {shown}\n  {pointer}",
        hint='compare with `==`, join with `&&` and `||`, and quote texts: name == "a" && version > 1',
        details={"expression": source, "line": line, "column": column},
    )


def _unknown(name: str, known: Collection[str], what: str) -> UsageError:
    close = suggest(name, known)
    meant = f"; did you mean `{close}`?" if close else ""
    listed = ", ".join(sorted(known)) or "none"
    return UsageError(f"there is no {what} `{name}`{meant}", hint=f"known: {listed}", details={"known": sorted(known)})


def _context(scope: CelScope, budget: Budget, raised: list[BaseException], unread: list[BaseException]) -> Any:
    functions = {name: _kept(function, raised) for name, function in scope.functions.items()}
    context = _library().Context(
        variables=dict(scope.variables), functions={_COUNT: len, _TICK: _kept(budget.tick, raised), **functions}
    )
    if scope.lazy is not None:
        context.set_variable_resolver(_kept(scope.lazy, unread))
    return context


def _kept(function: Callable[..., Any], raised: list[BaseException]) -> Callable[..., Any]:
    """The library turns what a function raises into text; this keeps the error itself."""

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            raised.append(error)
            raise

    return call


@functools.cache
def _library() -> Any:
    """The compiled part of the CEL package alone: the package itself imports a terminal application (0.5 s)."""
    logging.getLogger("cel").setLevel(logging.CRITICAL)  # it logs errors that it also raises
    spec = importlib.util.find_spec("cel")
    for place in spec.submodule_search_locations or () if spec else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            found = Path(place) / f"cel{suffix}"
            if found.exists():
                loader = importlib.machinery.ExtensionFileLoader("cel.cel", str(found))
                spec = importlib.machinery.ModuleSpec("cel.cel", loader, origin=str(found))
                module = importlib.util.module_from_spec(spec)
                loader.exec_module(module)
                return module
    raise MissingTool("the CEL library is not installed", hint="install `common-expression-language`")


OPEN: Final = "${{"
CLOSE: Final = "}}"


@value
class Template:
    """A text cut into literal pieces and expressions."""

    pieces: tuple[str | Expression, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(piece for piece in self.pieces if isinstance(piece, Expression))

    def render(self, scope: CelScope) -> Any:
        """The typed value if the text is one expression, else text."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Expression):
            return plain(evaluate(self.pieces[0].source, scope))
        texts = (p if isinstance(p, str) else as_text(plain(evaluate(p.source, scope))) for p in self.pieces)
        return "".join(texts)


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


def _texts(value: Any) -> Iterator[str]:
    """Every text in a document that has something to be evaluated, keys included."""
    if isinstance(value, str) and OPEN in value:
        yield value
    elif isinstance(value, dict | list):
        for item in itertools.chain(*value.items()) if isinstance(value, dict) else value:
            yield from _texts(item)


def has_expression(value: Any) -> bool:
    """Whether anything in a document is to be evaluated."""
    return any(True for _ in _texts(value))


def render(value: Any, scope: CelScope) -> Any:
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
    for text in _texts(value):
        yield from parse_template(text).expressions


def as_text(value: Any) -> str:
    """How a value reads inside a text: null is nothing, lists and maps are JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)
