"""`/runs`: the list, one run as a graph that fills in as it goes, and a form to start one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from swamp.data.run_record import RUN_STATUSES
from swamp.errors import NotFound, UsageError
from swamp.serve.api_runs import run_document_of
from swamp.serve.ask import Cursor, needs, server_of
from swamp.serve.dispatch import driving
from swamp.serve.pages.draw import Needs, graph_of_run
from swamp.serve.pages.render import compact, page
from swamp.serve.state import Server
from swamp.workflows.schema import Job, Step

router = APIRouter(include_in_schema=False, dependencies=[needs("viewer")])
PAGE = 100
LINES = 2000


@router.get("/runs")
def runs(request: Request, workflow: str = "", status: str = "", q: str = "", cursor: Cursor = None) -> Response:
    server = server_of(request)
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
def start(request: Request, workflow: str) -> Response:
    """A form made from the workflow's input schema."""
    server = server_of(request)
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
def run(request: Request, run: str) -> Response:
    server = server_of(request)
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
