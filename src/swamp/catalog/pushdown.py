"""The part of a predicate that SQL can answer, exactly as CEL would.

NULL stands for "CEL has no answer": SQL's three-valued AND, OR and NOT are CEL's rules for errors, so a
translation is exact if each comparison is NULL just where CEL raises.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final

from swamp.catalog.schema import BOOLEAN_COLUMNS, INTEGER_COLUMNS, NULLABLE_COLUMNS, TEXT_COLUMNS
from swamp.catalog.syntax import Call, Constant, Index, Items, Name, Node, Operation, Select, walk
from swamp.env import parse_rfc3339, rfc3339
from swamp.values import value

COMPARISONS: Final = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_METHODS: Final = frozenset({"startsWith", "endsWith", "contains", "matches", "size"})
CREATED: Final = "createdAt"
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)\Z", re.ASCII)


@value
class SqlText:
    """A condition and its parameters."""

    text: str
    params: tuple[Any, ...] = ()


@value
class _Operand:
    """Something in SQL that has a CEL value; `null` says whether NULL is a CEL null (else: no answer)."""

    text: str
    kind: str
    params: tuple[Any, ...] = ()
    null: bool = False


@value
class Pushed:
    """`where` is true on every row that can match; `rest` is what CEL must still decide (None: nothing)."""

    where: SqlText | None
    rest: str | None
    created_is_text: bool = False


def compares_text(tree: Node | None) -> bool:
    """Whether an expression treats `createdAt` as a text; otherwise it is a timestamp."""
    return tree is not None and any(_uses_text(node) for node in walk(tree))


def _uses_text(node: Node) -> bool:
    if isinstance(node, Operation) and len(node.operands) == 2:
        left, right = node.operands
        return (_is_created(left) and _holds_text(right)) or (_is_created(right) and _holds_text(left))
    return isinstance(node, Call) and node.function in _TEXT_METHODS and _is_created(node.target)


def _is_created(node: Node | None) -> bool:
    return isinstance(node, Name) and node.name == CREATED


def _holds_text(node: Node) -> bool:
    if isinstance(node, Items):
        return any(map(_holds_text, node.items))
    return isinstance(node, Constant) and node.kind == "string"


def push_down(source: str, tree: Node | None) -> Pushed:
    """Splits a predicate into what SQL answers and what remains."""
    if tree is None:
        return Pushed(None, source)
    created_is_text = compares_text(tree)
    translator = _Translator(created_is_text)
    needed: list[SqlText] = []
    rest: list[str] = []
    for part in _conjuncts(tree):
        exact = translator.exact(part)
        sql = exact or translator.necessary(part)
        if sql is not None:
            needed.append(sql)
        if exact is None:
            rest.append(f"({source[part.start : part.end]})")
    return Pushed(_joined(needed, "AND") if needed else None, " && ".join(rest) or None, created_is_text)


def _conjuncts(node: Node) -> list[Node]:
    if isinstance(node, Operation) and node.operator == "&&":
        return [part for operand in node.operands for part in _conjuncts(operand)]
    return [node]


def _joined(parts: list[SqlText], word: str) -> SqlText:
    text = f" {word} ".join(f"({part.text})" for part in parts)
    return SqlText(text, tuple(param for part in parts for param in part.params))


class _Translator:
    def __init__(self, created_is_text: bool) -> None:
        self._created_is_text = created_is_text

    def exact(self, node: Node) -> SqlText | None:
        """The same truth, falsehood or lack of an answer as CEL, or None if that is not certain."""
        if isinstance(node, Constant) and node.kind == "bool":
            return SqlText("1" if node.value else "0")
        if isinstance(node, Name) and node.name in BOOLEAN_COLUMNS:
            return SqlText(node.name)
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Operation):
            return self._operation(node)
        return None

    def necessary(self, node: Node) -> SqlText | None:
        """Something that holds wherever the predicate is true."""
        exact = self.exact(node)
        if exact is not None or not isinstance(node, Operation):
            return exact
        parts = [self.necessary(operand) for operand in node.operands]
        known = [part for part in parts if part is not None]
        if node.operator == "||" and len(known) == len(parts):
            return _joined(known, "OR")
        if node.operator == "&&" and known:
            return _joined(known, "AND")
        return None

    def _operation(self, node: Operation) -> SqlText | None:
        if node.operator in ("&&", "||"):
            parts = [self.exact(operand) for operand in node.operands]
            known = [part for part in parts if part is not None]
            whole = len(known) == len(parts)
            return _joined(known, "AND" if node.operator == "&&" else "OR") if whole else None
        if node.operator == "!":
            inner = self.exact(node.operands[0])
            return SqlText(f"NOT ({inner.text})", inner.params) if inner else None
        if node.operator == "in":
            return self._membership(*node.operands)
        if node.operator in COMPARISONS:
            return self._comparison(node.operator, *node.operands)
        return None

    def _comparison(self, operator: str, left: Node, right: Node) -> SqlText | None:
        operand, constant = self._operand(left), self._constant(right)
        if operand is None:
            operand, constant, operator = self._operand(right), self._constant(left), _MIRRORED[operator]
        if operand is None or constant is None or constant[0] != operand.kind:
            return None
        if operand.kind == "bool" and operator not in ("==", "!="):
            return None
        sign = COMPARISONS[operator]
        if operand.null and operator in ("==", "!="):
            sign = "IS" if operator == "==" else "IS NOT"
        return SqlText(f"{operand.text} {sign} ?", (*operand.params, constant[1]))

    def _membership(self, item: Node, container: Node) -> SqlText | None:
        if isinstance(container, Name) and container.name == "tags" and isinstance(item, Constant):
            return _has_tag(item.value) if item.kind == "string" else None
        operand = self._operand(item)
        if operand is None or not isinstance(container, Items) or container.is_map or not container.items:
            return None
        values = [self._constant(value) for value in container.items]
        if any(value is None or value[0] != operand.kind for value in values):
            return None
        found = f"{operand.text} IN ({', '.join('?' * len(values))})"
        params = (*operand.params, *(value[1] for value in values if value is not None))
        return SqlText(f"({operand.text} IS NOT NULL AND {found})" if operand.null else found, params)

    def _call(self, node: Call) -> SqlText | None:
        if node.function == "has" and node.target is None and len(node.arguments) == 1:
            chosen = node.arguments[0]
            if isinstance(chosen, Select) and isinstance(chosen.operand, Name) and chosen.operand.name == "tags":
                return _has_tag(chosen.field)
            return None
        operand = self._operand(node.target) if node.target is not None else None
        if operand is None or operand.kind != "string" or len(node.arguments) != 1:
            return None
        wanted = self._constant(node.arguments[0])
        if wanted is None or wanted[0] != "string":
            return None
        return _text_method(node.function, operand, str(wanted[1]))

    def _operand(self, node: Node | None) -> _Operand | None:
        if isinstance(node, Name):
            return self._column(node.name)
        key: object = None
        if isinstance(node, Select):
            key = node.field
        elif isinstance(node, Index) and isinstance(node.key, Constant) and node.key.kind == "string":
            key = node.key.value
        if not isinstance(key, str) or not isinstance(node, Select | Index):
            return None
        if not isinstance(node.operand, Name) or node.operand.name != "tags":
            return None
        return _Operand("(SELECT value FROM json_each(data.tags) WHERE key = ?)", "string", (key,))

    def _column(self, name: str) -> _Operand | None:
        if name == CREATED and not self._created_is_text:
            return _Operand(name, "timestamp")
        if name in TEXT_COLUMNS:
            return _Operand(name, "string")
        if name in NULLABLE_COLUMNS:
            return _Operand(name, "string", null=True)
        if name in INTEGER_COLUMNS:
            return _Operand(name, "int")
        return _Operand(name, "bool") if name in BOOLEAN_COLUMNS else None

    def _constant(self, node: Node) -> tuple[str, Any] | None:
        if isinstance(node, Constant) and node.kind in ("string", "int", "bool"):
            return node.kind, (int(node.value) if isinstance(node.value, bool) else node.value)
        if isinstance(node, Operation) and node.operator == "-" and len(node.operands) == 1:
            inner = self._constant(node.operands[0])
            return ("int", -inner[1]) if inner and inner[0] == "int" else None
        if isinstance(node, Call) and node.function == "timestamp" and node.target is None:
            return _moment(node.arguments)
        return None


def _moment(arguments: tuple[Node, ...]) -> tuple[str, str] | None:
    """A timestamp as the column spells it, if that is the same moment to the last digit."""
    if len(arguments) != 1 or not isinstance(arguments[0], Constant) or arguments[0].kind != "string":
        return None
    text = str(arguments[0].value)
    if _RFC3339.match(text) is None:
        return None
    try:
        moment = parse_rfc3339(text).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return None
    return ("timestamp", rfc3339(moment)) if moment.microsecond % 1000 == 0 else None


def _has_tag(key: object) -> SqlText:
    return SqlText("EXISTS (SELECT 1 FROM json_each(data.tags) WHERE key = ?)", (key,))


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
