"""`/api/v1/datastore`: the store that is shared, as `swamp datastore` shows it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from swamp.repo.conflicts import Conflicts, Keep, compare
from swamp.repo.data import parse_since
from swamp.serve import documents as doc
from swamp.serve.ask import Cursor, Limit, decode_cursor, encode_cursor, needs, page_of, server_of
from swamp.serve.respond import json_response

if TYPE_CHECKING:
    from swamp.repo.maintain import LoggedCommit
    from swamp.serve.state import Server

router = APIRouter(prefix="/api/v1/datastore", tags=["datastore"])


@router.get("/status", dependencies=[needs("viewer")], responses=doc.ok(doc.Status))
def status(request: Request) -> Response:
    """Where the data is, whether the store answers, and what is still owed to it. Unhealthy: 503, the same document."""
    server = server_of(request)
    found: dict[str, Any] = server.repo.datastore.maintenance.status()
    if found.get("cache"):
        found["cache"] = {key: value for key, value in found["cache"].items() if key != "path"}
    return json_response(server.clean(found), 200 if found["healthy"] else 503)


@router.post("/sync", dependencies=[needs("operator")], responses=doc.ok(doc.SyncDone))
def sync(
    request: Request,
    mode: Annotated[Literal["sync", "push", "pull"], Body()] = "sync",
    full: Annotated[bool, Body()] = False,
) -> Response:
    """Brings this machine and the store in step. 409: some of it failed, the document says what."""
    server = server_of(request)
    done = server.repo.datastore.sync(mode, full=full)
    server.puller.soon()
    status = 200 if done.ok else 503 if done.lost_store else 409
    return json_response(server.clean(done.to_json()), status)


@router.get("/log", dependencies=[needs("viewer")], responses=doc.ok(doc.Commits))
def log(request: Request, limit: Limit = 20, cursor: Cursor = None) -> Response:
    """The commits of the store, newest first."""
    server = server_of(request)
    before = None if cursor is None else _seq(cursor)
    found = list(server.repo.datastore.maintenance.log(limit + 1, before))
    items = commit_items(server, found[:limit])
    following = encode_cursor(str(items[-1]["seq"])) if len(found) > limit else None
    return json_response(server.clean({"items": items, "commits": items, "next": following}))


def commit_items(server: Server, commits: Iterable[LoggedCommit]) -> list[dict[str, Any]]:
    """Commits as documents, with the data that they touched by the names of its models."""
    called = {model_id: name or model_id for _, model_id, name in server.repo.catalog.models()}
    return [
        {**one.to_json(), "names": [f"{called.get(model_id, model_id)}/{name}" for model_id, name in one.names]}
        for one in commits
    ]


@router.get("/log/{seq}", dependencies=[needs("viewer")], responses=doc.ok(doc.CommitPaths))
def commit(request: Request, seq: int, limit: Limit = 1000) -> Response:
    """One commit with the paths that it added, changed and deleted."""
    server = server_of(request)
    return json_response(server.clean(server.repo.datastore.maintenance.commit(seq, limit)))


def _seq(cursor: str) -> int:
    from swamp.errors import UsageError

    text = decode_cursor(cursor)
    if not text.isdigit():
        raise UsageError("this is not a place in the log", hint="use `next` of the page before")
    return int(text)


@router.get("/locks", dependencies=[needs("viewer")], responses=doc.ok(doc.Locks))
def locks(request: Request) -> Response:
    """Who holds the global lease, and which models are leased."""
    server = server_of(request)
    return json_response(server.clean(server.repo.datastore.maintenance.lock_status()))


@router.post("/locks/release", dependencies=[needs("admin")], responses=doc.ok(doc.Released))
def release(request: Request, model: Annotated[str | None, Body(embed=True)] = None) -> Response:
    """Takes a lease away from its holder: the global one, or that of a model `TYPE/ID`."""
    server = server_of(request)
    return json_response(server.clean(server.repo.datastore.maintenance.lock_release(model)))


@router.get("/conflicts", dependencies=[needs("viewer")], responses=doc.ok(doc.ConflictList))
def conflicts(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """What was changed here and elsewhere: the local side is kept aside, the store's is in place."""
    server = server_of(request)
    found = Conflicts(server.repo).list()
    part, following = page_of(found, lambda one: one.id, cursor, limit)
    items = [one.to_json() for one in part]
    return json_response(server.clean({"items": items, "total": len(found), "next": following}))


@router.get("/conflicts/compare", dependencies=[needs("viewer")], responses=doc.ok(doc.ComparedConflict))
def compared(request: Request, id: str) -> Response:  # noqa: A002
    """Both sides of one conflict, their lines beside each other."""
    server = server_of(request)
    return json_response(server.clean(compare(Conflicts(server.repo), id)))


@router.post("/conflicts/resolve", dependencies=[needs("operator")], responses=doc.ok(doc.Resolved))
def resolve(request: Request, id: Annotated[str, Body()], keep: Annotated[Keep, Body()]) -> Response:  # noqa: A002
    """Keeps mine, theirs or both."""
    server = server_of(request)
    done = Conflicts(server.repo).resolve(id, keep)
    server.puller.soon()
    return json_response(server.clean(done))


@router.get("/doctor", dependencies=[needs("viewer")], responses=doc.ok(doc.Examined))
def doctor(request: Request) -> Response:
    """Examines everything the datastore rests on; changes nothing."""
    from swamp.repo.doctor import Doctor

    server = server_of(request)
    checks = Doctor(server.repo).examine()
    document = {"checks": [check.to_json() for check in checks], "ok": all(check.ok for check in checks)}
    return json_response(server.clean(document))


@router.post("/undelete", dependencies=[needs("operator")], responses=doc.ok(doc.Restored))
def undelete(
    request: Request,
    paths: Annotated[list[str] | None, Body()] = None,
    since: Annotated[str | None, Body()] = None,
) -> Response:
    """Brings back what was deleted, while the undo window lasts."""
    server = server_of(request)
    moment = None if since is None else parse_since(since, server.repo.env.clock.now())
    done = server.repo.datastore.maintenance.undelete(paths or (), since=moment)
    server.puller.soon()
    return json_response({"restored": list(done.restored), "gone": list(done.gone)})
