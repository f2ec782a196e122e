"""One request by hand: whole answers are read, whatever their form, and anything else is an error."""

from __future__ import annotations

import socket
import threading

import pytest

from swamp.errors import StoreError
from swamp.store.s3_listing import LARGEST, HttpAnswer, exchange


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    """Answers every connection with the same bytes; keeps what it was asked."""
    listening = socket.create_server(("127.0.0.1", 0))
    asked, answer = [], [b""]

    def serve():
        while True:
            try:
                line, _ = listening.accept()
            except OSError:
                return
            with line:
                asked.append(line.recv(65536))
                line.sendall(answer[0])

    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/bucket?a=b%2Fc"
    yield url, asked, answer
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    worker.join()


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", HttpAnswer(200, b"hello")),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", HttpAnswer(200, b"to the end")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 403 No\r\ncontent-length:2\r\n\r\nno", HttpAnswer(403, b"no")),
        (b"HTTP/1.1 204 Gone\r\n\r\n", HttpAnswer(204, b"")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            HttpAnswer(200, b"hello"),
        ),
    ],
)
def test_a_whole_answer_is_read(server, sent, read):
    url, asked, answer = server
    answer[0] = sent
    assert exchange("GET", url, {"x-amz-date": "now"}, 5) == read
    assert asked[0].startswith(b"GET /bucket?a=b%2Fc HTTP/1.1\r\n") and b"\r\nx-amz-date: now\r\n" in asked[0]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nhello" % (LARGEST + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300 + b"\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
def test_what_was_cut_or_is_not_http_is_no_answer(server, sent):
    url, _, answer = server
    answer[0] = sent
    with pytest.raises(OSError):
        exchange("GET", url, {}, 5)


def test_a_login_with_a_line_break_adds_no_header(server):
    url, asked, _ = server
    with pytest.raises(StoreError, match="line break"):
        exchange("GET", url, {"x-amz-security-token": "abc\r\nX-Other: 1"}, 5)
    assert not asked


def test_a_proxy_is_asked_where_one_is_set(server, monkeypatch):
    url, asked, answer = server
    answer[0] = b"HTTP/1.1 404 None\r\nContent-Length: 2\r\n\r\nno"
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert exchange("GET", "http://bucket.invalid/x", {}, 5) == HttpAnswer(404, b"no")
    assert asked[0].startswith(b"GET http://bucket.invalid/x HTTP/1.1\r\n")
