"""`swamp repo`: make a repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from swamp.cli.command import common, group
from swamp.cli.render import Printer

app = group("Make a repository.")


@app.command("init")
def init(
    path: Annotated[
        str | None,
        typer.Argument(help="Made if it is missing (default: --repo-dir, else SWAMP_REPO_DIR, else here)."),
    ] = None,
) -> None:
    """Make PATH a swamp repository."""
    from swamp.repo.config import init_repo

    options = common()
    made = init_repo(Path(path or options.repo_dir or os.environ.get("SWAMP_REPO_DIR") or "."))
    Printer.of(options).result(made.to_json(), f"Initialized a swamp repository in {made.path}")
