"""The pages: what runs, waits or failed; runs and data; what the store holds, who holds locks, what came in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from swamp.data.run_record import RUN_STATUSES
from swamp.data.versions import DataVersion
from swamp.env import rfc3339
from swamp.errors import NotFound, SwampError, UsageError
from swamp.repo.conflicts import Conflicts, compare
from swamp.repo.data import describe
from swamp.repo.diff import diff
from swamp.repo.lineage import lineage_of
from swamp.repo.maintain import commit_items
from swamp.repo.preview import preview
from swamp.serve.api_runs import logs, run_document_of
from swamp.serve.dispatch import driving
from swamp.serve.pages.render import (
    Needs,
    bars_of_runs,
    compact,
    graph_of_lineage,
    graph_of_run,
    line_of_sizes,
    page,
)
from swamp.serve.respond import Cursor, needs, page_of
from swamp.serve.state import Asked, Server
from swamp.workflows.files import pattern_of
from swamp.workflows.schema import Job, Step

router = APIRouter(include_in_schema=False, dependencies=[needs("viewer")])
Chosen = Annotated[int | None, Query(ge=1)]
PAGE = 100
SHOWN = 8
LINES = 2000
ROWS = 50
DEPTH = 5
"""Steps of a lineage to either side that are drawn."""
COMMITS = 50
PATHS = 1000
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


# -- runs


@router.get("/")
def overview(request: Request, server: Asked) -> Response:
    status = server.repo.datastore.maintenance.status()
    now = server.repo.env.clock.now()
    day = _runs(server, since=rfc3339(now - dt.timedelta(days=1)), limit=1000)
    return page(
        request,
        "overview.html",
        "Overview",
        status=status,
        sentence=status.get("summary") or status.get("message") or "",
        behind=status.get("behind"),
        bars=bars_of_runs(day, now),
        total=len(day),
        running=[run for run in day if run["status"] in ("running", "pending", "queued")][:SHOWN],
        waiting=_runs(server, status="suspended", limit=SHOWN),
        failed=[{**run, "why": _why(server, str(run["id"]))} for run in _runs(server, status="failed", limit=SHOWN)],
    )


def _runs(server: Server, **asked: Any) -> list[dict[str, Any]]:
    with driving(server.repo) as driver:
        items: list[dict[str, Any]] = server.index.page(driver, **asked)["items"]
    return items


def _why(server: Server, run_id: str) -> str:
    """What the first step that failed said, or the run itself."""
    try:
        found = run_document_of(server, run_id)
    except NotFound:
        return ""  # deleted since it was listed
    said = [step["error"] for job in found.get("jobs", ()) for step in job["steps"] if step.get("error")]
    return str((said or [found.get("error", "")])[0])


@router.get("/runs")
def runs(
    request: Request, server: Asked, workflow: str = "", status: str = "", q: str = "", cursor: Cursor = None
) -> Response:
    known = status if status in RUN_STATUSES else None
    with driving(server.repo) as driver:
        found = server.index.page(driver, workflow=workflow or None, status=known, query=q, cursor=cursor, limit=PAGE)
        names = sorted(str(one.workflow.name) for one in driver.files.all())
    more = compact({"workflow": workflow, "status": status, "q": q, "cursor": found["next"]}) if found["next"] else None
    filters = {"workflow": workflow, "status": status, "q": q}
    return page(
        request,
        "runs.html",
        "Runs",
        items=found["items"],
        more=more,
        filters=filters,
        statuses=RUN_STATUSES,
        workflows=names,
    )


@router.get("/runs/new/{workflow}")
def start(request: Request, server: Asked, workflow: str) -> Response:
    """A form made from the workflow's input schema."""
    with driving(server.repo) as driver:
        found = driver.files.find(workflow).workflow
    schema = dict(found.inputs or {})
    fields = [_field(str(name), part, schema) for name, part in dict(schema.get("properties") or {}).items()]
    return page(request, "start.html", f"Run {found.name}", workflow=found.name, fields=fields)


def _field(name: str, part: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    part = part if isinstance(part, Mapping) else {}
    kind = str(part.get("type", "string"))
    return {
        "name": name,
        "kind": kind if kind in ("string", "integer", "number", "boolean") else "json",
        "choices": list(part.get("enum") or ()),
        "default": part.get("default"),
        "about": part.get("description", ""),
        "required": name in (schema.get("required") or ()) and "default" not in part,
    }


@router.get("/runs/{run}")
def run(request: Request, server: Asked, run: str) -> Response:
    found = run_document_of(server, run)
    jobs = found.get("jobs", [])
    return page(
        request,
        "run.html",
        f"{found['workflowName']} {run[:8]}",
        run=found,
        jobs=jobs,
        graph=graph_of_run(jobs, _needs(server, str(found["workflowName"]), jobs)),
        over=found["status"] in ("succeeded", "failed", "cancelled"),
        lines=logs(server, run)["lines"][-LINES:],
    )


def _needs(server: Server, workflow: str, jobs: Sequence[Mapping[str, Any]]) -> Needs:
    """What waits for what in this run; nothing where the workflow is not here any more."""
    with driving(server.repo) as driver:
        try:
            known = {job.name: job for job in driver.files.find(workflow).workflow.jobs}
        except (NotFound, UsageError):
            return Needs({}, {})
    return Needs(
        {name: [one.job for one in job.depends_on] for name, job in known.items()},
        {
            job["name"]: _needs_of_steps(known[job["name"]], [str(step["name"]) for step in job["steps"]])
            for job in jobs
            if job["name"] in known
        },
    )


def _needs_of_steps(job: Job, names: Sequence[str]) -> dict[str, list[str]]:
    """Steps of the run for steps of the run: a `forEach` of the file has become several."""
    made = {step.name: [name for name in names if _is_made_from(name, step)] for step in job.steps}
    return {
        name: [before for one in step.depends_on for before in made.get(one.step, ())]
        for step in job.steps
        for name in made[step.name]
    }


def _is_made_from(name: str, step: Step) -> bool:
    return name == step.name if step.for_each is None else pattern_of(step.name).fullmatch(name) is not None


# -- data


@router.get("/data")
def data(request: Request, server: Asked, q: str = "", cel: str = "", cursor: Cursor = None) -> Response:
    """All names, found by text or by a CEL predicate."""
    error, found = None, dict[str, Any](items=[], total=0, next=None)
    try:
        if cel:
            rows: list[dict[str, Any]] = server.repo.data.query(cel, limit=1000).to_json()["results"]
        else:
            rows = [row.listed() for row in server.repo.data.list()]
            rows = [row for row in rows if q.lower() in f"{row['modelName']}/{row['name']}".lower()]
        found = page_of(rows, lambda row: f"{row['modelName']}\x00{row['name']}\x00{row['version']}", cursor, PAGE)
    except SwampError as problem:
        error = {"error": problem.message, "hint": problem.hint}
    more = compact({"q": q, "cel": cel, "cursor": found["next"]}) if found["next"] else None
    told = {"items": found["items"], "total": found["total"], "more": more, "problem": error}
    return page(request, "data.html", "Data", q=q, cel=cel, **told)


@router.get("/data/{model}/{name}")
def artifact(request: Request, server: Asked, model: str, name: str, version: Chosen = None) -> Response:
    """One name: its versions, and the content of one of them."""
    found = server.repo.data.get(model, name, version)
    versions = [row.version_item() for row in server.repo.data.versions(model, name)]
    document = describe(found)
    return page(
        request,
        "artifact.html",
        f"{model}/{name}",
        model=model,
        name=name,
        found=document,
        owner=_owner(found),
        inputs=[node.to_json() for node in lineage_of(server.repo, found, down=False, depth=1).inputs],
        versions=versions[:PAGE],
        total=len(versions),
        line=line_of_sizes(versions[:PAGE]),
        older=next((item["version"] for item in versions if item["version"] < found.version), None),
        **_content(server, found),
    )


def _content(server: Server, found: DataVersion) -> dict[str, Any]:
    """What is shown of a version: never an error of the whole page."""
    plain = found.meta.content_type.partition(";")[0].strip().lower()
    if plain in _IMAGES and not found.meta.has_parts:
        return {"image": True, "seen": None, "trouble": None}
    try:
        return {"image": False, "seen": preview(server.repo.data.contents, found, ROWS), "trouble": None}
    except SwampError as error:
        return {"image": False, "seen": None, "trouble": {"error": error.message, "hint": error.hint}}


def _owner(found: DataVersion) -> dict[str, Any]:
    """Where a version came from: the run and step that wrote it."""
    owner = found.meta.owner
    return compact(
        {
            "kind": owner.owner_type,
            "workflow": owner.workflow_name,
            "run": owner.workflow_run_id,
            "job": owner.job_name,
            "step": owner.step_name,
        }
    )


@router.get("/data/{model}/{name}/lineage")
def lineage(request: Request, server: Asked, model: str, name: str, version: Chosen = None) -> Response:
    """What a version was made from and what was made from it. A page of its own: it looks at all metadata."""
    found = server.repo.data.get(model, name, version)
    graph = graph_of_lineage(lineage_of(server.repo, found, depth=DEPTH))
    return page(
        request, "lineage.html", f"{model}/{name}", model=model, name=name, version=found.version, graph=graph,
        depth=DEPTH,
    )  # fmt: skip


@router.get("/data/{model}/{name}/diff")
def difference(
    request: Request,
    server: Asked,
    model: str,
    name: str,
    first: Annotated[int, Query(alias="from", ge=1)],
    second: Annotated[int, Query(alias="to", ge=1)],
) -> Response:
    """What changed between two versions."""
    data = server.repo.data
    if first == second:
        raise NotFound("these are the same version", hint="choose two")
    found = diff(data.contents, data.get(model, name, first), data.get(model, name, second))
    return page(
        request, "diff.html", f"{model}/{name}", model=model, name=name, first=first, second=second, found=found
    )


# -- the datastore, and what comes in


@router.get("/commits")
def commits(request: Request, server: Asked, limit: int = COMMITS) -> Response:
    limit = max(1, min(limit, 1000))
    found = commit_items(server.repo, server.repo.datastore.maintenance.log(limit))
    return page(request, "commits.html", "Commits", items=found, limit=limit, more=len(found) == limit)


@router.get("/commits/{seq}")
def commit(request: Request, server: Asked, seq: int) -> Response:
    """One commit with its paths; what it deleted can be brought back from here."""
    found = server.repo.datastore.maintenance.commit(seq, PATHS)
    return page(request, "commit.html", f"Commit {seq}", found=found)


@router.get("/datastore")
def datastore(request: Request, server: Asked, doctor: bool = False) -> Response:
    from swamp.repo.doctor import Doctor

    status = server.repo.datastore.maintenance.status()
    return page(
        request,
        "datastore.html",
        "Datastore",
        status=status,
        locks=_locks(server),
        conflicts=[one.to_json() for one in Conflicts(server.repo).list()[:200]],
        checks=[check.to_json() for check in Doctor(server.repo).examine()] if doctor else None,
    )


@router.get("/datastore/conflict")
def conflict(request: Request, server: Asked, id: str) -> Response:  # noqa: A002
    """Both sides of one conflict, and the choice between them."""
    found = compare(Conflicts(server.repo), id)
    return page(request, "conflict.html", f"Conflict in {found['path']}", found=found)


def _locks(server: Server) -> list[dict[str, Any]]:
    """Every lease that is held, the global one first; none where the store does not answer."""
    try:
        found = server.repo.datastore.maintenance.lock_status()
    except SwampError as error:
        return [{"model": None, "holder": f"not known: {error.message}", "ageMs": None}]
    everything = [{"model": None, **found["info"]}] if found.get("info") else []
    called = {model_id: name for _, model_id, name in server.repo.catalog.models()}
    return [*everything, *({**one, "name": called.get(one["model"].rpartition("/")[2])} for one in found["models"])]


@router.get("/events")
def events(request: Request, server: Asked, cursor: Cursor = None) -> Response:
    found = server.queue.page(cursor if cursor and cursor.isdigit() else None, PAGE)
    return page(
        request,
        "events.html",
        "Events",
        schedules=server.scheduler.items(),
        active=server.config.schedule,
        hooks=server.config.webhooks,
        deliveries=found["items"],
        more={"cursor": found["next"]} if found["next"] else None,
    )
