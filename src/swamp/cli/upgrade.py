"""`swamp datastore upgrade`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from swamp.cli.command import Session, session

if TYPE_CHECKING:
    from swamp.repo.upgrade import Upgrade


def upgrade(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Raise the store's format version to this swamp's. Older clients stop with exit 65 from then on."""
    from swamp.repo.upgrade import plan_upgrade
    from swamp.repo.upgrade import upgrade as raise_version

    with session() as s:
        committer = s.repo.datastore.must_sync().committer
        planned = plan_upgrade(committer)
        if planned.is_due and not dry_run:
            s.out.confirm(_question(planned), yes)
            planned = raise_version(committer, s.cancel.check, planned)
        _show(s, planned, dry_run)


def _question(planned: Upgrade) -> str:
    who = ", ".join(str(writer) for writer in planned.writers) or "nobody"
    return (
        f"Upgrade the store from format version {planned.before} to {planned.after}? There is no way back: "
        f"a swamp that does not know version {planned.after} stops with exit 65. In the last 30 days wrote: {who}."
    )


def _show(s: Session, planned: Upgrade, dry_run: bool) -> None:
    if planned.done:
        text = f"The store has format version {planned.after} now (commit {planned.seq})"
    elif planned.is_due:
        who = ", ".join(str(writer) for writer in planned.writers) or "nobody"
        text = (
            f"Would upgrade from format version {planned.before} to {planned.after}; wrote in the last 30 days: {who}"
        )
    elif planned.before:
        text = f"Nothing to do: the store has format version {planned.before}"
    else:
        text = f"Nothing to do: the store has no index yet, its first commit makes format version {planned.after}"
    s.out.result({**planned.to_json(), "dryRun": dry_run}, text)
