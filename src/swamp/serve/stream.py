"""`/api/v1/events`: what happens, as it happens. A reader that comes back with `Last-Event-ID` has missed nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from swamp.errors import UsageError
from swamp.serve.ask import needs, server_of
from swamp.serve.events import KINDS, Event, OpenStream
from swamp.serve.state import Server

router = APIRouter(prefix="/api/v1", tags=["events"])
BEAT_SECONDS: Final = 15.0
_TYPE: Final = "text/event-stream"


@router.get("/events", dependencies=[needs("viewer")], responses={200: {"content": {_TYPE: {}}}})
async def events(
    request: Request,
    run: Annotated[str | None, Query(description="Only of this run.")] = None,
    kinds: Annotated[str | None, Query(description=f"Some of {', '.join(KINDS)}, with commas.")] = None,
    after: Annotated[int | None, Query(ge=0, description="As Last-Event-ID, for who cannot set headers.")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """A server-sent stream. `reset` says that events were missed which are kept no longer: load again."""
    server = server_of(request)
    wanted = frozenset(kinds.split(",")) if kinds else frozenset(KINDS)
    if not wanted <= frozenset(KINDS):
        raise UsageError(f"unknown kinds of events: {kinds}", hint=f"there is {', '.join(KINDS)}")
    begin = after
    if last_event_id is not None:
        begin = int(last_event_id) if last_event_id.isdigit() else None
    told = _told(server, begin, run, wanted)
    return StreamingResponse(told, media_type=_TYPE, headers={"X-Accel-Buffering": "no"})


async def _told(server: Server, begin: int | None, run: str | None, kinds: frozenset[str]) -> AsyncIterator[bytes]:
    place = server.events.last if begin is None else begin
    yield f": swamp\nretry: 2000\nid: {place}\n\n".encode()
    if begin is not None and not await run_in_threadpool(server.events.has_all_after, begin):
        place = server.events.last
        yield Event(place, "", "reset", None, f'{{"after": {place}}}').encode()
    reader = OpenStream(place, run, kinds)
    while not server.draining:
        for event in await _after(server, reader.place):
            reader.place = event.id
            if reader.wants(event):
                yield event.encode()
        if reader.place >= server.events.last and not await server.events.news(reader, BEAT_SECONDS):
            yield b": beat\n\n"


async def _after(server: Server, place: int) -> list[Event]:
    """From memory without leaving the loop; from the file, for a reader far behind, in a thread."""
    near: Any = server.events.near(place)
    return near if near is not None else await run_in_threadpool(server.events.after, place)
