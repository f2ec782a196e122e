"""Shows a version at a glance: schema, rows and statistics of tables, JSON, the head of a text, a list of parts."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, Final, Literal

from swamp.data.versions import DataVersion
from swamp.extras import needs
from swamp.repo.contents import DELIMITERS, Contents, File, NotAsCalled, data_files, format_of, reading_table
from swamp.values import mutable

Kind = Literal["table", "json", "text", "binary", "directory"]
JSON_LIMIT: Final = 16 << 20
TEXT_LIMIT: Final = 1 << 20
MOST_ROWS: Final = 1_000_000
"""Statistics of a CSV are of so many rows at most; those of Parquet are in its footers."""
MOST_FILES: Final = 1000
"""Of a version with more parts the first are looked into."""


@mutable
class PreviewColumn:
    """One column of a table and what is known of its values."""

    name: str
    type: str
    nulls: int | None = None
    low: Any = None
    high: Any = None

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "type": self.type, "nulls": self.nulls, "min": self.low, "max": self.high}


@mutable
class Preview:
    """What `data show` tells of a version."""

    kind: Kind
    format: str
    columns: list[PreviewColumn] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    row_count: int | None = None
    counted_all: bool = True
    text: str = ""
    value: Any = None
    cut: bool = False
    """Whether there is more than is shown."""
    parts: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"kind": self.kind, "format": self.format, "truncated": self.cut}
        if self.kind == "table":
            document["schema"] = [column.to_json() for column in self.columns]
            document |= {"rows": self.rows, "rowCount": self.row_count, "statisticsOfAllRows": self.counted_all}
        elif self.kind == "json":
            document["value"] = self.value
        elif self.kind == "text":
            document["text"] = self.text
        if self.parts:
            document["parts"] = self.parts
        return document


def preview(contents: Contents, version: DataVersion, limit: int = 10) -> Preview:
    """Looks at a version. `limit` bounds the rows, lines and parts that are shown."""
    files = list(itertools.islice(contents.files(version), MOST_FILES))
    found = _looked_at(contents, version, files, limit)
    found.parts = [{"name": f.name, "size": f.size, "checksum": f.checksum} for f in files[:limit] if f.name]
    more = version.meta.part_count > len(files)
    found.counted_all = found.counted_all and not more
    found.cut = found.cut or version.meta.part_count > limit
    return found


def _looked_at(contents: Contents, version: DataVersion, files: list[File], limit: int) -> Preview:
    kind = format_of(version, files)
    if kind in ("directory", "binary"):
        return Preview("directory" if kind == "directory" else "binary", kind)
    own = [contents.verified(version, file) for file in data_files(files)]
    if kind == "parquet":
        try:
            return _parquet(own, limit)
        except NotAsCalled:
            return Preview("binary", "binary")
    if kind in ("csv", "tsv"):
        return _csv(own, DELIMITERS[kind], kind, limit)
    if kind == "ndjson":
        return _lines_of_json(own, limit)
    if kind == "json":
        return _json(own[0], limit)
    return _text(own[0], limit)


# -- Parquet


def _parquet(files: Sequence[File], limit: int) -> Preview:
    """Footers say how many rows there are and between what they lie; only the first rows are read."""
    needs("pyarrow", "a look into Parquet", "arrow")
    import pyarrow.parquet as pq

    found = Preview("table", "parquet", row_count=0)
    for file in files:
        with reading_table(), pq.ParquetFile(file.path) as table:
            if not found.columns:
                found.columns = [PreviewColumn(f.name, str(f.type), 0) for f in table.schema_arrow]
            _add_footer(found, table.metadata)
            left = limit - len(found.rows)
            if left > 0 and table.metadata.num_rows:
                batch = next(table.iter_batches(batch_size=left))
                found.rows += [plain_value(row) for row in batch.to_pylist()]
    found.cut = (found.row_count or 0) > len(found.rows)
    return found


def _add_footer(found: Preview, footer: Any) -> None:
    found.row_count = (found.row_count or 0) + footer.num_rows
    columns = {column.name: column for column in found.columns}
    for group, position in itertools.product(range(footer.num_row_groups), range(footer.num_columns)):
        chunk = footer.row_group(group).column(position)
        column = columns.get(chunk.path_in_schema)
        if column is None:
            continue  # a field inside a struct or a list
        stats = chunk.statistics
        known = stats is not None and stats.null_count is not None
        column.nulls = column.nulls + stats.null_count if column.nulls is not None and known else None
        if stats is not None and stats.has_min_max:
            low, high = plain_value(stats.min), plain_value(stats.max)
            column.low = low if column.low is None else min(column.low, low)
            column.high = high if column.high is None else max(column.high, high)


def plain_value(value: Any) -> Any:
    """As JSON has it: numbers, truth, text and nothing stay; bytes and times become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {str(key): plain_value(one) for key, one in value.items()}
    return [plain_value(one) for one in value] if isinstance(value, list | tuple) else str(value)


# -- CSV


def csv_rows(files: Iterable[File], delimiter: str) -> Iterator[tuple[list[str], list[str]]]:
    """Each row with the header of its file; a row of another length is filled up or cut."""
    for file in files:
        with file.path.open("r", encoding="utf-8-sig", errors="backslashreplace", newline="") as text:
            reader = csv.reader(text, delimiter=delimiter)
            header = next(reader, None)
            for row in reader if header else ():
                if row:
                    yield header or [], (row + [""] * len(header or []))[: len(header or [])]


def csv_header(files: Sequence[File], delimiter: str) -> list[str]:
    with files[0].path.open("r", encoding="utf-8-sig", errors="backslashreplace", newline="") as text:
        return next(csv.reader(text, delimiter=delimiter), [])


def _csv(files: Sequence[File], delimiter: str, kind: str, limit: int) -> Preview:
    found = Preview("table", kind, row_count=0)
    measures = [_Measure(name) for name in (csv_header(files, delimiter) if files else [])]
    for count, (header, row) in enumerate(csv_rows(files, delimiter), start=1):
        if count > MOST_ROWS:
            found.counted_all, found.row_count = False, None
            break
        found.row_count = count
        for measure, cell in zip(measures, row, strict=False):
            measure.add(cell)
        if len(found.rows) < limit:
            found.rows.append(dict(zip(header, row, strict=True)))
    found.columns = [measure.column() for measure in measures]
    found.cut = found.row_count is None or found.row_count > len(found.rows)
    return found


class _Measure:
    """What the cells of one column have in common."""

    def __init__(self, name: str) -> None:
        self._name, self._nulls, self._kind = name, 0, 0
        self._numbers: tuple[float, float] | None = None
        self._texts: tuple[str, str] | None = None

    def add(self, cell: str) -> None:
        if cell == "":
            self._nulls += 1
            return
        self._kind = max(self._kind, _kind_of(cell))
        if self._kind < 2:
            number = float(cell)
            low, high = self._numbers or (number, number)
            self._numbers = min(low, number), max(high, number)
        first, last = self._texts or (cell, cell)
        self._texts = min(first, cell), max(last, cell)

    def column(self) -> PreviewColumn:
        if self._texts is None:
            return PreviewColumn(self._name, "empty", self._nulls)
        if self._kind == 2 or self._numbers is None:
            return PreviewColumn(self._name, "text", self._nulls, *self._texts)
        low, high = self._numbers
        if self._kind == 0:
            return PreviewColumn(self._name, "integer", self._nulls, int(low), int(high))
        return PreviewColumn(self._name, "number", self._nulls, low, high)


def _kind_of(cell: str) -> int:
    """0 a whole number, 1 a number, 2 a text."""
    try:
        number = float(cell)
    except ValueError:
        return 2
    if number != number or abs(number) == float("inf"):
        return 2
    return 0 if cell.strip().lstrip("+-").isdigit() else 1


# -- JSON and text


def _lines_of_json(files: Sequence[File], limit: int) -> Preview:
    count, rows = 0, list[dict[str, Any]]()
    for file in files:
        with file.path.open("r", encoding="utf-8", errors="backslashreplace") as text:
            for line in filter(str.strip, text):
                count += 1
                if len(rows) < limit:
                    rows.append(_parsed(line))
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [PreviewColumn(name, _type_of(rows, name)) for name in names]
    return Preview("table", "ndjson", columns, rows, count, counted_all=False, cut=count > len(rows))


def _parsed(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {"(not JSON)": line.rstrip("\n")}
    return value if isinstance(value, dict) else {"value": value}


def _type_of(rows: Iterable[dict[str, Any]], name: str) -> str:
    words = {bool: "boolean", int: "integer", float: "number", str: "text", list: "list", dict: "object"}
    kinds = {words.get(type(row[name]), "null") for row in rows if row.get(name) is not None}
    return " or ".join(sorted(kinds)) or "null"


def _json(file: File, limit: int) -> Preview:
    if file.size > JSON_LIMIT:
        return _text(file, limit)
    try:
        return Preview("json", "json", value=json.loads(file.path.read_text(encoding="utf-8")))
    except ValueError:
        return _text(file, limit)


def _text(file: File, limit: int) -> Preview:
    with file.path.open("r", encoding="utf-8", errors="backslashreplace", newline="") as text:
        head = text.read(TEXT_LIMIT)
        more = bool(text.read(1))
    lines = head.splitlines(keepends=True)
    return Preview("text", "text", text="".join(lines[:limit]), cut=more or len(lines) > limit)
