"""Layers around a store: prefix, meter, limit, and one at a time into a new directory; `retry` has its own module."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from swamp.store.keys import check_key
from swamp.store.port import (
    Body,
    Condition,
    Fetched,
    Layer,
    Level,
    ObjectMeta,
    ObjectStore,
    StreamedBody,
    Token,
    Uploaded,
)
from swamp.trace import span
from swamp.values import mutable

T = TypeVar("T")


class Wire:
    """Counts the HTTP requests that this process has sent, where they are sent: retries and probes are among them.

    Results tell this number, and a proxy in front of the store counts the same. What a client library repeats inside
    one call (parts of a large upload, after an error) is not seen from here. inv[store.requests-counted]
    """

    def __init__(self) -> None:
        self._sent = 0
        self._lock = threading.Lock()

    @property
    def sent(self) -> int:
        return self._sent

    def count(self, requests: int = 1) -> None:
        with self._lock:
            self._sent += requests


WIRE = Wire()


def wire_of(store: Any) -> Wire | None:
    """Where the requests of this store are counted; None for one that sends none: a directory, memory, a plug-in's."""
    while not getattr(store, "is_adapter", False) and (inner := getattr(store, "_inner", None)) is not None:
        store = inner
    return WIRE if getattr(store, "on_wire", False) else None


class PrefixStore:
    """A part of a bucket that looks like a whole one. Nothing outside the prefix can be named."""

    def __init__(self, inner: ObjectStore, prefix: str) -> None:
        self._inner = inner
        self._prefix = check_key(prefix.strip("/")) + "/"

    @property
    def url(self) -> str:
        base, question, query = self._inner.url.partition("?")
        prefix = self._prefix[:-1]
        for character in "%?#":  # they would end or change the path when the address is read again
            prefix = prefix.replace(character, f"%{ord(character):02X}")
        return f"{base.rstrip('/')}/{prefix}{question}{query}"

    def __repr__(self) -> str:
        return f"PrefixStore({self.url!r})"

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)  # inv[store.prefix-closed]: no `..` and no absolute key passes

    def _own(self, meta: ObjectMeta) -> ObjectMeta:
        return ObjectMeta(meta.key[len(self._prefix) :], meta.size, meta.token, meta.last_modified)

    def head(self, key: str) -> ObjectMeta:
        return self._own(self._inner.head(self._full(key)))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        fetched = self._inner.get(self._full(key), start=start, length=length)
        return Fetched(self._own(fetched.meta), fetched.body)

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        fetched = self._inner.get_if_changed(self._full(key), token)
        return None if fetched is None else Fetched(self._own(fetched.meta), fetched.body)

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        with self._inner.open(self._full(key), start=start) as body:
            yield StreamedBody(self._own(body.meta), body)

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        return self._own(self._inner.put(self._full(key), body, condition))

    def put_file(self, key: str, path: Path) -> Uploaded:
        done = self._inner.put_file(self._full(key), path)
        return Uploaded(self._own(done.meta), done.sha256)

    def delete(self, keys: Sequence[str]) -> None:
        self._inner.delete([self._full(k) for k in keys])

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        after = None if start_after is None else self._prefix + start_after
        for page in self._inner.list(self._prefix + prefix, start_after=after):
            yield [self._own(m) for m in page]

    def level(self, prefix: str = "") -> Level:
        found = self._inner.level(self._prefix + prefix)
        cut = len(self._prefix)
        return Level(tuple(d[cut:] for d in found.dirs), tuple(map(self._own, found.objects)))


@mutable
class Meter:
    """What a store was asked to do: calls by verb, bytes in and out. Safe to use from many threads."""

    calls: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    received: int = 0
    wire: Wire | None = None
    """Where requests are counted as they are sent; without one, a call counts as one request."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _before: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        self._before = self.wire.sent if self.wire else 0

    @property
    def requests(self) -> int:
        if self.wire is not None:
            return self.wire.sent - self._before
        return sum(self.calls.values())

    def count(self, verb: str, *, calls: int = 1, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.calls[verb] += calls
            self.sent += sent
            self.received += received


class MeterStore(Layer):
    """Counts requests by verb and bytes, also those of calls that fail, and traces them."""

    def __init__(self, inner: ObjectStore, meter: Meter | None = None) -> None:
        super().__init__(inner)
        self.meter = meter or Meter()

    @classmethod
    def of_process(cls, inner: ObjectStore) -> MeterStore:
        """For the one store that a process works with: its requests are those that the process sends."""
        return cls(inner, Meter(wire=wire_of(inner)))

    @property
    def requests(self) -> int:
        return self.meter.requests

    def _through(self, verb: str, key: str, call: Callable[[], T]) -> T:
        self.meter.count(verb)
        with span(f"store {verb}", key=key):
            return call()

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        fetched = super().get(key, start=start, length=length)
        self.meter.count("get", calls=0, received=len(fetched.body))
        return fetched

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        fetched = super().get_if_changed(key, token)
        self.meter.count("get", calls=0, received=0 if fetched is None else len(fetched.body))
        return fetched

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        self.meter.count("get")
        with span("store get", key=key), self._inner.open(key, start=start) as body:
            yield StreamedBody(body.meta, self._counted(body))

    def _counted(self, body: Body) -> Iterator[bytes]:
        for chunk in body:
            self.meter.count("get", calls=0, received=len(chunk))
            yield chunk

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        self.meter.count("put", calls=0, sent=len(body))
        return super().put(key, body, condition)

    def put_file(self, key: str, path: Path) -> Uploaded:
        done = super().put_file(key, path)
        self.meter.count("put", calls=0, sent=done.meta.size)
        return done

    def delete(self, keys: Sequence[str]) -> None:
        self.meter.count("delete", calls=-(-len(keys) // 1000) - 1)  # beside the one that every call is
        super().delete(keys)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        self.meter.count("list")
        for number, page in enumerate(self._inner.list(prefix, start_after=start_after)):
            self.meter.count("list", calls=1 if number else 0)
            yield page


class Gate:
    """Lets `most` in at a time. A queue of passes: a semaphore costs ten times as much, and every request passes."""

    def __init__(self, most: int) -> None:
        self._passes: SimpleQueue[None] = SimpleQueue()
        for _ in range(most):
            self._passes.put(None)

    def __enter__(self) -> None:
        self._passes.get()

    def __exit__(self, *_: object) -> None:
        self._passes.put(None)


class LimitStore(Layer):
    """At most `uploads` writes and `downloads` reads at a time, whatever the number of threads above."""

    def __init__(self, inner: ObjectStore, *, uploads: int = 64, downloads: int = 64) -> None:
        super().__init__(inner)
        self._writes = Gate(uploads)
        self._reads = Gate(downloads)

    def _through(self, verb: str, key: str, call: Callable[[], T]) -> T:
        with self._writes if verb in ("put", "delete") else self._reads:
            return call()

    # `list` is not held between pages: a caller may well read what it lists.

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        with self._reads, self._inner.open(key, start=start) as body:
            yield body


def innermost(store: ObjectStore, key: str) -> tuple[ObjectStore, str]:
    """The adapter below all layers, and what it calls this key."""
    while not getattr(store, "is_adapter", False) and (inner := getattr(store, "_inner", None)) is not None:
        if isinstance(store, PrefixStore):
            key = store._full(key)
        store = inner
    return store, key


class SerializedMkdirStore(Layer):
    """No directory is made by two uploads of this process at a time; all else goes straight through.

    `rclone serve s3` acknowledges such twins and then cannot read one of them back, or answers 500
    (docs/decisions/0007-servers-with-directories.md).
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._making: set[str] = set()
        self._made: set[str] = set()
        self._changed = threading.Condition()

    def _through(self, verb: str, key: str, call: Callable[[], T]) -> T:
        with self._directories(key) if verb == "put" else nullcontext():
            return call()

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


def _above(key: str) -> Iterator[str]:
    """Every directory above a key, the nearest first."""
    while key := key.rpartition("/")[0]:
        yield key
