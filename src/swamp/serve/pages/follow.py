"""`/` and `/runs`: what runs, waits or failed; the list, one run as a graph that fills in, and a form to start one."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from swamp.data.run_record import RUN_STATUSES
from swamp.env import rfc3339
from swamp.errors import NotFound, UsageError
from swamp.serve.api_runs import run_document_of
from swamp.serve.dispatch import driving
from swamp.serve.pages.draw import Needs, bars_of_runs, graph_of_run
from swamp.serve.pages.render import compact, page
from swamp.serve.respond import Cursor, needs
from swamp.serve.state import Asked, Server
from swamp.workflows.schema import Job, Step

router = APIRouter(include_in_schema=False, dependencies=[needs("viewer")])
SHOWN = 8
PAGE = 100
LINES = 2000


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
        waiting=[step["name"] for job in jobs for step in job["steps"] if step["status"] in ("suspended", "waiting")],
        outputs=[artifact for job in jobs for step in job["steps"] for artifact in step.get("dataArtifacts", ())],
        over=found["status"] in ("succeeded", "failed", "cancelled"),
        lines=_lines(server, run),
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
    if step.for_each is None:
        return name == step.name
    pattern = ".*".join(re.escape(part) for part in re.split(r"\$\{\{.*?\}\}", step.name))
    return re.fullmatch(pattern, name) is not None


def _lines(server: Server, run_id: str) -> list[str]:
    with driving(server.repo) as driver:
        try:
            text = str(driver.logs.text(driver.find(run_id)))
        except NotFound:
            return []
    return text.splitlines()[-LINES:]
