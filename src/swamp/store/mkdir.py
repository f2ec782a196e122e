"""Serializes the making of directories, for servers that keep objects in them and stumble over two at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from swamp.store.port import Body, Condition, Fetched, Level, ObjectMeta, ObjectStore, Token, Uploaded


class SerializedMkdirStore:
    """No directory is made by two uploads of this process at a time; all else goes straight through.

    `rclone serve s3` acknowledges such twins and then cannot read one of them back, or answers 500
    (docs/decisions/0007-servers-with-directories.md).
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._making: set[str] = set()
        self._made: set[str] = set()
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return self._inner.url

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        with self._directories(key):
            return self._inner.put(key, body, condition)

    def put_file(self, key: str, path: Path) -> Uploaded:
        with self._directories(key):
            return self._inner.put_file(key, path)

    @contextmanager
    def _directories(self, key: str) -> Iterator[None]:
        """Whoever comes first into a directory goes alone; the others follow together."""
        if key.rpartition("/")[0] in self._made:  # grows only, so a look without the lock is true or a little late
            yield
            return
        mine, made = self._claim(key), False
        try:
            yield
            made = True
        finally:
            with self._changed:
                self._making -= mine
                self._made |= mine if made else set()
                self._changed.notify_all()

    def _claim(self, key: str) -> set[str]:
        with self._changed:
            while True:
                new = {d for d in _above(key) if d not in self._made}
                if not new & self._making:
                    self._making |= new
                    return new
                self._changed.wait()  # for an upload that the client's time limit ends

    def head(self, key: str) -> ObjectMeta:
        return self._inner.head(key)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        return self._inner.get(key, start=start, length=length)

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        return self._inner.get_if_changed(key, token)

    def open(self, key: str, *, start: int = 0) -> AbstractContextManager[Body]:
        return self._inner.open(key, start=start)

    def delete(self, keys: Sequence[str]) -> None:
        self._inner.delete(keys)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        return self._inner.list(prefix, start_after=start_after)

    def level(self, prefix: str = "") -> Level:
        return self._inner.level(prefix)


def _above(key: str) -> Iterator[str]:
    """Every directory above a key, the nearest first."""
    while key := key.rpartition("/")[0]:
        yield key
