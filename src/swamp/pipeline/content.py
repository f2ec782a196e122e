"""An artifact's content as rows: Parquet, JSON lines, JSON, CSV or text, read where it lies by whoever needs it.

Only Arrow in here. A part is one file of the artifact; a large Parquet part is split by row groups.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

from swamp.data.metadata import Metadata
from swamp.data.names import DataName, VersionRef, version_of
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.pipeline.place import Bucket, FileRef, Folder, Span
from swamp.pipeline.tables import read_metadata

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "jsonl", "json", "csv", "text"]
FORMATS: Final[tuple[Format, ...]] = ("parquet", "jsonl", "json", "csv", "text")
PARQUET_TYPE: Final = "application/vnd.apache.parquet"
_TYPES: Final[dict[str, Format]] = {
    PARQUET_TYPE: "parquet",
    "application/x-parquet": "parquet",
    "application/parquet": "parquet",
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
    "application/jsonlines": "jsonl",
    "application/json": "json",
    "text/json": "json",
    "text/csv": "csv",
}
_SUFFIXES: Final[dict[str, Format]] = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".txt": "text",
}
SPLIT_BYTES: Final = 64 << 20
BATCH_ROWS: Final = 8_192
JSON_LIMIT: Final = 64 << 20


@dataclass(frozen=True)
class Artifact:
    """One version's files, resolved: what a read of hours keeps reading."""

    ref: VersionRef
    meta: Metadata
    files: tuple[FileRef, ...]


@dataclass(frozen=True)
class Piece:
    """What one task reads: a file, or some row groups of a Parquet file."""

    file: FileRef
    format: Format
    groups: tuple[int, ...] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def find_artifact(
    place: Bucket | Folder, model: str, name: str, version: int | None = None, model_type: str | None = None
) -> Artifact:
    """The latest version of a name, or the one asked for. Raises NotFound with what there is."""
    candidates = _candidates(place, name, model_type)
    chosen = [data for data in candidates if _is_model(place, candidates[data], data, model)]
    if not chosen:
        raise NotFound(f"there is no data named {name} of model {model}", hint="`swamp data list` shows what is there")
    if len(chosen) > 1:
        types = ", ".join(sorted(data.type for data in chosen))
        raise UsageError(f"several models called {model} have {name}", hint=f'add .option("type", …): {types}')
    return _at(place, chosen[0], candidates[chosen[0]], version)


def _candidates(place: Bucket | Folder, name: str, model_type: str | None) -> dict[DataName, list[FileRef]]:
    """Files of every model that has this name: the path says so, nothing is read."""
    found: dict[DataName, list[FileRef]] = {}
    under = f"data/{model_type}" if model_type else "data"
    for file in place.files(under, Span()):
        if f"/{name}/" in file.path:
            ref = version_of(file.path)
            if ref is not None and ref.data.name == name:
                found.setdefault(ref.data, []).append(file)
    return found


def _is_model(place: Bucket | Folder, files: list[FileRef], data: DataName, model: str) -> bool:
    if model == data.model_id:
        return True
    newest = max(_metadata_files(files).items(), default=None)
    meta = read_metadata(place, newest[1]) if newest else None
    return meta is not None and meta.tags.get("modelName") == model


def _metadata_files(files: list[FileRef]) -> dict[int, FileRef]:
    found = ((version_of(file.path), file) for file in files if file.path.endswith("/metadata.yaml"))
    return {ref.version: file for ref, file in found if ref is not None}


def _at(place: Bucket | Folder, data: DataName, files: list[FileRef], version: int | None) -> Artifact:
    numbers = _metadata_files(files)
    if not numbers or (version is not None and version not in numbers):
        raise NotFound(f"{data.name} has no version {version}", hint=f"there are: {sorted(numbers)[-20:]}")
    return artifact_of(place, data.at(version if version is not None else max(numbers)), files)


def artifact_of(place: Bucket | Folder, ref: VersionRef, files: Sequence[FileRef]) -> Artifact:
    """A version from the files of its name. Raises CorruptData when its metadata cannot be read."""
    meta_file = next(file for file in files if file.path == ref.metadata_path)
    meta = read_metadata(place, meta_file)
    if meta is None:
        raise CorruptData(f"the metadata of {ref.path} cannot be read", hint="swamp datastore verify --repair")
    if not meta.active:
        raise NotFound(f"{ref.data.name} was {meta.lifecycle}", hint="ask for an earlier version")
    raw = [f for f in files if f.path == ref.raw_path or f.path.startswith(f"{ref.raw_path}/")]
    return Artifact(ref, meta, tuple(sorted(raw, key=lambda f: f.path)))


def format_of(artifact: Artifact, asked: str | None = None) -> Format:
    """What the content is: as asked, as its metadata says, or as its name ends."""
    if asked:
        if asked not in FORMATS:
            raise UsageError(f"{asked!r} is not a format", hint=f"use one of {', '.join(FORMATS)}")
        return asked
    plain = artifact.meta.content_type.partition(";")[0].strip().lower()
    if plain in _TYPES:
        return _TYPES[plain]
    if plain.startswith("text/"):
        return "text"
    for suffix, found in _SUFFIXES.items():
        if artifact.files and artifact.files[0].path.endswith(suffix):
            return found
    raise UsageError(
        f"{artifact.ref.data.name} has the content type {artifact.meta.content_type}: not something to read as rows",
        hint=f'say what it is with .option("contentFormat", …): {", ".join(FORMATS)}',
    )


def arrow_schema(place: Bucket | Folder, artifact: Artifact, kind: Format) -> pa.Schema:
    """The columns of the content, from the first part that has any."""
    import pyarrow as pa

    if kind == "text":
        return pa.schema([("value", pa.string())])
    if not artifact.files:
        raise CorruptData(f"{artifact.ref.path} has no content", hint="swamp datastore verify --repair")
    if kind == "parquet":
        import pyarrow.parquet as pq

        with place.open(artifact.files[0]) as file:
            return pq.read_schema(file).remove_metadata()
    for batch in read_piece(place, Piece(artifact.files[0], kind)):
        return batch.schema.remove_metadata()
    return pa.schema([])


def pieces(place: Bucket | Folder, artifact: Artifact, kind: Format) -> list[Piece]:
    """What tasks read: a part each, and more than one for a large Parquet part."""
    found: list[Piece] = []
    for file in artifact.files:
        if kind == "parquet" and file.size > SPLIT_BYTES:
            found += [Piece(file, kind, groups) for groups in _group_sets(place, file)]
        else:
            found.append(Piece(file, kind))
    return found


def _group_sets(place: Bucket | Folder, file: FileRef) -> Iterator[tuple[int, ...]]:
    import pyarrow.parquet as pq

    with place.open(file) as opened:
        footer = pq.ParquetFile(opened).metadata
        gathered: list[int] = []
        size = 0
        for number in range(footer.num_row_groups):
            gathered.append(number)
            size += footer.row_group(number).total_byte_size
            if size >= SPLIT_BYTES:
                yield tuple(gathered)
                gathered, size = [], 0
        if gathered:
            yield tuple(gathered)


def read_piece(place: Bucket | Folder, piece: Piece, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one piece as Arrow, a batch at a time; of Parquet only the columns asked for."""
    with place.open(piece.file) as file:
        yield from _READERS[piece.format](file, piece, columns)


def _read_parquet(file: BinaryIO, piece: Piece, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    opened = pq.ParquetFile(file)
    groups = list(piece.groups) if piece.groups is not None else list(range(opened.num_row_groups))
    if groups:
        wanted = None if columns is None else [c for c in columns if c in opened.schema_arrow.names]
        yield from opened.iter_batches(BATCH_ROWS, row_groups=groups, columns=wanted, use_threads=False)


def _read_csv(file: BinaryIO, piece: Piece, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    from pyarrow import csv

    if not piece.file.size:
        return
    convert = csv.ConvertOptions(include_columns=list(columns) if columns else None, include_missing_columns=True)
    with csv.open_csv(file, convert_options=convert) as reader:
        yield from reader


def _read_jsonl(file: BinaryIO, piece: Piece, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Blocks of lines, each with the columns that it has; the caller's schema brings them together."""
    import pyarrow as pa

    del piece, columns
    text = io.TextIOWrapper(file, encoding="utf-8")
    block: list[Any] = []
    for line in text:
        if line.strip():
            block.append(_object(line))
        if len(block) >= BATCH_ROWS:
            yield from pa.Table.from_pylist(_same_keys(block)).to_batches()
            block = []
    if block:
        yield from pa.Table.from_pylist(_same_keys(block)).to_batches()


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise CorruptData(f"a line is not JSON: {line[:80]!r}", hint="is this really JSON lines?") from error
    return found if isinstance(found, dict) else {"value": found}


def _same_keys(rows: list[Any]) -> list[Any]:
    """Arrow takes the columns of the first row for those of all."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _read_json(file: BinaryIO, piece: Piece, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """A document: a list is its rows, anything else is one row."""
    import pyarrow as pa

    del columns
    if piece.file.size > JSON_LIMIT:
        raise UsageError(f"{piece.file.path} is too large for one JSON document", hint="store it as JSON lines")
    try:
        found = json.loads(file.read())
    except ValueError as error:
        raise CorruptData(f"{piece.file.path} is not JSON", hint="read it with contentFormat text") from error
    listed = found if isinstance(found, list) else [found]
    rows = [row if isinstance(row, dict) else {"value": row} for row in listed]
    if rows:
        yield from pa.Table.from_pylist(_same_keys(rows)).to_batches(BATCH_ROWS)


def _read_text(file: BinaryIO, piece: Piece, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    del piece, columns
    block: list[str] = []
    for line in io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="\n"):
        block.append(line.rstrip("\n"))
        if len(block) >= BATCH_ROWS:
            yield pa.RecordBatch.from_pydict({"value": block})
            block = []
    if block:
        yield pa.RecordBatch.from_pydict({"value": block})


_READERS: Final = {
    "parquet": _read_parquet,
    "csv": _read_csv,
    "jsonl": _read_jsonl,
    "json": _read_json,
    "text": _read_text,
}


def shaped(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Exactly these columns and types: a column that the batch lacks is null, one that does not fit is an error."""
    import pyarrow as pa

    arrays = []
    for wanted in target:
        at = batch.schema.get_field_index(wanted.name)
        if at < 0:
            arrays.append(pa.nulls(batch.num_rows, wanted.type))
        else:
            column = batch.column(at)
            arrays.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.RecordBatch.from_arrays(arrays, schema=target)
