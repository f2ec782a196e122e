"""`data query`: a CEL predicate over versions, answered by SQL where SQL can and by CEL where it cannot.

In SQL, NULL stands for "CEL has no answer": SQL's three-valued AND, OR and NOT are CEL's rules for errors, so a
translation is exact if each comparison is NULL just where CEL raises. On 100,000 rows a predicate that matches few of
them takes 0.1 s of CPU so, and 10 s where CEL is asked of each.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, TypeVar

from swamp.catalog.catalog import Catalog
from swamp.catalog.expression import DEFAULT_SECONDS, Budget, CelScope, Expression, NoAnswer, compile_expression, plain
from swamp.catalog.schema import (
    BOOLEAN_COLUMNS,
    FIELDS,
    INTEGER_COLUMNS,
    LAZY_FIELDS,
    NULLABLE_COLUMNS,
    PLAIN_FIELDS,
    TEXT_COLUMNS,
    Row,
)
from swamp.catalog.syntax import Node, walk
from swamp.data.names import DataName
from swamp.data.versions import VersionReader
from swamp.env import parse_rfc3339, rfc3339
from swamp.errors import CorruptData, NotFound, SwampError, UsageError
from swamp.values import value

T = TypeVar("T")
MAX_CONTENT: Final = 16 << 20
CREATED: Final = "createdAt"
_COMPARISONS: Final = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_METHODS: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "size"})
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)\Z", re.ASCII)


@value
class SqlText:
    """A condition and its parameters."""

    text: str
    params: tuple[Any, ...] = ()


ALWAYS: Final = SqlText("1")


@value
class QueryMatches:
    """What matched, in the order of type, model, name and version; `limited` says that there was more."""

    results: list[Any]
    limited: bool = False
    warnings: list[str] = field(default_factory=list)
    not_here: list[dict[str, Any]] = field(default_factory=list)
    """Newer versions that the store has and this machine has not: no predicate can be asked of them (S23)."""

    def to_json(self) -> dict[str, Any]:
        """`items`, as everywhere; `results` is its older name and stays for one minor version."""
        found = {"items": self.results, "total": len(self.results), "limited": self.limited, "results": self.results}
        return {**found, "notHere": self.not_here} if self.not_here else found


Newer = Mapping[DataName, int]
"""The newest version of a name that the store has and this machine has not (S23)."""
_NONE_NEWER: Final[Newer] = {}


@value
class QueryPlan:
    """How a predicate will be answered: by `where` in SQL, and of the rows that this finds by `rest` in CEL."""

    where: SqlText
    rest: Expression | None
    created_is_text: bool
    only_latest: bool
    """Whether nobody asked for other versions."""


def plan_query(predicate: str, newer: Newer = _NONE_NEWER) -> QueryPlan:
    """Checks a predicate and splits it. Raises UsageError for syntax and unknown fields."""
    expression = compile_expression(predicate)
    expression.check(FIELDS, what="field")
    as_text, only_latest = compares_text(expression.tree), not expression.names & {"version", "isLatest"}
    if newer and "isLatest" in expression.names:
        return QueryPlan(
            ALWAYS, expression, as_text, only_latest
        )  # the catalog does not know which rows are the latest
    translator, needed, rest = _Translator(as_text), [], []
    for part in _conjuncts(expression.tree) if expression.tree is not None else ():
        exact = translator.exact(part)
        needed.append(exact or translator.necessary(part))
        if exact is None:
            rest.append(f"({predicate[part.start : part.end]})")
    where = _joined([sql for sql in needed if sql is not None], "&&") or ALWAYS
    if only_latest:
        where = SqlText(f"isLatest = 1 AND ({where.text})", where.params)
    if expression.tree is None:
        return QueryPlan(where, expression, as_text, only_latest)
    return QueryPlan(where, compile_expression(" && ".join(rest)) if rest else None, as_text, only_latest)


def query(
    catalog: Catalog,
    reader: VersionReader,
    predicate: str,
    *,
    select: str | None = None,
    limit: int | None = None,
    seconds: float = DEFAULT_SECONDS,
    told: Callable[[Row], object] = lambda row: None,
    newer: Newer = _NONE_NEWER,
) -> QueryMatches:
    """The versions for which `predicate` is true, or what `select` says of each; `seconds` bound the evaluation.

    `told` is shown each row that becomes a result. Where there is a `newer` version elsewhere, none that is here is the
    latest."""
    if limit is not None and limit < 0:
        raise UsageError(f"{limit} is not a limit", hint="give 0 or more")
    plan = plan_query(predicate, newer)
    projection = compile_expression(select) if select is not None else None
    if projection is not None:
        projection.check(FIELDS, what="field")
    found = QueryMatches([])
    loader, budget = _Loader(reader, found.warnings), Budget(seconds)
    shown = (*PLAIN_FIELDS, *sorted(compile_expression(predicate).names & set(LAZY_FIELDS)))
    for row in _matching(catalog, plan, loader, None if newer or limit is None else limit + 1, budget, newer):
        if limit is not None and len(found.results) == limit:
            return replace(found, limited=True)
        told(row)
        if projection is None:
            known = {name: loader.load(row, name) if name in LAZY_FIELDS else row.fields[name] for name in shown}
            found.results.append({name: known[name] for name in FIELDS if name in known})
            continue
        try:
            scope = scope_of(projection, row, loader, compares_text(projection.tree))
            found.results.append(plain(projection.evaluate(scope, budget)))
        except NoAnswer:
            found.results.append(None)
    return found


def _matching(
    catalog: Catalog, plan: QueryPlan, loader: _Loader, most: int | None, budget: Budget, newer: Newer
) -> Iterator[Row]:
    rest = plan.rest
    for row in catalog.select(plan.where.text, plan.where.params, most if rest is None else None):
        if newer.get(row.ref.data, 0) > row.ref.version:
            row = replace(row, fields={**row.fields, "isLatest": False})
        if plan.only_latest and not row.fields["isLatest"]:
            continue
        if rest is None or matches(rest, row, loader, created_is_text=plan.created_is_text, budget=budget):
            yield row


def matches(
    expression: Expression, row: Row, loader: _Loader, *, created_is_text: bool, budget: Budget | None = None
) -> bool:
    """Whether a predicate is true of a row; a row on which it has no answer does not match."""
    try:
        answer = expression.evaluate(scope_of(expression, row, loader, created_is_text), budget)
    except NoAnswer:
        return False
    if isinstance(answer, bool):
        return answer
    raise UsageError(
        f"`{expression.source}` is not a condition: it gives {plain(answer)!r:.60}", hint="compare it with something"
    )


def scope_of(expression: Expression, row: Row, loader: _Loader, created_is_text: bool) -> CelScope:
    """The fields of a row; `attributes` and `content` are read when they are needed and not before."""
    variables = dict(row.fields)
    if CREATED in expression.names and not created_is_text:
        variables[CREATED] = parse_rfc3339(row.fields[CREATED])
    lazy = expression.names & set(LAZY_FIELDS)
    if not lazy:
        return CelScope(variables)
    variables.update(dict.fromkeys(lazy))
    return CelScope(variables, lazy=lambda name: loader.load(row, name) if name in lazy else None)


class _Loader:
    """Reads the content of rows, each at most once in a row; what cannot be read is a warning and has no value."""

    def __init__(self, reader: VersionReader, warnings: list[str]) -> None:
        self._reader = reader
        self._warnings = warnings
        self._last: tuple[Any, bytes | None] = (None, None)

    def load(self, row: Row, name: str) -> Any:
        """`content` as text, or `attributes`: what its JSON says."""
        if self._last[0] != row.ref:
            self._last = (row.ref, self._read(row))
        raw = self._last[1]
        kind = row.fields["contentType"].partition(";")[0].strip().lower()
        try:
            text = None if raw is None else raw.decode("utf-8")
            if text is None or name == "content":
                return text
            return json.loads(text) if kind.endswith(("/json", "+json")) else None
        except ValueError:
            return None

    def _read(self, row: Row) -> bytes | None:
        version = self._unless(lambda: self._reader.read(row.ref))
        if version is None or version.meta.has_parts or version.meta.size > MAX_CONTENT:
            return None
        # A store that has lost the bytes fails the query: without them the row would pass for one that does not match.
        if self._unless(lambda: self._reader.raw(version), (NotFound,)) is None:
            return None
        return self._unless(lambda: self._reader.content(version))

    def _unless(
        self, read: Callable[[], T], damage: tuple[type[SwampError], ...] = (CorruptData, NotFound)
    ) -> T | None:
        """What it reads; None and a warning for damage of this one version."""
        try:
            return read()
        except damage as error:
            self._warnings.append(error.message)
            return None


# -- the part of a predicate that SQL answers exactly as CEL would


def compares_text(tree: Node | None) -> bool:
    """Whether an expression treats `createdAt` as a text; otherwise it is a timestamp."""
    return tree is not None and any(_uses_text(node) for node in walk(tree))


def _uses_text(node: Node) -> bool:
    match node:
        case Node("operation", _, (Node("name", "createdAt"), other) | (other, Node("name", "createdAt"))):
            return _holds_text(other)
        case Node("method", function, (Node("name", "createdAt"), *_)):
            return function in _TEXT_METHODS
    return False


def _holds_text(node: Node) -> bool:
    return node.kind == "string" or (node.kind in ("list", "map") and any(map(_holds_text, node.parts)))


def _conjuncts(node: Node) -> list[Node]:
    if (node.kind, node.word) == ("operation", "&&"):
        return [part for operand in node.parts for part in _conjuncts(operand)]
    return [node]


def _joined(parts: Sequence[SqlText | None], operator: str) -> SqlText | None:
    """All parts as one condition; None if one of them is unknown, or there is none."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    text = (" AND " if operator == "&&" else " OR ").join(f"({part.text})" for part in known)
    return SqlText(text, tuple(param for part in known for param in part.params))


@value
class _Operand:
    """Something in SQL that has a CEL value; `null` says whether NULL is a CEL null (else: no answer)."""

    text: str
    kind: str
    params: tuple[Any, ...] = ()
    null: bool = False


@value
class _Translator:
    created_is_text: bool

    def exact(self, node: Node) -> SqlText | None:
        """The same truth, falsehood or lack of an answer as CEL, or None if that is not certain."""
        match node:
            case Node("bool", truth):
                return SqlText("1" if truth else "0")
            case Node("name", name) if name in BOOLEAN_COLUMNS:
                return SqlText(name)
            case Node("operation", "&&" | "||" as operator, operands):
                return _joined([self.exact(operand) for operand in operands], operator)
            case Node("operation", "!", (operand,)):
                inner = self.exact(operand)
                return SqlText(f"NOT ({inner.text})", inner.params) if inner else None
            case Node("operation", "in", (Node("string", key), Node("name", "tags"))) | Node(
                "call", "has", (Node("select", key, (Node("name", "tags"),)),)
            ):
                return SqlText("EXISTS (SELECT 1 FROM json_each(data.tags) WHERE key = ?)", (key,))
            case Node("operation", "in", (item, Node("list", _, items))) if items:
                return self._membership(item, items)
            case Node("operation", operator, (left, right)) if operator in _COMPARISONS:
                return self._comparison(operator, left, right)
            case Node("method", function, (target, Node("string", wanted))):
                operand_ = self._operand(target)
                if operand_ is not None and operand_.kind == "string":
                    return _text_method(function, operand_, str(wanted))
        return None

    def necessary(self, node: Node) -> SqlText | None:
        """Something that holds wherever the predicate is true."""
        exact = self.exact(node)
        if exact is not None or node.kind != "operation" or node.word not in ("&&", "||"):
            return exact
        parts = [self.necessary(operand) for operand in node.parts]
        return _joined(list(filter(None, parts)) if node.word == "&&" else parts, node.word)

    def _comparison(self, operator: str, left: Node, right: Node) -> SqlText | None:
        operand, constant = self._operand(left), _constant(right)
        if operand is None:
            operand, constant, operator = self._operand(right), _constant(left), _MIRRORED[operator]
        if operand is None or constant is None or constant[0] != operand.kind:
            return None
        equality = operator in ("==", "!=")
        if operand.kind == "bool" and not equality:
            return None
        sign = _COMPARISONS[operator]
        if operand.null and equality:
            sign = "IS" if operator == "==" else "IS NOT"
        return SqlText(f"{operand.text} {sign} ?", (*operand.params, constant[1]))

    def _membership(self, item: Node, items: Sequence[Node]) -> SqlText | None:
        operand = self._operand(item)
        values = [found for found in map(_constant, items) if found and operand and found[0] == operand.kind]
        if operand is None or len(values) < len(items):
            return None
        found = f"{operand.text} IN ({', '.join('?' * len(values))})"
        params = (*operand.params, *(constant for _, constant in values))
        return SqlText(f"({operand.text} IS NOT NULL AND {found})" if operand.null else found, params)

    def _operand(self, node: Node) -> _Operand | None:
        match node:
            case Node("select", key, (Node("name", "tags"),)) | Node(
                "index", _, (Node("name", "tags"), Node("string", key))
            ):
                return _Operand("(SELECT value FROM json_each(data.tags) WHERE key = ?)", "string", (key,))
            case Node("name", "createdAt") if not self.created_is_text:
                return _Operand(CREATED, "timestamp")
            case Node("name", name) if name in TEXT_COLUMNS or name in NULLABLE_COLUMNS:
                return _Operand(name, "string", null=name in NULLABLE_COLUMNS)
            case Node("name", name) if name in INTEGER_COLUMNS or name in BOOLEAN_COLUMNS:
                return _Operand(name, "int" if name in INTEGER_COLUMNS else "bool")
        return None


def _constant(node: Node) -> tuple[str, Any] | None:
    """The CEL kind of a constant, and its value as the column spells it."""
    match node:
        case Node("string" | "int" | "bool" as kind, constant):
            return kind, int(constant) if isinstance(constant, bool) else constant
        case Node("operation", "-", (Node("int", number),)):
            return "int", -number
        case Node("call", "timestamp", (Node("string", text),)):
            try:
                moment = parse_rfc3339(text).astimezone(dt.UTC) if _RFC3339.match(text) else None
            except (ValueError, OverflowError):
                return None
            if moment is not None and moment.microsecond % 1000 == 0:  # the same moment to the last digit
                return "timestamp", rfc3339(moment)
    return None


def _text_method(function: str, operand: _Operand, wanted: str) -> SqlText | None:
    """Compared byte by byte: LIKE would ignore case and give `%` a meaning."""
    if function == "startsWith":
        return SqlText(f"instr({operand.text}, ?) = 1", (*operand.params, wanted))
    if function == "contains":
        return SqlText(f"instr({operand.text}, ?) > 0", (*operand.params, wanted))
    if function == "endsWith" and wanted:
        raw = wanted.encode("utf-8")
        tail = f"substr(CAST({operand.text} AS BLOB), {-len(raw)}) = ?"  # NULL for the empty text, which has no end
        return SqlText(f"CASE WHEN {operand.text} = '' THEN 0 ELSE {tail} END", (*operand.params, *operand.params, raw))
    return None
