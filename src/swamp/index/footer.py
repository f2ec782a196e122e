"""A Parquet file's footer, read by us: Arrow's own view of it ends the process when a footer contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from swamp.index.thrift import Reader, Struct
from swamp.values import value

MAX_FOOTER: Final = 16 << 20
MAX_SCHEMA: Final = 256
BYTE_ARRAY: Final = 6
ZSTD: Final = 6
_REQUIRED: Final = 0
Described = tuple[str, int, bool]
"""A column of the schema: name, kind, whether it must be there."""


@value
class Column:
    """One column of one row group: where its pages lie, and the range of its values as far as it is told."""

    name: str
    kind: int
    codec: int
    start: int
    end: int
    unpacked: int
    lowest: bytes | None
    highest: bytes | None
    required: bool


@value
class Group:
    rows: int
    unpacked: int
    columns: tuple[Column, ...]


@value
class Footer:
    groups: tuple[Group, ...]
    length: int


def read_footer(raw: Any) -> Footer:
    """Raises ValueError or LookupError if it makes no sense."""
    size = raw.size()
    if size < 12:
        raise ValueError("too short for a Parquet file")
    length = int.from_bytes(raw.read_at(8, size - 8)[:4], "little")
    if not 0 < length <= min(size - 12, MAX_FOOTER):
        raise ValueError("a footer that is longer than its file")
    reader = Reader(raw.read_at(length, size - 8 - length))
    schema, groups = list[Described](), list[Group]()
    for number, kind in reader.fields():
        if number == 2:
            schema = list(_schema(reader))
        elif number == 4:
            groups = [_group(reader, schema) for _ in range(reader.length())]
        else:
            reader.value(kind)
    return Footer(tuple(groups), length)


def _schema(reader: Reader) -> Iterator[Described]:
    """Name, kind and whether it must be there, of each column. No nested ones: Arrow reads them by recursion."""
    count = reader.length()
    if not 1 < count <= MAX_SCHEMA:
        raise ValueError(f"{count} columns")
    for number in range(count):
        told = reader.struct()
        if number and told.integer(5, 0):
            raise ValueError("a nested column")
        if number:
            yield (told.text(4) or b"").decode(), told.integer(1), told.get(3) == _REQUIRED


def _group(reader: Reader, schema: list[Described]) -> Group:
    found, columns = Struct(), list[Column]()
    for number, kind in reader.fields():
        if number == 1:
            if reader.length() != len(schema):
                raise ValueError("a row group without all columns")
            columns = [_column(reader, *one) for one in schema]
        else:
            found[number] = reader.value(kind)
    return Group(found.integer(3), found.integer(2), tuple(columns))


def _column(reader: Reader, name: str, kind: int, required: bool) -> Column:
    told = reader.struct().struct(3)
    start, dictionary, known = told.integer(9), told.integer(11, 0), told.struct(12)
    if told.integer(1) != kind:
        raise ValueError("a column of two kinds")
    start = min(start, dictionary) if dictionary > 0 else start
    end, unpacked = start + told.integer(7), told.integer(6)
    return Column(name, kind, told.integer(4), start, end, unpacked, known.text(6), known.text(5), required)
