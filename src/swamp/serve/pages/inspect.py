"""`/commits`, `/datastore` and `/events`: what the store holds, who holds locks, what came in and what is due."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from swamp.errors import SwampError
from swamp.repo.conflicts import Conflicts, compare
from swamp.serve.api_datastore import commit_items
from swamp.serve.pages.render import page
from swamp.serve.respond import Cursor, needs
from swamp.serve.state import Asked, Server

router = APIRouter(include_in_schema=False, dependencies=[needs("viewer")])
COMMITS = 50
PATHS = 1000
DELIVERIES = 100


@router.get("/commits")
def commits(request: Request, server: Asked, limit: int = COMMITS) -> Response:
    limit = max(1, min(limit, 1000))
    found = commit_items(server, server.repo.datastore.maintenance.log(limit))
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
    before = int(cursor) if cursor is not None and cursor.isdigit() else None
    found = server.queue.list(kinds=(), status=None, before=before, limit=DELIVERIES + 1)
    return page(
        request,
        "events.html",
        "Events",
        schedules=server.scheduler.items(),
        active=server.config.schedule,
        hooks=[
            {"route": hook.route, "workflow": hook.workflow, "scheme": hook.scheme} for hook in server.config.webhooks
        ],
        deliveries=[one.to_json() for one in found[:DELIVERIES]],
        more={"cursor": str(found[DELIVERIES - 1].n)} if len(found) > DELIVERIES else None,
    )
