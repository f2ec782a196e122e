"""What can be run and what ran: `/api/v1/types`, `/models`, `/workflows` and `/runs`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import Body, Header, Query
from pydantic import Field

from swamp.data.run_record import RUN_STATUSES
from swamp.env import rfc3339
from swamp.errors import Failed, NotFound, UsageError
from swamp.models.declare import load_registry
from swamp.models.define import model_item, type_item
from swamp.repo.data import parse_since
from swamp.serve.dispatch import driving, trigger_of
from swamp.serve.queue import QueuedDelivery
from swamp.serve.respond import STATUS, ApiRouter, Cursor, Limit, document, for_role, listing, page_of
from swamp.serve.state import Asked, Server
from swamp.values import as_document
from swamp.workflows.decide import as_seen, cancel_run, decide
from swamp.workflows.state import history_document, must_be_resumable

router = ApiRouter(prefix="/api/v1", tags=["runs"])
models_router = ApiRouter(prefix="/api/v1", tags=["models"])
METHOD_SECONDS: Final = 3600.0
Key = Annotated[str | None, Header(max_length=200, description="The same key again finds the same run.")]
Inputs = Annotated[dict[str, Any] | None, Body()]
Tags = Annotated[dict[str, str] | None, Body()]
StepName = Annotated[str | None, Body()]
Reason = Annotated[str | None, Body(max_length=2000)]
WorkflowItem = document(
    "WorkflowItem", id=str, name=str, version=int | str, description=str | None, tags=dict[str, str], jobs=list[str],
    file=str,
)  # fmt: skip
Trigger = document(
    "Trigger", kind=Literal["webhook", "schedule", "api", "cli", "workflow"] | str, deliveryId=(str | None, None)
)
Queued = document("Queued", id=str, workflow=str, status=str, trigger=Trigger)
RunItem = document("RunItem", Queued, startedAt=str, completedAt=str | None, stepProgress=str)
Run = document(
    "Run",
    id=str,
    workflowName=str,
    status=str,
    trigger=Trigger,
    jobs=(list[dict[str, Any]], Field(default_factory=list)),
)
Decided = document(
    "Decided", id=str, workflowName=str, step=str, decision=str, status=str, resumable=bool, resumed=bool
)
Model = document("Model", name=str, type=str, id=str, file=str | None)
ModelItem = document("ModelItem", Model, tags=dict[str, str])
TypeItem = document("TypeItem", type=str, version=str, description=str, methods=list[str])
MethodRun = document(
    "MethodRun", modelName=str, modelType=str, methodName=str, status=str, outputId=str, durationMs=int | None,
    dataArtifacts=list[dict[str, Any]],
)  # fmt: skip


@router.get("/workflows", **for_role("viewer", listing(WorkflowItem, total=int)))
def workflows(server: Asked, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """All workflows; those that cannot be read are in `broken`."""
    with driving(server.repo) as driver:
        found = [one.to_json() for one in driver.files.all()]
        broken = list(driver.files.broken())
    return {**page_of(found, lambda item: str(item["name"]), cursor, limit), **({"broken": broken} if broken else {})}


@router.get(
    "/workflows/{name}",
    **for_role("viewer", document("Workflow", id=str, name=str, jobs=list[dict[str, Any]], file=str)),
)
def workflow(server: Asked, name: str) -> Any:
    """One workflow."""
    with driving(server.repo) as driver:
        found = driver.files.find(name)
    return {**found.workflow.to_document(), "file": found.file}


@router.post("/workflows/{name}/runs", **for_role("operator", Queued, 202))
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


@router.post("/runs", **for_role("operator", Queued, 202))
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


@router.get("/runs", **for_role("viewer", listing(RunItem)))
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


@router.get("/runs/{run}", **for_role("viewer", Run))
def run(server: Asked, run: str) -> Any:
    """One run: its jobs, steps, times and what they wrote."""
    return run_document_of(server, run)


def run_document_of(server: Server, run_id: str) -> dict[str, Any]:
    """A run by its record, or by its place in the queue. Raises NotFound."""
    server.repo.freshen()
    with driving(server.repo) as driver:
        try:
            found = as_seen(driver, driver.runs.get(run_id))
        except NotFound:
            waiting = server.queue.of_run(run_id)
            if waiting is None:
                raise
            return queued_document(waiting)
    waits = found.over and server.repo.changes.wait_here(found.path)
    return {**history_document(found, waits=waits), "workflow": found.workflow_name}


@router.get("/runs/{run}/logs", **for_role("viewer", document("Logs", id=str, lines=list[str])))
def logs(server: Asked, run: str) -> Any:
    """What the steps of a run said."""
    with driving(server.repo) as driver:
        try:
            text = driver.logs.text(driver.runs.get(run))
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
    if found.left_waiting:
        server.enqueue_resume(run_id, found.run.workflow_name, None, {})
    return {**found.to_json(), "resumed": found.left_waiting}


@router.post("/runs/{run}/approve", **for_role("operator", Decided))
def approve(server: Asked, run: str, step: StepName = None, reason: Reason = None) -> Any:
    """Answers a run that waits for a person: yes. It goes on by itself."""
    return _decided(server, run, "approved", step, reason)


@router.post("/runs/{run}/reject", **for_role("operator", Decided))
def reject(server: Asked, run: str, step: StepName = None, reason: Reason = None) -> Any:
    """Answers a run that waits for a person: no."""
    return _decided(server, run, "rejected", step, reason)


@router.post(
    "/runs/{run}/cancel", **for_role("operator", document("Stopped", id=str, status=Literal["cancelled", "cancelling"]))
)
def cancel(server: Asked, run: str) -> Any:
    """Stops a run, here or elsewhere: its processes are ended, what it wrote stays."""
    if server.queue.cancel_waiting(run):
        return {"id": run, "status": "cancelled"}
    with driving(server.repo) as driver:
        if not driver.find_anywhere(run).over and server.dispatcher.spawner.signal(run):
            return {"id": run, "status": "cancelling"}
        return {"id": run, "status": cancel_run(driver, run)}


@router.post("/runs/{run}/resume", **for_role("operator", Queued, 202))
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


@models_router.get("/types", **for_role("viewer", listing(TypeItem, total=int)))
def types(server: Asked) -> Any:
    """Every model type, built in and plugged in."""
    registry = load_registry(server.repo.path)
    found = [type_item(kind) for kind in registry]
    broken = [as_document(plugin) for plugin in registry.broken]
    return {"items": found, "types": found, "total": len(found), "broken": broken}


@models_router.get("/types/{type:path}", **for_role("viewer", document("Type", type=str, methods=list[dict[str, Any]])))
def describe_type(server: Asked, type: str) -> Any:  # noqa: A002
    """A type's methods and their arguments."""
    return load_registry(server.repo.path).get(type).describe()


@models_router.get("/models", **for_role("viewer", listing(ModelItem, total=int)))
def models(server: Asked, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """All models: defined, or made by workflows and `data put`."""
    with driving(server.repo) as driver:
        known = driver.context.models
        found = sorted((model_item(one) for one in known.all()), key=lambda item: (item["name"], item["type"]))
        broken = list(known.broken())
    page = page_of(found, lambda item: f"{item['name']}\x00{item['type']}", cursor, limit)
    return {**page, **({"broken": broken} if broken else {})}


@models_router.get("/models/{model}", **for_role("viewer", Model))
def model(server: Asked, model: str) -> Any:
    """One definition."""
    with driving(server.repo) as driver:
        found = driver.context.models.find(model)
    return {**found.to_document(), "file": found.file}


@models_router.get(
    "/models/{model}/methods", **for_role("viewer", document("Methods", items=list[dict[str, Any]], total=int))
)
def methods(server: Asked, model: str) -> Any:
    """The methods of a model's type."""
    with driving(server.repo) as driver:
        kind = driver.context.models.registry.get(driver.context.models.find(model).type)
    found = kind.describe()["methods"]
    return {"items": found, "total": len(found)}


@models_router.post("/models/{model}/methods/{method}/run", **for_role("operator", MethodRun))
def run_method(
    server: Asked,
    model: str,
    method: str,
    inputs: Annotated[dict[str, Any] | None, Body()] = None,
    tags: Annotated[dict[str, str] | None, Body()] = None,
) -> Any:
    """Runs a method in a process of its own and answers when its data is in the datastore. 409: the method failed."""
    with driving(server.repo) as driver:
        driver.context.models.find(model)
    # By `swamp model method run`, whose documents these are. Inputs go through a file: they may hold secrets.
    with tempfile.TemporaryDirectory(dir=server.repo.path / ".swamp" / "serve") as directory:
        given = Path(directory) / "inputs.json"
        given.write_text(json.dumps(inputs or {}), encoding="utf-8")
        words = ["--json", "-q", "--repo-dir", str(server.repo.path), "--input-file", str(given)]
        words += [word for key, value in (tags or {}).items() for word in ("--tag", f"{key}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "swamp", "model", "method", "run", *words, "--", model, method],
            env=server.dispatcher.spawner.environment,
            cwd=server.repo.path,
            capture_output=True,
            timeout=METHOD_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    server.puller.soon()
    if done.stdout.strip():
        return json.loads(done.stdout), 200 if done.returncode == 0 else 409
    try:
        error = json.loads(done.stderr.strip().splitlines()[-1])
        return error, STATUS.get(error["code"], 500)
    except (ValueError, IndexError, KeyError):
        raise Failed(f"the method's process ended with {done.returncode}") from None
