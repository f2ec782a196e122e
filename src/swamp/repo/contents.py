"""Reads the files of a version: verified, or a range of one where it lies, or all of them as a table."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from swamp.cache.files import hash_file, on_disk
from swamp.data.document import damaged
from swamp.data.metadata import PARQUET, SNIFFED, sniff
from swamp.data.names import meant
from swamp.data.versions import DataVersion
from swamp.errors import NotFound, ObjectMissing, UsageError
from swamp.extras import needs
from swamp.index.entry import slice_of
from swamp.values import value

if TYPE_CHECKING:
    from swamp.data.artifacts import DataRepository
    from swamp.repo.repository import Repo

_MARKERS: Final = ("_", ".")


@value
class File:
    """One file of a version; `name` is empty where the version is a single file."""

    name: str
    path: Path
    size: int
    checksum: str


@value
class Contents:
    """Reads versions of one repository."""

    artifacts: DataRepository

    def files(self, version: DataVersion) -> Iterator[File]:
        """All files, in the order of their names, as the metadata tells of them; fetched where the cache is lazy."""
        return self.listed(version, self.artifacts.raw(version))

    def listed(self, version: DataVersion, raw: Path) -> Iterator[File]:
        """The same where nothing is fetched for it: `raw` is where they are, or would be."""
        if not version.meta.has_parts:
            yield File("", raw, version.meta.size, version.meta.checksum)
        for part in self.artifacts.parts(version):
            yield File(part.name, raw / part.name, part.size, part.checksum)

    def file(self, version: DataVersion, part: str | None = None) -> File:
        """The one file, or the named part, verified. Raises UsageError, NotFound or CorruptData."""
        if not version.meta.has_parts:
            if part is not None:
                raise UsageError(f"{version.name} is a single file: it has no part `{part}`", hint="leave out --part")
            return self.verified(version, next(self.files(version)))
        if part is None:
            first = next(self.files(version)).name
            raise UsageError(
                f"{version.name} has {version.meta.part_count} parts and is no single file",
                hint=f"name one with --part, such as `{first}`, or get all of them with `data get --output DIR`",
            )
        found = next((one for one in self.files(version) if one.name == part), None)
        if found is None:
            names = [one.name for one in itertools.islice(self.files(version), 10_000)]
            raise NotFound(
                f"{version.name} has no part `{part}`", hint=f"{meant(part, names)}`swamp data show` lists its parts"
            )
        return self.verified(version, found)

    def verified(self, version: DataVersion, file: File) -> File:
        """The same file, after its bytes were compared with its checksum. Raises CorruptData."""
        where = f"{version.ref.raw_path}/{file.name}".rstrip("/")
        with on_disk("read", where):
            if not file.path.is_file():
                raise damaged(where, "it is in the metadata and not on disk")
            sha256 = hash_file(file.path).sha256
        if file.checksum and sha256 != file.checksum:
            raise damaged(where, "its bytes do not have the checksum in its metadata")
        return file

    def write_to(self, version: DataVersion, out: BinaryIO, part: str | None = None) -> int:
        """The bytes and nothing else, after they were compared with their checksum; how many. inv[cli.bytes-alone]"""
        found = self.file(version, part)
        with on_disk("read", version.ref.raw_path), found.path.open("rb") as source:
            shutil.copyfileobj(source, out, 1 << 20)
        return found.size


def format_of(version: DataVersion, files: Sequence[File]) -> str:
    """`parquet`, `csv`, `tsv`, `json`, `ndjson`, `text` or `binary`: by content type, by names, by the first bytes."""
    plain = version.meta.content_type.partition(";")[0].strip().lower()
    names = [file.name for file in data_files(files)]
    for ending, kinds, name in (
        (".parquet", (PARQUET, "application/x-parquet", "application/parquet"), "parquet"),
        (".csv", ("text/csv",), "csv"),
        (".tsv", ("text/tab-separated-values",), "tsv"),
        (".jsonl", ("application/x-ndjson", "application/jsonl"), "ndjson"),
    ):
        if plain in kinds or (names and all(one.endswith(ending) for one in names)):
            return name
    if len(files) != 1 or files[0].name:
        return "directory"
    with files[0].path.open("rb") as file:
        head = file.read(SNIFFED)
    found = sniff(head)
    if found != PARQUET and b"\0" not in head and plain.endswith(("/json", "+json")):
        return "json"
    return {PARQUET: "parquet", "text/plain": "text"}.get(found, "binary")


def data_files(files: Iterable[File]) -> list[File]:
    """Without the markers that engines leave beside their parts, such as `_SUCCESS`."""
    return [file for file in files if not file.name.rpartition("/")[2].startswith(_MARKERS)]


def read_range(repo: Repo, file: File, start: int, end: int) -> bytes:
    """Bytes `start` to `end` of a file, which stays where it is; one in a pack is small: it is fetched whole, and kept.

    A range cannot be compared with the checksum of the whole: its object never changes, and the store answers for it.
    """
    path = file.path.relative_to(repo.tree.root).as_posix()
    engine = repo.datastore.engine
    row = None if engine is None or file.path.is_file() else engine.state.base(path)
    if row is not None and slice_of(row.key) is None:
        try:
            return repo.datastore.store.get(row.key, start=start, length=max(0, end - start)).body
        except ObjectMissing:
            pass  # moved since this machine last looked: fetched whole, which asks the store where it is now
    found = repo.tree.materialize(path)
    if not found.is_file():
        raise NotFound(f"{path} is not there")
    with found.open("rb") as local:
        local.seek(start)
        return local.read(max(0, end - start))


DELIMITERS: Final = {"csv": ",", "tsv": "\t"}


class NotAsCalled(ValueError):
    """The bytes are those that were put, and not of the format that they are called."""


@contextmanager
def reading_table() -> Iterator[None]:
    """Raises NotAsCalled for what pyarrow or `json` cannot read; what the disk refuses stays what it is."""
    try:
        yield
    except (ValueError, OSError) as error:  # an ArrowInvalid is a ValueError
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise NotAsCalled(str(error)) from error


def arrow_table(contents: Contents, version: DataVersion, columns: Sequence[str] | None = None) -> Any:
    """The rows as a `pyarrow.Table`. Raises UsageError for what is no table, CorruptData for damaged bytes."""
    needs("pyarrow", "reading a version as a table", "arrow")
    files = list(contents.files(version))
    kind = format_of(version, files)
    own = [contents.verified(version, file) for file in data_files(files)]
    try:
        with reading_table():
            return _table(contents, version, kind, own, columns)
    except NotAsCalled as error:
        raise _no_table(version, f"it cannot be read as {kind}: {error}") from error


def _table(
    contents: Contents, version: DataVersion, kind: str, own: Sequence[File], columns: Sequence[str] | None
) -> Any:
    if kind == "parquet":
        return _parquet(version, contents, own, columns)
    if kind in DELIMITERS:
        from pyarrow import csv

        dialect = csv.ParseOptions(delimiter=DELIMITERS[kind], newlines_in_values=True)
        found = _joined([csv.read_csv(file.path, parse_options=dialect) for file in own if file.size])
    elif kind == "ndjson":
        from pyarrow import json as lines

        found = _joined([lines.read_json(file.path) for file in own if file.size])
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
