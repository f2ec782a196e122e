"""`swamp schema`: JSON Schemas of workflows, model definitions and .swamp.yaml, for editors and CI."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer

from swamp.cli.command import session, single
from swamp.errors import UsageError

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
TEXT: Final = {"type": "string", "minLength": 1}
UUID: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
Schema = dict[str, Any]


def workflow_schema() -> Schema:
    """`workflows/*.yaml`, made from the classes that parse it."""
    from swamp.workflows.schema import WorkflowFile

    return _titled(WorkflowFile.model_json_schema(by_alias=True, mode="validation"), "swamp workflow")


def model_schema() -> Schema:
    """`models/<type>/<name>.yaml`. Arguments are those of the type: `swamp model type describe` has them."""
    from swamp.models.builtin import BUILTIN
    from swamp.models.define import KEYS

    types = sorted(kind.name for kind in BUILTIN)
    mapping: Schema = {"type": ["object", "null"]}
    arguments = {**mapping, "properties": {"arguments": mapping}, "additionalProperties": False}
    known: Schema = {
        "id": {**TEXT, "description": "What outputs and data know the model by; never changed."},
        "name": TEXT,
        "type": {**TEXT, "description": "`swamp model type list` shows which there are.", "examples": types},
        "version": {"type": ["integer", "string"]},
        "description": {"type": ["string", "null"]},
        "tags": mapping,
        "globalArguments": {**mapping, "description": "Arguments of every method; values may be ${{ expressions }}."},
        "methods": {**mapping, "additionalProperties": arguments},
        "inputs": {**mapping, "description": "A JSON Schema of what a run is given."},
    }
    return _titled(
        _object({key: known[key] for key in KEYS}, required=["id", "name", "type"]), "swamp model definition"
    )


def repo_schema() -> Schema:
    """`.swamp.yaml`. Keys that swamp does not know are other programs', except in blocks of ours."""
    from swamp.serve.config import ServeConfig
    from swamp.settings import ENGINES, SQL_ENGINES

    serve = ServeConfig.model_json_schema(by_alias=True)
    conf = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    known = {
        "repoId": {"type": "string", "pattern": UUID},
        "swampVersion": {"type": "string"},
        "initializedAt": {},
        "engine": {"enum": list(ENGINES)},
        "autoGc": _SWITCH,
        "packs": _SWITCH,
        "datastore": _datastore(),
        "spark": {"type": "object", "properties": {"master": TEXT, "remote": TEXT, "conf": conf}},
        "sql": _object({"engine": {"enum": list(SQL_ENGINES)}}),
        "serve": serve,
    }
    made = {"type": "object", "properties": known, "required": ["repoId"], "$defs": serve.pop("$defs")}
    return _titled(made, ".swamp.yaml of a swamp repository")


_SWITCH: Final[Schema] = {"anyOf": [{"type": "boolean"}, {"enum": ["on", "off"]}]}


def _datastore() -> Schema:
    from swamp.cache.paths import TIER_DIRECTORIES
    from swamp.repo.config import NUMBERS, TEXTS
    from swamp.settings import HYDRATE

    config: Schema = {name: {"type": "string"} for name in TEXTS}
    config |= {name: {"type": "integer", "minimum": 1, "maximum": most} for name, most in NUMBERS.items()}
    config["forcePathStyle"] = {"type": "boolean"}
    tiers = {"type": "array", "items": {"enum": list(TIER_DIRECTORIES)}, "minItems": 1}
    return {
        "type": ["object", "null"],
        "properties": {
            "type": {**TEXT, "examples": ["filesystem", "@swamp/s3-datastore"]},
            "url": {**TEXT, "examples": ["s3://bucket/prefix", "gs://bucket", "az://container", "file:///mnt/team"]},
            "path": TEXT,
            "config": {"type": "object", "properties": config},
            "namespace": {"type": ["string", "null"]},
            "hydrate": {"enum": list(HYDRATE)},
            "directories": tiers,
            "exclude": {"type": "array", "items": TEXT},
            "keepDays": {"type": "integer", "minimum": 0, "maximum": 3650},
            "packs": _SWITCH,
        },
    }


def _object(properties: Schema, *, required: list[str] | None = None) -> Schema:
    made: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made


def _titled(schema: Schema, title: str) -> Schema:
    return {"$schema": DRAFT, **schema, "title": title}


SCHEMAS: Final[dict[str, Callable[[], Schema]]] = {
    "workflow": workflow_schema,
    "model": model_schema,
    "repo": repo_schema,
}


app = single("JSON Schemas of workflows, model definitions and .swamp.yaml, for editors.")


@app.command("schema")
def schema(
    kind: str = typer.Argument(..., help="workflow, model or repo.", metavar="KIND"),
    output: str | None = typer.Option(None, "--output", help="Write it to this file.", metavar="FILE"),
) -> None:
    """Print the JSON Schema of workflow files, model definitions or .swamp.yaml."""
    from swamp.cache.files import on_disk
    from swamp.data.names import meant

    with session(reading=True) as s:
        if kind not in SCHEMAS:
            raise UsageError(
                f"there is no schema {kind!r}", hint=f"{meant(kind, SCHEMAS)}there are: {', '.join(SCHEMAS)}"
            )
        made = SCHEMAS[kind]()
        if output is None:
            s.out.result(made, lambda: s.out.line(json.dumps(made, indent=2)))
            return
        with on_disk("write", output):
            Path(output).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        s.out.result({"kind": kind, "output": output}, f"Wrote the schema to {output}")
