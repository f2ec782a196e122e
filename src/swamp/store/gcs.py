"""Google Cloud Storage through Google's own client: the JSON API with generation preconditions.

A generation number is the version token. Uploads, listing and deletes are the client's; reads go through its
authorized session, because only the response's own headers say which generation the bytes belong to.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import exceptions as media
from requests import exceptions as http
from urllib3 import exceptions as wire

from swamp.env import SYSTEM, UTC, Env
from swamp.errors import ConditionFailed, ObjectMissing
from swamp.store.explain import CONNECT, CUT, TIMEOUT, Endpoint, Refusal, to_error
from swamp.store.keys import check_key, check_prefix
from swamp.store.layers import WIRE
from swamp.store.port import (
    Condition,
    CreateOnly,
    Fetched,
    Level,
    Match,
    ObjectMeta,
    Token,
    Uploaded,
    changed_while_read,
    check_in_memory,
)
from swamp.store.upload import MIB, PART_BYTES, ByteBudget, HashingReader

CHUNK_BYTES: Final = MIB
PAGE: Final = 1000
DELETES_AT_ONCE: Final = 16
CONNECTIONS: Final = 64
_LISTED: Final = "items(name,size,generation,updated),prefixes,nextPageToken"


def connect(bucket: str, endpoint: str | None, timeout: float, env: Env = SYSTEM) -> GoogleStore:
    """A store on `bucket`; an endpoint (an emulator's) is spoken to without credentials."""
    place = Endpoint("gcs", f"gs://{bucket}" + (f"?endpoint={endpoint}" if endpoint else ""))
    try:
        if endpoint:
            credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
            options = {"api_endpoint": endpoint}
            client = storage.Client(project="swamp", credentials=credentials, client_options=options)
        else:
            client = storage.Client()
    except auth.GoogleAuthError as error:
        raise to_error(place, read_refusal(error, "OPEN", None)) from None
    adapter = _Counting(pool_connections=4, pool_maxsize=CONNECTIONS, max_retries=0)
    for scheme in ("https://", "http://"):
        client._http.mount(scheme, adapter)
    # Telemetry that we do not have would look the bucket up behind our back, with a right that users may not have.
    client._bucket_metadata_cache = None
    return GoogleStore(place, client, bucket, timeout, env)


class _Counting(requests.adapters.HTTPAdapter):
    def send(self, *args: Any, **kwargs: Any) -> requests.Response:
        WIRE.count()
        return super().send(*args, **kwargs)


class GoogleStore:
    """An ObjectStore on google-cloud-storage."""

    on_wire = True

    def __init__(self, place: Endpoint, client: Any, bucket: str, timeout: float, env: Env = SYSTEM) -> None:
        self._place = place
        self._client = client
        self._bucket = client.bucket(bucket)
        # Half for what is tried again: a second attempt, on a connection that lives, is within the limit.
        self._timeout = (min(5.0, timeout / 2), timeout / 2)
        self._write_timeout = (min(5.0, timeout), timeout)
        self._env = env
        self._budget = ByteBudget()

    @property
    def url(self) -> str:
        return self._place.url

    def __repr__(self) -> str:
        return f"GoogleStore({self.url!r})"

    # -- reading

    def head(self, key: str) -> ObjectMeta:
        blob = self._bucket.blob(check_key(key))
        with self._explained("HEAD", key):
            blob.reload(timeout=self._timeout, retry=None)
        return _blob_meta(blob, self._env)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        check_key(key)
        if length == 0:
            return Fetched(self.head(key), b"")
        whole = start == 0 and length is None
        with self._explained("GET", key):
            response = self._media(key, None if whole else (start, length))
            if response is None:
                return Fetched(self.head(key), b"")
            return self._collected(key, response)

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        check_key(key)
        with self._explained("GET", key):
            try:
                response = self._media(key, None, {"ifGenerationNotMatch": token})
            except ConditionFailed:
                return None
            fetched = self._collected(key, response)
        return None if fetched.meta.token == token else fetched

    def open(self, key: str, *, start: int = 0) -> closing[GoogleBody]:
        return closing(GoogleBody(self, check_key(key), start))

    def _media(
        self, key: str, span: tuple[int, int | None] | None, query: dict[str, str] | None = None
    ) -> requests.Response | None:
        """The bytes of an object, or of a span of it; None if the span begins behind the object's end."""
        headers = {"Accept-Encoding": "gzip"}  # no decompression on the server's side
        if span:
            end = "" if span[1] is None else str(span[0] + span[1] - 1)
            headers["Range"] = f"bytes={span[0]}-{end}"
        base = self._client._connection.API_BASE_URL
        url = f"{base}/storage/v1/b/{quote(self._bucket.name, safe='')}/o/{quote(key, safe='')}"
        response: requests.Response = self._client._http.request(
            "GET", url, params={"alt": "media"} | (query or {}), headers=headers, timeout=self._timeout, stream=True
        )
        if response.status_code == 416:
            return None
        if response.status_code not in (200, 206):
            with response:
                raise to_error(self._place, read_response(response, "GET", key))
        return response

    def _meta_of(self, key: str, response: requests.Response) -> ObjectMeta:
        headers = response.headers
        generation, modified = headers.get("x-goog-generation"), headers.get("Last-Modified")
        if not generation or not modified:
            return self.head(key)
        size = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "0")
        return ObjectMeta(key, int(size), generation, parsedate_to_datetime(modified).astimezone(UTC))

    def _collected(self, key: str, response: requests.Response | None) -> Fetched:
        assert response is not None
        with response:
            check_in_memory(key, int(response.headers.get("Content-Length") or 0))
            body = b"".join(self._chunks(key, response))
        return Fetched(self._meta_of(key, response), body)

    def _chunks(self, key: str, response: requests.Response) -> Iterator[bytes]:
        expected = int(response.headers.get("Content-Length") or -1)
        received = 0
        while chunk := response.raw.read(CHUNK_BYTES, decode_content=False):
            received += len(chunk)
            yield chunk
        if expected >= 0 and received != expected:
            raise to_error(self._place, Refusal("GET", key, failure=CUT))

    # -- writing

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        blob = self._bucket.blob(check_key(key))
        with self._explained("PUT", key):
            blob.upload_from_string(
                body,
                content_type="application/octet-stream",
                if_generation_match=_generation(condition),
                timeout=self._write_timeout,
                retry=None,  # inv[store.no-blind-retry]
            )
        return _blob_meta(blob, self._env)

    def put_file(self, key: str, path: Path) -> Uploaded:
        return self.put_file_if(key, path, None)

    def put_file_if(self, key: str, path: Path, condition: Condition) -> Uploaded:
        check_key(key)
        size = path.stat().st_size
        if size > PART_BYTES:
            return self._put_chunks(key, path, size, condition)
        with self._budget.hold(size):
            body = path.read_bytes()
            return Uploaded(self.put(key, body, condition), hashlib.sha256(body).hexdigest())

    def _put_chunks(self, key: str, path: Path, size: int, condition: Condition) -> Uploaded:
        """A resumable upload: chunks are retried, the object appears with the last one."""
        blob = self._bucket.blob(key, chunk_size=PART_BYTES)
        with path.open("rb") as file, self._budget.hold(2 * PART_BYTES), self._explained("PUT", key):
            source = HashingReader(file)
            blob.upload_from_file(
                source,
                size=size,
                content_type="application/octet-stream",
                if_generation_match=_generation(condition),
                timeout=self._write_timeout,
                checksum=None,
            )
        return Uploaded(_blob_meta(blob, self._env), source.sha256.hexdigest())

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        # Emulators serve one request at a time and turn others away.
        width = 1 if "endpoint=" in self.url else min(DELETES_AT_ONCE, len(keys) or 1)
        with ThreadPoolExecutor(width) as pool:
            list(pool.map(self._delete, keys))

    def _delete(self, key: str) -> None:
        with suppress(ObjectMissing), self._explained("DELETE", key):
            self._bucket.blob(key).delete(timeout=self._timeout, retry=None)

    def delete_if(self, key: str, token: Token) -> None:
        with self._explained("DELETE", key):
            blob = self._bucket.blob(check_key(key))
            blob.delete(if_generation_match=_generation(Match(token)), timeout=self._timeout, retry=None)

    # -- listing

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        check_prefix(prefix)
        with self._explained("LIST", prefix or None):
            for page in self._listing(prefix, start_offset=start_after or None).pages:
                found = sorted((_blob_meta(b, self._env) for b in page), key=lambda m: m.key)
                kept = [m for m in found if m.key > (start_after or "") and not m.key.endswith("/")]
                if kept:
                    yield kept

    def level(self, prefix: str = "") -> Level:
        check_prefix(prefix)
        with self._explained("LIST", prefix or None):
            listing = self._listing(prefix, delimiter="/")
            objects = [_blob_meta(b, self._env) for b in listing if not b.name.endswith("/")]
        dirs = sorted(p.rstrip("/") for p in listing.prefixes)
        return Level(tuple(dirs), tuple(sorted(objects, key=lambda m: m.key)))

    def _listing(self, prefix: str, **more: Any) -> Any:
        return self._client.list_blobs(
            self._bucket,
            prefix=prefix or None,
            fields=_LISTED,
            page_size=PAGE,
            timeout=self._timeout,
            retry=None,
            **more,
        )

    # -- errors

    @contextmanager
    def _explained(self, verb: str, key: str | None) -> Iterator[None]:
        try:
            yield
        except CAUGHT as error:
            raise to_error(self._place, read_refusal(error, verb, key)) from safe_cause(error)
        except OSError as error:
            raise to_error(self._place, Refusal(verb, key, failure=CUT, text=type(error).__name__)) from error


class GoogleBody:
    """An object as ranges, each of the first one's generation."""

    def __init__(self, store: GoogleStore, key: str, start: int) -> None:
        self._store = store
        self._key = key
        self._at = start
        with store._explained("GET", key):
            self._response = store._media(key, (start, PART_BYTES))
            self._ahead = b""
            if self._response is not None and "x-goog-generation" not in self._response.headers:
                # Some emulators serve one request at a time and put no version into their answers.
                self._ahead = b"".join(store._chunks(key, self._response))
            self.meta = store.head(key) if self._response is None else store._meta_of(key, self._response)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()

    def __iter__(self) -> Iterator[bytes]:
        if self._ahead:
            self._at += len(self._ahead)
            yield self._ahead
        while self._response is not None:
            with self._store._explained("GET", self._key):
                for chunk in self._store._chunks(self._key, self._response):
                    self._at += len(chunk)
                    yield chunk
                self._response.close()
                self._response = self._next() if self._at < self.meta.size else None

    def _next(self) -> requests.Response | None:
        response = self._store._media(self._key, (self._at, PART_BYTES))
        if response is None or self._store._meta_of(self._key, response).token != self.meta.token:
            raise changed_while_read(self._key)
        return response


def _generation(condition: Condition) -> int | None:
    if condition is None:
        return None
    if isinstance(condition, CreateOnly):
        return 0
    if not condition.token.isdigit():
        raise ConditionFailed(f"{condition.token!r} is no generation", hint="read it again and decide again")
    return int(condition.token)


def _blob_meta(blob: Any, env: Env) -> ObjectMeta:
    modified: dt.datetime = blob.updated or env.clock.now()
    return ObjectMeta(blob.name, int(blob.size or 0), str(blob.generation or ""), modified.astimezone(UTC))


# -- the Google client's errors, taken apart: the one table of this adapter

# inv[store.errors-mapped]: what each foreign class means when it carries no HTTP status: a failure or a code.
FOREIGN: Final[dict[type[BaseException], tuple[str | None, str | None]]] = {
    api.GoogleAPIError: (CUT, None),
    auth.GoogleAuthError: (None, "NoCredentials"),
    auth.RefreshError: (None, "ExpiredToken"),
    auth.TransportError: (CONNECT, None),
    media.InvalidResponse: (CUT, None),
    media.DataCorruption: (CUT, None),
    media.InvalidPathError: (None, "InvalidPath"),
    http.RequestException: (CUT, None),
    http.ConnectTimeout: (CONNECT, None),
    http.Timeout: (TIMEOUT, None),
    http.ConnectionError: (CUT, None),
    http.InvalidURL: (CONNECT, None),
    wire.HTTPError: (CUT, None),
    wire.ReadTimeoutError: (TIMEOUT, None),
}
_NEVER_CONNECTED: Final = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|Connection refused|SSLError"
)
CAUGHT: Final = tuple(FOREIGN)


def read_refusal(error: BaseException, verb: str, key: str | None) -> Refusal:
    """Takes an error of the Google client apart."""
    response = getattr(error, "response", None)
    if response is not None and getattr(response, "status_code", None):
        return read_response(response, verb, key)
    failure, code = next((FOREIGN[c] for c in type(error).__mro__ if c in FOREIGN), (CUT, None))
    if isinstance(error, http.ConnectionError) and _NEVER_CONNECTED.search(str(error)):
        failure = CONNECT
    status = getattr(error, "code", None)
    return Refusal(verb, key, status if isinstance(status, int) else None, code, failure=failure)


def read_response(response: Any, verb: str, key: str | None) -> Refusal:
    code, text = _reason(response)
    if "bucket does not exist" in text.lower():
        code = "NoSuchBucket"
    after = response.headers.get("Retry-After", "")
    return Refusal(
        verb,
        key,
        response.status_code,
        code,
        text.partition("\n")[0],
        response.headers.get("X-GUploader-UploadID"),
        retry_after=float(after) if after.isdigit() else None,
    )


def _reason(response: Any) -> tuple[str | None, str]:
    """Google's own reason and message: in JSON, except for media, where the message is all there is."""
    try:
        error = response.json()["error"]
        return str(error["errors"][0]["reason"]), str(error["message"])
    except (KeyError, TypeError, IndexError, ValueError):
        return None, str(response.text)
    except (http.RequestException, wire.HTTPError):
        return None, ""


def safe_cause(error: BaseException) -> BaseException | None:
    """Authentication errors can quote tokens: they are not kept as a cause."""
    return None if isinstance(error, auth.GoogleAuthError) else error
