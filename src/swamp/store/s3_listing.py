"""ListObjectsV2 by hand: for buckets that hold keys which obstore refuses to name, and to see a listing's true end.

One key such as `a//b`, `a/../b` or one with a control character makes obstore refuse the whole page that it is on.
Such keys are nobody's files here, but what stands beside them is: this listing shows every key as it is. It knows the
credentials that the environment, a profile or boto3 gives; a machine's metadata service is obstore's business.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
import socket
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from socket import gaierror
from typing import Any, BinaryIO, Final, TypeVar
from urllib.parse import SplitResult, quote, unquote_plus, urlsplit

from swamp.env import Env, parse_rfc3339
from swamp.errors import StoreError, Unavailable
from swamp.store.explain import CONNECT, CUT, TIMEOUT, Endpoint, Refusal, to_error
from swamp.store.keys import is_key
from swamp.store.layers import WIRE
from swamp.store.port import Level, ObjectMeta
from swamp.values import value

T = TypeVar("T")
_EMPTY: Final = hashlib.sha256(b"").hexdigest()


@value
class Keys:
    """Who signs."""

    access: str
    secret: str = field(repr=False)
    session: str | None = field(default=None, repr=False)


@value
class ListingPage:
    """One answer: some objects in key order, and whether there are no more."""

    objects: Sequence[ObjectMeta]
    last: bool


@value
class RawListing:
    """One bucket, page by page. `keys` returns None for a bucket that wants no signature."""

    place: Endpoint
    bucket_url: str
    region: str
    keys: Callable[[], Keys | None]
    env: Env
    timeout: float

    def pages(self, prefix: str, after: str | None) -> Iterator[Sequence[ObjectMeta]]:
        for answer in self._answers(_asked(prefix, after)):
            yield [_meta(node) for node in answer.iter() if _tag(node) == "Contents"]

    def level(self, prefix: str) -> Level:
        dirs: list[str] = []
        objects: list[ObjectMeta] = []
        for answer in self._answers({"prefix": prefix, "delimiter": "/"}):
            objects += [_meta(node) for node in answer.iter() if _tag(node) == "Contents"]
            dirs += [_text(n, "Prefix").removesuffix("/") for n in answer.iter() if _tag(n) == "CommonPrefixes"]
        return Level(tuple(filter(is_key, dirs)), tuple(o for o in objects if is_key(o.key)))

    def level_if_allowed(self, prefix: str) -> Level | None:
        """As `level`; None where the store refuses it to us (a login that works for obstore alone)."""
        return _allowed(lambda: self.level(prefix))

    def page_if_plain(self, prefix: str, after: str | None) -> ListingPage | None:
        """The first page; None where the store refuses it to us, or where it has keys that are no file's."""
        answer = _allowed(lambda: next(self._answers(_asked(prefix, after))))
        if answer is None:
            return None
        found = [_meta(node) for node in answer.iter() if _tag(node) == "Contents"]
        last, plain = _text(answer, "IsTruncated") != "true", all(is_key(meta.key) for meta in found)
        if _text(answer, "EncodingType") != "url":  # it did not encode what was decoded here
            raw = (_text(node, "Key", decoded=False) for node in answer.iter() if _tag(node) == "Contents")
            plain = plain and not any("%" in key or "+" in key for key in raw)
        return ListingPage(found, last) if plain and (found or last) else None

    def ends(self, prefix: str, after: str | None) -> bool:
        """Whether no file's key stands behind `after`; also where the store refuses to say so. One that does not answer
        properly raises Unavailable."""
        page = _allowed(lambda: next(iter(self.pages(prefix, after))))
        return page is None or not any(is_key(meta.key) for meta in page)

    def _answers(self, asked: Mapping[str, str]) -> Iterator[xml.Element]:
        more: dict[str, str] = {}
        while True:
            answer = self._answer({"list-type": "2", "encoding-type": "url", **asked, **more})
            yield answer
            following = _text(answer, "NextContinuationToken", decoded=False)
            if _text(answer, "IsTruncated") != "true" or not following:
                return
            more = {"continuation-token": following}

    def _answer(self, asked: Mapping[str, str]) -> xml.Element:
        query = "&".join(f"{quote(k, safe='')}={quote(v, safe='')}" for k, v in sorted(asked.items()))
        WIRE.count()
        try:
            answer = exchange("GET", f"{self.bucket_url}?{query}", self._headers(query), self.timeout)
            if not 200 <= answer.status < 300:
                raise to_error(self.place, Refusal("LIST", None, answer.status, code=_code(answer.body)))
            found = xml.fromstring(answer.body)
        except (OSError, xml.ParseError) as error:
            raise to_error(self.place, Refusal("LIST", None, failure=_failure(error))) from None
        if _tag(found) != "ListBucketResult":
            raise to_error(self.place, Refusal("LIST", None, failure=CUT))
        return found

    def _headers(self, query: str) -> dict[str, str]:
        """Signature version 4 over an empty body."""
        keys = self.keys()
        if keys is None:
            return {}
        parts, at = urlsplit(self.bucket_url), self.env.clock.now().strftime("%Y%m%dT%H%M%SZ")
        signed = {"host": parts.netloc, "x-amz-content-sha256": _EMPTY, "x-amz-date": at}
        signed |= {"x-amz-security-token": keys.session} if keys.session else {}
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        request = f"GET\n{parts.path or '/'}\n{query}\n{lines}\n{names}\n{_EMPTY}"
        scope = f"{at[:8]}/{self.region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        key = f"AWS4{keys.secret}".encode()
        for part in (*scope.split("/"), text):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        who = f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
        return {name: value for name, value in signed.items() if name != "host"} | {"Authorization": who}


def keys_of(settings: Mapping[str, Any], provider: Any, environ: Mapping[str, str]) -> Callable[[], Keys | None] | None:
    """Where the keys come from; None where only obstore can find them."""
    if environ.get("AWS_SKIP_SIGNATURE"):
        return lambda: None
    if provider is not None:
        return lambda: _keys(provider())
    if "access_key_id" in settings:
        return lambda: _keys(settings)
    if environ.get("AWS_ACCESS_KEY_ID"):
        names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
        return lambda: _keys({n.lower(): environ.get(f"AWS_{n}") for n in names})
    return None


def _keys(found: Mapping[str, Any]) -> Keys:
    session = found.get("session_token") or found.get("token")
    return Keys(str(found["access_key_id"]), str(found["secret_access_key"]), session)


def send_delete(url: str, if_match: str) -> int | None:
    """A signed delete with a condition: its status, or None if there was no answer. The URL carries a signature: it
    goes into no message."""
    try:
        return exchange("DELETE", url, {"If-Match": if_match}, 30).status
    except (OSError, StoreError):
        return None


def unnameable(place: Endpoint, error: StoreError) -> StoreError:
    """For stores where nothing but obstore can list: which key is in the way, and what to do about it."""
    what = error.message.partition("[")[2] or error.message
    return StoreError(
        f"a key in {place.url} cannot be a file's path, and hides what is listed beside it: {what.rstrip(']')}",
        hint="rename or remove that object with the tool that made it, then run the command again",
        details=error.details,
    )


def _allowed(ask: Callable[[], T]) -> T | None:
    """The answer; None where the store refuses it to us. One that does not answer properly raises Unavailable."""
    try:
        return ask()
    except Unavailable:
        raise
    except StoreError:
        return None


def _asked(prefix: str, after: str | None) -> dict[str, str]:
    return {"prefix": prefix} | ({"start-after": after} if after else {})


def _tag(node: xml.Element) -> str:
    return node.tag.rpartition("}")[2]


def _text(node: xml.Element, name: str, *, decoded: bool = True) -> str:
    found = next((child.text or "" for child in node if _tag(child) == name), "")
    return unquote_plus(found) if decoded else found


def _failure(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return TIMEOUT
    return CONNECT if isinstance(error, ConnectionRefusedError | gaierror) else CUT


def _meta(node: xml.Element) -> ObjectMeta:
    at = parse_rfc3339(_text(node, "LastModified", decoded=False)).astimezone(dt.UTC)
    token = _text(node, "ETag", decoded=False).strip('"')
    return ObjectMeta(_text(node, "Key"), int(_text(node, "Size")), token, at)


def _code(body: bytes) -> str | None:
    try:
        return _text(xml.fromstring(body), "Code", decoded=False) or None
    except xml.ParseError:
        return None


# -- one request on a connection of its own: a plain socket, because `urllib.request` loads `http.client`, `email` and
# `ssl`, a tenth of the processor time of a small push (docs/design/PERFORMANCE.md). Behind a proxy it is what asks.

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
