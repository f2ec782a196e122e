"""What the test servers of this package share: a loopback port, a thread per connection, and a broken connection."""

from __future__ import annotations

import socket
import struct
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LoopbackServer(ThreadingHTTPServer):
    """An HTTP server for many clients at once."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up on a stalled answer is what tests are after."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class LoopbackHandler(BaseHTTPRequestHandler):
    """Keeps connections, says nothing on stderr, and can break a connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65536
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return

    def reset(self) -> None:
        """Closes with a reset, as a broken network does."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.wfile = self.rfile = _Nowhere()  # type: ignore[assignment]


class _Nowhere:
    closed = True

    def flush(self) -> None:
        return

    def close(self) -> None:
        return
