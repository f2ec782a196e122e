"""A segment's bytes, wherever they lie, for who reads pieces of them."""

from __future__ import annotations

import os
from pathlib import Path

Source = bytes | Path
"""A segment's bytes, or a local file that holds them."""


class Raw:
    """Bytes in memory, or those of a file that is open until `close`."""

    __slots__ = ("_data", "_file", "size")

    def __init__(self, source: Source) -> None:
        self._data = source if isinstance(source, bytes) else b""
        self._file = None if isinstance(source, bytes) else source.open("rb")
        self.size = len(self._data) if self._file is None else os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read_at(self, count: int, at: int) -> bytes:
        """`count` bytes from `at`, fewer at the end."""
        if self._file is None:
            return self._data[at : at + count]
        return os.pread(self._file.fileno(), count, at)
