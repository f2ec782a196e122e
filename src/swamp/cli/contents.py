"""`swamp data cat|show|diff|undelete|lineage`: what is in a version, what changed, and what it was made from."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import CommandSession, Model, Name, Version, session
from swamp.cli.render import plural, size_text
from swamp.errors import UsageError
from swamp.values import as_document

if TYPE_CHECKING:
    from swamp.data.versions import DataVersion
    from swamp.repo.diff import Diff
    from swamp.repo.lineage import Lineage
    from swamp.repo.preview import Preview

Part = Annotated[str | None, typer.Option("--part", metavar="P", help="One file of a version that has several.")]


def cat(model: Model, name: Name, version: Version = None, part: Part = None) -> None:
    """Write the bytes of a version to stdout, and nothing else."""
    with session(reading=True) as s:
        if s.common.json:
            raise UsageError("`data cat` writes bytes: it has no JSON form", hint="`data get --json` has the content")
        write_bytes(s, s.repo.data.get(model, name, version), part)


def write_bytes(s: CommandSession, found: DataVersion, part: str | None = None) -> None:
    """The content on stdout, unchanged. It was compared with its checksum before the first byte is written."""
    sys.stdout.flush()
    out = sys.stdout.buffer
    s.repo.data.contents.write_to(found, out, part)
    out.flush()


def show(
    model: Model,
    name: Name,
    version: Version = None,
    rows: Annotated[int, typer.Option("--rows", "-n", metavar="N", min=1, help="Rows, lines or parts to show.")] = 10,
) -> None:
    """Look at a version: schema, rows and statistics of a table, pretty JSON, the head of a text, or its parts."""
    from swamp.repo.data import describe
    from swamp.repo.preview import preview

    with session(reading=True) as s:
        found = s.repo.data.get(model, name, version)
        seen = preview(s.repo.data.contents, found, rows)
        head = {key: value for key, value in describe(found).items() if key != "parts"}
        s.answer({**head, **seen.to_json()}, lambda: _show(s, found, seen))


def _show(s: CommandSession, found: DataVersion, seen: Preview) -> None:
    counted = f", {seen.row_count:,} rows" if seen.row_count is not None else ""
    parts = f", {plural(found.meta.part_count, 'part')}" if found.meta.has_parts else ""
    about = f"{found.called}/{found.name} version {found.version}"
    s.out.line(f"{about}: {seen.format}, {size_text(found.meta.size)}{counted}{parts}")
    s.out.line()
    if seen.kind == "table":
        _show_table(s, seen)
    elif seen.kind == "json":
        s.out.line(json.dumps(seen.value, indent=2, ensure_ascii=False))
    elif seen.kind == "text":
        s.out.line(seen.text.rstrip("\n"))
        if seen.cut:
            s.out.line("…")
    elif seen.parts:
        s.out.table(("PART", "SIZE"), [(part["name"], size_text(part["size"])) for part in seen.parts])
    else:
        s.out.line("(not text: `swamp data cat` writes its bytes)")


def _show_table(s: CommandSession, seen: Preview) -> None:
    known = [(c.name, c.type, c.nulls, _short(c.low), _short(c.high)) for c in seen.columns]
    s.out.table(("COLUMN", "TYPE", "NULLS", "MIN", "MAX"), known)
    if not seen.rows:
        return
    s.out.line()
    names = list(dict.fromkeys([c.name for c in seen.columns] + [key for row in seen.rows for key in row]))
    s.out.table(names, [[_short(row.get(one)) for one in names] for row in seen.rows])
    if seen.cut:
        s.out.line("…")


def _short(value: Any) -> str:
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def diff(
    model: Model,
    name: Name,
    first: Annotated[int | None, typer.Argument(metavar="[V1]", help="From this version (the one before V2).")] = None,
    second: Annotated[int | None, typer.Argument(metavar="[V2]", help="To this version (the latest).")] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit 1 when they differ.")] = False,
) -> None:
    """What changed between two versions: the last two, V1 and the latest, or V1 and V2."""
    from swamp.repo.diff import diff as compare

    with session(reading=True) as s:
        old, new = s.repo.data.pair(model, name, first, second)
        found = compare(s.repo.data.contents, old, new)
        document = {"name": name, "modelName": model, "from": old.version, "to": new.version, **found.to_json()}
        s.answer(document, lambda: _show_diff(s, old, new, found))
        if exit_code and not found.equal:
            raise typer.Exit(1)


def _show_diff(s: CommandSession, old: DataVersion, new: DataVersion, found: Diff) -> None:
    if found.equal:
        s.out.line(f"Versions {old.version} and {new.version} are the same")
        return
    if found.lines:
        for line in found.lines:
            s.out.line(line)
        return
    s.out.line(f"{old.name}: version {old.version} -> {new.version} ({found.kind})")
    for key, value in found.summary.items():
        if value:
            words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in key)
            s.out.line(f"  {words}: {value}")
    for change in found.changes[:100]:
        s.out.line(f"{_SIGNS[change['change']]} {_told(change)}")
    if len(found.changes) > 100:
        s.out.line("… (--json has more)")


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def _told(change: dict[str, Any]) -> str:
    if "row" in change:
        return json.dumps(change["row"], ensure_ascii=False)
    where = next((str(change[key]) for key in ("path", "column", "part") if key in change), "")
    values = [_short(change[key]) for key in ("before", "after", "sizeBefore", "sizeAfter") if key in change]
    return f"{where}: {' -> '.join(values)}" if values else where


def undelete(model: Model, name: Name) -> None:
    """Bring back data that was deleted, with its versions, while the undo window lasts."""
    with session() as s:
        done = s.repo.data.undelete(model, name)
        said = f"Restored {plural(len(done.restored), 'file')} of {name}, {len(done.gone)} gone for good"
        s.out.result(as_document(done), said)
        if done.gone:
            raise typer.Exit(1)


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
        _show_lineage(s, lineage_of(s.repo, found, up=up or both, down=down or both, depth=depth), format_)


def _show_lineage(s: CommandSession, found: Lineage, format_: str) -> None:
    from swamp.repo.lineage import as_mermaid, events_of_lineage

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
