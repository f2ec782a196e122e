"""An HTTP proxy in front of a test server that misbehaves on demand: refuses, cuts bodies short, stalls, counts."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Request:
    method: str
    path: str

    @property
    def is_write(self) -> bool:
        return self.method in ("PUT", "POST", "DELETE")

    @property
    def is_payload(self) -> bool:
        return "~" in unquote(self.path) or "/_packs/" in self.path

    @property
    def is_root(self) -> bool:
        return self.path.split("?")[0].endswith("/.datastore-index.json")


Behaviour = Callable[["Handler", Request], bool]
"""True when it has answered; False lets the request through."""


def refuse(status: int, code: str) -> Behaviour:
    """An S3 error document."""

    def answer(handler: Handler, request: Request) -> bool:
        body = (
            f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no: {code}</Message>"
            f"<RequestId>REQ-{status}</RequestId></Error>"
        ).encode()
        handler.reply(status, body, {"x-amz-request-id": f"REQ-{status}", "Content-Type": "application/xml"})
        return True

    return answer


def cut_off_error(status: int = 500) -> Behaviour:
    """An error whose body is announced and never comes. C13"""

    def answer(handler: Handler, request: Request) -> bool:
        handler.send_response(status)
        handler.send_header("Content-Length", "5000")
        handler.end_headers()
        handler.wfile.write(b"<Error><Code>Int")
        handler.wfile.flush()
        handler.proxy.released.wait(600)
        return True

    return answer


def stall(handler: Handler, request: Request) -> bool:
    """Takes the request and never answers."""
    handler.proxy.released.wait(600)
    return True


def half(stalling: bool) -> Behaviour:
    """The right headers, half of the body, then silence or a closed connection. C14, C15"""

    def answer(handler: Handler, request: Request) -> bool:
        status, headers, body = handler.forward()
        handler.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) // 2])
        handler.wfile.flush()
        if stalling:
            handler.proxy.released.wait(600)
        handler.close_connection = True
        handler.connection.close()
        return True

    return answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    @property
    def proxy(self) -> Proxy:
        found: Proxy = self.server.proxy
        return found

    def _serve(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path)
        for when, behaviour in self.proxy.note(request):
            if when(request) and behaviour(self, request):
                return
        status, headers, body = self.forward()
        kept = {n: v for n, v in headers if n.lower() not in ("transfer-encoding", "connection", "content-length")}
        if self.command == "HEAD":
            kept["Content-Length"] = next((v for n, v in headers if n.lower() == "content-length"), "0")
        self.reply(status, body, kept)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def forward(self) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        headers = {n: v for n, v in self.headers.items() if n.lower() not in ("connection",)}
        connection.request(self.command, self.path, self._body, headers)
        response = connection.getresponse()
        found = response.status, response.getheaders(), response.read()
        connection.close()
        return found

    def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


@dataclass
class Proxy:
    """What it saw, and what it does about it."""

    upstream: str
    seen: list[Request] = field(default_factory=list)
    rules: list[tuple[Callable[[Request], bool], Behaviour]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    endpoint: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, request: Request) -> list[tuple[Callable[[Request], bool], Behaviour]]:
        with self._lock:
            self.seen.append(request)
            return list(self.rules)

    def when(self, condition: Callable[[Request], bool], behaviour: Behaviour) -> None:
        self.rules.append((condition, behaviour))

    def once(self, condition: Callable[[Request], bool], behaviour: Behaviour) -> None:
        """Only the first request that fits."""
        left = [True]

        def first(request: Request) -> bool:
            with self._lock:
                if not left[0] or not condition(request):
                    return False
                left[0] = False
                return True

        self.rules.append((first, behaviour))

    def behave(self) -> None:
        self.rules.clear()

    def count(self, condition: Callable[[Request], bool]) -> int:
        return sum(1 for request in self.seen if condition(request))

    def forget(self) -> None:
        self.seen.clear()


@contextmanager
def proxy_to(endpoint: str) -> Iterator[Proxy]:
    proxy = Proxy(urlsplit(endpoint).netloc)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.proxy = proxy  # type: ignore[attr-defined]
    proxy.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        server.server_close()
