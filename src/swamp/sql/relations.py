"""Which datasets a query reads, and the same query as each engine wants it written.

A dataset is named `model.name` wherever a table may stand, with `FOR VERSION AS OF 3` or `FOR TIMESTAMP AS OF '…'`
behind it where an older version is meant. Nothing here understands SQL beyond where tables stand: what is asked of
them is the engine's affair, and every other word reaches it as it was typed. inv[sql.alike]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal

from swamp.errors import UsageError
from swamp.values import mutable, value

Dialect = Literal["duckdb", "spark"]
Kind = Literal["word", "quoted", "string", "raw", "number", "space", "other"]

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<raw>[rRxXbBeE]'(?:[^']|'')*')
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<number>\d[\w.]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_READS: Final = frozenset("SELECT WITH VALUES FROM DESCRIBE DESC SHOW EXPLAIN SUMMARIZE TABLE (".split())
_WRITES: Final = frozenset("INSERT UPDATE DELETE MERGE COPY".split())
_ENDS_FROM: Final = frozenset(
    "WHERE GROUP ORDER HAVING LIMIT OFFSET FETCH WINDOW QUALIFY UNION INTERSECT EXCEPT MINUS SORT CLUSTER DISTRIBUTE "
    "SELECT".split()
)
_NO_ALIAS: Final = _ENDS_FROM | frozenset(
    "JOIN INNER LEFT RIGHT FULL CROSS NATURAL SEMI ANTI ASOF POSITIONAL OUTER ON USING LATERAL TABLESAMPLE PIVOT "
    "UNPIVOT FOR".split()
)
_TAKES_FROM: Final = frozenset("EXTRACT SUBSTRING SUBSTR TRIM OVERLAY POSITION".split())
"""Functions whose arguments have a FROM that no table follows."""


@value
class Token:
    kind: Kind
    text: str
    start: int

    @property
    def upper(self) -> str:
        """An unquoted word in upper case; any other token as it is."""
        return self.text.upper() if self.kind == "word" else self.text

    @property
    def is_name(self) -> bool:
        return self.kind in ("word", "quoted")

    @property
    def value(self) -> str:
        """The name or text that is meant, without its quotes."""
        if self.kind not in ("quoted", "string"):
            return self.text
        mark = self.text[0]
        return self.text[1:-1].replace(mark * 2, mark)


@value
class Relation:
    """A table as a query names it: `parts` are (`versions`,) or (`web`, `orders`); tokens `first` to `last`."""

    parts: tuple[str, ...]
    first: int
    last: int
    start: int
    version: int | None = None
    moment: str | None = None
    alias: bool = False
    """Whether a name of its own has to be added: the query has given it none."""

    @property
    def label(self) -> str:
        return ".".join(self.parts)


@value
class Query:
    """One statement that reads, and the tables in it."""

    text: str
    tokens: tuple[Token, ...]
    relations: tuple[Relation, ...]

    @property
    def datasets(self) -> tuple[Relation, ...]:
        return tuple(relation for relation in self.relations if len(relation.parts) == 2)


@value
class EngineQuery:
    """A query as an engine gets it, and where each piece of it stood in what was typed."""

    text: str
    origins: tuple[tuple[int, int], ...] = field(repr=False)

    def origin(self, offset: int) -> int:
        """The place in the typed text of a place in this one."""
        found = (0, 0)
        for ours, theirs in self.origins:
            if ours > offset:
                break
            found = (ours, theirs)
        return found[1] + (offset - found[0])


def parse(text: str) -> Query:
    """Raises UsageError for anything but one statement that reads."""
    tokens = tuple(Token(m.lastgroup or "other", m.group(), m.start()) for m in _TOKEN.finditer(text))  # type: ignore[arg-type]
    code = [n for n, token in enumerate(tokens) if token.kind != "space"]
    while code and tokens[code[-1]].text == ";":
        code.pop()
    _check_reads(text, tokens, code)
    return Query(text, tokens[: code[-1] + 1], tuple(_Finder(text, tokens, code).relations()))


def _check_reads(text: str, tokens: tuple[Token, ...], code: list[int]) -> None:
    if not code:
        raise UsageError("there is no query", hint="such as: SELECT count(*) AS n FROM versions")
    first = tokens[code[0]]
    if first.upper not in _READS:
        raise UsageError(
            f"`swamp sql` reads; a statement that begins with {first.text} is not run {place_in(text, first.start)}",
            hint="begin with SELECT or WITH; `swamp data put` and `df.write` make new versions",
        )
    depth = 0
    for number in code:
        token = tokens[number]
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == ";":
            raise UsageError(
                f"one statement at a time: another one begins {place_in(text, token.start)}", hint="leave it out"
            )
        if depth == 0 and token.kind == "word" and token.upper in _WRITES:
            raise UsageError(
                f"`swamp sql` reads: {token.text} is not run {place_in(text, token.start)}",
                hint="a column of that name is written in double quotes",
            )


def place_in(text: str, offset: int) -> str:
    """`at line 2, column 7`, as editors count."""
    before = text[: max(0, min(offset, len(text)))]
    return f"at line {before.count(chr(10)) + 1}, column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


@mutable
class _Depth:
    """What is known inside one pair of parentheses."""

    in_from: bool = False
    function: str = ""


class _Finder:
    """Goes once through a query and stops where a table may stand."""

    def __init__(self, text: str, tokens: tuple[Token, ...], code: list[int]) -> None:
        self._text = text
        self._tokens = [tokens[n] for n in code]
        self._numbers = code
        self._at = 0

    def relations(self) -> list[Relation]:
        found: list[Relation] = []
        depths = [_Depth()]
        expecting = False
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            is_table = token.is_name and self._peek(1).text != "(" and token.upper not in ("SELECT", "WITH", "VALUES")
            if expecting and is_table:
                if token.upper in ("LATERAL", "TABLE", "EXTENDED", "FORMATTED"):
                    self._at += 1
                    continue
                # `DESCRIBE web.orders`: no alias may stand there.
                described = self._tokens[0].upper in ("DESCRIBE", "DESC", "SUMMARIZE", "TABLE") and self._at <= 2
                found.append(self._relation(plain=described))
                expecting = False
                continue
            expecting = self._step(token, depths, expecting)
            self._at += 1
        return found

    def _step(self, token: Token, depths: list[_Depth], expecting: bool) -> bool:
        """Takes in one token; whether a table may stand behind it."""
        here = depths[-1]
        match token.upper:
            case "(":
                depths.append(_Depth(in_from=expecting, function=self._before(1).upper))
                return expecting
            case ")":
                if len(depths) > 1:
                    depths.pop()
                return False
            case "FROM":
                distinct = self._before(1).upper == "DISTINCT" and self._before(2).upper in ("IS", "NOT")
                if here.function in _TAKES_FROM or distinct:
                    return False
                here.in_from = True
                return True
            case "JOIN":
                here.in_from = True
                return True
            case ",":
                return here.in_from
            case "DESCRIBE" | "DESC" | "SUMMARIZE" | "TABLE":
                return self._at == 0
            case word if word in _ENDS_FROM:
                here.in_from = False
        return False

    def _before(self, count: int) -> Token:
        return self._tokens[self._at - count] if self._at >= count else Token("space", "", 0)

    def _peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("space", "", len(self._text))

    def _relation(self, *, plain: bool) -> Relation:
        first, start = self._at, self._peek().start
        parts = [self._peek().value]
        self._at += 1
        while self._peek().text == "." and self._peek(1).is_name:
            parts.append(self._peek(1).value)
            self._at += 2
        version, moment = self._as_of()
        last = self._at - 1
        follows = self._peek()
        named = follows.upper == "AS" or (follows.is_name and follows.upper not in _NO_ALIAS)
        relation = Relation(
            tuple(parts), self._numbers[first], self._numbers[last], start, version, moment, not (named or plain)
        )
        if (version is not None or moment is not None) and len(parts) != 2:
            raise UsageError(
                f"only datasets have versions, and {relation.label} is not one {place_in(self._text, start)}",
                hint="such as: SELECT * FROM web.orders FOR VERSION AS OF 3",
            )
        return relation

    def _as_of(self) -> tuple[int | None, str | None]:
        """`FOR VERSION AS OF 3`, as Spark, Delta and Iceberg write it; FOR, and AS OF behind it, may be left out."""
        begun = self._at
        has_for = self._peek().upper == "FOR"
        self._at += has_for
        word = self._peek().upper
        self._at += 1
        has_as_of = self._peek().upper == "AS" and self._peek(1).upper == "OF"
        self._at += 2 * has_as_of
        if word not in ("VERSION", "TIMESTAMP") or not (has_for or has_as_of):
            self._at = begun
            return None, None
        given = self._peek()
        self._at += 1
        if word == "TIMESTAMP" and given.kind == "string":
            return None, given.value
        if word == "VERSION" and given.kind in ("number", "string") and given.value.isdigit() and int(given.value):
            return int(given.value), None
        raise UsageError(
            f"{given.text or 'nothing'} is not a {word.lower()} {place_in(self._text, given.start)}",
            hint="FOR VERSION AS OF 3, or FOR TIMESTAMP AS OF '2026-11-15T10:00:00Z'",
        )


def written(query: Query, views: Mapping[Relation, str], dialect: Dialect) -> EngineQuery:
    """The query with datasets replaced by views, and names and strings quoted as this engine quotes them."""
    pieces: list[str] = []
    origins: list[tuple[int, int]] = []
    length = number = 0
    starts = {relation.first: relation for relation in views}
    while number < len(query.tokens):
        token = query.tokens[number]
        relation = starts.get(number)
        piece = _requoted(token, dialect) if relation is None else quoted(views[relation], dialect)
        if relation is not None and relation.alias:
            piece += f" AS {quoted(relation.parts[-1], dialect)}"
        origins.append((length, token.start))
        pieces.append(piece)
        length += len(piece)
        number = number + 1 if relation is None else relation.last + 1
    return EngineQuery("".join(pieces), tuple(origins))


def quoted(name: str, dialect: Dialect) -> str:
    """A name in the quotes of an engine."""
    mark = '"' if dialect == "duckdb" else "`"
    return mark + name.replace(mark, mark * 2) + mark


def _requoted(token: Token, dialect: Dialect) -> str:
    """Double quotes and backticks both hold names; in a string a quote is doubled and a backslash is itself."""
    if token.kind == "quoted":
        return quoted(token.value, dialect)
    if token.kind == "string" and dialect == "spark":
        return "'" + token.value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return token.text
