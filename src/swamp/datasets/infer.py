"""Column types of JSON and CSV, over all rows of all parts, as Spark's own readers infer them.

A type that only some rows show is widened until it fits all of them: nothing, then whole numbers, then fractions; what
fits nothing else is text. Columns that are never anything but null are text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

LONG_BOUND: Final = 1 << 63
INT_BOUND: Final = 1 << 31
_NUMBERS: Final = ("int32", "int64", "decimal128(38, 0)", "double")
"""From narrow to wide; a decimal holds the whole numbers that no long does."""
_TIMES: Final = ("date32[day]", "timestamp[us, tz=UTC]")
PATTERNS: Final = (
    ("int64", r"^[+-]?\d{1,18}$"),
    ("decimal128(38, 0)", r"^[+-]?\d{1,38}$"),
    ("double", r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(NaN|Infinity|Inf)$"),
    ("bool", r"(?i)^(true|false)$"),
    ("date32[day]", r"^\d{4}-\d{2}-\d{2}$"),
    ("timestamp[us, tz=UTC]", r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?)?$"),
)
"""What the text of a whole column must look like to be of a type, tried in this order."""


def typed(name: str) -> pa.DataType:
    import pyarrow as pa

    return {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "decimal128(38, 0)": pa.decimal128(38, 0),
        "double": pa.float64(),
        "bool": pa.bool_(),
        "date32[day]": pa.date32(),
        "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
        "string": pa.string(),
    }[name]


def type_of_json(value: Any) -> pa.DataType:
    """The type of one parsed JSON value, as Spark sees it."""
    import pyarrow as pa

    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case int() if not -LONG_BOUND <= value < LONG_BOUND:
            return pa.decimal128(38, 0) if abs(value) < 10**38 else pa.float64()
        case int():
            return pa.int64()
        case float():
            return pa.float64()
        case dict():
            return pa.struct([pa.field(name, type_of_json(inner)) for name, inner in sorted(value.items())])
        case list():
            return pa.list_(reduce(widened, (type_of_json(item) for item in value), pa.null()))
        case _:
            return pa.string()


def widened(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The narrowest type that holds values of both."""
    import pyarrow as pa

    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return pa.struct(list(merged_fields([one, other])))
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(widened(one.value_type, other.value_type))
    for ladder in (_NUMBERS, _TIMES):
        if str(one) in ladder and str(other) in ladder:
            return typed(max(str(one), str(other), key=ladder.index))
    return pa.string()


def merged_fields(records: Iterable[Any]) -> Iterable[pa.Field]:
    """Every field that any of the structs has, by name."""
    import pyarrow as pa

    found: dict[str, pa.DataType] = {}
    for record in records:
        for field in record:
            found[field.name] = widened(found[field.name], field.type) if field.name in found else field.type
    return (pa.field(name, kind) for name, kind in sorted(found.items()))


def settled(kind: pa.DataType) -> pa.DataType:
    """The type that a column gets in the end: what was only ever null is text."""
    import pyarrow as pa

    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(settled(kind.value_type))
    if pa.types.is_struct(kind):
        inner = [pa.field(f.name, settled(f.type)) for f in kind if not _is_empty(f.type)]
        return pa.struct(inner)
    return kind


def _is_empty(kind: pa.DataType) -> bool:
    """An object that never had a member: Spark has no column for it, nor have we."""
    import pyarrow as pa

    return bool(pa.types.is_struct(kind)) and all(_is_empty(f.type) for f in kind)


def schema_of_json(rows: Iterable[dict[str, Any]]) -> pa.Schema:
    """The columns of JSON rows, sorted by name as Spark sorts them."""
    import pyarrow as pa

    whole: pa.DataType = pa.struct([])
    for row in rows:
        whole = widened(whole, type_of_json(row))
    return pa.schema(list(settled(whole)))


def type_of_text(column: Any) -> pa.DataType:
    """The type of one CSV column, given as an array of texts and nulls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    present = column.drop_null()
    if not len(present):
        return pa.null()
    for name, pattern in PATTERNS:
        if pc.all(pc.match_substring_regex(present, pattern)).as_py():
            return _narrowed_whole(present) if name == "int64" else typed(name)
    return pa.string()


def _narrowed_whole(present: Any) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.compute as pc

    bounds = pc.min_max(pc.replace_substring_regex(present, r"^\+", "").cast(pa.int64())).as_py()
    small = bounds["min"] >= -INT_BOUND and bounds["max"] < INT_BOUND
    return pa.int32() if small else pa.int64()
