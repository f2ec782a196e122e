"""Sends one HTTP request on a connection of its own: what obstore cannot ask, a listing as it is or a delete with a
condition.

On a plain socket: `urllib.request` loads `http.client`, `email` and `ssl`, a tenth of the processor time of a small
push (docs/design/PERFORMANCE.md). Behind a proxy it is still `urllib` that asks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import BinaryIO, Final
from urllib.parse import SplitResult, urlsplit

from swamp.errors import StoreError
from swamp.values import value

LONGEST_LINE: Final = 64 << 10
MOST_LINES: Final = 200
LARGEST: Final = 64 << 20
"""An answer is a page of at most 1,000 names, or a few words. Anything larger is not one of these."""


@value
class HttpAnswer:
    status: int
    body: bytes


def exchange(method: str, url: str, headers: Mapping[str, str], timeout: float) -> HttpAnswer:
    """What the server answers, whatever its status. Raises OSError where it does not, or not properly."""
    parts = urlsplit(url)
    if _has_proxy(parts.scheme):
        return _through_proxy(method, url, headers, timeout)
    told = {"Host": parts.netloc, "Accept-Encoding": "identity", "Connection": "close", **headers}
    head = f"{method} {parts.path or '/'}{'?' if parts.query else ''}{parts.query} HTTP/1.1\r\n"
    head += "".join(f"{name}: {text}\r\n" for name, text in told.items())
    if head.count("\n") != len(told) + 1:
        raise StoreError("a line break stands in a login or in an address", hint="take it out, then try again")
    with _connected(parts, timeout) as line, line.makefile("rb") as answer:
        line.sendall(f"{head}\r\n".encode("latin-1"))
        return _read(answer)


def _connected(parts: SplitResult, timeout: float) -> socket.socket:
    secure = parts.scheme == "https"
    plain = socket.create_connection((parts.hostname, parts.port or (443 if secure else 80)), timeout)
    if not secure:
        return plain
    import ssl

    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    try:
        return context.wrap_socket(plain, server_hostname=parts.hostname)
    except ssl.SSLError as error:
        plain.close()
        raise _untrusted() from error
    except OSError:
        plain.close()
        raise


def _untrusted() -> StoreError:
    return StoreError("Python does not trust its certificate", hint="set SSL_CERT_FILE")


def _read(answer: BinaryIO) -> HttpAnswer:
    try:
        status, fields = _head(answer)
        while 100 <= status < 200:
            status, fields = _head(answer)
        if status in (204, 304):
            return HttpAnswer(status, b"")
        if "chunked" in fields.get("transfer-encoding", "").lower():
            return HttpAnswer(status, _chunks(answer))
        return HttpAnswer(
            status, _exactly(answer, int(fields["content-length"]) if "content-length" in fields else None)
        )
    except (ValueError, IndexError) as error:
        raise ConnectionError("its answer is not HTTP") from error


def _head(answer: BinaryIO) -> tuple[int, dict[str, str]]:
    version, status, *_ = _line(answer).split(None, 2)
    if not version.startswith("HTTP/1."):
        raise ValueError(version)
    fields: dict[str, str] = {}
    for _ in range(MOST_LINES):
        name, _, text = (line := _line(answer)).partition(":")
        if not line:
            return int(status), fields
        fields[name.strip().lower()] = text.strip()
    raise ValueError("too many lines")


def _line(answer: BinaryIO) -> str:
    line = answer.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("a line without an end")
    return line.decode("latin-1").rstrip("\r\n")


def _chunks(answer: BinaryIO) -> bytes:
    body = b""
    while size := int(_line(answer).partition(";")[0], 16):
        body += _exactly(answer, size)
        if _line(answer) or len(body) > LARGEST:
            raise ValueError("a chunk without an end")
    return body


def _exactly(answer: BinaryIO, size: int | None) -> bytes:
    """So many bytes and no fewer: an answer that was cut is none. Without a size, up to its end."""
    if size is None:
        body = answer.read(LARGEST)
    elif 0 <= size <= LARGEST:
        body = answer.read(size)
    else:
        raise ValueError("absurd length")
    if size is not None and len(body) < size:
        raise ConnectionError("its answer was cut")
    return body


def _has_proxy(scheme: str) -> bool:
    return any(name.lower() in (f"{scheme}_proxy", "all_proxy") and text for name, text in os.environ.items())


def _through_proxy(method: str, url: str, headers: Mapping[str, str], timeout: float) -> HttpAnswer:
    import urllib.error
    import urllib.request
    from http.client import HTTPException
    from ssl import SSLError

    request = urllib.request.Request(url, method=method, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return HttpAnswer(int(answer.status), answer.read())
    except urllib.error.HTTPError as refusal:
        return HttpAnswer(refusal.code, refusal.read())
    except urllib.error.URLError as error:
        if isinstance(error.reason, SSLError):
            raise _untrusted() from error
        raise error.reason if isinstance(error.reason, OSError) else error from None
    except HTTPException as error:
        raise ConnectionError("its answer is not HTTP") from error
