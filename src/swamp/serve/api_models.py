"""`/api/v1/models` and `/api/v1/types`: what can be run, and running one method."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body

from swamp.errors import Failed
from swamp.models.define import model_item, type_item
from swamp.models.registry import load_registry
from swamp.serve import documents as doc
from swamp.serve.dispatch import driving
from swamp.serve.respond import STATUS, ApiRouter, Cursor, Limit, for_role, page_of
from swamp.serve.state import Asked

router = ApiRouter(prefix="/api/v1", tags=["models"])
METHOD_SECONDS = 3600.0


@router.get("/types", **for_role("viewer", doc.CountedPage[doc.TypeItem]))
def types(server: Asked) -> Any:
    """Every model type, built in and plugged in."""
    registry = load_registry(server.repo.path)
    found = [type_item(kind) for kind in registry]
    broken = [{"name": plugin.name, "error": plugin.error} for plugin in registry.broken]
    return {"items": found, "types": found, "total": len(found), "broken": broken}


@router.get("/types/{type:path}", **for_role("viewer", doc.Type))
def describe_type(server: Asked, type: str) -> Any:  # noqa: A002
    """A type's methods and their arguments."""
    return load_registry(server.repo.path).get(type).describe()


@router.get("/models", **for_role("viewer", doc.CountedPage[doc.ModelItem]))
def models(server: Asked, limit: Limit = 100, cursor: Cursor = None) -> Any:
    """All models: defined, or made by workflows and `data put`."""
    with driving(server.repo) as driver:
        known = driver.context.models
        found = sorted((model_item(one) for one in known.all()), key=lambda item: (item["name"], item["type"]))
        broken = [{"file": file, "error": error} for file, error in known.broken()]
    part, following = page_of(found, lambda item: f"{item['name']}\x00{item['type']}", cursor, limit)
    return {"items": part, "total": len(found), "next": following, **({"broken": broken} if broken else {})}


@router.get("/models/{model}", **for_role("viewer", doc.Model))
def model(server: Asked, model: str) -> Any:
    """One definition."""
    with driving(server.repo) as driver:
        found = driver.context.models.find(model)
    return {**found.to_document(), "file": found.file}


@router.get("/models/{model}/methods", **for_role("viewer", doc.CountedPage[dict[str, Any]]))
def methods(server: Asked, model: str) -> Any:
    """The methods of a model's type."""
    with driving(server.repo) as driver:
        kind = driver.context.models.registry.get(driver.context.models.find(model).type)
    found = kind.describe()["methods"]
    return {"items": found, "total": len(found)}


@router.post("/models/{model}/methods/{method}/run", **for_role("operator", doc.MethodRun))
def run_method(
    server: Asked,
    model: str,
    method: str,
    inputs: Annotated[dict[str, Any] | None, Body()] = None,
    tags: Annotated[dict[str, str] | None, Body()] = None,
) -> Any:
    """Runs a method in a process of its own and answers when its data is in the datastore. 409: the method failed."""
    with driving(server.repo) as driver:
        driver.context.models.find(model)
    # By `swamp model method run`, whose documents these are. Inputs go through a file: they may hold secrets.
    with tempfile.TemporaryDirectory(dir=server.repo.path / ".swamp" / "serve") as directory:
        given = Path(directory) / "inputs.json"
        given.write_text(json.dumps(inputs or {}), encoding="utf-8")
        words = ["--json", "-q", "--repo-dir", str(server.repo.path), "--input-file", str(given)]
        words += [word for key, value in (tags or {}).items() for word in ("--tag", f"{key}={value}")]
        done = subprocess.run(
            [sys.executable, "-m", "swamp.cli.main", "model", "method", "run", *words, "--", model, method],
            env=server.dispatcher.spawner.environment,
            cwd=server.repo.path,
            capture_output=True,
            timeout=METHOD_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    server.puller.soon()
    if done.stdout.strip():
        return json.loads(done.stdout), 200 if done.returncode == 0 else 409
    try:
        error = json.loads(done.stderr.strip().splitlines()[-1])
        return error, STATUS.get(error["code"], 500)
    except (ValueError, IndexError, KeyError):
        raise Failed(f"the method's process ended with {done.returncode}") from None
