"""What the adapter on obstore is made of: its clients and their limits, its runtime's threads, its errors as ours, and
objects read as ranges of one version.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from obstore import exceptions as foreign

from swamp.errors import StoreError
from swamp.store.explain import CONNECT, CUT, TIMEOUT, Refusal, redact, scrub
from swamp.store.port import Fetched, ObjectMeta, Token, changed_while_read, check_in_memory
from swamp.store.upload import MIB, PART_BYTES
from swamp.values import value

if TYPE_CHECKING:
    from swamp.store.objects import Objects


@value
class Clients:
    """obstore clients of one bucket, each with connections of its own.

    `make(timeout factor, retries, stall)` builds one; `stall`: it also ends when no byte comes for half of the plain
    limit, the time of sending included.

    A single PUT is never sent twice by a client (inv[store.no-blind-retry]): only parts of a multipart upload,
    which nobody can see before it is completed, are.
    """

    make: Callable[[float, int, bool], Any]

    @cached_property
    def quick(self) -> Any:
        return self.make(1, 0, True)

    @cached_property
    def steady(self) -> Any:
        """For what may well take half of the limit in which nothing comes back: a PUT of some size, many deletes."""
        return self.make(1, 0, False)

    @cached_property
    def patient(self) -> Any:
        """For single PUTs of megabytes over a slow line."""
        return self.make(10, 0, False)

    @cached_property
    def streaming(self) -> Any:
        """For bodies of any length in one answer: it may take hours, and must not stand still."""
        return self.make(10_000, 0, True)

    @cached_property
    def parts(self) -> Any:
        return self.make(10, 6, False)


VARIABLE: Final = "TOKIO_WORKER_THREADS"
FEW_CORES: Final = 2
"""Up to here one thread: two wake each other for every request. A GET of 2 KB costs 0.13 to 0.16 ms of CPU with one
and 0.16 to 0.17 with two; more cores were not measured (docs/design/PERFORMANCE.md)."""
_lock = threading.Lock()


@cache
def start_runtime() -> None:
    """Starts obstore's runtime with as many threads as pay off: it asks the environment once, when it is first used.

    Right before the first request of this process, not sooner: threads do not survive a fork, and who has only opened
    a store may still fork. A number that the user has set stays.
    """
    with _lock:
        if VARIABLE in os.environ or (os.cpu_count() or 1) > FEW_CORES:
            return
        import obstore
        from obstore.store import MemoryStore

        os.environ[VARIABLE] = "1"
        try:
            obstore.list_with_delimiter(MemoryStore())
        finally:
            os.environ.pop(VARIABLE, None)


# inv[store.errors-mapped]: every class obstore can raise, and the status it means when its text names none.
FOREIGN: Final[dict[type[BaseException], tuple[int | None, str | None]]] = {
    foreign.BaseError: (None, None),
    foreign.GenericError: (None, None),
    foreign.JoinError: (None, None),
    foreign.AlreadyExistsError: (412, "PreconditionFailed"),
    foreign.PreconditionError: (412, "PreconditionFailed"),
    foreign.NotModifiedError: (304, None),
    foreign.PermissionDeniedError: (403, None),
    foreign.UnauthenticatedError: (401, None),
    foreign.NotSupportedError: (501, None),
    foreign.InvalidPathError: (400, "InvalidPath"),
    foreign.UnknownConfigurationKeyError: (400, "UnknownConfigurationKey"),
    FileNotFoundError: (404, None),
    ValueError: (400, "InvalidArgument"),
}
CAUGHT: Final = (foreign.BaseError, FileNotFoundError, ValueError)
_DECISIVE: Final = (foreign.AlreadyExistsError, foreign.PreconditionError, foreign.NotModifiedError)
_STATUS = re.compile(r"status code: (\d{3})|\bstatus: (\d{3})\b")
_ELEMENT = re.compile(r"<(Code|Message|RequestId|Region)>([^<]{1,500})</")
_AZURE_REQUEST = re.compile(r"RequestId:([0-9a-fA-F-]{8,})")
_ONE_OF_MANY = re.compile(r"DeleteObjects request failed for key .{1,1100}: (.{0,500}) \(code: (\w+)\)")
"""A delete of many keys is answered with 200 and a verdict for each: obstore names the first refusal."""
_EXPECTING = re.compile(r"expecting '([a-z0-9-]+)'")
_METADATA_SERVICE = re.compile(r"169\.254\.\d+\.\d+|metadata\.google|/metadata/identity|AssumeRoleWithWebIdentity")
_NO_LOGIN = re.compile(r"(?i)credential|access key|NoCredentials")
_KIND = re.compile(r"kind: (Connect|Timeout|Interrupted|Request|Decode)\b")
_FAILURES: Final = {"Connect": CONNECT, "Timeout": TIMEOUT, "Interrupted": CUT, "Request": CUT, "Decode": CUT}


def read_refusal(error: BaseException, verb: str, key: str | None) -> Refusal:
    """Takes an obstore error apart: its text is the only place where status, code and request id stand."""
    text = str(error)
    status, code = next((FOREIGN[c] for c in type(error).__mro__ if c in FOREIGN), (None, None))
    found = dict(_ELEMENT.findall(text.partition("Debug source:")[0]))
    number = _STATUS.search(text)
    if number and not isinstance(error, _DECISIVE):
        status = int(number.group(1) or number.group(2))
    if _METADATA_SERVICE.search(text) or (not number and _NO_LOGIN.search(text.partition("Debug source")[0])):
        return Refusal(verb, key, code="NoCredentials")
    if not number and (one := _ONE_OF_MANY.search(text)):
        found = {"Message": one.group(1), "Code": one.group(2)}
        status = 403 if one.group(2) == "AccessDenied" else status
    code = found.get("Code") or ("BareRedirect" if "BareRedirect" in text else code)
    message, request = found.get("Message", ""), found.get("RequestId")
    azure = _AZURE_REQUEST.search(message)
    region = found.get("Region") or (m.group(1) if (m := _EXPECTING.search(message)) else None)
    kind = None if status else _KIND.search(text)
    failure = _FAILURES[kind.group(1)] if kind else None
    if not message and not number:
        message = _plain_reason(text)
    if azure:
        request, message = azure.group(1), message.partition("RequestId:")[0].strip()
    return Refusal(verb, key, status, code, message, request, region, failure=failure)


def _plain_reason(text: str) -> str:
    """The part of an obstore text that people can use."""
    for sign, reason in (
        ("dns error", "its name is not known"),
        ("ConnectionRefused", "connection refused"),
        ("InvalidContentType", "it does not speak TLS (http, not https?)"),
        ("certificate", "its certificate is not trusted"),
    ):
        if sign in text:
            return reason
    head = text.partition("\n\nDebug source")[0]
    return redact(head.rpartition(" - ")[2].rpartition("Generic ")[2])


def beyond_end(error: StoreError) -> bool:
    return error.details.get("status") == 416 or "Wanted range starting at" in error.message


def safe_cause(error: BaseException) -> BaseException | None:
    """The cause to keep: none, if its text could carry a credential."""
    return error if scrub(text := str(error)) == text and "Signature" not in text else None


CHUNK_BYTES = MIB


class NotPartial(Exception):
    """The server sent the whole object although a range was asked for."""


class RangedBody:
    """An object as ranges pinned to the first one's token: a time limit covers each range, none the object.

    A server that knows no ranges sends it in one answer, and the limit covers each read of that.
    """

    meta: ObjectMeta

    def __init__(self, store: Objects, key: str, start: int) -> None:
        self._store = store
        self._key = key
        self._at = start
        self._result: Any = self._first()

    def close(self) -> None:
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
            self.meta = store.head(self._key)
            return None
        self.meta = meta_of(result.meta)
        return result

    def _whole(self) -> Any:
        result = self._store._request(self._key, {}, streaming=True)
        self.meta = meta_of(result.meta)
        return result if self._at < self.meta.size else None

    def _next(self) -> Any:
        end = min(self._at + PART_BYTES, self.meta.size)
        try:
            result = self._store._request(self._key, {"range": (self._at, end)})
        except NotPartial:
            result = self._store._request(self._key, {}, streaming=True)
        if token_of(result.meta) != self.meta.token:
            raise changed_while_read(self._key)
        return result

    def __iter__(self) -> Iterator[bytes]:
        while self._result is not None:
            yield from self._drain(self._result)
            self._result = self._next() if self._at < self.meta.size else None

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


def part_of_whole(store: Objects, key: str, start: int, length: int | None) -> Fetched:
    """A part of an object by a server that sends all of it: no more than the part is held, nor waited for."""
    result = store._request(key, {}, streaming=True)
    meta = meta_of(result.meta)
    end = meta.size if length is None else min(start + length, meta.size)
    if start >= end:
        return Fetched(meta, b"")
    check_in_memory(key, end - start)
    found, at = bytearray(), 0
    try:
        for chunk in _pieces(result, meta.size):
            data = memoryview(bytes(chunk))
            found += data[max(0, start - at) : max(0, end - at)]
            at += len(data)
            if at >= end:
                return Fetched(meta, bytes(found))
    except CAUGHT as error:
        raise store._explained(error, "GET", key) from safe_cause(error)
    raise store._cut(key)


def _pieces(result: Any, size: int) -> Iterator[Any]:
    """A small body in one call: asking a stream whether there is more costs as much as the body."""
    if size <= CHUNK_BYTES:
        return iter((result.bytes(),))
    return iter(result.stream(min_chunk_size=CHUNK_BYTES))


def token_of(meta: Any) -> Token:
    return str(meta["e_tag"] or meta["version"] or "").strip('"')


def meta_of(meta: Any) -> ObjectMeta:
    return ObjectMeta(meta["path"], meta["size"], token_of(meta), meta["last_modified"])
