"""An object read as ranges that all belong to one version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from swamp.errors import StoreError, Unavailable
from swamp.store.budget import MIB, PART_BYTES
from swamp.store.foreign_obstore import CAUGHT, beyond_end, safe_cause
from swamp.store.port import ObjectMeta, Token

if TYPE_CHECKING:
    from swamp.store.objects import Objects

CHUNK_BYTES = MIB


class NotPartial(Exception):
    """The server sent the whole object although a range was asked for."""


class RangedBody:
    """An object as ranges pinned to the first one's token: a time limit covers each range, none the object.

    A server that knows no ranges sends it in one answer, and the limit covers each read of that.
    """

    def __init__(self, store: Objects, key: str, start: int) -> None:
        self._store = store
        self._key = key
        self._at = start
        self._result: Any = self._first()

    @property
    def meta(self) -> ObjectMeta:
        return self._meta

    def __enter__(self) -> RangedBody:
        return self

    def __exit__(self, *_: object) -> None:
        self._result = None

    def _first(self) -> Any:
        store = self._store
        try:
            if store._whole_first and self._at == 0:
                return self._whole()
            result = store._request(self._key, {"range": (self._at, self._at + PART_BYTES)})
        except NotPartial:
            return self._whole()
        except StoreError as error:
            if not beyond_end(error):
                raise
            self._meta = store.head(self._key)
            return None
        self._meta = meta_of(result.meta)
        return result

    def _whole(self) -> Any:
        result = self._store._request(self._key, {}, streaming=True)
        self._meta = meta_of(result.meta)
        return result if self._at < self._meta.size else None

    def _next(self) -> Any:
        end = min(self._at + PART_BYTES, self._meta.size)
        try:
            result = self._store._request(self._key, {"range": (self._at, end)})
        except NotPartial:
            result = self._store._request(self._key, {}, streaming=True)
        if token_of(result.meta) != self._meta.token:
            # inv[store.pinned-read]: bytes of two versions are never joined.
            raise Unavailable(
                f"{self._key} changed while it was read", hint="read it again", details={"key": self._key}
            )
        return result

    def __iter__(self) -> Iterator[bytes]:
        while self._result is not None:
            yield from self._drain(self._result)
            self._result = self._next() if self._at < self._meta.size else None

    def _drain(self, result: Any) -> Iterator[bytes]:
        first, last = result.range
        skip, expected = self._at - first, last
        try:
            for chunk in _pieces(result, last - first):
                data = bytes(chunk)
                data, skip = data[skip:], max(0, skip - len(data))
                self._at += len(data)
                if data:
                    yield data
        except CAUGHT as error:
            raise self._store._explained(error, "GET", self._key) from safe_cause(error)
        if self._at != expected:
            raise self._store._cut(self._key)


def _pieces(result: Any, size: int) -> Iterator[Any]:
    """A small body in one call: asking a stream whether there is more costs as much as the body."""
    if size <= CHUNK_BYTES:
        return iter((result.bytes(),))
    return iter(result.stream(min_chunk_size=CHUNK_BYTES))


def token_of(meta: Any) -> Token:
    return str(meta["e_tag"] or meta["version"] or "").strip('"')


def meta_of(meta: Any) -> ObjectMeta:
    return ObjectMeta(meta["path"], meta["size"], token_of(meta), meta["last_modified"])
