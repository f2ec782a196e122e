"""`swamp data`: versioned data by model and name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from swamp.cli.command import Session, group, session
from swamp.cli.render import plural, size_text
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.catalog.schema import Row
    from swamp.data.collect import Reclaimed

app = group("Versioned data: put, list, get, query.")

Model = Annotated[str, typer.Argument(help="A model's name or id.", metavar="MODEL")]
Name = Annotated[str, typer.Argument(help="The data's name.", metavar="NAME")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="K=V", help="A tag; may be repeated.")]


@app.command("list")
def list_(
    model: Annotated[str | None, typer.Argument(help="Only this model's.", metavar="MODEL")] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Only of this model type.")] = None,
    workflow: Annotated[str | None, typer.Option(metavar="W", help="Only what this workflow wrote.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only what this run wrote.")] = None,
) -> None:
    """List the latest version of every name."""
    with session(reading=True) as s:
        rows = s.repo.data.list(model, type=type_, workflow=workflow, run=run)
        _warn_of_damage(s)
        _show_rows(s, rows)


def _warn_of_damage(s: Session) -> None:
    for path, reason in s.repo.catalog.damaged():
        s.out.warn(f"{path} cannot be read: {reason}")


def _show_rows(s: Session, rows: Sequence[Row]) -> None:
    def text() -> None:
        columns = ("MODEL", "NAME", "VERSION", "TYPE", "SIZE", "CREATED")
        s.out.table(columns, [_cells(row) for row in rows])

    s.out.result({"items": [row.listed() for row in rows], "total": len(rows)}, text)


def _cells(row: Row) -> tuple[Any, ...]:
    fields = row.fields
    size = size_text(fields["size"])
    return row.model_name, fields["name"], fields["version"], fields["contentType"], size, fields["createdAt"]


@app.command("get")
def get(
    model: Model,
    name: Name,
    version: Annotated[int | None, typer.Option(metavar="N", help="This version, not the latest.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the content here.")
    ] = None,
) -> None:
    """Show one version, or write its content to a file (a directory if it has several parts)."""
    from swamp.repo.data import describe

    with session(reading=True) as s:
        found = s.repo.data.get(model, name, _positive(version))
        document = describe(found)
        if output is not None:
            s.repo.data.copy_to(found, Path(output))
            s.out.result({**document, "output": output}, f"Wrote {size_text(found.meta.size)} to {output}")
            return
        content = s.repo.data.text(found)
        if content is not None:
            document["content"] = content
        s.out.result(document, lambda: _show_version(s, document, content))


def _show_version(s: Session, document: dict[str, Any], content: str | None) -> None:
    s.out.fields({key: value for key, value in document.items() if key not in ("content", "parts")})
    s.out.line()
    if content is not None:
        s.out.line(content.rstrip("\n"))
    else:
        s.out.line("(not text, or larger than 1 MiB: use --output FILE)")


@app.command("versions")
def versions(model: Model, name: Name) -> None:
    """List the versions of a name, newest first."""
    with session(reading=True) as s:
        rows = s.repo.data.versions(model, name)
        found = [
            {
                "version": row.ref.version,
                "createdAt": row.fields["createdAt"],
                "size": row.fields["size"],
                "checksum": row.checksum,
                "isLatest": row.fields["isLatest"],
            }
            for row in rows
        ]
        columns = ("VERSION", "CREATED", "SIZE", "CHECKSUM", "LATEST")
        s.out.result(
            {"versions": found, "total": len(found)},
            lambda: s.out.table(
                columns,
                [
                    (v["version"], v["createdAt"], size_text(v["size"]), v["checksum"][:12], v["isLatest"])
                    for v in found
                ],
            ),
        )


@app.command("put")
def put(
    model: Model,
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, a directory of parts, or - for stdin.")],
    content_type: Annotated[str | None, typer.Option(metavar="T", help="Default: by the file's name.")] = None,
    tag: Tags = None,
    lifetime: Annotated[str | None, typer.Option(metavar="L", help="infinite, ephemeral, 30d, 12h, …")] = None,
) -> None:
    """Save FILE as a new version. A MODEL without a definition is made."""
    from swamp.repo.data import describe

    tags = parse_tags(tag)
    with session() as s:
        done = s.repo.data.put(
            model, name, _content(file), content_type=content_type, tags=dict(tags), lifetime=lifetime
        )
        document = describe(done.version)
        if done.sync is not None:
            document["sync"] = done.sync.to_json()
        s.out.result(document, f"Saved version {done.version.version} of {name} ({size_text(done.version.meta.size)})")


def _content(file: str) -> Path | BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    path = Path(file)
    if not path.exists():
        raise UsageError(f"{file} does not exist", hint="name a file or a directory, or - for standard input")
    return path


def parse_tags(given: Sequence[str] | None) -> list[tuple[str, str]]:
    """`k=v` words as pairs. Raises UsageError."""
    pairs = []
    for word in given or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--tag {word!r} is not of the form key=value")
        pairs.append((key, value))
    return pairs


@app.command("search")
def search(
    tag: Tags = None,
    since: Annotated[str | None, typer.Option(metavar="T", help="An ISO time, or 1h, 2d.")] = None,
) -> None:
    """Find the latest versions by tag and time, newest first."""
    with session(reading=True) as s:
        _show_rows(s, s.repo.data.search(parse_tags(tag), since))


@app.command("query")
def query(
    predicate: Annotated[str, typer.Argument(metavar="CEL", help="Such as: modelName == 'web' && size > 100")],
    select: Annotated[str | None, typer.Option(metavar="CEL", help="A value per match instead of all fields.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many.")] = None,
) -> None:
    """Find versions by a CEL predicate over their fields, tags and content."""
    with session(reading=True) as s:
        found = s.repo.data.query(predicate, select=select, limit=limit)
        for warning in found.warnings:
            s.out.warn(warning)
        s.out.result(found.to_json(), lambda: _show_results(s, found.results))


def _show_results(s: Session, results: list[Any]) -> None:
    import json

    if results and isinstance(results[0], dict) and "modelType" in results[0]:
        keys = ("modelName", "name", "version", "contentType", "size", "createdAt")
        s.out.table([key.upper() for key in keys], [[row.get(key) for key in keys] for row in results])
        return
    for value in results:
        s.out.line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


@app.command("delete")
def delete(
    model: Model,
    name: Name,
    version: Annotated[int | None, typer.Option(metavar="N", help="Only this version.")] = None,
    yes: Yes = False,
) -> None:
    """Delete a name with all its versions, or one version, for everybody."""
    with session() as s:
        what = f"version {version} of {name}" if version is not None else f"all versions of {name}"
        s.out.confirm(f"Delete {what} of {model}, for everybody?", yes)
        count = s.repo.data.delete(model, name, _positive(version))
        s.out.result({"versionsDeleted": count}, f"Deleted {plural(count, 'version')}")


@app.command("rename")
def rename(
    model: Model,
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW")],
) -> None:
    """Give data a new name; the old name points to it."""
    with session() as s:
        done = s.repo.data.rename(model, old, new)
        document = {"oldName": old, "newName": new, "version": done.new.version}
        s.out.result(document, f"Renamed {old} to {new}")


@app.command("gc")
def gc(dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete versions that their own lifetime or retention has given up."""
    with session() as s:
        _show_reclaimed(s, s.repo.data.gc(dry_run=dry_run, confirmed=yes))


@app.command("prune")
def prune(dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete what nobody can see: deleted names' history, dead forwards, abandoned writes."""
    with session() as s:
        _show_reclaimed(s, s.repo.data.prune(dry_run=dry_run, confirmed=yes))


def _show_reclaimed(s: Session, found: Reclaimed) -> None:
    verb = "Would delete" if found.dry_run else "Deleted"
    text = f"{verb} {plural(len(found.versions), 'version')}, {size_text(found.size)}"
    s.out.result(found.to_json(), text)


def _positive(version: int | None) -> int | None:
    if version is not None and version < 1:
        raise UsageError(f"--version {version}: versions are 1 or more")
    return version
