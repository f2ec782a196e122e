"""The web application: its routes, how a browser logs in, errors as documents, the guard in front, its connections."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from swamp import __version__
from swamp.errors import NotFound, SwampError
from swamp.serve import api_data, api_events, api_runs
from swamp.serve.guard import COOKIE, Guard
from swamp.serve.pages import show
from swamp.serve.pages.render import HERE, error_page, login_page, wants_page
from swamp.serve.respond import ApiRouter, HttpError, document, error_response, json_response, needs, ok
from swamp.serve.state import Asked, Server
from swamp.serve.tokens import SESSION_SECONDS, Caller

_log = logging.getLogger("swamp.serve")
HEADER_SECONDS: Final = 15.0
STATIC: Final = HERE / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CODES: Final = {404: "not-found", 405: "method-not-allowed", 400: "usage", 422: "usage", 413: "too-large"}

plain = ApiRouter()
Viewer = Annotated[Caller, needs("viewer")]


def build(server: Server) -> ASGIApp:
    """The application of one server. Foreign scripts are never loaded: there is no interactive documentation."""
    app = FastAPI(
        title="swamp", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.server = server
    for module in (api_events, api_data, api_runs, show):
        app.include_router(module.router)
    for router in (api_data.datastore_router, api_runs.models_router, api_events.hooks_router, plain):
        app.include_router(router)
    _errors(app, server)
    return Guard(app, server)


@plain.get("/healthz", include_in_schema=False)
async def healthz() -> Response:
    return PlainTextResponse("ok\n")


@plain.get("/readyz", include_in_schema=False)
def readyz(server: Asked) -> Response:
    """The store answers and the queue is open."""
    if server.draining or not server.ready.is_set():
        raise HttpError("not-ready", "the server is starting or stopping")
    server.queue.length()
    status = server.repo.datastore.maintenance.status()
    if not status["healthy"]:
        raise HttpError("not-ready", "the store does not answer")
    return PlainTextResponse("ready\n")


@plain.get("/metrics", include_in_schema=False)
def metrics(server: Asked) -> Response:
    return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@plain.get("/api/v1/openapi.json", include_in_schema=False, dependencies=[needs("viewer")])
async def openapi(request: Request) -> Response:
    return json_response(request.app.openapi())


@plain.get("/static/{name}", include_in_schema=False)
def static(name: str) -> Response:
    """The style, the script and the icon: files of this package and nothing else."""
    file = STATIC / name
    if "/" in name or file.suffix not in _TYPES or not file.is_file():
        raise NotFound(f"there is no file {name} here")
    return FileResponse(file, media_type=_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})


@plain.get("/favicon.ico", include_in_schema=False)
def icon() -> Response:
    return FileResponse(STATIC / "swamp.svg", media_type="image/svg+xml")


@plain.get("/login", include_in_schema=False)
def login(request: Request, server: Asked, token: str | None = None) -> Response:
    """The one-time word of the printed URL becomes the session of a browser; without one, a form asks for a token."""
    if token is None:
        return login_page(server)
    session = server.tokens.exchange(token)
    if session is None:
        request.scope["state"]["refused"]()
        if "text/html" in request.headers.get("accept", ""):
            return login_page(server, "This login is not valid any more: `swamp serve login` makes another.")
        raise HttpError("unauthorized", "this login is not valid any more", hint="`swamp serve login` makes one")
    return _logged_in(server, session)


@plain.post("/login", include_in_schema=False)
async def enter(request: Request, server: Asked) -> Response:
    """A token, sent by the form, becomes the session of a browser with the token's role."""
    fields = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=8)
    word = (fields.get("token") or [""])[0].strip()
    session = await run_in_threadpool(server.tokens.enter, word)
    if session is None:
        request.scope["state"]["refused"]()
        return login_page(server, "This is not a token that is in use.")
    return _logged_in(server, session)


def _logged_in(server: Server, session: str) -> Response:
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE,
        session,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=server.config.seen_over_tls,
        path="/",
    )
    return response


Session = document("Session", role=str, kind=str, csrf=str, name=(str | None, None))


@plain.get("/api/v1/session", responses=ok(Session), tags=["session"])
def session(caller: Viewer) -> Response:
    """Who asks, and what a browser sends with its changes (`X-CSRF-Token`)."""
    return json_response({"role": caller.role, "kind": caller.kind, "csrf": caller.csrf, "name": caller.name})


@plain.post("/api/v1/session/logout", tags=["session"], status_code=204)
def logout(server: Asked, caller: Viewer) -> Response:
    """Ends the session of a browser."""
    server.tokens.log_out(caller)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response


def _errors(app: FastAPI, server: Server) -> None:
    async def known(request: Request, error: Any) -> Response:
        return error_page(request, error) if wants_page(request) else error_response(error, server.clean)

    async def http(request: Request, error: Any) -> Response:
        return await known(request, HttpError(_CODES.get(error.status_code, "failed"), str(error.detail)))

    async def invalid(request: Request, error: Any) -> Response:
        problems = [f"{'.'.join(str(p) for p in one['loc'])}: {one['msg']}" for one in error.errors()]
        return await known(request, HttpError("usage", "; ".join(problems)))

    async def unexpected(request: Request, error: Any) -> Response:
        _log.exception("a request failed", exc_info=error)
        told = SwampError("something unexpected went wrong", hint="the server's log has the details")
        return await known(request, told)

    async def disk(request: Request, error: Any) -> Response:
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
            return error_response(HttpError("usage", "a name is too long, or cannot be one"), server.clean)
        return await unexpected(request, error)

    app.add_exception_handler(OSError, disk)
    app.add_exception_handler(SwampError, known)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


class Protocol(H11Protocol):
    """uvicorn's own, with a deadline for the headers: a connection that does not say what it wants is closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._calm()
        elif self._deadline is None:
            self._expect()

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._late)

    def _calm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.transport is not None and not self.transport.is_closing():
            self.transport.close()
