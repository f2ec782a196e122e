"""A file on its way into the store, hashed as it goes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO


class HashedFile:
    """A file in pieces; what was handed out is what was hashed. inv[store.hash-of-sent]"""

    def __init__(self, file: BinaryIO, piece: int) -> None:
        self._file = file
        self._piece = piece
        self.sha256 = hashlib.sha256()
        self.sent = self.pieces = 0

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._file.read(self._piece):
            self.sha256.update(piece)
            self.sent += len(piece)
            self.pieces += 1
            yield piece
