"""`data query`: a CEL predicate over versions, answered by SQL where SQL can and by CEL where it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Final, TypeVar

from swamp.catalog.catalog import Catalog
from swamp.catalog.expression import DEFAULT_SECONDS, Budget, CelScope, Expression, NoAnswer, compile_expression, plain
from swamp.catalog.pushdown import CREATED, Pushed, SqlText, compares_text, push_down
from swamp.catalog.schema import FIELDS, LAZY_FIELDS, PLAIN_FIELDS, Row
from swamp.data.names import DataName
from swamp.data.versions import DataVersion, VersionReader
from swamp.env import parse_rfc3339
from swamp.errors import CorruptData, NotFound, SwampError, UsageError
from swamp.values import value

T = TypeVar("T")
MAX_CONTENT: Final = 16 << 20
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
    """How a predicate will be answered; a test reads the SQL."""

    pushed: Pushed
    where: SqlText
    rest: Expression | None


def plan_query(predicate: str, newer: Newer = _NONE_NEWER) -> QueryPlan:
    """Checks a predicate and splits it. Raises UsageError for syntax and unknown fields."""
    expression = compile_expression(predicate)
    expression.check(FIELDS, what="field")
    pushed = push_down(predicate, expression.tree)
    where = pushed.where or ALWAYS
    if newer and "isLatest" in expression.names:
        return QueryPlan(pushed, ALWAYS, expression)  # the catalog does not know which rows are the latest
    if not expression.names & {"version", "isLatest"}:
        where = SqlText(f"isLatest = 1 AND ({where.text})", where.params)
    return QueryPlan(pushed, where, compile_expression(pushed.rest) if pushed.rest is not None else None)


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
    warnings: list[str] = []
    loader = _Loader(reader, warnings)
    budget = Budget(seconds)
    wanted = compile_expression(predicate).names & set(LAZY_FIELDS)
    results: list[Any] = []
    only_latest = not compile_expression(predicate).names & {"version", "isLatest"}
    for row in _matching(catalog, plan, loader, None if newer or limit is None else limit + 1, budget, newer):
        if only_latest and not row.fields["isLatest"]:
            continue
        if limit is not None and len(results) == limit:
            return QueryMatches(results, True, warnings)
        told(row)
        results.append(
            _shown(row, loader, wanted) if projection is None else _projected(projection, row, loader, budget)
        )
    return QueryMatches(results, False, warnings)


def _matching(
    catalog: Catalog, plan: QueryPlan, loader: _Loader, most: int | None, budget: Budget, newer: Newer
) -> Iterator[Row]:
    rest = plan.rest
    for row in catalog.select(plan.where.text, plan.where.params, most if rest is None else None):
        shown = _outdated(row) if newer.get(row.ref.data, 0) > row.ref.version else row
        if rest is None or matches(rest, shown, loader, created_is_text=plan.pushed.created_is_text, budget=budget):
            yield shown


def _outdated(row: Row) -> Row:
    return replace(row, fields={**row.fields, "isLatest": False})


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


def _projected(projection: Expression, row: Row, loader: _Loader, budget: Budget) -> Any:
    try:
        return plain(projection.evaluate(scope_of(projection, row, loader, compares_text(projection.tree)), budget))
    except NoAnswer:
        return None


def _shown(row: Row, loader: _Loader, wanted: frozenset[str]) -> dict[str, Any]:
    shown = {name: row.fields[name] for name in FIELDS if name in PLAIN_FIELDS}
    return {**shown, **{name: loader.load(row, name) for name in sorted(wanted)}}


class _Loader:
    """Reads the content of rows, each at most once in a row; what cannot be read is a warning and has no value."""

    def __init__(self, reader: VersionReader, warnings: list[str]) -> None:
        self._reader = reader
        self._warnings = warnings
        self._last: tuple[Any, bytes | None] = (None, None)

    def load(self, row: Row, name: str) -> Any:
        raw = self._content(row)
        if raw is None:
            return None
        try:
            text = raw.decode("utf-8")
            return text if name == "content" else _parsed(text, row.fields["contentType"])
        except ValueError:
            return None

    def _content(self, row: Row) -> bytes | None:
        if self._last[0] != row.ref:
            self._last = (row.ref, self._read(row))
        return self._last[1]

    def _read(self, row: Row) -> bytes | None:
        version: DataVersion | None = self._unless(lambda: self._reader.read(row.ref))
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


def _parsed(text: str, content_type: str) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    return json.loads(text) if kind.endswith(("/json", "+json")) else None
