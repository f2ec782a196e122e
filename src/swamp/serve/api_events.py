"""What comes in and what is told of it: `/hooks`, `/api/v1/deliveries`, `/schedules` and `/events`.

A webhook is signed over its raw bytes, within bounds, on disk, and only then answered.

| scheme  | signature                             | signed               | delivery id |
|---------|---------------------------------------|----------------------|-------------|
| github  | `x-hub-signature-256: sha256=<hex>`   | body                 | `x-github-delivery` |
| gitlab  | `x-gitlab-token: <secret>`            | nothing              | `x-gitlab-event-uuid`, `idempotency-key` |
| linear  | `linear-signature: <hex>`             | body with its time   | `linear-delivery` |
| stripe  | `stripe-signature: t=<s>,v1=<hex>`    | `<s>.` body          | `id` in the body |
| slack   | `x-slack-signature: v0=<hex>`         | `v0:<s>:` body       | `event_id` in the body |
| generic | `x-signature-256`, with `x-timestamp` | body, or `<s>.` body | `x-delivery-id`, `idempotency-key` |
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs

from fastapi import Body, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from swamp.errors import CorruptData, Failed, UsageError
from swamp.serve.events import KINDS, Event, OpenStream
from swamp.serve.queue import QueueFull, run_id_of
from swamp.serve.respond import (
    ApiRouter,
    Cursor,
    HttpError,
    Limit,
    document,
    for_role,
    json_response,
    listing,
    needs,
    ok,
)
from swamp.serve.state import Asked, Server

hooks_router = ApiRouter(tags=["webhooks"])
router = ApiRouter(prefix="/api/v1", tags=["events"])
WINDOW_S: Final = 300.0
LONGEST_ID: Final = 200
_NEVER_KEPT: Final = ("authorization", "cookie", "proxy-authorization", "x-gitlab-token")
_SIGNATURES: Final = ("x-hub-signature", "x-hub-signature-256", "linear-signature", "stripe-signature",
                      "x-slack-signature", "x-signature-256")  # fmt: skip
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
    return server.queue.page(cursor, limit, kinds=(kind,) if kind else (), status=status)


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


# -- webhooks

Received = document("Received", status=Literal["queued", "duplicate"], deliveryId=str, runId=(str | None, None))


@hooks_router.post(
    "/hooks/{route:path}",
    status_code=202,
    responses={**ok(Received, 202), 200: {"model": Received, "description": "Seen before."}},
)
async def receive(request: Request, server: Asked, route: str) -> Response:
    """202: it is in the queue, on disk, and will run once. 200: this delivery id was accepted before."""
    hook = server.config.hooks.get(f"/hooks/{route}")
    if hook is None:
        raise HttpError("not-found", "there is no such webhook")
    if server.draining:
        raise HttpError("not-ready", "the server is stopping", retry_after=5)
    raw = await request.body()
    headers = {name.lower(): value for name, value in request.headers.items()}
    now = server.repo.env.clock.now().timestamp()
    try:
        sent = verify(hook.scheme, server.secrets[hook.route], headers, raw, now)
    except NotSigned:
        request.scope["state"]["refused"]()
        raise HttpError("unauthorized", "the signature is not valid") from None
    if hook.scheme == "slack" and isinstance(sent.body, Mapping) and sent.body.get("type") == "url_verification":
        return json_response({"challenge": sent.body.get("challenge")})  # Slack asks once whether somebody is there
    return await run_in_threadpool(_accepted, server, hook.route, hook.workflow, sent)


def _accepted(server: Server, route: str, workflow: str, sent: SignedRequest) -> Response:
    """inv[serve.accepted]: the row is committed and synced to disk before anybody reads 202."""
    event = {"body": sent.body, "headers": dict(sent.headers), "route": route}
    run_id = run_id_of(server.repo.id, "webhook", route, sent.id)
    try:
        made, new = server.queue.accept("webhook", route, sent.id, workflow, run_id, event)
    except QueueFull:
        raise
    except (Failed, CorruptData) as error:
        raise HttpError("not-ready", "it could not be written down: send it again", retry_after=5) from error
    if not new:
        return json_response({"status": "duplicate", "deliveryId": made.id, "runId": made.run_id})
    server.dispatcher.wake()
    server.told(made)
    return json_response({"status": "queued", "deliveryId": made.id, "runId": made.run_id}, 202)


@dataclass(frozen=True)
class SignedRequest:
    """A request that was proven to come from who knows the secret."""

    id: str
    body: Any
    headers: Mapping[str, str]


class NotSigned(Exception):
    """The one answer to whatever is wrong with a signature."""


def verify(scheme: str, secret: bytes, headers: Mapping[str, str], raw: bytes, now: float) -> SignedRequest:
    """Raises NotSigned; nobody learns whether header, time or signature was wrong. inv[serve.signed]"""
    body = _parsed(headers, raw) if scheme in ("linear",) else None
    signed, given, at = _signed(scheme, headers, raw, body)
    expected = secret if scheme == "gitlab" else hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()
    fits = [hmac.compare_digest(expected, one.encode("utf-8", "replace")) for one in given or [""]]
    if not any(fits):
        raise NotSigned
    if at is not None and abs(now - at) > WINDOW_S:
        raise NotSigned
    body = _parsed(headers, raw)
    kept = {k: v for k, v in headers.items() if k not in _NEVER_KEPT and k not in _SIGNATURES}
    return SignedRequest(_identity(scheme, headers, body, raw, at if at is not None else now), body, kept)


def _signed(scheme: str, headers: Mapping[str, str], raw: bytes, body: Any) -> tuple[bytes, list[str], float | None]:
    """What was signed, the signatures given, and the time it was signed at."""
    match scheme:
        case "github":
            return raw, _after("sha256=", headers.get("x-hub-signature-256")), None
        case "gitlab":
            return b"", [headers.get("x-gitlab-token", "")], None
        case "linear":
            stamp = body.get("webhookTimestamp") if isinstance(body, Mapping) else None
            return raw, [headers.get("linear-signature", "")], _time(stamp, 1000)
        case "stripe":
            words = [word.strip().partition("=") for word in headers.get("stripe-signature", "").split(",")]
            stamp = next((value for key, _, value in words if key == "t"), "")
            return f"{stamp}.".encode() + raw, [value for key, _, value in words if key == "v1"], _time(stamp)
        case "slack":
            stamp = headers.get("x-slack-request-timestamp", "")
            return f"v0:{stamp}:".encode() + raw, _after("v0=", headers.get("x-slack-signature")), _time(stamp)
    stamp = headers.get("x-timestamp")
    signed = raw if stamp is None else f"{stamp}.".encode() + raw
    return signed, _after("sha256=", headers.get("x-signature-256")), None if stamp is None else _time(stamp)


def _after(prefix: str, value: str | None) -> list[str]:
    return [value.removeprefix(prefix).lower()] if value and value.startswith(prefix) else []


def _time(stamp: Any, unit: int = 1) -> float:
    """Seconds; a time that is none lies outside of every window."""
    try:
        found = float(stamp) / unit
    except (TypeError, ValueError):
        return float("-inf")
    return found if found == found else float("-inf")


def _parsed(headers: Mapping[str, str], raw: bytes) -> Any:
    """JSON, whatever its type says, also inside of a form's `payload`; a form's fields; else text."""
    text = raw.decode("utf-8", "replace")
    found = _json(text)
    if found is not None or not headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return text if found is None else found
    fields = {key: values[-1] for key, values in parse_qs(text, max_num_fields=1000).items()}
    inner = _json(fields["payload"]) if "payload" in fields else None
    return fields if inner is None else inner


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _identity(scheme: str, headers: Mapping[str, str], body: Any, raw: bytes, at: float) -> str:
    """The provider's id, else a hash of body and time."""
    names = {
        "github": ("x-github-delivery",),
        "gitlab": ("x-gitlab-event-uuid", "idempotency-key"),
        "linear": ("linear-delivery",),
        "generic": ("x-delivery-id", "idempotency-key"),
    }.get(scheme, ())
    found = next((headers[name] for name in names if headers.get(name)), None)
    if found is None and isinstance(body, Mapping):
        found = {"stripe": body.get("id"), "slack": body.get("event_id")}.get(scheme)
    if isinstance(found, str) and found and len(found) <= LONGEST_ID and found.isprintable():
        return found
    return hashlib.sha256(f"{at:.3f}\n".encode() + raw).hexdigest()
