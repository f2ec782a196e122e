"""Arguments that many commands share, with what the shell completes for them."""

from __future__ import annotations

from typing import Annotated

import typer

from swamp.cli import complete

Model = Annotated[
    str,
    typer.Argument(
        help="A model's name, id, or a beginning of its id.", metavar="MODEL", autocompletion=complete.models
    ),
]
SomeModel = Annotated[
    str | None, typer.Argument(help="Only this model's.", metavar="MODEL", autocompletion=complete.models)
]
Name = Annotated[str, typer.Argument(help="The data's name.", metavar="NAME", autocompletion=complete.data_names)]
Workflow = Annotated[
    str, typer.Argument(help="A workflow's name or id.", metavar="NAME", autocompletion=complete.workflows)
]
RunId = Annotated[
    str,
    typer.Argument(help="A run's id, a beginning of it, or `latest`.", metavar="RUN", autocompletion=complete.runs),
]
Version = Annotated[int | None, typer.Option("--version", metavar="N", help="This version, not the latest.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="K=V", help="A tag; may be repeated.")]
