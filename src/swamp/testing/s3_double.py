"""An S3 server in this process: strict conditions, real sockets, and lies on request.

    with S3Double("bucket") as store:
        store.lies.append(Lie("cut after", "PUT", "*/.datastore-index.json"))
        ... store.running().open("team/data"), or the command line with store.config and store.environ ...
        assert store.told == [("cut after", "PUT", "team/data/.datastore-index.json")]

`store.bucket()` is what it holds; `store.manners` is how it differs from Amazon; `store.seen` is every request.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from swamp.env import SYSTEM, Env
from swamp.testing.listen import LoopbackHandler, LoopbackServer
from swamp.testing.running import ACCESS, SECRET, RunningServer
from swamp.testing.s3_bucket import Manners, S3Bucket, S3Refusal
from swamp.testing.s3_lies import FOR_EVER, Lie, LieKind, RandomLies
from swamp.testing.s3_requests import Asked, Told, act, as_if, refusal, unchunked

HTML: Final = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Please log in.</body></html>"


class S3Double:
    """The server on a free loopback port. A context manager."""

    def __init__(
        self, *buckets: str, manners: Manners | None = None, lies: Iterable[Lie] = (), env: Env = SYSTEM
    ) -> None:
        self.buckets = {name: S3Bucket(env, manners or Manners()) for name in buckets or ("swamp-tests",)}
        self.lies: list[Lie] = list(lies)
        self.chance: RandomLies | None = None
        self.seen: list[Asked] = []
        self.told: list[tuple[LieKind, str, str]] = []
        self.released = threading.Event()
        self._lock = threading.Lock()
        handler = type("BoundHandler", (_Handler,), {"double": self})
        self._server = LoopbackServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> S3Double:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    # -- for tests

    @property
    def manners(self) -> Manners:
        return self.bucket().manners

    @manners.setter
    def manners(self, manners: Manners) -> None:
        for bucket in self.buckets.values():
            bucket.manners = manners

    def bucket(self, name: str | None = None) -> S3Bucket:
        """The bucket of that name; the first one."""
        return self.buckets[name] if name else next(iter(self.buckets.values()))

    @property
    def config(self) -> dict[str, Any]:
        """For `swamp datastore setup --config`."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "forcePathStyle": True}

    @property
    def environ(self) -> dict[str, str]:
        """The login, for the environment of a command."""
        return {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}

    def running(self, bucket: str | None = None, **config: Any) -> RunningServer:
        """As a server that runs; `config` adds to its configuration."""
        name = bucket or next(iter(self.buckets))
        return RunningServer("s3-double", f"s3://{name}", {**self.config, **config}, self.environ, self.endpoint)

    def add(self, *lies: Lie) -> None:
        with self._lock:
            self.lies.extend(lies)

    def calm(self) -> None:
        """No lies from now on."""
        with self._lock:
            self.lies.clear()
            self.chance = None

    def counts(self) -> Counter[str]:
        """How often each kind of lie was told."""
        return Counter(kind for kind, _, _ in self.told)

    def requests(self, method: str | None = None, ending: str = "") -> list[Asked]:
        """What was asked, by method and the end of the key."""
        return [a for a in list(self.seen) if a.method == (method or a.method) and a.key.endswith(ending)]

    # -- for the server

    def pick(self, asked: Asked) -> Lie | None:
        with self._lock:
            self.seen.append(asked if len(asked.body) < 65536 else replace(asked, body=b""))
            lie = next((li for li in self.lies if li.takes(asked.method, asked.key, asked.headers)), None)
            if lie is None and self.chance is not None:
                lie = self.chance.draw(asked.method)
            if lie is not None:
                self.told.append((lie.kind, asked.method, asked.key))
            return lie

    def act(self, bucket: str, asked: Asked, *, stale: bool = False) -> Told:
        """Does what was asked; a refusal is an answer too."""
        try:
            return act(self.buckets, bucket, asked, stale)
        except S3Refusal as no:
            return refusal(no)

    def later(self, bucket: str, asked: Asked, seconds: float) -> None:
        """The same request once more, when its sender no longer thinks of it."""

        def again() -> None:
            if not self.released.wait(seconds):
                self.act(bucket, asked)

        threading.Thread(target=again, daemon=True).start()


# --- the server ----------------------------------------------------------------------------------------------------


class _Handler(LoopbackHandler):
    double: S3Double

    def _serve(self) -> None:
        bucket, asked = self._asked()
        lie = self.double.pick(asked)
        if lie is None:
            return self._send(self.double.act(bucket, asked))
        told = self._effect(lie, bucket, asked)
        lie.then()
        if told is None:
            return self.reset()
        return self._send(told, lie.kind if lie.kind in ("truncate", "short", "wrong") else None)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve

    def _asked(self) -> tuple[str, Asked]:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length") or 0))
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = unchunked(body)
        return bucket, Asked(self.command, key or query.get("prefix", ""), query, headers, body)

    def _effect(self, lie: Lie, bucket: str, asked: Asked) -> Told | None:
        """What is answered; None for a reset."""
        act, kind = self.double.act, lie.kind
        if kind == "refuse":
            return refusal(S3Refusal(lie.status, lie.code))
        if kind == "html":
            return Told(200, {"Content-Type": "text/html"}, HTML)
        if kind == "forget":
            return as_if(asked)
        if kind == "cut":
            return None
        if kind == "late" and not self._waited(lie.seconds):
            return None
        told = act(bucket, asked, stale=kind == "stale")
        if kind == "duplicate":
            told = act(bucket, asked)
        if kind == "again":
            self.double.later(bucket, asked, lie.seconds)
        if kind == "delay" and not self._waited(lie.seconds):
            return None
        if kind == "refuse after":
            return refusal(S3Refusal(lie.status, lie.code))
        return None if kind == "cut after" else told

    def _waited(self, seconds: float) -> bool:
        """False if the double was closed first, or the wait was for ever."""
        over = self.double.released.wait(None if seconds == FOR_EVER else seconds)
        return not over and seconds != FOR_EVER

    def _send(self, told: Told, lie: str | None = None) -> None:
        body = bytes(255 - byte for byte in told.body) if lie == "wrong" else told.body
        sent = body[: len(body) // 2] if lie in ("truncate", "short") else body
        length = told.length if told.length is not None else len(sent if lie == "short" else body)
        self.send_response_only(told.status)
        self.send_header("Date", self.date_time_string())
        self.send_header("x-amz-request-id", "REQ-DOUBLE")
        for name, value in told.headers.items():
            self.send_header(name, value)
        if told.status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD" and told.status not in (204, 304):
            self.wfile.write(sent)
        if lie == "truncate":
            self.close_connection = True
