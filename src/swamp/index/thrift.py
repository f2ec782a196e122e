"""Thrift's compact encoding, as far as Parquet's headers use it: read without making room for what they announce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

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
        found = shift = 0
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
        """Its fields; lists are passed over (None)."""
        return Struct((number, self.value(kind, depth)) for number, kind in self.fields())

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
            for _ in range(length):  # a truth value in a list is a byte of its own
                self.value(_BYTE if inner in (_TRUE, _FALSE) else inner, depth + 1)
        else:
            raise ValueError(f"a field of kind {kind}")
