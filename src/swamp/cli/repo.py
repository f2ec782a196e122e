"""`swamp repo`: make a repository."""

from __future__ import annotations

from pathlib import Path

import typer

from swamp.cli.command import common, group
from swamp.cli.render import Output

app = group("Make a repository.")


@app.command("init")
def init(path: str = typer.Argument(".", help="The directory; made if it is missing.")) -> None:
    """Make PATH a swamp repository."""
    from swamp.repo.init import init_repo

    options = common()
    made = init_repo(Path(options.repo_dir if options.repo_dir and path == "." else path))
    Output.of(options).result(made.to_json(), f"Initialized a swamp repository in {made.path}")
