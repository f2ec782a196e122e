"""The web application: routes, errors as documents, the guard in front, and its connections."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from swamp import __version__
from swamp.errors import NotFound, SwampError
from swamp.serve import api_data, api_datastore, api_events, api_models, api_runs, login, receive
from swamp.serve.guard import App, Guard
from swamp.serve.pages import browse, follow, inspect
from swamp.serve.pages.render import HERE, error_page, wants_page
from swamp.serve.respond import HttpError, error_response, json_response, needs
from swamp.serve.state import Asked, Server

_log = logging.getLogger("swamp.serve")
HEADER_SECONDS: Final = 15.0
STATIC: Final = HERE / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_CODES: Final = {404: "not-found", 405: "method-not-allowed", 400: "usage", 422: "usage", 413: "too-large"}


def build(server: Server) -> App:
    """The application of one server. Foreign scripts are never loaded: there is no interactive documentation."""
    app = FastAPI(
        title="swamp", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.server = server
    for module in (receive, api_events, api_data, api_datastore, api_models, api_runs, login, browse, follow, inspect):
        app.include_router(module.router)
    _plain_routes(app)
    _errors(app, server)
    return Guard(app, server)  # type: ignore[arg-type]


def _plain_routes(app: FastAPI) -> None:
    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    def readyz(server: Asked) -> Response:
        """The store answers and the queue is open."""
        if server.draining or not server.ready.is_set():
            raise HttpError("not-ready", "the server is starting or stopping")
        server.queue.length()
        status = server.repo.datastore.maintenance.status()
        if not status["healthy"]:
            raise HttpError("not-ready", "the store does not answer")
        return PlainTextResponse("ready\n")

    @app.get("/metrics", include_in_schema=False)
    def metrics(server: Asked) -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/api/v1/openapi.json", include_in_schema=False, dependencies=[needs("viewer")])
    async def openapi() -> Response:
        return json_response(app.openapi())

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        """The style, the script and the icon: files of this package and nothing else."""
        file = STATIC / name
        if "/" in name or file.suffix not in _TYPES or not file.is_file():
            raise NotFound(f"there is no file {name} here")
        return FileResponse(file, media_type=_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})

    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> Response:
        return FileResponse(STATIC / "swamp.svg", media_type="image/svg+xml")


def _errors(app: FastAPI, server: Server) -> None:
    def answer(request: Request, error: SwampError) -> Response:
        return error_page(request, error) if wants_page(request) else error_response(error, server.clean)

    async def known(request: Request, error: Any) -> Response:
        return answer(request, error)

    async def http(request: Request, error: Any) -> Response:
        return answer(request, HttpError(_CODES.get(error.status_code, "failed"), str(error.detail)))

    async def invalid(request: Request, error: Any) -> Response:
        problems = [f"{'.'.join(str(p) for p in one['loc'])}: {one['msg']}" for one in error.errors()]
        return answer(request, HttpError("usage", "; ".join(problems)))

    async def unexpected(request: Request, error: Any) -> Response:
        _log.exception("a request failed", exc_info=error)
        return answer(request, SwampError("something unexpected went wrong", hint="the server's log has the details"))

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
