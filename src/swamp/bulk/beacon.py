"""Small signs of life from tasks to the driver, so that one huge file in one task still counts as progress.

Spark reports a task when it ends. A deadline that counts time without progress, and a progress bar, need more:
tasks send datagrams, nobody waits for them, and losing all of them costs smoothness and nothing else.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Final

SEND_EVERY_SECONDS: Final = 0.5
_DATAGRAM: Final = 256


@dataclass(frozen=True, slots=True)
class Address:
    """Where the driver listens; picklable, so that it can travel in a task's closure."""

    host: str
    port: int
    token: str


@dataclass(frozen=True, slots=True)
class Heard:
    """Files and bytes that tasks have finished; `alive`: there was a sign at all."""

    files: int
    size: int
    alive: bool


class Beacon:
    """The driver's end: `take` what has arrived since the last call.

    Tasks send to `host`; behind a router that is not an address of this machine, and `bind` is the one to listen on.
    """

    def __init__(self, host: str, token: str, bind: str | None = None) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind((bind or host, 0))
        except OSError:  # not an address of this machine: then all of them
            self._socket.bind(("", 0))
        self._socket.setblocking(False)
        self.address = Address(host, self._socket.getsockname()[1], token)
        self.heard = False

    def take(self) -> Heard:
        """What was reported since last time; anything that is not ours is ignored."""
        files = size = signs = 0
        while True:
            try:
                text = self._socket.recv(_DATAGRAM).decode("ascii", "replace").split()
            except BlockingIOError:
                return Heard(files, size, signs > 0)
            if len(text) == 3 and text[0] == self.address.token and text[1].isdigit() and text[2].isdigit():
                files, size, signs = files + int(text[1]), size + int(text[2]), signs + 1
                self.heard = True

    def close(self) -> None:
        self._socket.close()


class Beat:
    """A task's end: `add` from any thread, sent twice a second. Without an address it does nothing."""

    def __init__(self, address: Address | None) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._files = 0
        self._size = 0
        self._at_work = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Beat:
        if self._address is not None:
            self._thread = threading.Thread(target=self._send_often, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def add(self, files: int = 0, size: int = 0) -> None:
        with self._lock:
            self._files += files
            self._size += size

    def sent(self, size: int) -> None:
        """Bytes that have just come or gone."""
        self.add(size=size)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Signs of life while the body runs, for work that ends by itself in bounded time and does not count."""
        with self._lock:
            self._at_work += 1
        try:
            yield
        finally:
            with self._lock:
                self._at_work -= 1

    def _send_often(self) -> None:
        assert self._address is not None
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            while not self._done.wait(SEND_EVERY_SECONDS):
                self._send(out, self._address)
            self._send(out, self._address)

    def _send(self, out: socket.socket, to: Address) -> None:
        with self._lock:
            files, size, self._files, self._size = self._files, self._size, 0, 0
            alive = bool(files or size or self._at_work)
        if alive:
            # A lost sign of life is no failure of the work that it reports.
            with contextlib.suppress(OSError):
                out.sendto(f"{to.token} {files} {size}".encode(), (to.host, to.port))
