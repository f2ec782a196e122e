"""Rows as JSON, CSV and text that a terminal can hold."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final, Literal

Format = Literal["table", "json", "csv", "parquet"]
FORMATS: Final = ("table", "json", "csv", "parquet")


def plain(value: Any) -> Any:
    """A value that JSON can hold: times as text, maps as objects, bytes as hex."""
    if isinstance(value, dt.datetime | dt.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def plain_rows(rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    return ([plain(value) for value in row] for row in rows)


def write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> int:
    """An array of row objects, written as it comes."""
    count = 0
    out.write("[")
    for row in plain_rows(rows):
        text = json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
        out.write(("\n" if not count else ",\n") + text)
        count += 1
    out.write("]\n" if not count else "\n]\n")
    return count


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], out: IO[str]) -> int:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    count = 0
    for row in plain_rows(rows):
        writer.writerow([_cell(value) for value in row])
        count += 1
    return count


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value
