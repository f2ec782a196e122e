"""A Parquet file's footer: what it says of its columns and row groups. What makes no sense is refused.

No library of a slim install shows it, and pyarrow's view of it ends the process when a footer contradicts itself.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Final

from swamp.index.source import Raw
from swamp.index.thrift import Reader, Struct
from swamp.values import value

MAGIC: Final = b"PAR1"
MAX_FOOTER: Final = 16 << 20
MAX_SCHEMA: Final = 256
BOOLEAN, INT64, BYTE_ARRAY = 0, 2, 6
ZSTD: Final = 6
_REQUIRED, _OPTIONAL = 0, 1
_ARROW: Final = b"ARROW:schema"


@value
class Described:
    """A column of the schema."""

    name: str
    kind: int
    required: bool
    text: bool


@value
class Column:
    """One column of one row group: where its pages lie, and the range of its values as far as it is told."""

    kind: int
    codec: int
    start: int
    end: int
    unpacked: int
    lowest: bytes | None
    highest: bytes | None
    required: bool


@value
class RowGroup:
    rows: int
    unpacked: int
    columns: tuple[Column, ...]


@value
class Footer:
    schema: tuple[Described, ...]
    groups: tuple[RowGroup, ...]
    metadata: dict[bytes | None, bytes | None]


def read_footer(raw: Raw) -> Footer:
    """Raises ValueError or LookupError if it makes no sense."""
    end = raw.read_at(8, max(0, raw.size - 8))
    length = int.from_bytes(end[:4], "little")
    if end[4:] != MAGIC or not 0 < length <= min(raw.size - 12, MAX_FOOTER):
        raise ValueError("a footer that is longer than its file")
    reader = Reader(raw.read_at(length, raw.size - 8 - length))
    schema, groups = list[Described](), list[RowGroup]()
    metadata: dict[bytes | None, bytes | None] = {}
    for number, kind in reader.fields():
        if number == 2:
            schema = list(_schema(reader))
        elif number == 4:
            groups = [_group(reader, schema) for _ in range(reader.structs())]
        elif number == 5:
            pairs = (reader.struct() for _ in range(reader.structs()))
            metadata = {pair.text(1): pair.text(2) for pair in pairs}
        else:
            reader.value(kind)
    return Footer(tuple(schema), tuple(groups), metadata | schema_metadata(metadata.get(_ARROW) or b""))


def _schema(reader: Reader) -> Iterator[Described]:
    """Each column; nested and repeated ones are no segment's."""
    count = reader.structs()
    if not 1 < count <= MAX_SCHEMA:
        raise ValueError(f"{count} columns")
    for number in range(count):
        told = reader.struct()
        if number and (told.integer(5, 0) or told.integer(3) not in (_REQUIRED, _OPTIONAL)):
            raise ValueError("a nested column")
        if number:
            text = told.get(6) == 0 or 1 in told.struct(10)
            yield Described((told.text(4) or b"").decode(), told.integer(1), told.integer(3) == _REQUIRED, text)


def _group(reader: Reader, schema: list[Described]) -> RowGroup:
    found, columns = Struct(), list[Column]()
    for number, kind in reader.fields():
        if number == 1:
            if reader.structs() != len(schema):
                raise ValueError("a row group without all columns")
            columns = [_column(reader, one) for one in schema]
        else:
            found[number] = reader.value(kind)
    return RowGroup(found.integer(3), found.integer(2), tuple(columns))


def _column(reader: Reader, described: Described) -> Column:
    told = reader.struct().struct(3)
    start, dictionary, known = told.integer(9), told.integer(11, 0), told.struct(12)
    if told.integer(1) != described.kind:
        raise ValueError("a column of two kinds")
    start = min(start, dictionary) if dictionary > 0 else start
    end, unpacked = start + told.integer(7), told.integer(6)
    lowest, highest = known.text(6), known.text(5)
    return Column(described.kind, told.integer(4), start, end, unpacked, lowest, highest, described.required)


def schema_metadata(encoded: bytes) -> dict[bytes | None, bytes | None]:
    """What an Arrow schema says of itself: arro3 leaves a segment's mark only there. A message of FlatBuffers: tables
    of offsets, whose third field (the header) has a list of pairs as its own third."""
    if not encoded:
        return {}
    data = base64.b64decode(encoded)[8:]
    header = _follow(data, _field(data, _follow(data, 0), 2))
    at = _field(data, header, 2)
    if not at:
        return {}
    pairs = _follow(data, at)
    (count,) = struct.unpack_from("<I", data, pairs)
    if count > len(data) // 4:
        raise ValueError("more pairs than a schema can hold")
    tables = [_follow(data, pairs + 4 + 4 * number) for number in range(count)]
    return {_text(data, _field(data, table, 0)): _text(data, _field(data, table, 1)) for table in tables}


def _follow(data: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies; 0 if it is not there."""
    known = table - struct.unpack_from("<i", data, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", data, known)[0]:
        return 0
    offset = struct.unpack_from("<H", data, known + 4 + 2 * number)[0]
    return table + int(offset) if offset else 0


def _text(data: bytes, at: int) -> bytes:
    start = _follow(data, at)
    return data[start + 4 : start + 4 + struct.unpack_from("<I", data, start)[0]]
