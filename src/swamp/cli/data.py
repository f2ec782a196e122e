"""`swamp data`: versioned data by model and name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from swamp.cli.command import (
    CommandSession,
    DryRun,
    Model,
    Name,
    Since,
    SomeModel,
    Tags,
    Version,
    Yes,
    group,
    reading,
    session,
)
from swamp.cli.contents import cat, diff, lineage, show, undelete, write_bytes
from swamp.cli.outputs import known_run
from swamp.cli.render import plural, size_text, when
from swamp.errors import NotFound, UsageError

if TYPE_CHECKING:
    from swamp.catalog.schema import Row
    from swamp.data.lifetimes import Reclaimed

app = group("Versioned data: put, list, get, query.")

for _verb, _function in (("cat", cat), ("show", show), ("diff", diff), ("lineage", lineage)):
    reading(app, _verb)(_function)
app.command("undelete")(undelete)


@reading(app, "list")
def list_(
    model: SomeModel = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="Only of this model type.")] = None,
    workflow: Annotated[str | None, typer.Option(metavar="W", help="Only what this workflow wrote.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only what this run wrote.")] = None,
) -> None:
    """List the latest version of every name."""
    with session(reading=True) as s:
        everything = type_ is None and workflow is None and run is None
        try:
            rows = s.repo.data.list(model, type=type_, workflow=workflow, run=known_run(s, run))
        except NotFound:
            if not (everything and _waiting(s, model)):
                raise
            rows = []  # all that there is of this model waits for the store
        for path, reason in s.repo.catalog.damaged():
            s.out.warn(f"{path} cannot be read: {reason}")
        _show_rows(s, rows, _waiting(s, model) if everything else [])


def _waiting(s: CommandSession, model: str | None) -> list[dict[str, Any]]:
    """Puts that are kept here until the store answers: they have no number yet."""
    return [kept.to_json() for kept in s.repo.kept.waiting() if model in (None, kept.model)]


def _show_rows(s: CommandSession, rows: Sequence[Row], waiting: Sequence[dict[str, Any]] = ()) -> None:
    cells: list[tuple[Any, ...]] = []
    for row in rows:
        known = row.fields
        size = size_text(known["size"]) if row.away is None else f"not here: {row.away}"
        made = when(known["createdAt"])
        cells.append((row.model_name, known["name"], known["version"], known["contentType"] or "", size, made))
    for w in waiting:
        size = size_text(w["size"])
        cells.append((w["modelName"], w["name"], "waiting", w["contentType"], size, w["createdAt"]))
    items = [*(row.listed() for row in rows), *waiting]
    s.items(items, ("MODEL", "NAME", "VERSION", "TYPE", "SIZE", "CREATED"), cells)


@reading(app, "get")
def get(
    model: Model,
    name: Name,
    version: Version = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the content here; - for stdout.")
    ] = None,
) -> None:
    """Show one version, or write its content to a file (a directory if it has several parts).

    In a pipe the content alone is on stdout, and what is known of it on stderr.
    """
    from swamp.repo.data import describe

    with session(reading=True) as s:
        found = s.repo.data.get(model, name, _positive(version))
        document = describe(found)
        if output == "-":
            if s.common.json:
                raise UsageError("--output - and --json cannot both have stdout", hint="leave out one of them")
            write_bytes(s, found)
            return
        if output is not None:
            s.repo.data.copy_to(found, Path(output))
            s.answer({**document, "output": output}, f"Wrote {size_text(found.meta.size)} to {output}")
            return
        if not (sys.stdout.isatty() or s.common.json):
            write_bytes(s, found)
            for key, value in document.items():
                s.out.detail(f"{key}: {value}")
            return
        content = s.repo.data.text(found)
        if content is not None:
            document["content"] = content

        def text() -> None:
            s.out.fields({key: value for key, value in document.items() if key not in ("content", "parts")})
            s.out.line()
            s.out.line(
                "(not text, or larger than 1 MiB: use --output FILE)" if content is None else content.rstrip("\n")
            )

        s.answer(document, text)


@reading(app, "versions")
def versions(model: Model, name: Name) -> None:
    """List the versions of a name, newest first."""
    with session(reading=True) as s:
        found = [row.version_item() for row in s.repo.data.versions(model, name)]
        rows = []
        for v in found:
            size = f"not here: {v['reason']}" if "reason" in v else size_text(v["size"])
            rows.append((v["version"], when(v["createdAt"]), size, v["checksum"][:12], v["isLatest"]))
        s.items(found, ("VERSION", "CREATED", "SIZE", "CHECKSUM", "LATEST"), rows, versions=found)


@app.command("put")
def put(
    model: Model,
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file, a directory of parts, or - for stdin.")],
    content_type: Annotated[str | None, typer.Option(metavar="T", help="Default: by the file's name.")] = None,
    tag: Tags = None,
    lifetime: Annotated[str | None, typer.Option(metavar="L", help="infinite, ephemeral, 30d, 12h, …")] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="N|SPAN", help="Versions that `data gc` keeps: 10, or 30d.")
    ] = None,
) -> None:
    """Save FILE as a new version. A MODEL without a definition is made."""
    from swamp.models.inputs import tag_pairs
    from swamp.repo.data import describe

    tags = dict(tag_pairs(tag or ()))
    with session() as s:
        done = s.repo.data.put(
            model, name, _content(file), content_type=content_type, tags=tags, lifetime=lifetime, keep=keep
        )
        document = describe(done.version)
        if done.sync is not None:
            document["sync"] = done.sync.to_json()
        said = f"Saved version {done.version.version} of {name} ({size_text(done.version.meta.size)})"
        kept = done.version.meta.draft.retention
        left = f"older versions for {kept.text}" if kept.keep is None else f"the newest {plural(kept.keep, 'version')}"
        s.out.result(document, f"{said}; `data gc` keeps {left}")


def _content(file: str) -> Path | BinaryIO:
    if file == "-":
        return sys.stdin.buffer
    path = Path(file)
    if not path.exists():
        raise UsageError(f"{file} does not exist", hint="name a file or a directory, or - for standard input")
    return path


@reading(app, "search")
def search(tag: Tags = None, since: Since = None) -> None:
    """Find the latest versions by tag and time, newest first."""
    from swamp.models.inputs import tag_pairs

    with session(reading=True) as s:
        _show_rows(s, s.repo.data.search(list(tag_pairs(tag or ())), since))


@reading(app, "query")
def query(
    predicate: Annotated[str, typer.Argument(metavar="CEL", help="Such as: modelName == 'web' && size > 100")],
    select: Annotated[str | None, typer.Option(metavar="CEL", help="A value per match instead of all fields.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most so many.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="S", help="Seconds that evaluating may take (60).")] = None,
) -> None:
    """Find versions by a CEL predicate over their fields, tags and content."""
    with session(reading=True, query_timeout_ms=None if timeout is None else timeout * 1000) as s:
        found = s.repo.data.query(predicate, select=select, limit=limit)
        for warning in found.warnings:
            s.out.warn(warning)
        s.answer(found.to_json(), lambda: _show_results(s, found.results))


def _show_results(s: CommandSession, results: list[Any]) -> None:
    import json

    if results and isinstance(results[0], dict) and "modelType" in results[0]:
        keys = ("modelName", "name", "version", "contentType", "size", "createdAt")
        rows = [[when(row[key]) if key == "createdAt" else row.get(key) for key in keys] for row in results]
        s.out.table([key.upper() for key in keys], rows)
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
        _show_reclaimed(s, s.repo.data.gc(dry_run=dry_run, confirmed=yes, agree=None if yes else partial(_agreed, s)))


@app.command("prune")
def prune(dry_run: DryRun = False, yes: Yes = False) -> None:
    """Delete what nobody can see: deleted names' history, dead forwards, abandoned writes."""
    with session() as s:
        agree = None if yes else partial(_agreed, s)
        _show_reclaimed(s, s.repo.data.prune(dry_run=dry_run, confirmed=yes, agree=agree))


def _agreed(s: CommandSession, planned: Reclaimed) -> None:
    """Nothing of anybody's is deleted before who asked for it has seen what it is (C17)."""
    for line in _reclaimed_lines(planned):
        s.out.info(line)
    what = f"{plural(len(planned.found), 'version')}, {size_text(planned.size)}"
    left = f", and {plural(len(planned.leftovers), 'abandoned write')}" if planned.leftovers else ""
    s.out.confirm(f"Delete {what}{left}, for everybody?", False)


def _reclaimed_lines(found: Reclaimed) -> list[str]:
    said = [(one.to_json(), one.why) for one in found.found]
    lines = [f"{doc['modelName']} {doc['name']} version {doc['version']}: {why}" for doc, why in said]
    return lines + [f"{ref.path}: never finished" for ref in found.leftovers]


def _show_reclaimed(s: CommandSession, found: Reclaimed) -> None:
    for damage in found.unreadable:
        s.out.warn(f"{damage}; nothing of that name was looked at")
    verb = "Would delete" if found.dry_run else "Deleted"
    text = f"{verb} {plural(len(found.versions), 'version')}, {size_text(found.size)}"
    lines = _reclaimed_lines(found) if found.dry_run else []
    s.out.result(found.to_json(), "\n".join([*lines, text]))


def _positive(version: int | None) -> int | None:
    if version is not None and version < 1:
        raise UsageError(f"--version {version}: versions are 1 or more")
    return version
