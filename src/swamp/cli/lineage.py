"""`swamp data lineage`: what a version was made from, and what was made from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from swamp.cli.arguments import Model, Name, Version
from swamp.cli.command import Session, session
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.repo.lineage import Lineage

FORMATS = ("text", "json", "mermaid", "openlineage")


def lineage(
    model: Model,
    name: Name,
    version: Version = None,
    up: Annotated[bool, typer.Option("--up", help="Only what it was made from.")] = False,
    down: Annotated[bool, typer.Option("--down", help="Only what was made from it.")] = False,
    depth: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many steps away.")] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="F", help="text, json, mermaid, or openlineage: an event per line.")
    ] = "text",
) -> None:
    """Show what a version was made from and what was made from it, as runs and programs have recorded it."""
    from swamp.repo.lineage import lineage_of

    if format_ not in FORMATS:
        raise UsageError(f"`{format_}` is no format", hint=f"there is {', '.join(FORMATS)}")
    with session(reading=True) as s:
        found = s.repo.data.find(model, name, version)
        both = up == down
        _show(s, lineage_of(s.repo, found, up=up or both, down=down or both, depth=depth), format_)


def _show(s: Session, found: Lineage, format_: str) -> None:
    from swamp.repo.lineage import as_mermaid
    from swamp.repo.openlineage import events_of_lineage

    if format_ == "openlineage":
        events = events_of_lineage(s.repo, found)
        s.answer({"items": events, "total": len(events)}, "\n".join(json.dumps(event) for event in events))
    elif format_ == "mermaid":
        drawn = as_mermaid(found)
        s.answer({**found.to_json(), "mermaid": drawn}, drawn)
    elif format_ == "json":
        s.answer(found.to_json(), json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        s.answer(found.to_json(), str(found))
