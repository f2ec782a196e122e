"""The shape of a CEL expression: enough of a parser to see which fields it names and what SQL can answer.

The CEL library decides what an expression means and hands out no tree. This one is only ever used to look:
an expression that is legal there and not understood here is evaluated without looking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from swamp.values import value

MACROS: Final = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
TYPE_NAMES: Final = frozenset(
    "int uint double bool string bytes list map null_type type dyn timestamp duration optional google".split()
)
LiteralKind = Literal["int", "uint", "double", "string", "bytes", "bool", "null"]


class NotUnderstood(ValueError):
    """The text is not CEL, or uses something that nobody here needs to look into."""


@value
class CelToken:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Node:
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Constant(Node):
    kind: LiteralKind
    value: object


@dataclass(frozen=True, slots=True)
class Name(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Select(Node):
    operand: Node
    field: str


@dataclass(frozen=True, slots=True)
class Index(Node):
    operand: Node
    key: Node


@dataclass(frozen=True, slots=True)
class Call(Node):
    target: Node | None
    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Items(Node):
    """A list, or the keys and values of a map in turn."""

    items: tuple[Node, ...]
    is_map: bool = False


@dataclass(frozen=True, slots=True)
class Operation(Node):
    """`!` and `-` have one operand, `&&` and `||` two or more, other binary operators two, `?` three."""

    operator: str
    operands: tuple[Node, ...]


_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*)
  | (?P<string>(?:[rR][bB]?|[bB][rR]?)?(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''
        |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
  | (?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<int>0[xX][0-9a-fA-F]+|\d+)(?P<unsigned>[uU]?)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<sign>==|!=|<=|>=|&&|\|\||[][{}().,<>+\-*/%!?:])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_SIMPLE: Final = dict(zip("abfnrtv\\?\"'`", "\a\b\f\n\r\t\v\\?\"'`", strict=True))


def tokens(text: str) -> list[CelToken]:
    """The words of an expression. Raises NotUnderstood."""
    found: list[CelToken] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotUnderstood(f"unexpected {text[position]!r} at {position}")
        kind = next(k for k, v in match.groupdict().items() if v is not None)
        if kind != "space":
            kind = "uint" if match["unsigned"] else kind
            found.append(CelToken(kind, match[0], position, match.end()))
        position = match.end()
    return [*found, CelToken("end", "", len(text), len(text))]


def parse(text: str) -> Node:
    """The tree of an expression. Raises NotUnderstood, also if it is so deep that walking it could fail."""
    tree = _Parser(tokens(text)).whole()
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise NotUnderstood("nested too deeply")
        waiting += [(child, depth + 1) for child in children(node)]
    return tree


_LEVELS: Final = (
    frozenset({"||"}),
    frozenset({"&&"}),
    frozenset({"==", "!=", "<", "<=", ">", ">=", "in"}),
    frozenset({"+", "-"}),
    frozenset({"*", "/", "%"}),
)
MAX_NESTING: Final = 24
MAX_DEPTH: Final = 60


class _Parser:
    def __init__(self, words: list[CelToken]) -> None:
        self._words = words
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        node = self._ternary()
        self._expect("", "end")
        return node

    @property
    def _next(self) -> CelToken:
        return self._words[self._at]

    def _take(self) -> CelToken:
        self._at += 1
        return self._words[self._at - 1]

    def _accept(self, text: str) -> bool:
        if self._next.text == text and self._next.kind in ("sign", "name"):
            self._at += 1
            return True
        return False

    def _expect(self, text: str, kind: str = "sign") -> CelToken:
        if self._next.kind != kind or (text and self._next.text != text):
            raise NotUnderstood(f"expected {text or kind} at {self._next.start}")
        return self._take()

    def _ternary(self) -> Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise NotUnderstood("nested too deeply")
        node = self._binary(0)
        if self._accept("?"):
            yes = self._binary(0)
            self._expect(":")
            no = self._ternary()
            node = Operation(node.start, no.end, "?", (node, yes, no))
        self._depth -= 1
        return node

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        node = self._binary(level + 1)
        joins = False
        while self._next.text in _LEVELS[level] and self._next.kind in ("sign", "name"):
            operator = self._take().text
            right = self._binary(level + 1)
            chain = node.operands if isinstance(node, Operation) and joins and operator == node.operator else (node,)
            joins = operator in ("&&", "||")  # one flat node for `a || b || c`: order does not matter there
            node = Operation(node.start, right.end, operator, (*chain, right))
        return node

    def _unary(self) -> Node:
        signs = []
        while self._next.kind == "sign" and self._next.text in ("!", "-"):
            signs.append(self._take())
        if len({sign.text for sign in signs}) > 1 or len(signs) > MAX_NESTING:
            raise NotUnderstood("mixed or too many signs")
        node = self._member()
        for sign in reversed(signs):
            node = Operation(sign.start, node.end, sign.text, (node,))
        return node

    def _member(self) -> Node:
        node = self._primary()
        while self._next.kind == "sign" and self._next.text in (".", "["):
            if self._take().text == "[":
                key = self._ternary()
                node = Index(node.start, self._expect("]").end, node, key)
            else:
                node = self._dotted(node)
        return node

    def _dotted(self, operand: Node) -> Node:
        name = self._expect("", "name")
        if not self._accept("("):
            return Select(operand.start, name.end, operand, name.text)
        arguments = self._list(")")
        return Call(operand.start, self._words[self._at - 1].end, operand, name.text, arguments)

    def _primary(self) -> Node:
        word = self._take()
        if word.kind in ("int", "uint", "double", "string"):
            return _constant(word)
        if word.kind == "name":
            return self._named(word)
        if word.text == "(":
            inner = self._ternary()
            return replace(inner, start=word.start, end=self._expect(")").end)  # a slice keeps its parentheses
        if word.text == "[":
            items = self._list("]")
            return Items(word.start, self._words[self._at - 1].end, items)
        if word.text == "{":
            return self._map(word)
        raise NotUnderstood(f"unexpected {word.text!r} at {word.start}")

    def _named(self, word: CelToken) -> Node:
        if word.text in ("true", "false"):
            return Constant(word.start, word.end, "bool", word.text == "true")
        if word.text == "null":
            return Constant(word.start, word.end, "null", None)
        if self._next.text == "{":
            raise NotUnderstood("message literals are not looked into")
        if self._accept("("):
            arguments = self._list(")")
            return Call(word.start, self._words[self._at - 1].end, None, word.text, arguments)
        return Name(word.start, word.end, word.text)

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._accept(end):
            if items:
                self._expect(",")
                if end == "]" and self._accept(end):
                    break
            items.append(self._ternary())
        return tuple(items)

    def _map(self, opening: CelToken) -> Node:
        items: list[Node] = []
        while not self._accept("}"):
            if items:
                self._expect(",")
                if self._accept("}"):
                    break
            items.append(self._ternary())
            self._expect(":")
            items.append(self._ternary())
        return Items(opening.start, self._words[self._at - 1].end, tuple(items), is_map=True)


def _constant(word: CelToken) -> Constant:
    if word.kind == "string":
        return _text(word)
    if word.kind == "double":
        return Constant(word.start, word.end, "double", float(word.text))
    kind: LiteralKind = "uint" if word.kind == "uint" else "int"
    return Constant(word.start, word.end, kind, int(word.text.rstrip("uU"), 0 if "x" in word.text.lower() else 10))


def _text(word: CelToken) -> Constant:
    body = word.text.lstrip("rRbB")
    prefix = word.text[: len(word.text) - len(body)].lower()
    quote = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
    body = body[quote:-quote]
    value = body if "r" in prefix else _ESCAPE.sub(_unescape, body)
    return Constant(word.start, word.end, "bytes" if "b" in prefix else "string", value)


def _unescape(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    if code is not None or match[4] is not None:
        number = int(code, 16) if code is not None else int(match[4], 8)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise NotUnderstood("an escape that is not a character")
        return chr(number)
    if match[5] not in _SIMPLE:
        raise NotUnderstood(f"unknown escape \\{match[5]}")
    return _SIMPLE[match[5]]


def free_names(node: Node, bound: frozenset[str] = frozenset()) -> Iterator[Name]:
    """The variables that an expression needs from outside; macros bind their own."""
    if isinstance(node, Name):
        if node.name not in bound and node.name not in TYPE_NAMES:
            yield node
        return
    if isinstance(node, Call) and node.target is not None and node.function in MACROS and len(node.arguments) > 1:
        yield from free_names(node.target, bound)
        inner = bound | {a.name for a in node.arguments[:1] if isinstance(a, Name)}
        for argument in node.arguments[1:]:
            yield from free_names(argument, inner)
        return
    for child in children(node):
        yield from free_names(child, bound)


def children(node: Node) -> tuple[Node, ...]:
    """What a node is made of."""
    if isinstance(node, Operation):
        return node.operands
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Select):
        return (node.operand,)
    if isinstance(node, Index):
        return (node.operand, node.key)
    if isinstance(node, Call):
        return (*((node.target,) if node.target else ()), *node.arguments)
    return ()


def walk(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from walk(child)
