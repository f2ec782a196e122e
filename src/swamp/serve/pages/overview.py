"""`/`: is everything in step, what runs, what waits for a person, what failed and why."""

from __future__ import annotations

import datetime as dt
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from swamp.env import rfc3339
from swamp.errors import NotFound
from swamp.serve.api_runs import run_document_of
from swamp.serve.ask import needs, server_of
from swamp.serve.dispatch import driving
from swamp.serve.pages.draw import bars_of_runs
from swamp.serve.pages.render import page
from swamp.serve.state import Server

router = APIRouter(include_in_schema=False, dependencies=[needs("viewer")])
SHOWN = 8


@router.get("/")
def overview(request: Request) -> Response:
    server = server_of(request)
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
