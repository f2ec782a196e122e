"""JSON, CSV and text as Arrow batches of exactly the columns asked for. A value that does not fit its column is null,
as with Spark's readers; text that is not JSON at all is an error."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from swamp.datasets.infer import PATTERNS, settled, type_of_text, widened
from swamp.datasets.options import flag
from swamp.errors import CorruptData, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 8_192
JSON_LIMIT: Final = 64 << 20


@dataclass(frozen=True)
class Dialect:
    """How text is to be read: Spark's option names, with a header and inferred types unless said otherwise."""

    sep: str = ","
    header: bool = True
    quote: str = '"'
    escape: str | None = None
    null: str = ""
    infer: bool = True
    encoding: str = "utf-8"
    multi_line: bool | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Dialect:
        sep = options.get("sep") or options.get("delimiter") or ","
        return cls(
            sep={"\\t": "\t"}.get(sep, sep),
            header=flag(options, "header", True),
            quote=options.get("quote", '"'),
            escape=options.get("escape") or None,
            null=options.get("nullvalue", ""),
            infer=flag(options, "inferSchema", True),
            encoding=_encoding(options.get("encoding", "utf-8")),
            multi_line=flag(options, "multiLine", False) if options.get("multiline") else None,
        ).checked()

    def checked(self) -> Dialect:
        for name, value in (("sep", self.sep), ("quote", self.quote), ("escape", self.escape)):
            if value is not None and len(value) > 1:
                raise UsageError(f"{name} is {value!r}; it is one character", hint="one character")
        return self


PLAIN: Final = Dialect()


def _encoding(name: str) -> str:
    try:
        "".encode(name)
    except LookupError as error:
        raise UsageError(f"there is no encoding {name!r}; try utf-8", hint="e.g. utf-8, latin-1") from error
    return name


# --- JSON -----------------------------------------------------------------------------------------------------------


def json_rows(
    file: BinaryIO, path: str, size: int, *, lines: bool, encoding: str = "utf-8"
) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines, or of one document: a list is its rows, anything else is one row."""
    if lines:
        with io.TextIOWrapper(file, encoding=encoding) as text:
            yield from (_object(_parsed(line, path)) for line in text if line.strip())
        return
    if size > JSON_LIMIT:
        raise UsageError(f"{path} is too large for one JSON document", hint="store it as JSON lines")
    found = _parsed(file.read().decode(encoding), path)
    yield from (_object(row) for row in (found if isinstance(found, list) else [found]))


def _parsed(text: str, path: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CorruptData(f"{path}: not JSON: {text[:80]!r}", hint="read it with contentFormat text") from error


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def batch_of(columns: list[pa.Array], target: pa.Schema, rows: int) -> pa.RecordBatch:
    """Columns as a batch of so many rows: Arrow takes one without columns for empty, and its rows are to be counted."""
    import pyarrow as pa

    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=target)
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], ["none"]).select([])


def json_batches(rows: Iterable[dict[str, Any]], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows as batches of exactly these columns."""
    import pyarrow as pa

    source = iter(rows)
    while page := list(islice(source, BATCH_ROWS)):
        columns = [pa.array([fitted(row.get(f.name), f.type) for row in page], f.type) for f in target]
        yield batch_of(columns, target, len(page))


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A JSON value as the column's type holds it; null where it does not fit."""
    import pyarrow as pa

    is_ = pa.types
    if value is None:
        return None
    if is_.is_string(kind) or is_.is_large_string(kind):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if is_.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if is_.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return value if isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound else None
    if is_.is_floating(kind):
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if is_.is_struct(kind):
        return {f.name: fitted(value.get(f.name), f.type) for f in kind} if isinstance(value, dict) else None
    if is_.is_list(kind):
        return [fitted(item, kind.value_type) for item in value] if isinstance(value, list) else None
    if is_.is_map(kind):
        return [(k, fitted(v, kind.item_type)) for k, v in value.items()] if isinstance(value, dict) else None
    return _fitted_text(value, kind)


def _fitted_text(value: Any, kind: pa.DataType) -> Any:
    """Dates, times, decimals and bytes: JSON has them as text or numbers."""
    import pyarrow as pa

    try:
        if pa.types.is_decimal(kind):
            exact = Context(prec=kind.precision)
            return (
                None
                if isinstance(value, bool)
                else Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), None, exact)
            )
        if not isinstance(value, str):
            return None
        if pa.types.is_date(kind):
            return dt.date.fromisoformat(value[:10])
        if pa.types.is_timestamp(kind):
            found = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
            return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
        return base64.b64decode(value) if pa.types.is_binary(kind) else None
    except (ValueError, ArithmeticError):
        return None


# --- CSV ------------------------------------------------------------------------------------------------------------


def csv_texts(open_file: Callable[[], BinaryIO], path: str, dialect: Dialect) -> Iterator[pa.RecordBatch]:
    """Every cell as text; an empty one is null, quoted or not, as with Spark. The file is opened twice: first for its
    header."""
    import pyarrow as pa
    from pyarrow import csv

    reading = csv.ReadOptions(encoding=dialect.encoding, autogenerate_column_names=not dialect.header)
    parsing = csv.ParseOptions(
        delimiter=dialect.sep,
        quote_char=dialect.quote or False,
        escape_char=dialect.escape or False,
        newlines_in_values=True,
    )
    try:
        with open_file() as file, csv.open_csv(file, reading, parsing) as reader:
            names = reader.schema.names
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=[dialect.null],
        )
        with open_file() as file, csv.open_csv(file, reading, parsing, convert) as reader:
            none = [pa.nulls(0, field.type) for field in reader.schema]
            bare = pa.RecordBatch.from_arrays(none, schema=reader.schema)  # a header without rows has columns, too
            for batch in chain([next(reader, bare)], reader):
                yield batch if dialect.header else batch.rename_columns([f"_c{n}" for n in range(len(names))])
    except pa.ArrowInvalid as error:
        raise CorruptData(
            f"{path} is not CSV: {error}", hint="say how it is written: sep, quote, escape, header"
        ) from error


def csv_schema(parts: Iterable[Iterator[pa.RecordBatch]], dialect: Dialect) -> pa.Schema:
    """The columns of all parts, in the order in which they first appear."""
    import pyarrow as pa

    found: dict[str, pa.DataType] = {}
    for batches in parts:
        for batch in batches:
            for field, column in zip(batch.schema, batch.columns, strict=True):
                kind = type_of_text(column) if dialect.infer else pa.string()
                found[field.name] = widened(found[field.name], kind) if field.name in found else kind
    return pa.schema([pa.field(name, settled(kind)) for name, kind in found.items()])


def csv_batches(texts: Iterator[pa.RecordBatch], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in texts:
        have = dict(zip(batch.schema.names, batch.columns, strict=True))
        empty = pa.nulls(batch.num_rows, pa.string())
        columns = [converted(have.get(f.name, empty), f.type) for f in target]
        yield batch_of(columns, target, batch.num_rows)


_SHAPES: Final[Sequence[tuple[str, tuple[str, ...]]]] = (
    ("is_integer", ("int64", "decimal128(38, 0)")),
    ("is_decimal", ("int64", "decimal128(38, 0)", "double")),
    ("is_floating", ("int64", "decimal128(38, 0)", "double")),
    ("is_boolean", ("bool",)),
    ("is_date", ("date32[day]", "timestamp[us, tz=UTC]")),
    ("is_timestamp", ("date32[day]", "timestamp[us, tz=UTC]")),
)


def converted(texts: Any, kind: pa.DataType) -> Any:
    """A column of texts as this type; a text that does not look like one is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(kind):
        return texts
    patterns = dict(PATTERNS)
    shapes = next((names for test, names in _SHAPES if getattr(pa.types, test)(kind)), ())
    looks = pc.match_substring_regex(texts, "|".join(f"({patterns[name]})" for name in shapes) or "$^")
    fitting = pc.if_else(pc.fill_null(looks, False), texts, pa.scalar(None, pa.string()))
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.array([_fitted_text(text, kind) for text in fitting.to_pylist()], kind)
    plain = pc.replace_substring_regex(fitting, r"^\+", "")
    try:
        return plain.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_cast_one(text, kind) for text in plain.to_pylist()], kind)


def _cast_one(text: str | None, kind: pa.DataType) -> Any:
    """One text that may be out of the column's range."""
    import pyarrow as pa

    try:
        return pa.scalar(text, pa.string()).cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


# --- text -----------------------------------------------------------------------------------------------------------


def text_batches(file: BinaryIO, encoding: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    with io.TextIOWrapper(file, encoding=encoding, errors="replace", newline="\n") as lines:
        while block := [line.rstrip("\n") for line in islice(lines, BATCH_ROWS)]:
            yield pa.RecordBatch.from_pydict({"value": block})
