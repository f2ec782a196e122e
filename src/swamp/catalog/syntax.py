"""The shape of a CEL expression: enough of a parser to see which fields it names and what SQL can answer.

The CEL library decides what an expression means and hands out no tree. This one is only ever used to look:
an expression that is legal there and not understood here is evaluated without looking.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

MACROS: Final = frozenset({"all", "exists", "exists_one", "existsOne", "map", "filter"})
TYPE_NAMES: Final = frozenset(
    "int uint double bool string bytes list map null_type type dyn timestamp duration optional google".split()
)


class NotUnderstood(ValueError):
    """The text is not CEL, or uses something that nobody here needs to look into."""


class CelToken(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class Node(NamedTuple):
    """A part of an expression: its `kind`, what it says, what it is made of, and its place in the text.

    | kind | word | parts |
    |---|---|---|
    | `int` `uint` `double` `string` `bytes` `bool` `null` | the value | |
    | `name` | the name | |
    | `select` | the field | operand |
    | `index` | | operand, key |
    | `call` | the function | arguments |
    | `method` | the function | target, arguments |
    | `list`, `map` | | items; keys and values in turn |
    | `operation` | the operator | one operand for `!` and `-`, two or more for `&&` and `||`, three for `?`, else two |
    """

    kind: str
    word: Any
    parts: tuple[Node, ...]
    start: int
    end: int


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
        waiting += [(part, depth + 1) for part in node.parts]
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

    @property
    def _end(self) -> int:
        """Where the last word that was taken ends."""
        return self._words[self._at - 1].end

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
            node = Node("operation", "?", (node, yes, no), node.start, no.end)
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
            chain = node.parts if joins and operator == node.word else (node,)
            joins = operator in ("&&", "||")  # one flat node for `a || b || c`: order does not matter there
            node = Node("operation", operator, (*chain, right), node.start, right.end)
        return node

    def _unary(self) -> Node:
        signs = []
        while self._next.kind == "sign" and self._next.text in ("!", "-"):
            signs.append(self._take())
        if len({sign.text for sign in signs}) > 1 or len(signs) > MAX_NESTING:
            raise NotUnderstood("mixed or too many signs")
        node = self._member()
        for sign in reversed(signs):
            node = Node("operation", sign.text, (node,), sign.start, node.end)
        return node

    def _member(self) -> Node:
        node = self._primary()
        while self._next.kind == "sign" and self._next.text in (".", "["):
            if self._take().text == "[":
                key = self._ternary()
                node = Node("index", "", (node, key), node.start, self._expect("]").end)
                continue
            name = self._expect("", "name")
            kind, inside = ("method", self._items(")")) if self._accept("(") else ("select", ())
            node = Node(kind, name.text, (node, *inside), node.start, self._end)
        return node

    def _primary(self) -> Node:
        word = self._take()
        if word.kind in ("int", "uint", "double", "string"):
            return _constant(word)
        if word.kind == "name":
            return self._named(word)
        if word.text == "(":
            inner = self._ternary()
            return inner._replace(start=word.start, end=self._expect(")").end)  # a slice keeps its parentheses
        if word.text in ("[", "{"):
            kind, items = ("list", self._items("]")) if word.text == "[" else ("map", self._items("}"))
            return Node(kind, "", items, word.start, self._end)
        raise NotUnderstood(f"unexpected {word.text!r} at {word.start}")

    def _named(self, word: CelToken) -> Node:
        if word.text in _WORDS:
            return Node(*_WORDS[word.text], (), word.start, word.end)
        if self._next.text == "{":
            raise NotUnderstood("message literals are not looked into")
        kind, inside = ("call", self._items(")")) if self._accept("(") else ("name", ())
        return Node(kind, word.text, inside, word.start, self._end)

    def _items(self, end: str) -> tuple[Node, ...]:
        """What stands before the closing `end`; lists and maps may have a comma behind the last."""
        items: list[Node] = []
        while not self._accept(end):
            if items:
                self._expect(",")
                if end != ")" and self._accept(end):
                    break
            items.append(self._ternary())
            if end == "}":
                self._expect(":")
                items.append(self._ternary())
        return tuple(items)


_WORDS: Final = {"true": ("bool", True), "false": ("bool", False), "null": ("null", None)}


def _constant(word: CelToken) -> Node:
    kind, text = word.kind, word.text
    value: object
    if kind == "string":
        body = text.lstrip("rRbB")
        prefix = text[: len(text) - len(body)].lower()
        quote = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
        body = body[quote:-quote]
        kind, value = "bytes" if "b" in prefix else "string", body if "r" in prefix else _ESCAPE.sub(_unescape, body)
    elif kind == "double":
        value = float(text)
    else:
        value = int(text.rstrip("uU"), 0 if "x" in text.lower() else 10)
    return Node(kind, value, (), word.start, word.end)


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


def is_loop(node: Node) -> bool:
    """Whether it is a macro that binds a name for what it does with each item: `list.all(x, x > 1)`."""
    return node.kind == "method" and node.word in MACROS and len(node.parts) > 2


def free_names(node: Node, bound: frozenset[str] = frozenset()) -> Iterator[Node]:
    """The variables that an expression needs from outside; macros bind their own."""
    if node.kind == "name":
        if node.word not in bound and node.word not in TYPE_NAMES:
            yield node
        return
    inside = node.parts
    if is_loop(node):
        target, binder, inside = node.parts[0], node.parts[1], node.parts[2:]
        yield from free_names(target, bound)
        bound = bound | {binder.word} if binder.kind == "name" else bound
    for part in inside:
        yield from free_names(part, bound)


def walk(node: Node) -> Iterator[Node]:
    yield node
    for part in node.parts:
        yield from walk(part)
