"""The web application: routes, errors as documents, the guard in front."""

from __future__ import annotations

import errno
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from swamp import __version__
from swamp.errors import SwampError
from swamp.serve import api_data, api_datastore, api_models, api_runs, login, receive, stream
from swamp.serve.ask import needs, server_of
from swamp.serve.guard import App, Guard
from swamp.serve.pages.render import error_page, wants_page
from swamp.serve.pages.routes import add_pages
from swamp.serve.respond import HttpError, error_response, json_response
from swamp.serve.state import Server

_log = logging.getLogger("swamp.serve")
_CODES = {404: "not-found", 405: "method-not-allowed", 400: "usage", 422: "usage", 413: "too-large"}


def build(server: Server) -> App:
    """The application of one server. Foreign scripts are never loaded: there is no interactive documentation."""
    app = FastAPI(
        title="swamp", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.server = server
    for module in (receive, stream, api_data, api_datastore, api_models, api_runs, login):
        app.include_router(module.router)
    add_pages(app)
    _plain_routes(app)
    _errors(app, server)
    return Guard(app, server)  # type: ignore[arg-type]


def _plain_routes(app: FastAPI) -> None:
    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", include_in_schema=False)
    def readyz(request: Request) -> Response:
        """The store answers and the queue is open."""
        server = server_of(request)
        if server.draining or not server.ready.is_set():
            raise HttpError("not-ready", "the server is starting or stopping")
        server.queue.length()
        status = server.repo.datastore.maintenance.status()
        if not status["healthy"]:
            raise HttpError("not-ready", "the store does not answer")
        return PlainTextResponse("ready\n")

    @app.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        return Response(server_of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/api/v1/openapi.json", include_in_schema=False, dependencies=[needs("viewer")])
    async def openapi() -> Response:
        return json_response(app.openapi())


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
