"""Makes a table of a version: Parquet, CSV, JSON lines and JSON, of one file or of many parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from swamp.data.versions import DataVersion
from swamp.errors import UsageError
from swamp.repo.contents import Contents, File
from swamp.repo.preview import data_files, format_of

_DELIMITERS: Final = {"csv": ",", "tsv": "\t"}


def arrow_table(contents: Contents, version: DataVersion, columns: Sequence[str] | None = None) -> Any:
    """The rows as a `pyarrow.Table`. Raises UsageError for what is no table, CorruptData for damaged bytes."""
    files = list(contents.files(version))
    kind = format_of(version, files)
    own = [contents.verified(version, file) for file in data_files(files)]
    if kind == "parquet":
        return _parquet(version, contents, own, columns)
    if kind in _DELIMITERS:
        found = _joined([_csv(file, _DELIMITERS[kind]) for file in own])
    elif kind == "ndjson":
        found = _joined([_lines(file) for file in own])
    elif kind == "json":
        found = _records(json.loads(own[0].path.read_bytes()), version)
    else:
        raise _no_table(version, f"it is {kind}, {version.meta.content_type}")
    return found if columns is None else found.select(list(columns))


def _parquet(version: DataVersion, contents: Contents, files: Sequence[File], columns: Sequence[str] | None) -> Any:
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    wanted = None if columns is None else list(columns)
    if not version.meta.has_parts:
        return pq.read_table(files[0].path, columns=wanted, partitioning=None)
    base = str(contents.artifacts.raw(version))
    names = [str(file.path) for file in files]
    return ds.dataset(names, format="parquet", partitioning="hive", partition_base_dir=base).to_table(columns=wanted)


def _csv(file: File, delimiter: str) -> Any:
    from pyarrow import csv

    return csv.read_csv(file.path, parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True))


def _lines(file: File) -> Any:
    import pyarrow as pa
    from pyarrow import json as lines

    return lines.read_json(file.path) if file.size else pa.table({})


def _joined(tables: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def _records(value: Any, version: DataVersion) -> Any:
    import pyarrow as pa

    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise _no_table(version, "its JSON is neither an object nor a list of objects")
    return pa.Table.from_pylist(rows)


def _no_table(version: DataVersion, why: str) -> UsageError:
    return UsageError(f"{version.name} version {version.version} is no table: {why}", hint="read it as bytes or text")
