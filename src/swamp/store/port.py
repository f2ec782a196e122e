"""What swamp needs of a bucket, and nothing more. Adapters and layers speak this protocol in and out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol, TypeVar

from swamp.errors import CorruptData, Unavailable
from swamp.values import as_document, value

T = TypeVar("T")


Token = str
"""An object's version, opaque to callers: ETag, generation or our own. Quotes and vendor habits end in the adapter."""


@value
class CreateOnly:
    """Write only if the key does not exist."""


@value
class Match:
    """Write only if the object's version is still `token`."""

    token: Token


Condition = CreateOnly | Match | None
CREATE: Final = CreateOnly()


@value
class ObjectMeta:
    key: str
    size: int
    token: Token
    last_modified: dt.datetime


@value
class Fetched:
    meta: ObjectMeta
    body: bytes


@value
class Uploaded:
    """What a finished upload proves: the hash is that of the bytes that were sent."""

    meta: ObjectMeta
    sha256: str


class Body(Protocol):
    """An object's bytes as they arrive; closed by its context manager."""

    @property
    def meta(self) -> ObjectMeta: ...

    def __iter__(self) -> Iterator[bytes]: ...


@value
class StreamedBody:
    """A `Body` of chunks that somebody else brings."""

    meta: ObjectMeta
    chunks: Iterable[bytes]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.chunks)


def changed_while_read(key: str) -> Unavailable:
    """The error for who would have to join bytes of two versions. inv[store.pinned-read]"""
    return Unavailable(f"{key} changed while it was read", hint="read it again", details={"key": key})


@value
class Level:
    """One step down a key hierarchy: `dirs` end without `/`, both are full keys relative to the store."""

    dirs: tuple[str, ...]
    objects: tuple[ObjectMeta, ...]


UNSAFE: Final = (
    "this store does not enforce conditional writes: two machines must not write at once "
    "(swamp datastore doctor shows what was measured)"
)


@value
class Capabilities:
    """What a store was *seen* to do. Measured by `probe`, never assumed from its name."""

    create_only: bool = True
    compare_and_swap: bool = True
    read_after_write: bool = True
    list_after_write: bool = True
    conditional_delete: bool = False
    conditional_multipart: bool = False

    @property
    def safe(self) -> bool:
        """Two machines may write at once."""
        return self.create_only and self.compare_and_swap

    def to_json(self) -> dict[str, bool]:
        return as_document(self)


WHOLE_AT_MOST: Final = 64 << 10
"""Who asks for so much from an object's start expects all of it, and gets it with one request if that is all: a server
may refuse a range that covers the whole object, and then it would be two."""
MAX_IN_MEMORY: Final = 512 << 20
"""The largest object that `get` takes: a segment of ten million rows fits. Payloads are streamed."""


def check_in_memory(key: str, size: int) -> None:
    """Before the first byte is read: whoever writes a root of gigabytes must not fill everybody's memory."""
    if size > MAX_IN_MEMORY:
        raise CorruptData(
            f"{key} has {size:,} bytes: nothing that swamp keeps under such a name is that large",
            hint="see who wrote it, and remove it; `swamp datastore doctor --repair` restores an index from the log",
            details={"key": key, "size": size},
        )


def whole_listing(
    pages: Iterable[Sequence[ObjectMeta]], must_end: Callable[[str | None], None], after: str | None
) -> Iterator[Sequence[ObjectMeta]]:
    """Passes a listing on page by page; `must_end` raises if something stands behind the last key of the last page.

    inv[store.whole-listing]: for a client that takes whatever answer for the last page.
    """
    for page in pages:
        yield page
        after = page[-1].key if page else after
    must_end(after)


class ObjectStore(Protocol):
    """Bytes under keys. Every method raises only `swamp.errors.StoreError`s.

    (Two exceptions that are the caller's own: `UsageError` for a key that no store can hold, and the `OSError` of a
    local file that `put_file` cannot read.)

    Keys are relative to the store's prefix, `/`-separated, any Unicode. A conditional write that fails raises
    `ConditionFailed`; a write whose answer was lost raises `OutcomeUnknown`; nobody below retries a write.
    """

    @property
    def url(self) -> str:
        """Where this is, for people and for state: no credentials, the endpoint's identity included."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Raises ObjectMissing."""
        ...

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        """The whole object or a range of it, in memory. Raises ObjectMissing; CorruptData beyond `MAX_IN_MEMORY`."""
        ...

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        """None when the object's version still is `token`: one request, no body. Raises ObjectMissing."""
        ...

    def open(self, key: str, *, start: int = 0) -> AbstractContextManager[Body]:
        """Streams the object in chunks of at most a few MiB. Raises ObjectMissing."""
        ...

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        """One request. The result's `last_modified` is this machine's clock; `head` tells the store's."""
        ...

    def put_file(self, key: str, path: Path) -> Uploaded:
        """Streams a file (multipart when large), hashing the bytes it sends; no orphan parts on failure."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Removes keys; one that is not there is no error."""
        ...

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        """Pages of objects whose key starts with the string `prefix`, in key order, lazily."""
        ...

    def level(self, prefix: str = "") -> Level:
        """The directories and objects directly below `prefix` (which is empty or ends with `/`)."""
        ...


class Layer:
    """A store around another one: `_through` makes each call, so a layer says in one place what it adds to all of them.

    Streams (`open`, `list`) go straight to the inner store: what a layer does to those it says itself.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    def _through(self, verb: str, key: str, call: Callable[[], T]) -> T:
        """Makes one call of the inner store."""
        return call()

    @property
    def url(self) -> str:
        return self._inner.url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    def head(self, key: str) -> ObjectMeta:
        return self._through("head", key, lambda: self._inner.head(key))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        return self._through("get", key, lambda: self._inner.get(key, start=start, length=length))

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        return self._through("get", key, lambda: self._inner.get_if_changed(key, token))

    def open(self, key: str, *, start: int = 0) -> AbstractContextManager[Body]:
        return self._inner.open(key, start=start)

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        return self._through("put", key, lambda: self._inner.put(key, body, condition))

    def put_file(self, key: str, path: Path) -> Uploaded:
        return self._through("put", key, lambda: self._inner.put_file(key, path))

    def delete(self, keys: Sequence[str]) -> None:
        self._through("delete", keys[0] if keys else "", lambda: self._inner.delete(keys))

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        return self._inner.list(prefix, start_after=start_after)

    def level(self, prefix: str = "") -> Level:
        return self._through("list", prefix, lambda: self._inner.level(prefix))


class ConditionalDeletes(Protocol):
    """What some adapters can do beyond the port. Nothing in swamp needs it; `probe` reports it."""

    def delete_if(self, key: str, token: Token) -> None:
        """Removes the object if its version is still `token`. Raises ConditionFailed."""
        ...


class ConditionalFiles(Protocol):
    """What some adapters can do beyond the port: a condition on an upload in parts."""

    def put_file_if(self, key: str, path: Path, condition: Condition) -> Uploaded: ...
