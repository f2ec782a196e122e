"""`/api/v1/workflows` and `/api/v1/runs`: start runs, look at them, decide about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Header, Query, Request
from starlette.responses import Response

from swamp.data.run_record import RUN_STATUSES
from swamp.env import rfc3339
from swamp.errors import NotFound, UsageError
from swamp.repo.data import parse_since
from swamp.serve import documents as doc
from swamp.serve.ask import Cursor, Limit, needs, page_of, server_of
from swamp.serve.dispatch import driving, trigger_of
from swamp.serve.queue import QueuedDelivery
from swamp.serve.respond import json_response
from swamp.serve.state import Server
from swamp.workflows.decide import as_seen, cancel_run, decide
from swamp.workflows.state import decided_document, history_document, workflow_item

router = APIRouter(prefix="/api/v1", tags=["runs"])
Key = Annotated[str | None, Header(max_length=200, description="The same key again finds the same run.")]
Inputs = Annotated[dict[str, Any] | None, Body()]


@router.get("/workflows", dependencies=[needs("viewer")], responses=doc.ok(doc.Workflows))
def workflows(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """All workflows; those that cannot be read are in `broken`."""
    server = server_of(request)
    with driving(server.repo) as driver:
        found = [workflow_item(one) for one in driver.files.all()]
        broken = [{"file": file, "error": error} for file, error in driver.files.broken()]
    part, following = page_of(found, lambda item: str(item["name"]), cursor, limit)
    document = {"items": part, "total": len(found), "next": following, **({"broken": broken} if broken else {})}
    return json_response(server.clean(document))


@router.get("/workflows/{name}", dependencies=[needs("viewer")], responses=doc.ok(doc.Workflow))
def workflow(request: Request, name: str) -> Response:
    """One workflow."""
    server = server_of(request)
    with driving(server.repo) as driver:
        found = driver.files.find(name)
    return json_response(server.clean({**found.workflow.to_document(), "file": found.file}))


@router.post(
    "/workflows/{name}/runs", dependencies=[needs("operator")], status_code=202, responses=doc.ok(doc.Queued, 202)
)
def start_run(
    request: Request,
    name: str,
    inputs: Inputs = None,
    tags: Annotated[dict[str, str] | None, Body()] = None,
    idempotency_key: Key = None,
) -> Response:
    """Puts a run into the queue: it is on disk when this is answered."""
    server = server_of(request)
    made = server.enqueue(name, inputs or {}, idempotency_key, tags or {})
    return json_response(queued_document(made), 202)


@router.post("/runs", dependencies=[needs("operator")], status_code=202, responses=doc.ok(doc.Queued, 202))
def start_named_run(
    request: Request,
    workflow: Annotated[str, Body()],
    inputs: Inputs = None,
    tags: Annotated[dict[str, str] | None, Body()] = None,
    idempotency_key: Key = None,
) -> Response:
    """The same, with the workflow's name in the body."""
    return start_run(request, workflow, inputs, tags, idempotency_key)


def queued_document(made: QueuedDelivery) -> dict[str, Any]:
    """A run that has no record yet."""
    return {
        "id": made.run_id,
        "workflow": made.workflow,
        "workflowName": made.workflow,
        "status": "queued" if made.status in ("queued", "started") else made.status,
        "trigger": trigger_of(made),
        **({"error": made.error} if made.error else {}),
    }


@router.get("/runs", dependencies=[needs("viewer")], responses=doc.ok(doc.Runs))
def runs(
    request: Request,
    workflow: str | None = None,
    status: str | None = None,
    since: str | None = None,
    q: Annotated[str, Query(description="A part of a name, an id or a tag.")] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """Runs, newest first."""
    server = server_of(request)
    if status is not None and status not in RUN_STATUSES:
        raise UsageError(f"`{status}` is not a status", hint=f"there is {', '.join(RUN_STATUSES)}")
    moment = None if since is None else rfc3339(parse_since(since, server.repo.env.clock.now()))
    server.repo.freshen()
    with driving(server.repo) as driver:
        found = server.index.page(
            driver, workflow=workflow, status=status, since=moment, query=q, cursor=cursor, limit=limit
        )
    return json_response(server.clean(found))


@router.get("/runs/{run}", dependencies=[needs("viewer")], responses=doc.ok(doc.Run))
def run(request: Request, run: str) -> Response:
    """One run: its jobs, steps, times and what they wrote."""
    server = server_of(request)
    return json_response(server.clean(run_document_of(server, run)))


def run_document_of(server: Server, run_id: str) -> dict[str, Any]:
    """A run by its record, or by its place in the queue. Raises NotFound."""
    server.repo.freshen()
    with driving(server.repo) as driver:
        try:
            found = as_seen(driver, driver.find(run_id))
        except NotFound:
            waiting = server.queue.of_run(run_id)
            if waiting is None:
                raise
            return queued_document(waiting)
    return {**history_document(found), "workflow": found.workflow_name}


@router.get("/runs/{run}/logs", dependencies=[needs("viewer")], responses=doc.ok(doc.Logs))
def logs(request: Request, run: str) -> Response:
    """What the steps of a run said."""
    server = server_of(request)
    with driving(server.repo) as driver:
        try:
            text = driver.logs.text(driver.find(run))
        except NotFound:
            if server.queue.of_run(run) is None:
                raise
            text = ""
    return json_response(server.clean({"id": run, "lines": text.splitlines()}))


def _decided(
    request: Request, run_id: str, decision: Literal["approved", "rejected"], step: str | None, reason: str | None
) -> Response:
    server = server_of(request)
    with driving(server.repo) as driver:
        found = decide(driver, run_id, decision, step=step, reason=reason)
    document = decided_document(run_id, decision, found)
    if found.left_waiting:
        server.enqueue_resume(run_id, found.run.workflow_name, None, {})
    return json_response(server.clean({**document, "resumed": found.left_waiting}))


@router.post("/runs/{run}/approve", dependencies=[needs("operator")], responses=doc.ok(doc.Decided))
def approve(
    request: Request,
    run: str,
    step: Annotated[str | None, Body()] = None,
    reason: Annotated[str | None, Body(max_length=2000)] = None,
) -> Response:
    """Answers a run that waits for a person: yes. It goes on by itself."""
    return _decided(request, run, "approved", step, reason)


@router.post("/runs/{run}/reject", dependencies=[needs("operator")], responses=doc.ok(doc.Decided))
def reject(
    request: Request,
    run: str,
    step: Annotated[str | None, Body()] = None,
    reason: Annotated[str | None, Body(max_length=2000)] = None,
) -> Response:
    """Answers a run that waits for a person: no."""
    return _decided(request, run, "rejected", step, reason)


@router.post("/runs/{run}/cancel", dependencies=[needs("operator")], responses=doc.ok(doc.Stopped))
def cancel(request: Request, run: str) -> Response:
    """Stops a run, here or elsewhere: its processes are ended, what it wrote stays."""
    server = server_of(request)
    if server.queue.cancel_waiting(run):
        return json_response({"id": run, "status": "cancelled"})
    with driving(server.repo) as driver:
        if not driver.find_anywhere(run).over and server.dispatcher.spawner.signal(run):
            return json_response({"id": run, "status": "cancelling"})
        done = cancel_run(driver, run)
    return json_response({"id": run, "status": done.status})


@router.post("/runs/{run}/resume", dependencies=[needs("operator")], status_code=202, responses=doc.ok(doc.Queued, 202))
def resume(
    request: Request,
    run: str,
    from_step: Annotated[str | None, Body(alias="from")] = None,
    inputs: Inputs = None,
) -> Response:
    """Continues a run that was suspended, failed, cancelled or killed."""
    from swamp.workflows.resume import must_be_resumable

    server = server_of(request)
    with driving(server.repo) as driver:
        known = as_seen(driver, driver.find_anywhere(run))
    if known.status == "running":
        raise UsageError(f"run {run} is still running", hint="wait for it, or cancel it")
    must_be_resumable(known, from_step)
    made = server.enqueue_resume(run, known.workflow_name, from_step, inputs or {})
    return json_response(queued_document(made), 202)


@router.get("/schedules", dependencies=[needs("viewer")], tags=["events"], responses=doc.ok(doc.Schedules))
def schedules(request: Request) -> Response:
    """Every workflow that runs by itself, with its last and its next tick."""
    server = server_of(request)
    found = server.scheduler.items()
    return json_response({"items": found, "total": len(found), "active": server.config.schedule})


@router.get("/deliveries", dependencies=[needs("viewer")], tags=["events"], responses=doc.ok(doc.Deliveries))
def deliveries(
    request: Request, kind: str | None = None, status: str | None = None, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """What was accepted and what became of it, newest first."""
    server = server_of(request)
    before = int(cursor) if cursor is not None and cursor.isdigit() else None
    if cursor is not None and before is None:
        raise UsageError("this is not a place in a list", hint="use `next` of the page before")
    found = server.queue.list(kinds=(kind,) if kind else (), status=status, before=before, limit=limit + 1)
    following = str(found[limit - 1].n) if len(found) > limit else None
    items = [one.to_json() for one in found[:limit]]
    return json_response(server.clean({"items": items, "next": following}))


@router.get(
    "/deliveries/{delivery:path}", dependencies=[needs("operator")], tags=["events"], responses=doc.ok(doc.Delivery)
)
def delivery(request: Request, delivery: str) -> Response:
    """One delivery with the event that was sent."""
    server = server_of(request)
    return json_response(server.clean(server.queue.by_id(delivery).to_json(whole=True)))


@router.post(
    "/deliveries/replay",
    dependencies=[needs("operator")],
    tags=["events"],
    status_code=202,
    responses=doc.ok(doc.Delivery, 202),
)
def replay(request: Request, id: Annotated[str, Body(embed=True)]) -> Response:  # noqa: A002
    """The same event once more, as a new delivery with a run of its own."""
    server = server_of(request)
    made = server.queue.replay(id, server.repo.id)
    server.told(made)
    server.dispatcher.wake()
    return json_response(server.clean(made.to_json(whole=True)), 202)
