"""`/api/v1/models` and `/api/v1/types`: what can be run, and running one method."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from swamp.errors import Failed
from swamp.models.define import model_item, type_item
from swamp.models.registry import load_registry
from swamp.serve import documents as doc
from swamp.serve.ask import Cursor, Limit, needs, page_of, server_of
from swamp.serve.dispatch import driving
from swamp.serve.respond import STATUS, json_response
from swamp.serve.state import Server

router = APIRouter(prefix="/api/v1", tags=["models"])
METHOD_SECONDS = 3600.0


@router.get("/types", dependencies=[needs("viewer")], responses=doc.ok(doc.Types))
def types(request: Request) -> Response:
    """Every model type, built in and plugged in."""
    server = server_of(request)
    registry = load_registry(server.repo.path)
    found = [type_item(kind) for kind in registry]
    broken = [{"name": plugin.name, "error": plugin.error} for plugin in registry.broken]
    return json_response(server.clean({"items": found, "types": found, "total": len(found), "broken": broken}))


@router.get("/types/{type:path}", dependencies=[needs("viewer")], responses=doc.ok(doc.Type))
def describe_type(request: Request, type: str) -> Response:  # noqa: A002
    """A type's methods and their arguments."""
    server = server_of(request)
    return json_response(server.clean(load_registry(server.repo.path).get(type).describe()))


@router.get("/models", dependencies=[needs("viewer")], responses=doc.ok(doc.Models))
def models(request: Request, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """All models: defined, or made by workflows and `data put`."""
    server = server_of(request)
    with driving(server.repo) as driver:
        found = sorted(
            (model_item(one) for one in driver.context.models.all()), key=lambda item: (item["name"], item["type"])
        )
        broken = [{"file": file, "error": error} for file, error in driver.context.models.broken()]
    part, following = page_of(found, lambda item: f"{item['name']}\x00{item['type']}", cursor, limit)
    document = {"items": part, "total": len(found), "next": following, **({"broken": broken} if broken else {})}
    return json_response(server.clean(document))


@router.get("/models/{model}", dependencies=[needs("viewer")], responses=doc.ok(doc.Model))
def model(request: Request, model: str) -> Response:
    """One definition."""
    server = server_of(request)
    with driving(server.repo) as driver:
        found = driver.context.models.find(model)
    return json_response(server.clean({**found.to_document(), "file": found.file}))


@router.get("/models/{model}/methods", dependencies=[needs("viewer")], responses=doc.ok(doc.Methods))
def methods(request: Request, model: str) -> Response:
    """The methods of a model's type."""
    server = server_of(request)
    with driving(server.repo) as driver:
        kind = driver.context.models.registry.get(driver.context.models.find(model).type)
    found = kind.describe()["methods"]
    return json_response(server.clean({"items": found, "total": len(found)}))


@router.post("/models/{model}/methods/{method}/run", dependencies=[needs("operator")], responses=doc.ok(doc.MethodRun))
def run_method(
    request: Request,
    model: str,
    method: str,
    inputs: Annotated[dict[str, Any] | None, Body()] = None,
    tags: Annotated[dict[str, str] | None, Body()] = None,
) -> Response:
    """Runs a method in a process of its own and answers when its data is in the datastore. 409: the method failed."""
    server = server_of(request)
    with driving(server.repo) as driver:
        driver.context.models.find(model)
    status, document = _command(server, model, method, inputs or {}, tags or {})
    server.puller.soon()
    return json_response(server.clean(document), status)


def _command(
    server: Server, model: str, method: str, inputs: dict[str, Any], tags: dict[str, str]
) -> tuple[int, dict[str, Any]]:
    """`swamp model method run`, whose documents these are. Inputs go through a file: they may hold secrets."""
    with tempfile.TemporaryDirectory(dir=server.repo.path / ".swamp" / "serve") as directory:
        given = Path(directory) / "inputs.json"
        given.write_text(json.dumps(inputs), encoding="utf-8")
        words = [
            "model",
            "method",
            "run",
            "--json",
            "-q",
            "--repo-dir",
            str(server.repo.path),
            "--input-file",
            str(given),
        ]
        words += [word for key, value in tags.items() for word in ("--tag", f"{key}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "swamp.cli.main", *words, "--", model, method],
            env=server.dispatcher.spawner.environment,
            cwd=server.repo.path,
            capture_output=True,
            timeout=METHOD_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    return _told(done.returncode, done.stdout, done.stderr)


def _told(code: int, out: bytes, err: bytes) -> tuple[int, dict[str, Any]]:
    if out.strip():
        document: dict[str, Any] = json.loads(out)
        return (200 if code == 0 else 409), document
    try:
        error: dict[str, Any] = json.loads(err.strip().splitlines()[-1])
        return STATUS.get(error["code"], 500), error
    except (ValueError, IndexError, KeyError):
        raise Failed(f"the method's process ended with {code}") from None
