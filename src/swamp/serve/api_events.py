"""`/api/v1/events`, `/schedules` and `/deliveries`: what happens, what is due, and what was accepted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import Body, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from swamp.errors import UsageError
from swamp.serve.events import KINDS, Event, OpenStream
from swamp.serve.respond import ApiRouter, Cursor, Limit, document, for_role, listing, needs
from swamp.serve.state import Asked, Server

router = ApiRouter(prefix="/api/v1", tags=["events"])
BEAT_SECONDS: Final = 15.0
_TYPE: Final = "text/event-stream"
ScheduleItem = document(
    "ScheduleItem", workflow=str, schedule=str, timezone=str, overlap=str, catchup=str, next=str | None, last=str | None
)
Delivery = document(
    "Delivery", deliveryId=str, kind=str, route=str, workflow=str, runId=str, status=str, attempts=int, receivedAt=str,
    finishedAt=str | None, error=(str | None, None),
)  # fmt: skip


@router.get("/schedules", **for_role("viewer", listing(ScheduleItem, total=int)))
def schedules(server: Asked) -> Any:
    """Every workflow that runs by itself, with its last and its next tick."""
    found = server.scheduler.items()
    return {"items": found, "total": len(found), "active": server.config.schedule}


@router.get("/deliveries", **for_role("viewer", listing(Delivery)))
def deliveries(
    server: Asked, kind: str | None = None, status: str | None = None, limit: Limit = 100, cursor: Cursor = None
) -> Any:
    """What was accepted and what became of it, newest first."""
    if cursor is not None and not cursor.isdigit():
        raise UsageError("this is not a place in a list", hint="use `next` of the page before")
    before = None if cursor is None else int(cursor)
    found = server.queue.list(kinds=(kind,) if kind else (), status=status, before=before, limit=limit + 1)
    following = str(found[limit - 1].n) if len(found) > limit else None
    return {"items": [one.to_json() for one in found[:limit]], "next": following}


@router.get("/deliveries/{delivery:path}", **for_role("operator", Delivery))
def delivery(server: Asked, delivery: str) -> Any:
    """One delivery with the event that was sent."""
    return server.queue.by_id(delivery).to_json(whole=True)


@router.post("/deliveries/replay", **for_role("operator", Delivery, 202))
def replay(server: Asked, id: Annotated[str, Body(embed=True)]) -> Any:  # noqa: A002
    """The same event once more, as a new delivery with a run of its own."""
    made = server.queue.replay(id, server.repo.id)
    server.told(made)
    server.dispatcher.wake()
    return made.to_json(whole=True)


@router.get("/events", dependencies=[needs("viewer")], responses={200: {"content": {_TYPE: {}}}})
async def events(
    server: Asked,
    run: Annotated[str | None, Query(description="Only of this run.")] = None,
    kinds: Annotated[str | None, Query(description=f"Some of {', '.join(KINDS)}, with commas.")] = None,
    after: Annotated[int | None, Query(ge=0, description="As Last-Event-ID, for who cannot set headers.")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """A server-sent stream. `reset` says that events were missed which are kept no longer: load again."""
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
        found = server.events.near(reader.place)
        if found is None:  # a reader far behind: from the file, in a thread
            found = await run_in_threadpool(server.events.after, reader.place)
        for event in found:
            reader.place = event.id
            if reader.wants(event):
                yield event.encode()
        if reader.place >= server.events.last and not await server.events.news(reader, BEAT_SECONDS):
            yield b": beat\n\n"
