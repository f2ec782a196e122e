"""`swamp schema`: JSON Schemas for editors and CI."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from swamp.cli.command import session, single
from swamp.errors import UsageError

app = single("JSON Schemas of workflows, model definitions and .swamp.yaml, for editors.")


@app.command("schema")
def schema(
    kind: str = typer.Argument(..., help="workflow, model or repo.", metavar="KIND"),
    output: str | None = typer.Option(None, "--output", help="Write it to this file.", metavar="FILE"),
) -> None:
    """Print the JSON Schema of workflow files, model definitions or .swamp.yaml."""
    from swamp.cache.files import on_disk
    from swamp.cli.schemas import SCHEMAS
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
