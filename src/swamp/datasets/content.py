"""An artifact's content as rows: Parquet, JSON lines, JSON, CSV or text, read where it lies by whoever needs it.

Only Arrow in here. A part is one file of the artifact; a large Parquet part is split by row groups.
"""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

from swamp.data.metadata import Metadata
from swamp.data.names import DataName, VersionRef, described_by, normalise_type, version_of
from swamp.datasets.infer import schema_of_json
from swamp.datasets.parse import (
    PLAIN,
    Dialect,
    batch_of,
    csv_batches,
    csv_schema,
    csv_texts,
    json_batches,
    json_rows,
    text_batches,
)
from swamp.datasets.place import Bucket, FileRef, Folder
from swamp.datasets.tables import READERS, read_metadata
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.sync.inline import pooled

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
TASK_BYTES: Final = 32 << 20
OPEN_BYTES: Final = 512 << 10
"""What opening one more part counts in a task of `TASK_BYTES`: small parts share tasks."""
MOST_LOOKS: Final = 32
"""Looking for one name costs about a row group of the index, 16,384 rows."""
GROUP_BATCH_ROWS: Final = 32_768
"""Measured with nine columns: a fifth less CPU than 8,192 rows at a time, and no more from there on."""
WHOLE_BYTES: Final = 1 << 20
"""Parts up to so large come with one request."""


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
    dialect: Dialect = PLAIN


def find_artifact(
    place: Bucket | Folder,
    model: str,
    name: str,
    version: int | None = None,
    model_type: str | None = None,
    *,
    as_of: dt.datetime | None = None,
    known: Iterable[DataName] = (),
) -> Artifact:
    """The latest version of a name, the one asked for, or the one of a time. Raises NotFound with what there is.

    `known` are places that definitions give to the model: looked at first, without going through the index.
    """
    by_id = [DataName.of(model_type, model, "x")] if model_type else []  # if what was given is the model's id
    candidates = (
        _at_known(place, name, known) or _at_known(place, name, by_id) or _candidates(place, model, name, model_type)
    )
    if not candidates:
        raise NotFound(f"there is no data named {name} of model {model}", hint="`swamp data list` shows what is there")
    if len(candidates) > 1:
        types = ", ".join(sorted(data.type for data in candidates))
        raise UsageError(f"several models called {model} have {name}", hint=f'add .option("type", …): {types}')
    ((data, files),) = candidates.items()
    if as_of is not None:
        version = _version_at(place, data, files, as_of)
    numbers = _metadata_files(files)
    if not numbers or (version is not None and version not in numbers):
        raise NotFound(f"{data.name} has no version {version}", hint=f"there are: {sorted(numbers)[-20:]}")
    return artifact_of(place, data.at(version if version is not None else max(numbers)), files)


def _at_known(place: Bucket | Folder, name: str, known: Iterable[DataName]) -> dict[DataName, list[FileRef]]:
    found = {data.sibling(name): list(place.files(data.sibling(name).path)) for data in known}
    return {data: files for data, files in found.items() if files}


def _candidates(place: Bucket | Folder, model: str, name: str, model_type: str | None) -> dict[DataName, list[FileRef]]:
    """Files of every model called so that has this name: the paths of the whole index are gone through, no rows."""
    mark = f"/{name}/"
    under = f"data/{normalise_type(model_type)}" if model_type else "data"
    seen = (version_of(path) for paths in place.mentions(under, name) for path in paths if mark in path)
    names = {ref.data for ref in seen if ref is not None and ref.data.name == name}
    named = {data for data in names if data.model_id == model} or names
    found = _files_of(place, under, named)
    return {data: files for data, files in found.items() if _is_model(place, files, data, model)}


def _files_of(place: Bucket | Folder, under: str, names: set[DataName]) -> dict[DataName, list[FileRef]]:
    """The files of each name that has some: a look at each, or one walk when there are many of them."""
    found: dict[DataName, list[FileRef]] = {}
    looked = [under] if len(names) > MOST_LOOKS else [data.path for data in names]
    for prefix in looked:
        for file in place.files(prefix):
            ref = version_of(file.path)
            if ref is not None and ref.data in names:
                found.setdefault(ref.data, []).append(file)
    return found


def _version_at(place: Bucket | Folder, data: DataName, files: list[FileRef], moment: dt.datetime) -> int:
    """The version that was the latest at that time; newer ones are looked at first."""
    numbers = _metadata_files(files)
    for number in sorted(numbers, reverse=True):
        meta = read_metadata(place, numbers[number])
        if meta is not None and meta.created <= moment:
            return number
    raise NotFound(f"{data.name} had no version at {moment.isoformat()}", hint=f"there are: {sorted(numbers)[-20:]}")


def _is_model(place: Bucket | Folder, files: list[FileRef], data: DataName, model: str) -> bool:
    if model == data.model_id:
        return True
    newest = max(_metadata_files(files).items(), default=None)
    meta = read_metadata(place, newest[1]) if newest else None
    return meta is not None and meta.tags.get("modelName") == model


def _metadata_files(files: list[FileRef]) -> dict[int, FileRef]:
    found = ((described_by(file.path), file) for file in files)
    return {ref.version: file for ref, file in found if ref is not None}


def artifact_of(
    place: Bucket | Folder, ref: VersionRef, files: Sequence[FileRef], meta: Metadata | None = None
) -> Artifact:
    """A version from the files of its name. Raises CorruptData when its metadata cannot be read."""
    if meta is None:
        meta = read_metadata(place, next(file for file in files if file.path == ref.metadata_path))
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


def arrow_schema(place: Bucket | Folder, artifact: Artifact, kind: Format, dialect: Dialect) -> pa.Schema:
    """The columns of the content: over all rows of all parts, except where a part says so itself."""
    import pyarrow as pa

    if kind == "text":
        return pa.schema([("value", pa.string())])
    if not artifact.files:
        raise CorruptData(f"{artifact.ref.path} has no content", hint="swamp datastore verify --repair")
    if kind == "parquet":
        return _parquet_schema(place, artifact.files)
    if kind == "csv":
        filled = (file for file in artifact.files if file.size)
        return csv_schema((csv_texts(partial(place.open, file), file.path, dialect) for file in filled), dialect)
    return schema_of_json(row for file in artifact.files for row in _json_of(place, Piece(file, kind, None, dialect)))


def _parquet_schema(place: Bucket | Folder, files: Sequence[FileRef]) -> pa.Schema:
    """Every column that any part has; one that two parts give types that do not fit together is an error."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def schema(file: FileRef) -> pa.Schema:
        with place.open(file) as opened:
            try:
                return pq.read_schema(opened).remove_metadata()
            except (pa.ArrowInvalid, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                raise CorruptData(
                    f"{file.path} is not Parquet: {error}", hint="`swamp data cat` writes its bytes as they are"
                ) from error

    try:
        return pa.unify_schemas(list(pooled(files, schema, READERS)), promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UsageError(
            f"the parts have columns of different types: {error}", hint="name the columns: .schema(…)"
        ) from error


def _json_of(place: Bucket | Folder | _InMemory, piece: Piece) -> Iterator[dict[str, object]]:
    lines = piece.format == "jsonl" if piece.dialect.multi_line is None else not piece.dialect.multi_line
    with place.open(piece.file) as file:
        yield from json_rows(file, piece.file.path, piece.file.size, lines=lines, encoding=piece.dialect.encoding)


def pieces(place: Bucket | Folder, artifact: Artifact, kind: Format, dialect: Dialect = PLAIN) -> list[Piece]:
    """What is read at once: a part each, and more than one piece of a large Parquet part."""
    found: list[Piece] = []
    for file in artifact.files:
        if kind == "parquet" and file.size > SPLIT_BYTES:
            found += [Piece(file, kind, groups) for groups in _group_sets(place, file)]
        elif file.size:
            found.append(Piece(file, kind, None, dialect))
    return found


def tasks_of(found: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    """Pieces in the order of the content, as many in a task as `TASK_BYTES` hold."""
    tasks: list[tuple[Piece, ...]] = []
    gathered: list[Piece] = []
    size = 0
    for piece in found:
        weight = OPEN_BYTES + (SPLIT_BYTES if piece.groups is not None else piece.file.size)
        if gathered and size + weight > TASK_BYTES:
            tasks.append(tuple(gathered))
            gathered, size = [], 0
        gathered.append(piece)
        size += weight
    return [*tasks, tuple(gathered)] if gathered else tasks


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


def read_pieces(place: Bucket | Folder, found: Sequence[Piece], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a task as exactly these columns; small parts are fetched several at a time."""

    def fetched(piece: Piece) -> tuple[Piece, bytes | None]:
        whole = piece.groups is None and piece.file.size <= WHOLE_BYTES
        return piece, place.read(piece.file) if whole else None

    with ThreadPoolExecutor(READERS, "swamp-part") as threads:  # in order: what one part says comes before the next
        for piece, body in threads.map(fetched, found):
            yield from _read_piece(place if body is None else _InMemory(body), piece, target)


def _read_piece(place: Bucket | Folder | _InMemory, piece: Piece, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    if piece.format == "csv":
        yield from csv_batches(csv_texts(partial(place.open, piece.file), piece.file.path, piece.dialect), target)
    elif piece.format in ("json", "jsonl"):
        yield from json_batches(_json_of(place, piece), target)
    else:
        with place.open(piece.file) as file:
            is_parquet = piece.format == "parquet"
            batches = _read_parquet(file, piece, target) if is_parquet else text_batches(file, piece.dialect.encoding)
            for batch in batches:
                yield shaped(batch, target)


@dataclass(frozen=True)
class _InMemory:
    """A part that has been fetched whole."""

    body: bytes

    def open(self, file: FileRef) -> BinaryIO:
        del file
        return io.BytesIO(self.body)


def _read_parquet(file: BinaryIO, piece: Piece, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    # Columns of a row group lie side by side: fetched as one range where all of them are wanted, not one by one.
    opened = pq.ParquetFile(file, pre_buffer=True)
    groups = list(piece.groups) if piece.groups is not None else list(range(opened.num_row_groups))
    if groups:
        wanted = [name for name in target.names if name in opened.schema_arrow.names]
        yield from opened.iter_batches(GROUP_BATCH_ROWS, row_groups=groups, columns=wanted, use_threads=False)


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
    return batch_of(arrays, target, batch.num_rows)
