"""What routes share: the server, the role that a route needs, pages of lists."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Query, Request

from swamp.errors import UsageError
from swamp.serve.respond import HttpError
from swamp.serve.tokens import Caller, Role

if TYPE_CHECKING:
    from swamp.serve.state import Server

T = TypeVar("T")
Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many.")]
Cursor = Annotated[str | None, Query(max_length=500, description="`next` of the page before.")]


def server_of(request: Request) -> Server:
    found: Server = request.app.state.server
    return found


def needs(role: Role) -> Any:
    """A dependency: the caller, who has at least this role. Every route below /api has one. inv[serve.roles]"""

    def check(request: Request) -> Caller:
        caller: Caller | None = request.scope.get("state", {}).get("caller")
        if caller is None:
            raise HttpError("unauthorized", "a valid token is needed", hint="`swamp serve token create --role viewer`")
        if not caller.may(role):
            raise HttpError("forbidden", f"this needs the role {role}", hint=f"your token is of a {caller.role}")
        return caller

    check.role = role  # type: ignore[attr-defined]
    return Depends(check)


def page_of(items: Sequence[T], key: Callable[[T], str], cursor: str | None, limit: int) -> tuple[list[T], str | None]:
    """A part of an ordered list, and the cursor behind it; stays right while the list grows."""
    begin = 0
    if cursor is not None:
        last = decode_cursor(cursor)
        begin = next((n + 1 for n, item in enumerate(items) if key(item) == last), None) or next(
            (n for n, item in enumerate(items) if key(item) > last), len(items)
        )
    part = list(items[begin : begin + limit])
    more = begin + limit < len(items)
    return part, encode_cursor(key(part[-1])) if part and more else None


def encode_cursor(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str) -> str:
    try:
        return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    except ValueError as error:
        raise UsageError("this is not a place in a list", hint="use `next` of the page before") from error
