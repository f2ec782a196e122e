"""A strict double of Google Cloud Storage's JSON API, as far as a store needs it, over real HTTP.

What it is strict about is what `gcp-storage-emulator` ignores: generations grow with every write, preconditions
are checked under one lock and refused with 412 or 304, ranges are honoured, and objects appear only when an upload
is complete.
"""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

from swamp.env import SYSTEM, Env, rfc3339
from swamp.testing.listen import LoopbackHandler, LoopbackServer

_OBJECT = re.compile(r"^/storage/v1/b/([^/]+)/o/([^/]+)$")
_OBJECTS = re.compile(r"^/storage/v1/b/([^/]+)/o$")
_BUCKET = re.compile(r"^/storage/v1/b/([^/]+)$")
_UPLOAD = re.compile(r"^/upload/storage/v1/b/([^/]+)/o$")


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Blob:
    name: str
    body: bytes
    generation: int
    updated: Any

    def resource(self, bucket: str) -> dict[str, Any]:
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": self.name,
            "size": str(len(self.body)),
            "generation": str(self.generation),
            "metageneration": "1",
            "updated": rfc3339(self.updated),
            "timeCreated": rfc3339(self.updated),
            "md5Hash": base64.b64encode(hashlib.md5(self.body).digest()).decode(),
            "crc32c": base64.b64encode(google_crc32c.value(self.body).to_bytes(4, "big")).decode(),
        }


@dataclass
class Session:
    """A resumable upload that is not complete yet."""

    bucket: str
    name: str
    match: str | None
    data: bytearray = field(default_factory=bytearray)


@dataclass
class Buckets:
    """All state, behind one lock: every request is one step."""

    env: Env = SYSTEM
    blobs: dict[str, dict[str, Blob]] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    last_generation: int = 0

    def bucket(self, name: str) -> dict[str, Blob]:
        if name not in self.blobs:
            raise Refused(404, "notFound", "The specified bucket does not exist.")
        return self.blobs[name]

    def find(self, bucket: str, name: str) -> Blob:
        blob = self.bucket(bucket).get(name)
        if blob is None:
            raise Refused(404, "notFound", f"No such object: {bucket}/{name}")
        return blob

    def write(self, bucket: str, name: str, body: bytes, match: str | None) -> Blob:
        with self.lock:
            blobs = self.bucket(bucket)
            present = blobs[name].generation if name in blobs else 0
            if match is not None and int(match) != present:
                raise _condition_not_met()
            now = self.env.clock.now()
            self.last_generation = max(self.last_generation + 1, int(now.timestamp() * 1e6))
            blobs[name] = Blob(name, body, self.last_generation, now)
            return blobs[name]

    def remove(self, bucket: str, name: str, match: str | None) -> None:
        with self.lock:
            blob = self.find(bucket, name)
            if match is not None and int(match) != blob.generation:
                raise _condition_not_met()
            del self.bucket(bucket)[name]


def _condition_not_met() -> Refused:
    return Refused(412, "conditionNotMet", "At least one of the pre-conditions you specified did not hold.")


class Handler(LoopbackHandler):
    buckets: Buckets

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def do_PUT(self) -> None:
        self._serve(self._continue_upload)

    def do_DELETE(self) -> None:
        self._serve(self._delete)

    def _serve(self, act: Any) -> None:
        url = urlsplit(self.path)
        self.query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            act(url.path)
        except Refused as no:
            self._json(no.status, _error(no)) if no.status != 304 else self._answer(304, b"", {})

    # -- reading

    def _get(self, path: str) -> None:
        if found := _OBJECT.match(path):
            blob = self.buckets.find(unquote(found[1]), unquote(found[2]))
            if self.query.get("alt") == "media":
                return self._media(blob)
            return self._json(200, blob.resource(unquote(found[1])))
        if found := _OBJECTS.match(path):
            return self._json(200, self._list(unquote(found[1])))
        if found := _BUCKET.match(path):
            self.buckets.bucket(unquote(found[1]))
            return self._json(200, {"kind": "storage#bucket", "name": unquote(found[1])})
        raise Refused(404, "notFound", "Not Found")

    def _media(self, blob: Blob) -> None:
        if self.query.get("ifGenerationNotMatch") == str(blob.generation):
            raise Refused(304, "notModified", "")
        if self.query.get("ifGenerationMatch", str(blob.generation)) != str(blob.generation):
            raise _condition_not_met()
        headers = {
            "x-goog-generation": str(blob.generation),
            "Last-Modified": format_datetime(blob.updated, usegmt=True),
        }
        span = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range") or "")
        if span is None:
            return self._answer(200, blob.body, headers)
        first, last = int(span[1]), min(int(span[2] or len(blob.body)), len(blob.body) - 1)
        if first >= len(blob.body):
            raise Refused(416, "requestedRangeNotSatisfiable", "Request range not satisfiable")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(blob.body)}"
        return self._answer(206, blob.body[first : last + 1], headers)

    def _list(self, bucket: str) -> dict[str, Any]:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        after = self.query.get("pageToken", "")
        limit = int(self.query.get("maxResults") or 1000)
        with self.buckets.lock:
            blobs = sorted(self.buckets.bucket(bucket).items())
        items: list[dict[str, Any]] = []
        folders: set[str] = set()
        for name, blob in blobs:
            if not name.startswith(prefix) or name < self.query.get("startOffset", "") or name <= after:
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            elif len(items) == limit:
                return {"items": items, "prefixes": sorted(folders), "nextPageToken": items[-1]["name"]}
            else:
                items.append(blob.resource(bucket))
        return {"items": items, "prefixes": sorted(folders)}

    # -- writing

    def _post(self, path: str) -> None:
        if path == "/storage/v1/b":
            name = json.loads(self.body)["name"]
            self.buckets.blobs.setdefault(name, {})
            return self._json(200, {"kind": "storage#bucket", "name": name})
        found = _UPLOAD.match(path)
        if found is None:
            raise Refused(404, "notFound", "Not Found")
        bucket, kind = unquote(found[1]), self.query.get("uploadType")
        self.buckets.bucket(bucket)
        if kind == "multipart":
            name, body = _multipart(self.headers["Content-Type"], self.body)
            blob = self.buckets.write(bucket, name, body, self.query.get("ifGenerationMatch"))
            return self._json(200, blob.resource(bucket))
        if kind == "resumable":
            return self._begin_upload(bucket)
        raise Refused(400, "invalid", f"uploadType {kind}")

    def _begin_upload(self, bucket: str) -> None:
        name = json.loads(self.body or b"{}").get("name") or self.query["name"]
        identity = f"{len(self.buckets.sessions) + 1}"
        self.buckets.sessions[identity] = Session(bucket, name, self.query.get("ifGenerationMatch"))
        where = (
            f"http://{self.headers['Host']}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={identity}"
        )
        self._answer(200, b"{}", {"Location": where, "Content-Type": "application/json"})

    def _continue_upload(self, path: str) -> None:
        session = self.buckets.sessions.get(self.query.get("upload_id", ""))
        if session is None:
            raise Refused(404, "notFound", "no such upload")
        total = self.headers.get("Content-Range", "*/*").rpartition("/")[2]
        session.data += self.body
        if total == "*" or len(session.data) < int(total):
            headers = {"Range": f"bytes=0-{len(session.data) - 1}"} if session.data else {}
            return self._answer(308, b"", headers)
        blob = self.buckets.write(session.bucket, session.name, bytes(session.data), session.match)
        del self.buckets.sessions[self.query["upload_id"]]
        return self._json(200, blob.resource(session.bucket))

    def _delete(self, path: str) -> None:
        found = _OBJECT.match(path)
        if found is None:
            raise Refused(404, "notFound", "Not Found")
        self.buckets.remove(unquote(found[1]), unquote(found[2]), self.query.get("ifGenerationMatch"))
        self._answer(204, b"", {})

    # -- answering

    def _json(self, status: int, value: dict[str, Any]) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("X-GUploader-UploadID", "double")
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status not in (204, 304):
            self.wfile.write(body)


def _error(no: Refused) -> dict[str, Any]:
    errors = [{"reason": no.reason, "message": no.message, "domain": "global"}]
    return {"error": {"code": no.status, "message": no.message, "errors": errors}}


def _multipart(content_type: str, body: bytes) -> tuple[str, bytes]:
    """The two parts of a multipart/related upload: the object's resource and its bytes."""
    boundary = email.message_from_string(f"Content-Type: {content_type}\n\n").get_boundary()
    assert boundary is not None
    _, first, rest = body.split(b"--" + boundary.encode(), 2)
    media = rest.partition(b"\r\n\r\n")[2]
    media = media[: media.rindex(b"\r\n--" + boundary.encode())]
    return json.loads(first.partition(b"\r\n\r\n")[2])["name"], media


class GcsDouble:
    """The double on a free loopback port. A context manager; `endpoint` is its STORAGE_EMULATOR_HOST."""

    def __init__(self, *buckets: str, env: Env = SYSTEM) -> None:
        self.buckets = Buckets(env, {name: {} for name in buckets})
        handler = type("BoundHandler", (Handler,), {"buckets": self.buckets})
        self._server = LoopbackServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> GcsDouble:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
