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
    ranges: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@pytest.fixture
def slow() -> Iterator[Slow]:
    server = Slow()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.asked.append(self.headers.get("Range"))
            if server.ranges and (asked := self.headers.get("Range")):
                self._send_part(*map(int, asked.removeprefix("bytes=").split("-")))
                return
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

        def _send_part(self, first: int, last: int) -> None:
            self.send_response(206)
            self.send_header("ETag", '"one"')
            self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(BODY)}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.write(BODY[first : last + 1])

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


def test_one_answer_without_a_range_does_not_make_whole_downloads_of_all_parts(slow, monkeypatch):
    """A proxy on the way may have answered once. Of a large object the part is asked for again."""
    store = _opened(slow, 30.0, monkeypatch)
    assert store.get("k", start=100_000, length=10).body == BODY[100_000:100_010]
    assert slow.asked == ["bytes=100000-100009", None]
    slow.asked.clear()
    slow.ranges = True
    for start in (100_000, 3):
        assert store.get("k", start=start, length=10).body == BODY[start : start + 10]
    assert slow.asked == ["bytes=100000-100009", "bytes=3-12"]


def test_a_part_of_a_large_object_is_all_that_is_held(slow, monkeypatch):
    """Larger than what may be held in memory: its parts are read all the same, and nothing behind them."""
    monkeypatch.setattr("swamp.store.port.MAX_IN_MEMORY", len(BODY) // 2)
    slow.stuck = [20] * 4
    store = _opened(slow, 30.0, monkeypatch)
    for start, length in ((100_000, 10), (0, 10), (1_999_990, 1_000_020)):
        assert store.get("k", start=start, length=length).body == BODY[start : start + length]
    slow.stuck = []
    assert store.get("k", start=len(BODY) - 3, length=10).body == BODY[-3:]
    assert store.get("k", start=len(BODY), length=10).body == b""
    assert store.get("k", start=len(BODY) - 3).body == BODY[-3:]
