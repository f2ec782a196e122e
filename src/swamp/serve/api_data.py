"""`/api/v1/data` and `/api/v1/datastore`: versions by model and name and the store that is shared, as the commands of
the same names show them."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Body, Query, Request
from fastapi import Path as PathParameter
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse

from swamp.catalog.schema import Row
from swamp.errors import NotFound, UsageError
from swamp.models.inputs import tag_pairs
from swamp.repo.conflicts import Conflicts, Keep
from swamp.repo.conflicts import compare as sides_of
from swamp.repo.data import describe, parse_since
from swamp.repo.diff import diff
from swamp.repo.lineage import lineage_of
from swamp.repo.maintain import commit_items
from swamp.repo.preview import preview
from swamp.serve.respond import (
    ApiRouter,
    Cursor,
    Limit,
    decode_cursor,
    document,
    encode_cursor,
    for_role,
    json_response,
    listing,
    many,
    needs,
    ok,
    page_of,
)
from swamp.serve.state import Asked, Server
from swamp.values import as_document

router = ApiRouter(prefix="/api/v1", tags=["data"])
datastore_router = ApiRouter(prefix="/api/v1/datastore", tags=["datastore"])
Number = Annotated[int, PathParameter(ge=1)]
_SANDBOX = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/json", "text/plain", "text/csv")
DataItem = document(
    "DataItem", name=str, version=int, modelName=str | None, modelType=str, contentType=str, size=int, createdAt=str,
    tags=dict[str, Any],
)  # fmt: skip
Version = document("Version", DataItem, modelName=str, checksum=str, content=(str | None, None))
VersionItem = document("VersionItem", version=int, createdAt=str, size=int, checksum=str, isLatest=bool)
QueryResult = document("QueryResult", results=list[Any], total=int, limited=bool)
VersionPreview = document("VersionPreview", kind=str, format=str, truncated=bool)
Difference = document("Difference", equal=bool, kind=str, summary=dict[str, Any], changes=list[Any])
LineageVersion = document("LineageVersion", modelName=str, name=str, version=int, path=str, here=bool)
LineageGraph = document("LineageGraph", of=LineageVersion, nodes=many(LineageVersion), edges=list[dict[str, Any]])


@router.get("/data", **for_role("viewer", listing(DataItem, total=int)))
def list_data(
    server: Asked,
    model: str | None = None,
    type: str | None = None,  # noqa: A002 - the contract's word
    workflow: str | None = None,
    run: str | None = None,
    q: Annotated[str | None, Query(description="A part of a model's or data's name.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Any:
    """The latest version of every name."""
    rows = server.repo.data.list(model, type=type, workflow=workflow, run=run)
    if q:
        rows = [row for row in rows if q.lower() in f"{row.model_name}/{row.fields['name']}".lower()]

    def place(row: Row) -> str:
        return "\x00".join((row.model_name, row.ref.data.name, row.ref.data.type, row.ref.data.model_id))

    return page_of(rows, place, cursor, limit, Row.listed) | _fresh(server)


def _fresh(server: Server) -> dict[str, bool]:
    """Whether the store answered, or this machine shows what it knew."""
    known = server.repo.freshness
    return {"fresh": known is not None and known.fresh}


@router.post("/query", **for_role("viewer", QueryResult))
def query(
    server: Asked,
    predicate: Annotated[str, Body(max_length=8192)],
    select: Annotated[str | None, Body(max_length=8192)] = None,
    limit: Annotated[int, Body(ge=1, le=10_000)] = 1000,
) -> Any:
    """Versions for which a CEL predicate is true. Changes nothing."""
    found = server.repo.data.query(predicate, select=select, limit=limit)
    return found.to_json() | _fresh(server)


@router.get("/data/{model}/{name}", **for_role("viewer", Version))
def get_data(server: Asked, model: str, name: str, version: Annotated[int | None, Query(ge=1)] = None) -> Any:
    """One version, or the latest; with its content if that is short text."""
    found = server.repo.data.get(model, name, version)
    document = describe(found)
    content = server.repo.data.text(found)
    # The content is the user's own: it is shown as it is.
    shown = {"content": content} if content is not None else {}
    return json_response(server.clean(document) | _fresh(server) | shown)


@router.get("/data/{model}/{name}/versions", **for_role("viewer", listing(VersionItem, total=int)))
def versions(server: Asked, model: str, name: str, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """The versions of a name, newest first."""
    rows = server.repo.data.versions(model, name)
    found = page_of(rows, lambda row: f"{10**12 - row.ref.version:012}", cursor, limit, Row.version_item)
    return {**found, "versions": found["items"], **_fresh(server)}


@router.get("/data/{model}/{name}/versions/{version}", **for_role("viewer", Version))
def get_version(server: Asked, model: str, name: str, version: Number) -> Any:
    """One version."""
    return get_data(server, model, name, version)


@router.get(
    "/data/{model}/{name}/versions/{version}/preview",
    dependencies=[needs("viewer")],
    responses=ok(VersionPreview),
)
def show(server: Asked, model: str, name: str, version: Number, rows: Annotated[int, Query(ge=1, le=1000)] = 50) -> Any:
    """What `swamp data show` tells: schema and first rows of a table, JSON, the head of a text."""
    data = server.repo.data
    return json_response(preview(data.contents, data.get(model, name, version), rows).to_json())


@router.get("/data/{model}/{name}/lineage", **for_role("viewer", LineageGraph))
def lineage(
    server: Asked,
    model: str,
    name: str,
    version: Annotated[int | None, Query(ge=1)] = None,
    depth: Annotated[int | None, Query(ge=1, description="At most so many steps away.")] = None,
) -> Any:
    """What a version was made from, and what was made from it."""
    found = lineage_of(server.repo, server.repo.data.get(model, name, version), depth=depth)
    return found.to_json()


@router.get("/data/{model}/{name}/diff", **for_role("viewer", Difference))
def compare(
    server: Asked,
    model: str,
    name: str,
    first: Annotated[int, Query(alias="from", ge=1)],
    second: Annotated[int, Query(alias="to", ge=1)],
) -> Any:
    """What changed between two versions, as `swamp data diff` tells it."""
    data = server.repo.data
    found = diff(data.contents, data.get(model, name, first), data.get(model, name, second))
    return json_response({"from": first, "to": second, **found.to_json()})


@router.get(
    "/data/{model}/{name}/versions/{version}/content",
    dependencies=[needs("viewer")],
    responses={200: {"content": {"application/octet-stream": {}}}, 206: {"description": "A part."}},
)
def content(
    server: Asked, model: str, name: str, version: Number, part: str | None = None, inline: bool = False
) -> Any:
    """The bytes, streamed; ranges are served. `part` names one of several."""
    found = server.repo.data.get(model, name, version)
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
    return FileResponse(  # never run by a browser: a download, or sandboxed
        file,
        media_type=kind if safe else "application/octet-stream",
        filename=Path(part or name).name,
        content_disposition_type="inline" if inline and safe else "attachment",
        headers={"Content-Security-Policy": _SANDBOX, "Accept-Ranges": "bytes"},
    )


@router.put("/data/{model}/{name}", **for_role("operator", Version, 201))
async def put_data(
    request: Request,
    server: Asked,
    model: str,
    name: str,
    tag: Annotated[list[str] | None, Query(description="key=value, may be repeated.")] = None,
    lifetime: str | None = None,
) -> Any:
    """The body as a new version; its type is the Content-Type."""
    body = await request.body()
    kind = request.headers.get("content-type")
    tags = dict(tag_pairs(tag or ()))
    done = await run_in_threadpool(
        server.repo.data.put, model, name, body, content_type=kind, tags=tags, lifetime=lifetime
    )
    document: dict[str, Any] = describe(done.version)
    if done.sync is not None:
        document["sync"] = done.sync.to_json()
    server.puller.soon()
    return json_response(server.clean(document), 201)


@router.delete("/data/{model}/{name}", **for_role("operator", document("Deleted", versionsDeleted=int)))
def delete_data(server: Asked, model: str, name: str, version: Annotated[int | None, Query(ge=1)] = None) -> Any:
    """Removes a name, or one version, for everybody."""
    count = server.repo.data.delete(model, name, version)
    server.puller.soon()
    return {"versionsDeleted": count}


# -- the datastore

Members = dict[str, Any]
Lock = document("Lock", held=bool | None)
Status = document(
    "Status", type=str, url=str, namespace=str | None, healthy=bool, message=str, latencyMs=int,
    capabilities=Members | None, seq=int | None, lastSyncAt=str | None, pending=Members | None, cache=Members | None,
    lock=Lock,
)  # fmt: skip
SyncDone = document(
    "SyncDone", mode=str, filesPushed=int, filesPulled=int, filesDeleted=int, conflicts=list[Members],
    failed=list[Members], fastPath=bool, engine=str, requests=int, seq=int, durationMs=int,
)  # fmt: skip
Commit = document("Commit", seq=int, op=str, at=str, writer=Members, added=int, changed=int, deleted=int)
CommitPaths = document("CommitPaths", Commit, paths=list[dict[str, str]], truncated=bool)
ConflictItem = document("ConflictItem", id=str, path=str, size=int, keptAt=str)
ComparedFile = document(
    "ComparedFile", name=str, mineSize=int | None, theirsSize=int | None, text=bool, rows=list[dict[str, str | None]]
)
ComparedConflict = document("ComparedConflict", ConflictItem, files=many(ComparedFile))
Check = document("Check", name=str, ok=bool, detail=str, fix=(str | None, None))


@datastore_router.get("/status", **for_role("viewer", Status))
def status(server: Asked) -> Any:
    """Where the data is, whether the store answers, and what is still owed to it. Unhealthy: 503, the same document."""
    found: dict[str, Any] = server.repo.datastore.maintenance.status()
    if found.get("cache"):
        found["cache"] = {key: value for key, value in found["cache"].items() if key != "path"}
    return found, 200 if found["healthy"] else 503


@datastore_router.post("/sync", **for_role("operator", SyncDone))
def sync(
    server: Asked,
    mode: Annotated[Literal["sync", "push", "pull"], Body()] = "sync",
    full: Annotated[bool, Body()] = False,
) -> Any:
    """Brings this machine and the store in step. 409: some of it failed, the document says what."""
    done = server.repo.datastore.sync(mode, full=full)
    server.puller.soon()
    return done.to_json(), 200 if done.ok else 503 if done.lost_store else 409


@datastore_router.get("/log", **for_role("viewer", listing(Commit)))
def log(server: Asked, limit: Limit = 20, cursor: Cursor = None) -> Any:
    """The commits of the store, newest first."""
    before = None if cursor is None else decode_cursor(cursor)
    if before is not None and not before.isdigit():
        raise UsageError("this is not a place in the log", hint="use `next` of the page before")
    found = list(server.repo.datastore.maintenance.log(limit + 1, None if before is None else int(before)))
    items = commit_items(server.repo, found[:limit])
    following = encode_cursor(str(items[-1]["seq"])) if len(found) > limit else None
    return {"items": items, "commits": items, "next": following}


@datastore_router.get("/log/{seq}", **for_role("viewer", CommitPaths))
def commit(server: Asked, seq: int, limit: Limit = 1000) -> Any:
    """One commit with the paths that it added, changed and deleted."""
    return server.repo.datastore.maintenance.commit(seq, limit)


@datastore_router.get("/locks", **for_role("viewer", document("Locks", Lock, models=list[Members])))
def locks(server: Asked) -> Any:
    """Who holds the global lease, and which models are leased."""
    return server.repo.datastore.maintenance.lock_status()


@datastore_router.post(
    "/locks/release", **for_role("admin", document("Released", released=bool, previousHolder=(str | None, None)))
)
def release(server: Asked, model: Annotated[str | None, Body(embed=True)] = None) -> Any:
    """Takes a lease away from its holder: the global one, or that of a model `TYPE/ID`."""
    return server.repo.datastore.maintenance.lock_release(model)


@datastore_router.get("/conflicts", **for_role("viewer", listing(ConflictItem, total=int)))
def conflicts(server: Asked, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """What was changed here and elsewhere: the local side is kept aside, the store's is in place."""
    found = Conflicts(server.repo).list()
    return page_of(found, lambda one: one.id, cursor, limit, lambda one: one.to_json())


@datastore_router.get("/conflicts/compare", **for_role("viewer", ComparedConflict))
def compared(server: Asked, id: str) -> Any:  # noqa: A002
    """Both sides of one conflict, their lines beside each other."""
    return sides_of(Conflicts(server.repo), id)


@datastore_router.post("/conflicts/resolve", **for_role("operator", document("Resolved", id=str, path=str, keep=str)))
def resolve(server: Asked, id: Annotated[str, Body()], keep: Annotated[Keep, Body()]) -> Any:  # noqa: A002
    """Keeps mine, theirs or both."""
    done = Conflicts(server.repo).resolve(id, keep)
    server.puller.soon()
    return done


@datastore_router.get("/doctor", **for_role("viewer", document("Examined", checks=many(Check), ok=bool)))
def doctor(server: Asked) -> Any:
    """Examines everything the datastore rests on; changes nothing."""
    from swamp.repo.doctor import Doctor

    checks = Doctor(server.repo).examine()
    return {"checks": [check.to_json() for check in checks], "ok": all(check.ok for check in checks)}


@datastore_router.post("/undelete", **for_role("operator", document("Restored", restored=list[str], gone=list[str])))
def undelete(
    server: Asked, paths: Annotated[list[str] | None, Body()] = None, since: Annotated[str | None, Body()] = None
) -> Any:
    """Brings back what was deleted, while the undo window lasts."""
    moment = None if since is None else parse_since(since, server.repo.env.clock.now())
    done = server.repo.datastore.maintenance.undelete(paths or (), since=moment)
    server.puller.soon()
    return as_document(done)
