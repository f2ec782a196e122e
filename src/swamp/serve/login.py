"""How a browser logs in and out: with the one-time word of the printed URL, or with a token that somebody gave it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from swamp.serve import documents as doc
from swamp.serve.guard import COOKIE
from swamp.serve.pages.render import login_page
from swamp.serve.respond import ApiRouter, HttpError, json_response, needs
from swamp.serve.state import Asked, Server
from swamp.serve.tokens import SESSION_SECONDS, Caller

router = ApiRouter()
Viewer = Annotated[Caller, needs("viewer")]


@router.get("/login", include_in_schema=False)
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


@router.post("/login", include_in_schema=False)
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


@router.get("/api/v1/session", responses=doc.ok(doc.Session), tags=["session"])
def session(caller: Viewer) -> Response:
    """Who asks, and what a browser sends with its changes (`X-CSRF-Token`)."""
    return json_response({"role": caller.role, "kind": caller.kind, "csrf": caller.csrf, "name": caller.name})


@router.post("/api/v1/session/logout", tags=["session"], status_code=204)
def logout(server: Asked, caller: Viewer) -> Response:
    """Ends the session of a browser."""
    server.tokens.log_out(caller)
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/")
    return response
