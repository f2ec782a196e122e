"""A server that answers every range with the whole object (`rclone serve s3`): slow is fine, standing still is not."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from swamp.errors import Unavailable
from swamp.store.open import open_store
from swamp.store.retry import RetryPolicy

PIECE = b"swamp" * 40_000
PIECES = 60
BODY = PIECE * PIECES


@dataclass
class Slow:
    """Sends the object in pieces; `pause` before each, and after `stuck` of them nothing for as long as it takes."""

    pause: float = 0.0
    stuck: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@pytest.fixture
def slow() -> Iterator[Slow]:
    server = Slow()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.asked.append(self.headers.get("Range"))
            self.send_response(200)
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            stuck = server.stuck.pop(0) if server.stuck and self.headers.get("Range") is None else None
            try:
                for number in range(PIECES):
                    if number == stuck:
                        server.over.wait(60)
                        return
                    time.sleep(server.pause)
                    self.wfile.write(PIECE)
            except OSError:
                pass  # the client went away

        def log_message(self, *args: object) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield server
    server.over.set()
    httpd.shutdown()
    httpd.server_close()


def _opened(slow: Slow, seconds: float, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    config = {"endpoint": slow.url, "region": "us-east-1", "requestTimeoutMs": int(seconds * 1000)}
    return open_store("s3://bucket", config, policy=RetryPolicy(seconds=seconds))


def _read(store) -> str:
    digest = hashlib.sha256()
    with store.open("k") as body:
        for chunk in body:
            digest.update(chunk)
    return digest.hexdigest()


def test_a_body_that_takes_longer_than_the_time_limit_arrives(slow, monkeypatch):
    slow.pause = 0.07
    store = _opened(slow, 3.0, monkeypatch)
    began = time.monotonic()
    assert _read(store) == hashlib.sha256(BODY).hexdigest()
    assert time.monotonic() - began > 3.0, "it was to take longer than the limit"
    assert slow.asked.count(None) == 1, "in one answer, not begun again"


def test_a_body_that_stands_still_is_asked_for_again_and_goes_on(slow, monkeypatch):
    slow.stuck = [20]
    store = _opened(slow, 3.0, monkeypatch)
    assert _read(store) == hashlib.sha256(BODY).hexdigest()
    assert slow.asked.count(None) == 2


def test_a_body_that_always_stands_still_ends(slow, monkeypatch):
    slow.stuck = [20] * 20
    store = _opened(slow, 0.5, monkeypatch)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        _read(store)
    assert time.monotonic() - began < 30
