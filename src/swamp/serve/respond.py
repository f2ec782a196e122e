"""What leaves the server: documents without paths of this machine, errors with the status that fits them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from swamp.errors import SwampError
from swamp.repo.open import directory_of_bucket

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

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

    names: tuple[tuple[str, str], ...]
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
        return cls.making(places)

    @classmethod
    def making(cls, places: list[tuple[Path, str]]) -> Clean:
        names: dict[str, str] = {}
        for place, name in places:
            for spelled in {str(place), str(place.resolve())}:
                if len(spelled) > 1:
                    names.setdefault(spelled, name)
        ordered = sorted(names, key=len, reverse=True)
        return cls(tuple(names.items()), re.compile("|".join(map(re.escape, ordered)) or "(?!)"))

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self(inner) for key, inner in value.items()}
        if isinstance(value, tuple):
            return tuple(self(inner) for inner in value)
        if isinstance(value, list):
            return [self(inner) for inner in value]
        return value

    def text(self, text: str) -> str:
        return self.pattern.sub(lambda found: dict(self.names)[found.group()], text) if "/" in text else text


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(document, ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Response(body, status, dict(headers or {}), "application/json")


def error_response(error: SwampError, clean: Clean | None = None) -> Response:
    """The error document of `--json`, with the HTTP status that matches its code."""
    code = error.code if isinstance(error, HttpError) else error.kind
    document: dict[str, Any] = {"error": error.message, "code": code}
    if error.hint:
        document["hint"] = error.hint
    if error.details:
        document["details"] = error.details
    status = STATUS.get(code, 500)
    after = error.retry_after if isinstance(error, HttpError) else None
    after = after if after is not None else RETRY_AFTER.get(code)
    headers = {"Retry-After": str(after)} if after is not None else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(clean(document) if clean else document, status, headers)
