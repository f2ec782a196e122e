"""Templates to HTML. Everything that comes from data is text: escaping is on and no template switches it off."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse

from swamp.env import parse_rfc3339
from swamp.errors import SwampError
from swamp.serve.respond import STATUS, HttpError
from swamp.serve.tokens import Caller

if TYPE_CHECKING:
    from swamp.serve.state import Server

HERE: Final = Path(__file__).parent
PAGES: Final = (
    ("/", "Overview"),
    ("/data", "Data"),
    ("/runs", "Runs"),
    ("/commits", "Commits"),
    ("/datastore", "Datastore"),
    ("/events", "Events"),
)
_UNITS: Final = (("day", 86_400), ("hour", 3_600), ("minute", 60))


@cache
def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "default": str}
    made.filters["size"] = size_text
    made.filters["duration"] = duration_text
    made.filters["words"] = words_text
    return made


def page(request: Request, template: str, title: str, code: int = 200, **more: Any) -> HTMLResponse:
    """A whole page; `more` is cleaned of this machine's paths like every answer. inv[serve.no-paths]"""
    server: Server = request.app.state.server
    caller: Caller = request.scope["state"]["caller"]
    now = server.repo.env.clock.now()
    text = (
        _templates()
        .get_template(template)
        .render(
            title=title,
            pages=PAGES,
            here=request.url.path,
            csrf=caller.csrf,
            may={role: caller.may(role) for role in ("viewer", "operator", "admin")},
            last_event=server.events.last,
            repository=server.repo.path.name,
            ago=lambda moment: ago_text(moment, now),
            **server.clean(more),
        )
    )
    return HTMLResponse(text, code)


def login_page(server: Server, problem: str | None = None) -> HTMLResponse:
    """The form that asks for a token. It says where it came from: without that a browser's POST has no Origin."""
    text = _templates().get_template("login.html").render(repository=server.repo.path.name, problem=problem)
    return HTMLResponse(text, 401 if problem else 200, {"Referrer-Policy": "same-origin"})


def wants_page(request: Request) -> bool:
    """Whether a person looks at the answer: somebody who is logged in and asks for HTML."""
    caller = request.scope.get("state", {}).get("caller")
    asked = "text/html" in request.headers.get("accept", "")
    return asked and caller is not None and not request.url.path.startswith(("/api/", "/hooks/"))


def error_page(request: Request, error: SwampError) -> HTMLResponse:
    """The error document as a page, with the same status."""
    code = error.code if isinstance(error, HttpError) else error.kind
    said = {"error": error.message, "hint": error.hint, "word": code}
    return page(request, "error.html", "Not here", STATUS.get(code, 500), **said)


def size_text(size: Any) -> str:
    """Bytes as people say them."""
    if size is None:
        return "?"
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def words_text(name: str) -> str:
    """The name of a field as people write it: `createOnly` is "create only"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def duration_text(milliseconds: Any) -> str:
    if milliseconds is None:
        return ""
    seconds = float(milliseconds) / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def ago_text(moment: str | None, now: dt.datetime) -> str:
    """How long ago a time of a document was, in words."""
    if not moment:
        return "never"
    seconds = (now - parse_rfc3339(moment)).total_seconds()
    ahead, seconds = seconds < -1, abs(seconds)
    for unit, length in _UNITS:
        if seconds >= length:
            count = int(seconds // length)
            words = f"{count} {unit}{'s' if count > 1 else ''}"
            return f"in {words}" if ahead else f"{words} ago"
    return "in a moment" if ahead else "just now"


def compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is not there: for links that keep their filters."""
    return {key: value for key, value in values.items() if value not in (None, "")}
