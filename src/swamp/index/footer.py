"""Reads a Parquet file's footer: what it says of its columns and row groups, in Thrift's compact encoding.

What makes no sense is refused, and no room is made for what is only announced.

No library of a slim install shows it, and pyarrow's view of it ends the process when a footer contradicts itself.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from swamp.values import value

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS: Final = (4, 5, 6)
_DEPTH: Final = 8


class Struct(dict[int, Any]):
    """Fields by number. Each is asked for as what it must be; another kind raises ValueError."""

    def integer(self, number: int, default: int | None = None) -> int:
        found = self.get(number, default)
        if type(found) is not int:
            raise ValueError(f"field {number} is no number")
        return found

    def text(self, number: int) -> bytes | None:
        found = self.get(number)
        if found is not None and not isinstance(found, bytes):
            raise ValueError(f"field {number} is no text")
        return found

    def struct(self, number: int) -> Struct:
        found = self.get(number, Struct())
        if not isinstance(found, Struct):
            raise ValueError(f"field {number} has no fields")
        return found


class Reader:
    """Reads on from `at`. A header that ends too early raises IndexError, one that makes no sense ValueError."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise IndexError("the end")
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        """An unsigned number of at most 64 bits."""
        byte = self.data[self.at]
        self.at += 1
        if byte < 0x80:  # most are as short as that
            return byte
        found, shift = byte & 0x7F, 7
        while shift < 70:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
        raise ValueError("a number that does not end")

    def integer(self) -> int:
        found = self.varint()
        return (found >> 1) ^ -(found & 1)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of the struct here; whoever asks reads the value before the next."""
        number = 0
        while head := self.data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 15
        self.at += 1

    def struct(self, depth: int = 0) -> Struct:
        """Its fields; lists are passed over (None). A footer has thousands: the frequent kinds are read here."""
        data, at, number, found = self.data, self.at, 0, Struct()
        while head := data[at]:
            at, kind = at + 1, head & 15
            if head < 16:
                self.at = at
                number, at = self.integer(), self.at
            else:
                number += head >> 4
            byte = data[at]
            if byte < 0x80 and 4 <= kind <= 6:
                found[number], at = (byte >> 1) ^ -(byte & 1), at + 1
            elif byte < 0x80 and kind == _BINARY:
                self.at = at + 1
                found[number], at = self.take(byte), at + 1 + byte
            elif 4 <= kind <= 6:
                self.at = at
                told = self.varint()
                found[number], at = (told >> 1) ^ -(told & 1), self.at
            elif kind <= _FALSE:
                found[number] = kind == _TRUE
            else:
                self.at = at
                found[number], at = self.value(kind, depth), self.at
        self.at = at + 1
        return found

    def structs(self) -> int:
        """How many structs the list here claims to have. Each takes a byte: more than are left is a lie."""
        found, kind = self._list()
        if kind != _STRUCT:
            raise ValueError("a list of something else")
        return found

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _INTEGERS:
            return self.integer()
        if kind == _BINARY:
            return self.take(self.varint())
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if depth >= _DEPTH:
            raise ValueError("nested too deeply")
        return self.struct(depth + 1) if kind == _STRUCT else self._pass(kind, depth)

    def _list(self) -> tuple[int, int]:
        head = self.data[self.at]
        self.at += 1
        found = head >> 4 if head >> 4 < 15 else self.varint()
        if found > len(self.data) - self.at:
            raise ValueError("a list that is longer than what is left")
        return found, head & 15

    def _pass(self, kind: int, depth: int) -> None:
        if kind in (_BYTE, _DOUBLE):
            self.take(1 if kind == _BYTE else 8)
        elif kind in (_LIST, _SET):
            length, inner = self._list()
            if inner in _INTEGERS:
                for _ in range(length):
                    self.varint()
                return
            for _ in range(length):  # a truth value in a list is a byte of its own
                self.value(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        else:
            raise ValueError(f"a field of kind {kind}")


class Proven:
    """A segment's bytes with the hash that was computed of them: whoever compares it need not compute it once more.
    What its footer says is kept with it."""

    __slots__ = ("data", "footer", "sha256")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.footer: Footer | None = None


Source = bytes | Path | Proven
"""A segment's bytes, or a local file that holds them."""


class Raw:
    """Bytes in memory, or those of a file that is open until `close`; of memory perhaps the end of something longer, of
    which `skipped` bytes are not here."""

    __slots__ = ("_data", "_file", "_skipped", "size")

    def __init__(self, source: Source, skipped: int = 0) -> None:
        self._file = source.open("rb") if isinstance(source, Path) else None
        self._data = source.data if isinstance(source, Proven) else source if isinstance(source, bytes) else b""
        self._skipped = skipped
        self.size = skipped + len(self._data) if self._file is None else os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read_at(self, count: int, at: int) -> bytes:
        """`count` bytes from `at`, fewer at the end."""
        if self._file is not None:
            return os.pread(self._file.fileno(), count, at)
        if at < self._skipped:
            raise ValueError("a footer that is longer than what was read of it")
        return self._data[at - self._skipped : at - self._skipped + count]


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


def footer_of(source: Source, raw: Raw) -> Footer:
    """The footer of `raw`, which reads `source`; parsed once where that can keep it."""
    if not isinstance(source, Proven):
        return read_footer(raw)
    if source.footer is None:
        source.footer = read_footer(raw)
    return source.footer


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
