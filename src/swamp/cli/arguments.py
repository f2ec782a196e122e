"""Arguments and options that many commands share, with what the shell completes for them, from this machine's files.

Nobody waits for a completion: nothing here asks the store or imports more than it needs, and a repository that cannot
be read completes nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from swamp.errors import SwampError


def models(ctx: Any, incomplete: str) -> list[str]:
    """Models with a definition, and those that have data."""
    repo = _repo(ctx)
    if repo is None:
        return []
    from swamp.catalog import glance

    defined = [file.stem for _, file in _definitions(repo)]
    return _fitting([*defined, *glance.model_names(repo / ".swamp" / "_catalog.db")], incomplete)


def data_names(ctx: Any, incomplete: str) -> list[str]:
    """The data of the model that was typed before."""
    repo, model = _repo(ctx), ctx.params.get("model")
    if repo is None or not model:
        return []
    from swamp.catalog import glance

    here = (child.name for folder in _folders(repo, str(model)) for child in folder.glob("*/") if child.is_dir())
    return _fitting([*here, *glance.data_names(repo / ".swamp" / "_catalog.db", str(model))], incomplete)


def workflows(ctx: Any, incomplete: str) -> list[str]:
    repo = _repo(ctx)
    files = (repo / "workflows").glob("workflow-*.y*ml") if repo is not None else ()
    return _fitting((file.stem.removeprefix("workflow-") for file in files), incomplete)


def runs(ctx: Any, incomplete: str) -> list[str]:
    """The ids of runs that this machine knows, the newest records first."""
    repo = _repo(ctx)
    files = [file for tree in _trees(repo) for file in tree.glob("workflow-runs/*/workflow-run-*.yaml")] if repo else []
    newest = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    found = dict.fromkeys(["latest", *(file.stem.removeprefix("workflow-run-") for file in newest)])
    return [one for one in found if one.startswith(incomplete)][:100]


def _fitting(found: Iterable[str], incomplete: str) -> list[str]:
    return sorted({one for one in found if one.startswith(incomplete)})


def _repo(ctx: Any) -> Path | None:
    from swamp.cli.command import common
    from swamp.repo.config import locate

    given = common(ctx).repo_dir
    try:
        return locate(Path(given) if given else None, os.environ)
    except (SwampError, OSError):
        return None


def _definitions(repo: Path) -> Iterator[tuple[str, Path]]:
    """Files that are called as a model, with the type that their place says: in the checkout, and made on the spot."""
    for folder in (repo / "models", *(tree / "auto-definitions" for tree in _trees(repo))):
        for file in folder.rglob("*.yaml"):
            yield file.parent.relative_to(folder).as_posix(), file


def _folders(repo: Path, model: str) -> Iterator[Path]:
    """Where the data of a model lies that has a definition; its id is a line of that."""
    for kind, file in _definitions(repo):
        if file.stem != model:
            continue
        found = re.search(r"^id: *['\"]?([\w-]+)", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            yield from (tree / "data" / kind / found[1] for tree in _trees(repo))


def _trees(repo: Path) -> Iterator[Path]:
    """Where records of this repository lie on this machine: the plain directory, and its caches."""
    from swamp.repo.config import read_config
    from swamp.settings import swamp_home

    try:
        config = read_config(repo)
    except (SwampError, OSError):
        return
    yield repo / (config.datastore.path or ".swamp")
    home = swamp_home(os.environ)
    yield from (home / "repos" / config.repo_id).glob("*/tree")


Model = Annotated[
    str,
    typer.Argument(help="A model's name, id, or a beginning of its id.", metavar="MODEL", autocompletion=models),
]
SomeModel = Annotated[str | None, typer.Argument(help="Only this model's.", metavar="MODEL", autocompletion=models)]
Name = Annotated[str, typer.Argument(help="The data's name.", metavar="NAME", autocompletion=data_names)]
Workflow = Annotated[str, typer.Argument(help="A workflow's name or id.", metavar="NAME", autocompletion=workflows)]
RunId = Annotated[
    str,
    typer.Argument(help="A run's id, a beginning of it, or `latest`.", metavar="RUN", autocompletion=runs),
]
Version = Annotated[int | None, typer.Option("--version", metavar="N", help="This version, not the latest.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="K=V", help="A tag; may be repeated.")]
Since = Annotated[str | None, typer.Option(metavar="T", help="An ISO time, or 1h, 2d.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")]
Engine = Annotated[str | None, typer.Option(metavar="auto|spark|inline", help="What runs bulk work.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="K=V", help="k=v, k:json=…, k=@file; dotted keys nest.")
]
InputFile = Annotated[str | None, typer.Option("--input-file", metavar="F", help="Inputs as YAML or JSON.")]
NewText = Annotated[str | None, typer.Option("--file", metavar="F", help="The new text (- for stdin).")]
