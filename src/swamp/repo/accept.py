"""Takes what a program puts: files and bytes as they are, text as text, values as JSON, tables as Parquet."""

from __future__ import annotations

import json
import mimetypes
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, runtime_checkable

from swamp.errors import UsageError

PARQUET: Final = "application/vnd.apache.parquet"
JSON: Final = "application/json"
_SNIFFED: Final = 1 << 16
_ROWS: Final = {
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".parquet": PARQUET,
    ".csv": "text/csv",
}
"""What Python's own table of types does not know, or not on every machine."""


@runtime_checkable
class Tabular(Protocol):
    """A table of any library that speaks Arrow: pandas, polars, pyarrow, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Puttable = Path | bytes | bytearray | memoryview | str | Mapping[str, Any] | Sequence[Any] | Tabular | BinaryIO
"""A file or a directory of parts, bytes, text, a value for JSON, a table, or an open file."""


@contextmanager
def accepted(value: Puttable) -> Iterator[tuple[Path | bytes | BinaryIO, str]]:
    """`value` as bytes, a file or a stream, and its content type, for as long as the block lasts. Raises UsageError."""
    if isinstance(value, Tabular):
        with tempfile.TemporaryDirectory(prefix="swamp-") as folder:
            yield _parquet(value, Path(folder) / "table.parquet"), PARQUET
    elif isinstance(value, Path) or hasattr(value, "read"):
        given: Any = value
        yield given, guess_type(given)
    elif isinstance(value, bytes | bytearray | memoryview):
        yield bytes(value), guess_type(bytes(value))
    elif isinstance(value, str):
        yield value.encode(), "text/plain"
    else:
        yield _json(value), JSON


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a {type(value).__name__} cannot be saved: {error}",
            hint="give a Path, bytes, text, a value for JSON, or a table of pandas, polars, pyarrow or DuckDB",
        ) from error


def _parquet(table: Tabular, file: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.write_table(pa.RecordBatchReader.from_stream(table).read_all(), file)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            f"a {type(table).__name__} cannot be saved as Parquet: {str(error)[:500]}",
            hint="give each column a name of its own and one type of values",
        ) from error
    return file


def guess_type(content: Path | bytes | BinaryIO) -> str:
    """By the file's name, else by its first bytes: text or not."""
    if isinstance(content, Path):
        known = _ROWS.get(content.suffix.lower()) or mimetypes.guess_type(content.name)[0]
        if known or not content.is_file():
            return known or "application/octet-stream"
        with content.open("rb") as file:
            return _sniff(file.read(_SNIFFED))
    if isinstance(content, bytes):
        return _sniff(content[:_SNIFFED])
    peek = getattr(content, "peek", None)  # standard input: its first bytes, without taking them
    return _sniff(peek(_SNIFFED)[:_SNIFFED]) if peek else "application/octet-stream"


def _sniff(head: bytes) -> str:
    if head[:4] == b"PAR1":
        return PARQUET
    if b"\0" in head:
        return "application/octet-stream"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return "text/plain" if error.start > len(head) - 4 and len(head) == _SNIFFED else "application/octet-stream"
    return "text/plain"
