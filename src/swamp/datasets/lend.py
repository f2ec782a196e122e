"""Lends parts to the JVM of this machine that its file systems cannot open: a bucket without a Hadoop connector, slices
of packs.

Hadoop's client, which every Spark brings, reads HDFS over HTTP (`webhdfs://`). This process answers it on loopback with
ranges of the parts that were lent, fetched by our own store client. So Spark's readers see files: they choose columns,
skip row groups by their statistics and count rows by footers, as they do anywhere. What was fetched can be kept on disk
(`copies`), so that the next read finds files. The address holds a secret, and only what was lent can be read there.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from swamp.datasets.copies import Growing, Shelf, name_for_spark
from swamp.datasets.place import Bucket, FileRef
from swamp.env import SYSTEM
from swamp.errors import CorruptData, SwampError, Unavailable
from swamp.index.entry import is_payload_key, slice_of
from swamp.store.port import Fetched, Token

log = logging.getLogger("swamp.spark")
END_BYTES: Final = 128 << 10
"""So much of every part's end is kept once it was read: Parquet is read from its footer, for every query again."""
KEPT_BYTES: Final = 64 << 20
FIRST_BYTES: Final = 1 << 20
"""Hadoop's client takes one piece, leaves, and comes back for the next: smaller ones leave more unread behind."""
MOST_BYTES: Final = 4 << 20
"""Who reads on is sent more at a time: a reader of one column leaves early, one of all of them goes to the end."""
SURE_AFTER: Final = 2
"""So many pieces were taken: from there on the next one is fetched while the reader has this one to work on."""
FETCHERS: Final = 8
SENT_AHEAD: Final = 128 << 10
"""So much may lie unread between us and a reader, who leaves it behind: Linux would let it grow to megabytes."""
SECOND_THOUGHT: Final = 0.01
"""Seconds. Parquet's reader opens a part at its start and leaves at once for the footer; not worth a request."""
_PREFIX: Final = "/webhdfs/v1"


class Lender:
    """Parts by the paths under which they were lent, and the ends of them that were read lately."""

    def __init__(self) -> None:
        self._secret = SYSTEM.uuid()
        self._lent: dict[str, tuple[Bucket, FileRef]] = {}
        self._paths: dict[tuple[Any, str], str] = {}
        self._ends: OrderedDict[str, bytes] = OrderedDict()
        self._tokens: dict[str, Token] = {}
        self._wrong: dict[str, CorruptData] = {}
        self._copies: dict[str, _Copying] = {}
        self._readers: Counter[str] = Counter()
        self._to_complete: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ahead = ThreadPoolExecutor(FETCHERS, "swamp-lend-ahead")
        self._server = _Server(self)
        for name, work in (("swamp-lend", self._server.serve_forever), ("swamp-lend-copy", self._complete_all)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def lend(self, place: Bucket, file: FileRef, room: Room | None = None) -> str:
        """The address at which the JVM of this machine reads a part; the same one for the same part, unless that has
        changed meanwhile. With `room` what is fetched of it is kept there."""
        known = (repr(place.spec), file.key)
        with self._lock:
            if known not in self._paths:
                self._paths[known] = f"/{self._secret}/{len(self._lent)}/{name_for_spark(file.path)}"
                self._lent[self._paths[known]] = place.keys_only(), file
            path = self._paths[known]
            if room is not None and file.sha256 is not None and is_payload_key(file.key) and path not in self._copies:
                begun = room.shelf.begin(file.size, file.sha256)
                if begun is not None:
                    self._copies[path] = _Copying(begun, room)
            return f"webhdfs://127.0.0.1:{self._server.server_port}{path}"

    def size(self, path: str) -> int | None:
        """None for what was not lent."""
        found = self._lent.get(path)
        return None if found is None else found[1].size

    def chunks(self, path: str, start: int, stop: int) -> Generator[memoryview]:
        """The bytes from `start` up to `stop`, as far as somebody takes them. Raises StoreErrors, CorruptData."""
        with self._reading(path):
            yield from self._pieces_of(path, start, stop)

    def _pieces_of(self, path: str, start: int, stop: int) -> Iterator[memoryview]:
        _, file = self._lent[path]
        if slice_of(file.key) is not None or start >= file.size - END_BYTES:
            end = self._end(path)
            at = start - (file.size - len(end))
            yield memoryview(end)[at : at + stop - start]
            return
        ahead: Future[bytes] | None = None
        pieces = list(_pieces(start, stop))
        for number, piece in enumerate(pieces):
            body = self._bytes(path, *piece) if ahead is None else ahead.result()
            sure = number >= SURE_AFTER and number + 1 < len(pieces)
            ahead = self._ahead.submit(self._bytes, path, *pieces[number + 1]) if sure else None
            yield memoryview(body)

    def _end(self, path: str) -> bytes:
        with self._lock:
            if path in self._ends:
                self._ends.move_to_end(path)
                return self._ends[path]
        place, file = self._lent[path]
        take = min(END_BYTES, file.size)
        found = place.read(file) if slice_of(file.key) else self._bytes(path, file.size - take, take)
        with self._lock:
            self._ends[path] = found
            while sum(map(len, self._ends.values())) > KEPT_BYTES and len(self._ends) > 1:
                self._ends.popitem(last=False)
        return found

    def _bytes(self, path: str, start: int, length: int) -> bytes:
        """From the copy as far as there is one, and else from the store."""
        place, file = self._lent[path]
        copying = self._copies.get(path)
        known = copying.copy.read(start, length) if copying else None
        if known is not None:
            return known
        found = self._pinned(path, _whole(place, file, start, length))
        if copying:
            copying.copy.add(start, found)
        return found

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        """Whoever leaves a part last of all, and most of it has been read, has its copy completed."""
        with self._lock:
            if path in self._wrong:
                raise self._wrong[path]
            self._readers[path] += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers[path] -= 1
                copying = self._copies.get(path)
                if not self._readers[path] and copying and copying.is_worth_it and not copying.is_complete:
                    copying.is_complete = True
                    self._to_complete.put(path)

    def _complete_all(self) -> None:
        while True:
            self._complete(self._to_complete.get())

    def _complete(self, path: str) -> None:
        copying = self._copies[path]
        try:
            for start, length in copying.copy.missing():
                for piece in _pieces(start, start + length):
                    if not copying.copy.is_open:
                        return
                    self._bytes(path, *piece)
            copying.room.shelf.put(copying.copy, copying.room.most)
        except CorruptData as error:
            log.warning("a part that was lent is damaged: %s: %s", self._lent[path][1].path, error)
            with self._lock:
                self._wrong[path] = error
                self._withdraw(path)
        except SwampError as error:
            copying.copy.drop(str(error))

    def _withdraw(self, path: str) -> None:
        """Lent again, the part has another address."""
        self._ends.pop(path, None)
        self._paths = {known: at for known, at in self._paths.items() if at != path}

    def _pinned(self, path: str, found: Fetched) -> bytes:
        """inv[store.pinned-read]: a part under a plain key can be written over, and bytes of two versions are never
        joined, whoever has noticed: what changed is not to be read at this address any more. Lent again, it has
        another one."""
        with self._lock:
            if self._tokens.setdefault(path, found.meta.token) == found.meta.token:
                return found.body
            self._withdraw(path)
        raise Unavailable(f"{found.meta.key} changed while it was read", hint="read it again")


class Room(NamedTuple):
    """Where copies go, and how many bytes all of them may have."""

    shelf: Shelf
    most: int


class _Copying:
    """The copy of a lent part while it is made."""

    def __init__(self, copy: Growing, room: Room) -> None:
        self.copy, self.room = copy, room
        self.is_complete = False
        """Or somebody is about to complete it."""

    @property
    def is_worth_it(self) -> bool:
        """Whether so much was read that the rest is fetched, too: at most as much again."""
        return 2 * self.copy.bytes_here >= self.copy.size


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """From where, how many bytes: small ones first."""
    length = FIRST_BYTES
    while start < stop:
        take = min(length, stop - start)
        yield start, take
        start, length = start + take, min(2 * length, MOST_BYTES)


def _whole(place: Bucket, file: FileRef, start: int, length: int) -> Fetched:
    found = place.store.get(file.key, start=start, length=length)
    if len(found.body) != length:
        raise CorruptData(f"{file.path} is shorter than the index says", hint="swamp datastore verify")
    return found


def lender() -> Lender:
    """The one of this process; it ends with it. A copy of the process has its own: who answers at the address that it
    inherited knows other parts by the same numbers."""
    return _lender(os.getpid())


@cache
def _lender(process: int) -> Lender:
    del process
    return Lender()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, lender: Lender) -> None:
        self.lender = lender
        super().__init__(("127.0.0.1", 0), _Answer)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that leaves early is what readers of columns do."""
        log.debug("a reader of %s left", client_address, exc_info=True)


class _Answer(BaseHTTPRequestHandler):
    """As much of HDFS over HTTP as a reader of known files asks for."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        path = unquote(asked.path).removeprefix(_PREFIX)
        options = {name.lower(): values[-1] for name, values in parse_qs(asked.query).items()}
        size = self.server.lender.size(path)
        operation = options.get("op", "").upper()
        if size is None:
            self._refuse(404, "java.io.FileNotFoundException", f"nothing is lent at {path}")
        elif operation == "OPEN":
            start = int(options.get("offset", 0))
            stop = min(size, start + int(options.get("length", size)))
            self._send(path, start, stop)
        elif operation in _DESCRIBED:
            self._answer(200, _DESCRIBED[operation](size))
        else:
            self._refuse(400, "java.lang.UnsupportedOperationException", f"{operation} of a part that is only lent")

    def _send(self, path: str, start: int, stop: int) -> None:
        with closing(self.server.lender.chunks(path, start, stop)) as found:
            try:
                first = next(found, memoryview(b"")) if start else None
            except SwampError as error:
                self._refuse(500, "java.io.IOException", f"{error} ({error.hint})")
                return
            self._send_on(first, found, max(0, stop - start))

    def _send_on(self, first: memoryview | None, found: Iterator[memoryview], length: int) -> None:
        self._begin(200, length)
        if first is None and _says_something(self.connection):
            self.close_connection = True
            return
        try:
            self.wfile.write(first or b"")
            for chunk in found:
                self.wfile.write(chunk)
        except SwampError as error:  # too late to say so: the reader misses the rest of what was announced, and fails
            log.warning("a part that was lent cannot be read: %s", error)
            self.close_connection = True

    def _refuse(self, status: int, kind: str, message: str) -> None:
        said = {"exception": kind.rpartition(".")[2], "javaClassName": kind, "message": message}
        self._answer(status, {"RemoteException": said})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self._begin(status, len(body))
        self.wfile.write(body)

    def _begin(self, status: int, length: int) -> None:
        """Without a content type: Spark's Hadoop looks one up with a class that it does not bring."""
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _says_something(reader: socket.socket) -> bool:
    """Within a moment: a reader that has all of its answer before it can only be leaving. By `poll`: `select` knows no
    more than the first 1,024 files of a process."""
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    return bool(waiting.poll(SECOND_THOUGHT * 1000))


def _status(size: int) -> dict[str, Any]:
    fixed = {"accessTime": 0, "modificationTime": 0, "owner": "", "group": "", "permission": "444", "pathSuffix": ""}
    return {**fixed, "type": "FILE", "length": size, "blockSize": 128 << 20, "replication": 1}


def _blocks(size: int) -> dict[str, Any]:
    nowhere: dict[str, list[str]] = {
        "hosts": [],
        "names": [],
        "cachedHosts": [],
        "topologyPaths": [],
        "storageTypes": [],
    }
    return {"BlockLocations": {"BlockLocation": [{**nowhere, "offset": 0, "length": size, "corrupt": False}]}}


_DESCRIBED: Final = {
    "GETFILESTATUS": lambda size: {"FileStatus": _status(size)},
    "LISTSTATUS": lambda size: {"FileStatuses": {"FileStatus": [_status(size)]}},
    "GETFILEBLOCKLOCATIONS": _blocks,
}
