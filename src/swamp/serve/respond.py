"""What routes of the API share: the role they need, pages of lists, and answers without paths of this machine."""

from __future__ import annotations

import base64
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, create_model
from starlette.responses import Response

from swamp.errors import SwampError, UsageError
from swamp.repo.open import directory_of_bucket
from swamp.serve.tokens import Caller, Role

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before.")]

STATUS: Final = {
    "usage": 400,
    "not-found": 404,
    "object-missing": 404,
    "failed": 409,
    "condition-failed": 409,
    "corrupt": 500,
    "store": 502,
    "unavailable": 503,
    "outcome-unknown": 503,
    "access-denied": 502,
    "misconfigured": 500,
    "lock-timeout": 423,
    "interrupted": 503,
    "missing-tool": 501,
    "queue-full": 503,
    "unauthorized": 401,
    "forbidden": 403,
    "too-large": 413,
    "too-many-requests": 429,
    "timeout": 408,
    "headers-too-large": 431,
    "not-ready": 503,
    "method-not-allowed": 405,
}
RETRY_AFTER: Final = {"unavailable": 5, "outcome-unknown": 5, "lock-timeout": 5, "queue-full": 5, "not-ready": 2}


class HttpError(SwampError):
    """A request that is refused before any command runs."""

    def __init__(self, code: str, message: str, *, hint: str | None = None, retry_after: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.retry_after = retry_after


@dataclass(frozen=True)
class Clean:
    """Replaces this machine's directories in whatever is shown. inv[serve.no-paths]"""

    names: Mapping[str, str]
    pattern: re.Pattern[str]

    @classmethod
    def of(cls, repo: Repo) -> Clean:
        datastore = repo.datastore
        places: list[tuple[Path, str]] = [(repo.path, "<repository>")]
        if datastore.synced:
            places.append((datastore.cache.base, "<cache>"))
            bucket = directory_of_bucket(datastore.config)
            if bucket is not None:
                places.append((bucket, "<bucket>"))
        else:
            places.append((datastore.directory, "<datastore>"))
        places += [(repo.settings.home, "<home>"), (Path.home(), "<home>")]
        names: dict[str, str] = {}
        for place, name in places:
            for spelled in {str(place), str(place.resolve())}:
                if len(spelled) > 1:
                    names.setdefault(spelled, name)
        ordered = sorted(names, key=len, reverse=True)
        return cls(names, re.compile("|".join(map(re.escape, ordered)) or "(?!)"))

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.pattern.sub(lambda found: self.names[found.group()], value) if "/" in value else value
        if isinstance(value, Mapping):
            return {key: self(inner) for key, inner in value.items()}
        if isinstance(value, tuple):
            return tuple(self(inner) for inner in value)
        if isinstance(value, list):
            return [self(inner) for inner in value]
        return value


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Response(body, status, dict(headers or {}), "application/json")


def error_response(error: SwampError, clean: Clean | None = None) -> Response:
    """The error document of `--json`, with the HTTP status that matches its code."""
    code = error.code if isinstance(error, HttpError) else error.kind
    document = {**error.to_json(), "code": code}
    status = STATUS.get(code, 500)
    after = error.retry_after if isinstance(error, HttpError) else None
    after = after if after is not None else RETRY_AFTER.get(code)
    headers = {"Retry-After": str(after)} if after is not None else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(clean(document) if clean else document, status, headers)


class ApiRouter(APIRouter):
    """Routes that return a document, or a document and a status: it is sent without paths of this machine.

    A route that returns documents has the parameter `server`; one that is async or returns a Response sends it itself.
    """

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        @wraps(endpoint)
        def answered(**given: Any) -> Response:
            made = endpoint(**given)
            if isinstance(made, Response):
                return made
            document, status = made if isinstance(made, tuple) else (made, options.get("status_code") or 200)
            return json_response(given["server"].clean(document), status)

        shown = endpoint if inspect.iscoroutinefunction(endpoint) else answered
        super().add_api_route(path, shown, **{**options, "response_model": None})


def no_token() -> HttpError:
    return HttpError("unauthorized", "a valid token is needed", hint="`swamp serve token create --role viewer`")


def needs(role: Role) -> Any:
    """A dependency: the caller, who has at least this role. Every route below /api has one. inv[serve.roles]"""

    def check(request: Request) -> Caller:
        caller: Caller | None = request.scope.get("state", {}).get("caller")
        if caller is None:
            raise no_token()
        if not caller.may(role):
            raise HttpError("forbidden", f"this needs the role {role}", hint=f"your token is of a {caller.role}")
        return caller

    return Depends(check)


# -- how the generated OpenAPI describes the documents, which are built by the functions that the command line prints


class Document(BaseModel):
    """More keys may follow in a later version."""

    model_config = ConfigDict(extra="allow")


def document(name: str, base: type[BaseModel] = Document, /, **keys: Any) -> type[BaseModel]:
    """A document by its keys and their types; `(type, None)` is one that may be missing."""
    fields: dict[str, Any] = {key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in keys.items()}
    return create_model(name, __base__=base, **fields)


def many(item: type[BaseModel]) -> Any:
    """The type of a list of such documents."""
    return list[item]  # type: ignore[valid-type]


def listing(item: type[BaseModel], **keys: Any) -> type[BaseModel]:
    """A part of a list of such documents; `next` is where the following page begins."""
    return document(f"{item.__name__}Page", items=many(item), next=(str | None, None), **keys)


_ERROR: Final = document("Error", error=str, code=str, hint=(str | None, None), details=(dict[str, Any] | None, None))
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"model": _ERROR, "description": "No valid token."},
    403: {"model": _ERROR, "description": "Another role is needed, or the request comes from another site."},
    "default": {"model": _ERROR, "description": "The error document of `--json`."},
}


def ok(model: type[BaseModel], status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers, for the generated description."""
    return {status: {"model": model}, **_REFUSALS}


def for_role(role: Role, model: type[BaseModel], status: int = 200) -> dict[str, Any]:
    """Who may use a route, and what it answers, as options of its decorator."""
    return {"dependencies": [needs(role)], "responses": ok(model, status), "status_code": status}


def page_of(
    items: Sequence[T],
    key: Callable[[T], str],
    cursor: str | None,
    limit: int,
    shown: Callable[[T], Any] = lambda item: item,
) -> dict[str, Any]:
    """A part of an ordered list as a document, with the cursor behind it; stays right while the list grows."""
    begin = 0
    if cursor is not None:
        last = decode_cursor(cursor)
        at = next((n for n, item in enumerate(items) if key(item) == last), None)
        later = (n for n, item in enumerate(items) if key(item) > last)
        begin = at + 1 if at is not None else next(later, len(items))
    part = list(items[begin : begin + limit])
    more = begin + limit < len(items)
    following = encode_cursor(key(part[-1])) if part and more else None
    return {"items": [shown(item) for item in part], "total": len(items), "next": following}


def encode_cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError as error:
        raise UsageError("this is not a place in a list", hint="use `next` of the page before") from error
