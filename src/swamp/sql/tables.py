"""The metadata tables as columns for an engine in this process: from the catalog, and from the records in the tree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from swamp.datasets.place import Folder, Span, open_tables
from swamp.datasets.tables import Row, Table, rows

if TYPE_CHECKING:
    from swamp.catalog.schema import Row as CatalogRow
    from swamp.repo.repository import Repo

MAP: Final = "map<string,string>"
BATCH: Final = 10_000


def table_rows(repo: Repo, table: Table) -> Iterator[Row]:
    """The rows of a table as this machine knows them, after a read has asked the store (`Repo.freshen`)."""
    if table.name in ("data", "versions"):
        where = "isLatest = 1" if table.name == "data" else "1"
        return map(_version, repo.catalog.select(where))
    if table.name == "commits":
        asking = {"repo": str(repo.path), "fresh": "false" if repo.settings.fresh == "never" else "true"}
        return rows(table, open_tables(asking, table.name), Span())
    return rows(table, Folder(str(repo.tree.root)), Span())


def _version(row: CatalogRow) -> Row:
    data = row.ref.data
    return {**row.fields, "modelId": data.model_id, "checksum": row.checksum, "path": row.ref.path}


def arrow_reader(table: Table, found: Iterable[Row]) -> Any:
    """The rows as a stream of Arrow batches, by way of arro3: nobody waits for pyarrow to load. Maps are JSON text."""
    from arro3.core import Array, DataType, Field, RecordBatch, RecordBatchReader, Schema

    kinds = {"bigint": DataType.int64(), "boolean": DataType.bool()}
    fields = [Field(name, kinds.get(kind, DataType.string())) for name, kind in table.columns]
    schema = Schema(fields)

    def batch(page: list[Row]) -> Any:
        columns = [[_cell(row.get(name), kind) for row in page] for name, kind in table.columns]
        arrays = [Array(values, field.type) for values, field in zip(columns, fields, strict=True)]
        return RecordBatch.from_arrays(arrays, schema=schema)

    return RecordBatchReader.from_batches(schema, [batch(page) for page in _pages(found)])


def _pages(found: Iterable[Row]) -> Iterator[list[Row]]:
    source = iter(found)
    while page := list(islice(source, BATCH)):
        yield page


def _cell(value: Any, kind: str) -> Any:
    return json.dumps(value, ensure_ascii=False) if kind == MAP and value is not None else value
