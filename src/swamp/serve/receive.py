"""Takes webhooks in: signed, within bounds, on disk, and only then answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from swamp.errors import CorruptData, Failed
from swamp.serve import documents as doc
from swamp.serve.ask import server_of
from swamp.serve.queue import QueueFull, run_id_of
from swamp.serve.respond import HttpError, json_response
from swamp.serve.sign import NotSigned, SignedRequest, verify
from swamp.serve.state import Server

router = APIRouter(tags=["webhooks"])


@router.post(
    "/hooks/{route:path}",
    status_code=202,
    responses={**doc.ok(doc.Received, 202), 200: {"model": doc.Received, "description": "Seen before."}},
)
async def receive(request: Request, route: str) -> Response:
    """202: it is in the queue, on disk, and will run once. 200: this delivery id was accepted before."""
    server = server_of(request)
    hook = server.hooks.get(f"/hooks/{route}")
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
    if hook.scheme == "slack" and _challenge(sent):
        return json_response({"challenge": _challenge(sent)})
    return await run_in_threadpool(_accepted, server, hook.route, hook.workflow, sent)


def _challenge(sent: SignedRequest) -> Any:
    """Slack asks once whether somebody is there."""
    body = sent.body
    return body.get("challenge") if isinstance(body, Mapping) and body.get("type") == "url_verification" else None


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
