"""`/api/v1/datastore`: the store that is shared, as `swamp datastore` shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body

from swamp.errors import UsageError
from swamp.repo.conflicts import Conflicts, Keep, compare
from swamp.repo.data import parse_since
from swamp.repo.maintain import commit_items
from swamp.serve.respond import (
    ApiRouter,
    Cursor,
    Limit,
    decode_cursor,
    document,
    encode_cursor,
    for_role,
    listing,
    many,
    page_of,
)
from swamp.serve.state import Asked
from swamp.values import as_document

router = ApiRouter(prefix="/api/v1/datastore", tags=["datastore"])
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


@router.get("/status", **for_role("viewer", Status))
def status(server: Asked) -> Any:
    """Where the data is, whether the store answers, and what is still owed to it. Unhealthy: 503, the same document."""
    found: dict[str, Any] = server.repo.datastore.maintenance.status()
    if found.get("cache"):
        found["cache"] = {key: value for key, value in found["cache"].items() if key != "path"}
    return found, 200 if found["healthy"] else 503


@router.post("/sync", **for_role("operator", SyncDone))
def sync(
    server: Asked,
    mode: Annotated[Literal["sync", "push", "pull"], Body()] = "sync",
    full: Annotated[bool, Body()] = False,
) -> Any:
    """Brings this machine and the store in step. 409: some of it failed, the document says what."""
    done = server.repo.datastore.sync(mode, full=full)
    server.puller.soon()
    return done.to_json(), 200 if done.ok else 503 if done.lost_store else 409


@router.get("/log", **for_role("viewer", listing(Commit)))
def log(server: Asked, limit: Limit = 20, cursor: Cursor = None) -> Any:
    """The commits of the store, newest first."""
    before = None if cursor is None else decode_cursor(cursor)
    if before is not None and not before.isdigit():
        raise UsageError("this is not a place in the log", hint="use `next` of the page before")
    found = list(server.repo.datastore.maintenance.log(limit + 1, None if before is None else int(before)))
    items = commit_items(server.repo, found[:limit])
    following = encode_cursor(str(items[-1]["seq"])) if len(found) > limit else None
    return {"items": items, "commits": items, "next": following}


@router.get("/log/{seq}", **for_role("viewer", CommitPaths))
def commit(server: Asked, seq: int, limit: Limit = 1000) -> Any:
    """One commit with the paths that it added, changed and deleted."""
    return server.repo.datastore.maintenance.commit(seq, limit)


@router.get("/locks", **for_role("viewer", document("Locks", Lock, models=list[Members])))
def locks(server: Asked) -> Any:
    """Who holds the global lease, and which models are leased."""
    return server.repo.datastore.maintenance.lock_status()


@router.post(
    "/locks/release", **for_role("admin", document("Released", released=bool, previousHolder=(str | None, None)))
)
def release(server: Asked, model: Annotated[str | None, Body(embed=True)] = None) -> Any:
    """Takes a lease away from its holder: the global one, or that of a model `TYPE/ID`."""
    return server.repo.datastore.maintenance.lock_release(model)


@router.get("/conflicts", **for_role("viewer", listing(ConflictItem, total=int)))
def conflicts(server: Asked, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """What was changed here and elsewhere: the local side is kept aside, the store's is in place."""
    found = Conflicts(server.repo).list()
    return page_of(found, lambda one: one.id, cursor, limit, lambda one: one.to_json())


@router.get("/conflicts/compare", **for_role("viewer", ComparedConflict))
def compared(server: Asked, id: str) -> Any:  # noqa: A002
    """Both sides of one conflict, their lines beside each other."""
    return compare(Conflicts(server.repo), id)


@router.post("/conflicts/resolve", **for_role("operator", document("Resolved", id=str, path=str, keep=str)))
def resolve(server: Asked, id: Annotated[str, Body()], keep: Annotated[Keep, Body()]) -> Any:  # noqa: A002
    """Keeps mine, theirs or both."""
    done = Conflicts(server.repo).resolve(id, keep)
    server.puller.soon()
    return done


@router.get("/doctor", **for_role("viewer", document("Examined", checks=many(Check), ok=bool)))
def doctor(server: Asked) -> Any:
    """Examines everything the datastore rests on; changes nothing."""
    from swamp.repo.doctor import Doctor

    checks = Doctor(server.repo).examine()
    return {"checks": [check.to_json() for check in checks], "ok": all(check.ok for check in checks)}


@router.post("/undelete", **for_role("operator", document("Restored", restored=list[str], gone=list[str])))
def undelete(
    server: Asked, paths: Annotated[list[str] | None, Body()] = None, since: Annotated[str | None, Body()] = None
) -> Any:
    """Brings back what was deleted, while the undo window lasts."""
    moment = None if since is None else parse_since(since, server.repo.env.clock.now())
    done = server.repo.datastore.maintenance.undelete(paths or (), since=moment)
    server.puller.soon()
    return as_document(done)
