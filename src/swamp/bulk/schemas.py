"""One schema per boundary between stages: the same columns for Spark, for Arrow and for the reader of the code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

BATCH_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Boundary:
    """Named, typed columns; `ddl` for Spark, `arrow` for kernels."""

    name: str
    fields: tuple[tuple[str, str], ...]

    @property
    def columns(self) -> list[str]:
        return [name for name, _ in self.fields]

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.fields)

    def arrow(self) -> pa.Schema:
        import pyarrow as pa

        kinds = {
            "string": pa.string(),
            "bigint": pa.int64(),
            "int": pa.int32(),
            "boolean": pa.bool_(),
            "binary": pa.binary(),
            "array<string>": pa.list_(pa.string()),
        }
        return pa.schema([pa.field(name, kinds[kind]) for name, kind in self.fields])

    def batch(self, rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
        """Rows as one Arrow batch; a column that a row does not name is null."""
        import pyarrow as pa

        listed = list(rows)
        schema = self.arrow()
        arrays = [pa.array([row.get(field.name) for row in listed], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def batches(self, rows: Iterable[Mapping[str, Any]], length: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Any number of rows as batches of at most `length`: memory is that of one batch."""
        page: list[Mapping[str, Any]] = []
        for row in rows:
            page.append(row)
            if len(page) >= length:
                yield self.batch(page)
                page = []
        if page:
            yield self.batch(page)

    def select(self, frame: DataFrame) -> DataFrame:
        """Exactly these columns in this order with these types: how every stage begins and ends."""
        from pyspark.sql import functions as sf

        return frame.select(*[sf.col(f"`{name}`").cast(kind).alias(name) for name, kind in self.fields])


_HINT: Final = (("h_size", "bigint"), ("h_mtime", "bigint"), ("h_ctime", "bigint"), ("h_inode", "bigint"))
PATHS: Final = Boundary("paths", (("start", "string"), ("stop", "string")))
"""Paths from `start` up to, not including, `stop`; to the end, if that is null."""
GATHERED: Final = Boundary("gathered", (("start", "string"), ("file", "string"), ("problems", "binary")))
"""The file that holds the facts of a range, and what could not be looked at there."""

RANGES: Final = Boundary("ranges", (("prefix", "string"), ("after", "string"), ("until", "string")))
OBJECTS: Final = Boundary(
    "objects", (("key", "string"), ("size", "bigint"), ("last_modified", "string"), ("token", "string"))
)

SEGMENTS: Final = Boundary(
    "segments",
    (
        ("key", "string"),
        ("rows", "bigint"),
        ("bytes", "bigint"),
        ("sha256", "string"),
        ("min_path", "string"),
        ("max_path", "string"),
        ("added_seq", "bigint"),
    ),
)
INDEX: Final = Boundary(
    "index",
    (
        ("kind", "string"),
        ("path", "string"),
        ("key", "string"),
        ("size", "bigint"),
        ("sha256", "string"),
        ("last_modified", "string"),
        ("seq", "bigint"),
        ("missing", "boolean"),
        ("extra", "string"),
        ("id", "string"),
        ("id_seq", "bigint"),
    ),
)
"""Rows of the index: `kind` is entry, tombstone or dropped; `id` and `id_seq` where key and seq do not tell them."""

MOVED: Final = Boundary("moved", (*INDEX.fields, ("place", "string")))
"""Rows of packs with the slice that holds a copy of their bytes."""

_SENDING: Final = (("path", "string"), ("file", "string"), ("size", "bigint"), ("packed", "boolean"))
UPLOADS: Final = Boundary("uploads", _SENDING)
SENT: Final = Boundary(
    "sent",
    (
        ("path", "string"),
        ("key", "string"),
        ("size", "bigint"),
        ("sha256", "string"),
        ("last_modified", "string"),
        *_HINT,
        ("changed", "boolean"),
        ("error", "string"),
        ("cause", "string"),
    ),
)
DOWNLOADS: Final = Boundary(
    "downloads",
    (
        ("path", "string"),
        ("key", "string"),
        ("size", "bigint"),
        ("sha256", "string"),
        ("staging", "string"),
        ("mtime_ns", "bigint"),
    ),
)
GOT: Final = Boundary(
    "got",
    (
        ("path", "string"),
        ("key", "string"),
        ("file", "string"),
        ("size", "bigint"),
        ("sha256", "string"),
        ("error", "string"),
        ("cause", "string"),
    ),
)
HASHES: Final = UPLOADS
HASHED: Final = Boundary(
    "hashed",
    (("path", "string"), ("size", "bigint"), ("sha256", "string"), *_HINT, ("error", "string")),
)
FINDINGS: Final = Boundary(
    "findings",
    (
        ("path", "string"),
        ("key", "string"),
        ("size", "bigint"),
        ("sha256", "string"),
        ("last_modified", "string"),
        ("seq", "bigint"),
        ("missing", "boolean"),
        ("extra", "string"),
        ("id", "string"),
        ("id_seq", "bigint"),
        ("problem", "string"),
        ("detail", "string"),
    ),
)
"""What verify saw of one entry; `problem` is null, missing, corrupt or unread."""
