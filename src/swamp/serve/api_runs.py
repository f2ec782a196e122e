"""`/api/v1/workflows` and `/api/v1/runs`: start runs, look at them, decide about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body, Header, Query

from swamp.data.run_record import RUN_STATUSES
from swamp.env import rfc3339
from swamp.errors import NotFound, UsageError
from swamp.repo.data import parse_since
from swamp.serve import documents as doc
from swamp.serve.dispatch import driving, trigger_of
from swamp.serve.queue import QueuedDelivery
from swamp.serve.respond import ApiRouter, Cursor, Limit, for_role, page_of
from swamp.serve.state import Asked, Server
from swamp.workflows.decide import as_seen, cancel_run, decide
from swamp.workflows.state import decided_document, history_document, must_be_resumable, workflow_item

router = ApiRouter(prefix="/api/v1", tags=["runs"])
Key = Annotated[str | None, Header(max_length=200, description="The same key again finds the same run.")]
Inputs = Annotated[dict[str, Any] | None, Body()]
Tags = Annotated[dict[str, str] | None, Body()]
StepName = Annotated[str | None, Body()]
Reason = Annotated[str | None, Body(max_length=2000)]


@router.get("/workflows", **for_role("viewer", doc.CountedPage[doc.WorkflowItem]))
def workflows(server: Asked, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """All workflows; those that cannot be read are in `broken`."""
    with driving(server.repo) as driver:
        found = [workflow_item(one) for one in driver.files.all()]
        broken = [{"file": file, "error": error} for file, error in driver.files.broken()]
    part, following = page_of(found, lambda item: str(item["name"]), cursor, limit)
    return {"items": part, "total": len(found), "next": following, **({"broken": broken} if broken else {})}


@router.get("/workflows/{name}", **for_role("viewer", doc.Workflow))
def workflow(server: Asked, name: str) -> Any:
    """One workflow."""
    with driving(server.repo) as driver:
        found = driver.files.find(name)
    return {**found.workflow.to_document(), "file": found.file}


@router.post("/workflows/{name}/runs", **for_role("operator", doc.Queued, 202))
def start_run(
    server: Asked,
    name: str,
    inputs: Inputs = None,
    tags: Tags = None,
    idempotency_key: Key = None,
) -> Any:
    """Puts a run into the queue: it is on disk when this is answered."""
    made = server.enqueue(name, inputs or {}, idempotency_key, tags or {})
    return queued_document(made)


@router.post("/runs", **for_role("operator", doc.Queued, 202))
def start_named_run(
    server: Asked,
    workflow: Annotated[str, Body()],
    inputs: Inputs = None,
    tags: Tags = None,
    idempotency_key: Key = None,
) -> Any:
    """The same, with the workflow's name in the body."""
    return start_run(server, workflow, inputs, tags, idempotency_key)


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


@router.get("/runs", **for_role("viewer", doc.Page[doc.RunItem]))
def runs(
    server: Asked,
    workflow: str | None = None,
    status: str | None = None,
    since: str | None = None,
    q: Annotated[str, Query(description="A part of a name, an id or a tag.")] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Any:
    """Runs, newest first."""
    if status is not None and status not in RUN_STATUSES:
        raise UsageError(f"`{status}` is not a status", hint=f"there is {', '.join(RUN_STATUSES)}")
    moment = None if since is None else rfc3339(parse_since(since, server.repo.env.clock.now()))
    server.repo.freshen()
    with driving(server.repo) as driver:
        return server.index.page(
            driver, workflow=workflow, status=status, since=moment, query=q, cursor=cursor, limit=limit
        )


@router.get("/runs/{run}", **for_role("viewer", doc.Run))
def run(server: Asked, run: str) -> Any:
    """One run: its jobs, steps, times and what they wrote."""
    return run_document_of(server, run)


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


@router.get("/runs/{run}/logs", **for_role("viewer", doc.Logs))
def logs(server: Asked, run: str) -> Any:
    """What the steps of a run said."""
    with driving(server.repo) as driver:
        try:
            text = driver.logs.text(driver.find(run))
        except NotFound:
            if server.queue.of_run(run) is None:
                raise
            text = ""
    return {"id": run, "lines": text.splitlines()}


def _decided(
    server: Asked, run_id: str, decision: Literal["approved", "rejected"], step: str | None, reason: str | None
) -> Any:
    with driving(server.repo) as driver:
        found = decide(driver, run_id, decision, step=step, reason=reason)
    document = decided_document(run_id, decision, found)
    if found.left_waiting:
        server.enqueue_resume(run_id, found.run.workflow_name, None, {})
    return {**document, "resumed": found.left_waiting}


@router.post("/runs/{run}/approve", **for_role("operator", doc.Decided))
def approve(server: Asked, run: str, step: StepName = None, reason: Reason = None) -> Any:
    """Answers a run that waits for a person: yes. It goes on by itself."""
    return _decided(server, run, "approved", step, reason)


@router.post("/runs/{run}/reject", **for_role("operator", doc.Decided))
def reject(server: Asked, run: str, step: StepName = None, reason: Reason = None) -> Any:
    """Answers a run that waits for a person: no."""
    return _decided(server, run, "rejected", step, reason)


@router.post("/runs/{run}/cancel", **for_role("operator", doc.Stopped))
def cancel(server: Asked, run: str) -> Any:
    """Stops a run, here or elsewhere: its processes are ended, what it wrote stays."""
    if server.queue.cancel_waiting(run):
        return {"id": run, "status": "cancelled"}
    with driving(server.repo) as driver:
        if not driver.find_anywhere(run).over and server.dispatcher.spawner.signal(run):
            return {"id": run, "status": "cancelling"}
        done = cancel_run(driver, run)
    return {"id": run, "status": done.status}


@router.post("/runs/{run}/resume", **for_role("operator", doc.Queued, 202))
def resume(
    server: Asked,
    run: str,
    from_step: Annotated[str | None, Body(alias="from")] = None,
    inputs: Inputs = None,
) -> Any:
    """Continues a run that was suspended, failed, cancelled or killed."""
    with driving(server.repo) as driver:
        known = as_seen(driver, driver.find_anywhere(run))
    if known.status == "running":
        raise UsageError(f"run {run} is still running", hint="wait for it, or cancel it")
    must_be_resumable(known, from_step)
    made = server.enqueue_resume(run, known.workflow_name, from_step, inputs or {})
    return queued_document(made)
