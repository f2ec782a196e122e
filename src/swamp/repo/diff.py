"""Compares two versions: lines of texts, values of JSON, columns and rows of tables, parts of everything else."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Final, Literal

from swamp.data.versions import DataVersion
from swamp.extras import needs
from swamp.repo.contents import DELIMITERS, Contents, File, NotAsCalled, data_files, format_of, reading_table
from swamp.repo.preview import JSON_LIMIT, MOST_FILES, csv_header, csv_rows, plain_value
from swamp.values import mutable

Kind = Literal["same", "text", "json", "table", "directory", "binary"]
TEXT_LIMIT: Final = 8 << 20
MOST_ROWS: Final = 1_000_000
"""Tables with more rows are compared by their columns, their row counts and their parts."""
MOST_SHOWN: Final = 1000
_WORDS: Final = ("added", "removed", "changed")


@mutable
class Diff:
    """What `data diff` tells. `changes` are at most 1,000; `summary` counts all of them."""

    kind: Kind
    summary: dict[str, Any] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    """For people: a unified diff of a text."""

    @property
    def equal(self) -> bool:
        return self.kind == "same"

    def __str__(self) -> str:
        if self.equal:
            return "the same"
        counted = ", ".join(f"{key}: {value}" for key, value in self.summary.items() if value)
        return "\n".join([f"{self.kind}: {counted}" if counted else self.kind, *self.lines])

    def to_json(self) -> dict[str, Any]:
        document = {"equal": self.equal, "kind": self.kind, "summary": self.summary, "changes": self.changes}
        return {**document, "truncated": sum(_counts(self.summary)) > len(self.changes) if self.changes else False}


def _counts(summary: Mapping[str, Any]) -> Iterator[int]:
    for key, value in summary.items():
        if key.endswith(("added", "removed", "changed", "Added", "Removed", "Changed")) and isinstance(value, int):
            yield value


def diff(contents: Contents, old: DataVersion, new: DataVersion) -> Diff:
    """Compares two versions; bytes are read only where their checksums differ."""
    if (old.meta.checksum, old.meta.size) == (new.meta.checksum, new.meta.size) and old.meta.checksum:
        return Diff("same")
    if old.meta.has_parts or new.meta.has_parts:
        return _directories(contents, old, new)
    before, after = _read(contents, old), _read(contents, new)
    kinds = {format_of(old, before), format_of(new, after)}
    binary = Diff("binary", {"bytesBefore": old.meta.size, "bytesAfter": new.meta.size})
    if kinds <= {"parquet", "csv", "tsv"}:
        return _tables(old, new, before, after) or binary
    small = max(before[0].size, after[0].size) <= JSON_LIMIT
    if kinds == {"json"} and small:
        try:
            return _documents(before[0], after[0])
        except ValueError:
            pass  # one of them is not the JSON that it says it is: told as text
    if "binary" not in kinds and max(before[0].size, after[0].size) <= TEXT_LIMIT:
        return _texts(old, new, before[0], after[0])
    return binary


# -- directories


def _directories(contents: Contents, old: DataVersion, new: DataVersion) -> Diff:
    """By the checksums in the metadata alone; a table of several parts is compared by its rows too."""
    before, after = ({f.name: (f.checksum, f.size) for f in contents.files(one)} for one in (old, new))
    found: list[dict[str, Any]] = []
    for name in sorted({*before, *after}):
        first, second = before.get(name), after.get(name)
        if first != second:
            change = "removed" if second is None else "added" if first is None else "changed"
            sizes = {key: one[1] for key, one in (("sizeBefore", first), ("sizeAfter", second)) if one is not None}
            found.append({"part": name, "change": change, **sizes})
    if not found:
        return Diff("same")
    counts = Counter(str(one["change"]) for one in found)
    parts = {f"parts{word.title()}": counts[word] for word in _WORDS}
    few = max(old.meta.part_count, new.meta.part_count) <= MOST_FILES
    if few and {format_of(one, list(contents.files(one))) for one in (old, new)} <= {"parquet", "csv", "tsv"}:
        table = _tables(old, new, _read(contents, old), _read(contents, new))
        if table is not None:
            table.summary |= parts
            return table
    return Diff("directory", parts, found[:MOST_SHOWN])


def _read(contents: Contents, version: DataVersion) -> list[File]:
    """The files that hold data, verified."""
    return [contents.verified(version, file) for file in data_files(contents.files(version))]


# -- texts


def _texts(old: DataVersion, new: DataVersion, before: File, after: File) -> Diff:
    names = (f"{old.name} version {old.version}", f"{new.name} version {new.version}")
    lines = list(difflib.unified_diff(_lines(before), _lines(after), *names, lineterm=""))
    body = lines[2:]
    added, removed = sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)
    words = {"+": "added", "-": "removed"}
    changes = [{"change": words[line[0]], "line": line[1:]} for line in body if line[:1] in words]
    return Diff("text", {"linesAdded": added, "linesRemoved": removed}, changes[:MOST_SHOWN], lines)


def _lines(file: File) -> list[str]:
    return file.path.read_text(encoding="utf-8", errors="backslashreplace").splitlines()


# -- JSON


def _documents(before: File, after: File) -> Diff:
    old, new = (json.loads(file.path.read_text(encoding="utf-8")) for file in (before, after))
    found = list(_values(old, new, "$"))
    counts = Counter(str(one["change"]) for one in found)
    if not found:
        return Diff("json", {"added": 0, "removed": 0, "changed": 0, "note": "the same values, written differently"})
    return Diff("json", {word: counts[word] for word in _WORDS}, found[:MOST_SHOWN])


def _values(old: Any, new: Any, path: str, what: str = "path") -> Iterator[dict[str, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _pair(old, new, key, f"{path}.{key}" if str(key).isidentifier() else f"{path}[{key!r}]")
    elif isinstance(old, list) and isinstance(new, list):
        first, second = dict(enumerate(old)), dict(enumerate(new))
        for place in range(max(len(old), len(new))):
            yield from _pair(first, second, place, f"{path}[{place}]")
    elif old != new or type(old) is not type(new):
        yield {what: path, "change": "changed", "before": old, "after": new}


def _pair(
    old: Mapping[Any, Any], new: Mapping[Any, Any], key: Any, path: str, what: str = "path"
) -> Iterator[dict[str, Any]]:
    if key not in new:
        yield {what: path, "change": "removed", "before": old[key]}
    elif key not in old:
        yield {what: path, "change": "added", "after": new[key]}
    else:
        yield from _values(old[key], new[key], path, what)


# -- tables


def _tables(old: DataVersion, new: DataVersion, before: list[File], after: list[File]) -> Diff | None:
    """The difference of two tables; None where one of them is not the Parquet that it says it is."""
    try:
        return _compared(old, new, before, after)
    except NotAsCalled:
        return None


def _compared(old: DataVersion, new: DataVersion, before: list[File], after: list[File]) -> Diff:
    """Columns by name and type; rows as a multiset: their order is nobody's."""
    old_columns, columns = _schema(old, before), _schema(new, after)
    names = dict.fromkeys((*old_columns, *columns))
    changes = [change for name in names for change in _pair(old_columns, columns, name, name, "column")]
    counts = _row_count(old, before), _row_count(new, after)
    summary: dict[str, Any] = {"rowsBefore": counts[0], "rowsAfter": counts[1]}
    summary |= {f"columns{word.title()}": sum(c["change"] == word for c in changes) for word in _WORDS}
    if max(counts) > MOST_ROWS:
        return Diff("table", {**summary, "note": f"more than {MOST_ROWS:,} rows: rows are not compared"}, changes)
    # Each row as one text with its columns in the order of their names.
    as_text = partial(json.dumps, sort_keys=True, ensure_ascii=False, default=str)
    first, second = Counter(map(as_text, _rows(old, before))), Counter(map(as_text, _rows(new, after)))
    gone, come = first - second, second - first
    summary |= {"rowsAdded": come.total(), "rowsRemoved": gone.total()}
    for word, rows in (("removed", gone), ("added", come)):
        changes += [{"change": word, "row": json.loads(row)} for row in rows.elements()][: MOST_SHOWN - len(changes)]
    if not changes:
        summary["note"] = "the same rows, written differently"
    return Diff("table", summary, changes)


def _schema(version: DataVersion, files: list[File]) -> dict[str, str]:
    kind = format_of(version, files)
    if kind != "parquet":
        return dict.fromkeys(csv_header(files, DELIMITERS[kind]), "text")
    needs("pyarrow", "comparing Parquet", "arrow")
    import pyarrow.parquet as pq

    with reading_table():
        return {field.name: str(field.type) for field in pq.read_schema(files[0].path)}


def _row_count(version: DataVersion, files: list[File]) -> int:
    kind = format_of(version, files)
    if kind != "parquet":
        return sum(1 for _ in csv_rows(files, DELIMITERS[kind]))
    import pyarrow.parquet as pq

    with reading_table():
        return sum(int(pq.read_metadata(file.path).num_rows) for file in files)


def _rows(version: DataVersion, files: list[File]) -> Iterator[dict[str, Any]]:
    kind = format_of(version, files)
    if kind != "parquet":
        yield from (dict(zip(header, row, strict=True)) for header, row in csv_rows(files, DELIMITERS[kind]))
        return
    import pyarrow.parquet as pq

    for file in files:
        with reading_table(), pq.ParquetFile(file.path) as table:
            for batch in table.iter_batches():
                yield from map(plain_value, batch.to_pylist())
