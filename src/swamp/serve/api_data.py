"""`/api/v1/data`: versioned data by model and name, as `swamp data` shows it."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, Response

from swamp.catalog.schema import Row
from swamp.errors import NotFound, UsageError
from swamp.repo.data import describe, version_item
from swamp.repo.diff import diff
from swamp.repo.lineage import lineage_of
from swamp.repo.preview import preview
from swamp.serve import documents as doc
from swamp.serve.ask import Cursor, Limit, needs, page_of, server_of
from swamp.serve.respond import json_response
from swamp.serve.state import Server

router = APIRouter(prefix="/api/v1", tags=["data"])
_SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/json", "text/plain", "text/csv")


@router.get("/data", dependencies=[needs("viewer")], responses=doc.ok(doc.DataList))
def list_data(
    request: Request,
    model: str | None = None,
    type: str | None = None,  # noqa: A002 - the contract's word
    workflow: str | None = None,
    run: str | None = None,
    q: Annotated[str | None, Query(description="A part of a model's or data's name.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """The latest version of every name."""
    server = server_of(request)
    rows = server.repo.data.list(model, type=type, workflow=workflow, run=run)
    if q:
        rows = [row for row in rows if q.lower() in f"{row.model_name}/{row.fields['name']}".lower()]
    part, following = page_of(rows, _key, cursor, limit)
    items = [row.listed() for row in part]
    return json_response(server.clean({"items": items, "total": len(rows), "next": following, **_fresh(server)}))


def _fresh(server: Server) -> dict[str, bool]:
    """Whether the store answered, or this machine shows what it knew."""
    known = server.repo.freshness
    return {"fresh": known is not None and known.fresh}


def _key(row: Row) -> str:
    return "\x00".join((row.model_name, row.ref.data.name, row.ref.data.type, row.ref.data.model_id))


@router.post("/query", dependencies=[needs("viewer")], responses=doc.ok(doc.QueryResult))
def query(
    request: Request,
    predicate: Annotated[str, Body(max_length=8192)],
    select: Annotated[str | None, Body(max_length=8192)] = None,
    limit: Annotated[int, Body(ge=1, le=10_000)] = 1000,
) -> Response:
    """Versions for which a CEL predicate is true. Changes nothing."""
    server = server_of(request)
    found = server.repo.data.query(predicate, select=select, limit=limit)
    return json_response(server.clean(found.to_json()) | _fresh(server))


@router.get("/data/{model}/{name}", dependencies=[needs("viewer")], responses=doc.ok(doc.Version))
def get_data(request: Request, model: str, name: str, version: Annotated[int | None, Query(ge=1)] = None) -> Response:
    """One version, or the latest; with its content if that is short text."""
    server = server_of(request)
    found = server.repo.data.get(model, name, version)
    document = describe(found)
    content = server.repo.data.text(found)
    # The content is the user's own: it is shown as it is.
    shown = {"content": content} if content is not None else {}
    return json_response(server.clean(document) | _fresh(server) | shown)


@router.get("/data/{model}/{name}/versions", dependencies=[needs("viewer")], responses=doc.ok(doc.Versions))
def versions(request: Request, model: str, name: str, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """The versions of a name, newest first."""
    server = server_of(request)
    rows = server.repo.data.versions(model, name)
    part, following = page_of(rows, lambda row: f"{10**12 - row.ref.version:012}", cursor, limit)
    found = [version_item(row) for row in part]
    return json_response({"items": found, "versions": found, "total": len(rows), "next": following, **_fresh(server)})


@router.get("/data/{model}/{name}/versions/{version}", dependencies=[needs("viewer")], responses=doc.ok(doc.Version))
def get_version(request: Request, model: str, name: str, version: int) -> Response:
    """One version."""
    return get_data(request, model, name, _positive(version))


@router.get(
    "/data/{model}/{name}/versions/{version}/preview",
    dependencies=[needs("viewer")],
    responses=doc.ok(doc.VersionPreview),
)
def show(
    request: Request, model: str, name: str, version: int, rows: Annotated[int, Query(ge=1, le=1000)] = 50
) -> Response:
    """What `swamp data show` tells: schema and first rows of a table, JSON, the head of a text."""
    data = server_of(request).repo.data
    return json_response(preview(data.contents, data.get(model, name, _positive(version)), rows).to_json())


@router.get("/data/{model}/{name}/lineage", dependencies=[needs("viewer")], responses=doc.ok(doc.LineageGraph))
def lineage(
    request: Request,
    model: str,
    name: str,
    version: Annotated[int | None, Query(ge=1)] = None,
    depth: Annotated[int | None, Query(ge=1, description="At most so many steps away.")] = None,
) -> Response:
    """What a version was made from, and what was made from it."""
    server = server_of(request)
    found = lineage_of(server.repo, server.repo.data.get(model, name, version), depth=depth)
    return json_response(server.clean(found.to_json()))


@router.get("/data/{model}/{name}/diff", dependencies=[needs("viewer")], responses=doc.ok(doc.Difference))
def compare(
    request: Request,
    model: str,
    name: str,
    first: Annotated[int, Query(alias="from", ge=1)],
    second: Annotated[int, Query(alias="to", ge=1)],
) -> Response:
    """What changed between two versions, as `swamp data diff` tells it."""
    data = server_of(request).repo.data
    found = diff(data.contents, data.get(model, name, first), data.get(model, name, second))
    return json_response({"from": first, "to": second, **found.to_json()})


@router.get(
    "/data/{model}/{name}/versions/{version}/content",
    dependencies=[needs("viewer")],
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "A part."}},
)
def content(
    request: Request, model: str, name: str, version: int, part: str | None = None, inline: bool = False
) -> Response:
    """The bytes, streamed; ranges are served. `part` names one of several."""
    server = server_of(request)
    found = server.repo.data.get(model, name, _positive(version))
    file = server.repo.artifacts.raw(found)
    kind = found.meta.content_type
    if found.meta.parts:
        if part is None:
            names = ", ".join(one.name for one in found.meta.parts[:5])
            raise UsageError(f"{name} has {len(found.meta.parts)} parts", hint=f"name one with ?part=: {names}")
        if part not in {one.name for one in found.meta.parts}:
            raise NotFound(f"version {version} of {name} has no part {part}", hint="the version lists its parts")
        file, kind = file / part, mimetypes.guess_type(part)[0] or "application/octet-stream"
    safe = kind.partition(";")[0].strip() in _SHOWN
    return _file(file, kind if safe else "application/octet-stream", Path(part or name).name, inline and safe)


def _file(file: Path, kind: str, name: str, inline: bool) -> Response:
    """Never run by a browser: a download, or sandboxed."""
    headers = {"Content-Security-Policy": _SANDBOX, "Accept-Ranges": "bytes"}
    disposition = "inline" if inline else "attachment"
    return FileResponse(file, media_type=kind, filename=name, content_disposition_type=disposition, headers=headers)


@router.put(
    "/data/{model}/{name}", dependencies=[needs("operator")], status_code=201, responses=doc.ok(doc.Version, 201)
)
async def put_data(
    request: Request,
    model: str,
    name: str,
    tag: Annotated[list[str] | None, Query(description="key=value, may be repeated.")] = None,
    lifetime: str | None = None,
) -> Response:
    """The body as a new version; its type is the Content-Type."""
    body = await request.body()
    server = server_of(request)
    kind = request.headers.get("content-type")
    tags = dict(_pair(word) for word in tag or ())
    done = await run_in_threadpool(
        server.repo.data.put, model, name, body, content_type=kind, tags=tags, lifetime=lifetime
    )
    document: dict[str, Any] = describe(done.version)
    if done.sync is not None:
        document["sync"] = done.sync.to_json()
    server.puller.soon()
    return json_response(server.clean(document), 201)


def _pair(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise UsageError(f"the tag {word!r} is not of the form key=value")
    return key, value


@router.delete("/data/{model}/{name}", dependencies=[needs("operator")], responses=doc.ok(doc.Deleted))
def delete_data(
    request: Request, model: str, name: str, version: Annotated[int | None, Query(ge=1)] = None
) -> Response:
    """Removes a name, or one version, for everybody."""
    server = server_of(request)
    count = server.repo.data.delete(model, name, version)
    server.puller.soon()
    return json_response({"versionsDeleted": count})


def _positive(version: int) -> int:
    if version < 1:
        raise UsageError(f"version {version}: versions are 1 or more")
    return version
