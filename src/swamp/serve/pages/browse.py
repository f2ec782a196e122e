"""`/data`: models and names, their versions, what is in them, and what changed between two of them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from swamp.data.versions import DataVersion
from swamp.errors import NotFound, SwampError
from swamp.repo.data import describe
from swamp.repo.diff import diff
from swamp.repo.lineage import lineage_of
from swamp.repo.preview import preview
from swamp.serve.pages.draw import graph_of_lineage, line_of_sizes
from swamp.serve.pages.render import compact, page
from swamp.serve.respond import Cursor, needs, page_of
from swamp.serve.state import Asked, Server

router = APIRouter(include_in_schema=False, dependencies=[needs("viewer")])
PAGE = 100
ROWS = 50
DEPTH = 5
"""Steps of a lineage to either side that are drawn."""
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


@router.get("/data")
def data(request: Request, server: Asked, q: str = "", cel: str = "", cursor: Cursor = None) -> Response:
    """All names, found by text or by a CEL predicate."""
    error, following, items, total = None, None, [], 0
    try:
        if cel:
            rows: list[dict[str, Any]] = server.repo.data.query(cel, limit=1000).to_json()["results"]
        else:
            rows = [row.listed() for row in server.repo.data.list()]
            rows = [row for row in rows if q.lower() in f"{row['modelName']}/{row['name']}".lower()]
        part, following = page_of(
            rows, lambda row: f"{row['modelName']}\x00{row['name']}\x00{row['version']}", cursor, PAGE
        )
        items, total = part, len(rows)
    except SwampError as problem:
        error = {"error": problem.message, "hint": problem.hint}
    more = compact({"q": q, "cel": cel, "cursor": following}) if following else None
    return page(request, "data.html", "Data", q=q, cel=cel, items=items, total=total, more=more, problem=error)


@router.get("/data/{model}/{name}")
def artifact(
    request: Request, server: Asked, model: str, name: str, version: Annotated[int | None, Query(ge=1)] = None
) -> Response:
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
def lineage(
    request: Request, server: Asked, model: str, name: str, version: Annotated[int | None, Query(ge=1)] = None
) -> Response:
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
