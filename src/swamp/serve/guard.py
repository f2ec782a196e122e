"""Stands before every request: bounds, Host and Origin, who asks. What passes has a caller or needs none.

Works on plain ASGI, so that a refused request costs nothing and streams pass through untouched.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swamp.env import Clock
from swamp.serve.respond import HttpError, error_response, no_token
from swamp.serve.tokens import Caller

if TYPE_CHECKING:
    from swamp.serve.state import Server

MAX_BODY: Final = 10 << 20
MAX_HEADERS: Final = 100
MAX_TARGET: Final = 8192
BODY_SECONDS: Final = 60.0
MOST_CALLERS: Final = 10_000
COOKIE: Final = "swamp_session"
CSRF_HEADER: Final = "x-csrf-token"
SAFE: Final = ("GET", "HEAD", "OPTIONS")
OPEN: Final = ("/healthz", "/readyz", "/login", "/favicon.ico")
HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
)
"""Of every answer, unless it says otherwise itself."""


class Guard:
    """ASGI middleware. Refusals are error documents with the same shape as every other."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self._app, self._server = app, server
        clock = server.repo.env.clock
        self._callers = Buckets(clock, server.config.rate, server.config.rate * 2)
        self._refused = Buckets(clock, 10, 100)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        began = self._server.repo.env.clock.monotonic()
        status = [500]
        sending = self._with_headers(scope, send, status)
        try:
            await self._handle(scope, receive, sending)
        except HttpError as error:
            await error_response(error, self._server.clean)(scope, receive, sending)
        finally:
            took = self._server.repo.env.clock.monotonic() - began
            self._server.metrics.request(scope, status[0], took)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _bounded_headers(scope)
        client = scope["client"][0] if scope.get("client") else ""
        self._check_host(headers)
        try:
            caller = await self._caller(scope, headers)
        except HttpError as error:
            asked = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
            page = asked and not scope["path"].startswith(("/api/", "/metrics"))
            if page and error.code == "unauthorized":
                await RedirectResponse("/login", 303)(scope, receive, send)
                return
            self._slow_down(client)
            raise
        _wait(self._callers.take(caller.id if caller else client))
        self._check_origin(scope, headers, caller)
        scope.setdefault("state", {})["caller"] = caller
        scope["state"]["refused"] = lambda: self._slow_down(client)
        await self._app(scope, _Bounded(receive, headers), send)

    def _slow_down(self, client: str) -> None:
        """Counts what was refused. Raises 429 for who guesses; whoever knows a secret is never held up by that."""
        _wait(self._refused.take(client))

    # -- who asks

    async def _caller(self, scope: Scope, headers: Mapping[str, str]) -> Caller | None:
        """The caller; None where none is needed. Raises HttpError, the same for every reason."""
        kind, _, word = headers.get("authorization", "").partition(" ")
        session = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        found = None
        if kind.lower() == "bearer" and word:
            found = await run_in_threadpool(self._server.tokens.find, word.strip(), "token")
        elif session:
            found = await run_in_threadpool(self._server.tokens.find, session, "session")
        path = scope["path"]
        is_open = path in OPEN or path.startswith(("/hooks/", "/static/"))
        if found is not None or is_open or (path == "/metrics" and self._server.config.loopback):
            return found
        raise no_token()

    # -- from where

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """A name that is not ours means that somebody's DNS points here. Addresses cannot be rebound."""
        host = headers.get("host", "")
        plain = host and not set(host) & set("/@?#\\ ") and host.isprintable()
        name = (urlsplit(f"//{host}").hostname or "").lower() if plain else ""
        config = self._server.config
        if name in ("localhost", config.host.lower(), *config.hosts, urlsplit(config.public_url or "").hostname):
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            hint = "add it to serve.hosts, or set serve.publicUrl"
            raise HttpError("forbidden", "this Host is not served here", hint=hint) from None

    def _check_origin(self, scope: Scope, headers: Mapping[str, str], caller: Caller | None) -> None:
        """State changes come from our own pages or from programs, never from another site. inv[serve.origin]"""
        if scope["method"] in SAFE:
            return
        origin = headers.get("origin")
        ours = (headers.get("host", "").lower(), self._server.config.public_host)
        if origin is not None and urlsplit(origin).netloc.lower() not in ours:
            raise HttpError("forbidden", "this request comes from another site")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise HttpError("forbidden", "this request comes from another site")
        if caller is None or caller.kind != "session":
            return
        given = headers.get(CSRF_HEADER, "")
        if origin is None or not hmac.compare_digest(given.encode(), caller.csrf.encode()):
            raise HttpError("forbidden", f"a browser's change needs its Origin and {CSRF_HEADER}")

    def _with_headers(self, scope: Scope, send: Send, status: list[int]) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS:
                    headers.setdefault(name, value)
                if scope.get("scheme") == "https":
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        return sending


class Buckets:
    """How often somebody may ask: `rate` times a second for long, `burst` times at once. Used by one event loop."""

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._clock, self._rate, self._burst = clock, rate, burst
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, who: str) -> float:
        """0 if this one more is fine, else the seconds to wait."""
        now = self._clock.monotonic()
        left, at = self._left.get(who, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1:
            return (1 - left) / self._rate
        self._left.pop(who, None)  # to the end: those who came last are kept
        self._left[who] = (left - 1, now)
        if len(self._left) > MOST_CALLERS:
            self._left.pop(next(iter(self._left)))
        return 0.0


class _Bounded:
    """A request's body, at most so large and at most so slow."""

    def __init__(self, receive: Receive, headers: Mapping[str, str]) -> None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY:
            raise _too_large()
        self._receive, self._seen, self._whole = receive, 0, False
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Message:
        if self._whole:  # only a disconnect is left to hear of, and that may take as long as it wants
            return await self._receive()
        left = self._deadline - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.001, left))
        except TimeoutError:
            raise HttpError("timeout", f"the body did not arrive within {BODY_SECONDS:g} s") from None
        self._seen += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._seen > MAX_BODY:
            raise _too_large()
        return message


def _too_large() -> HttpError:
    return HttpError("too-large", f"a body is at most {MAX_BODY >> 20} MiB", hint="use `swamp data put` for large data")


def _wait(seconds: float) -> None:
    """Raises 429 for who has to wait so long."""
    if seconds:
        after = max(1, round(seconds + 0.5))
        raise HttpError("too-many-requests", "too many requests", hint=f"wait {after} s", retry_after=after)


def _bounded_headers(scope: Scope) -> dict[str, str]:
    raw = scope["headers"]
    if len(raw) > MAX_HEADERS or len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET:
        raise HttpError("headers-too-large", f"a request has at most {MAX_HEADERS} headers")
    try:
        unquote_to_bytes(scope.get("raw_path") or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise HttpError("usage", "the path is not UTF-8") from None
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in raw}
