"""`swamp datastore gc --purge`: deleted files taken out of the store at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from swamp.cli.command import Session
from swamp.cli.render import plural, size_text
from swamp.errors import UsageError


def purge(s: Session, paths: Sequence[str], *, asked: bool, dry_run: bool, yes: bool) -> None:
    """Looks first, asks, and says what remains."""
    from swamp.repo.purge import Purging, document

    if not paths or not asked:
        raise UsageError("paths and --purge belong together", hint="swamp datastore gc --purge PATH...")
    with nullcontext() if dry_run else s.repo.changes.structural("datastore gc --purge"):
        purging = Purging(s.repo.datastore, paths)
        planned = purging.planned()
        if not dry_run:
            what = f"{plural(len(planned.deleted), 'object')} ({size_text(planned.bytes)})"
            s.out.confirm(f"{what} hold it and go at once: nothing brings it back. Go on?", yes)
        done = planned if dry_run else purging.run()
        shown = document(purging, done, dry_run=dry_run)
    verb = "would go" if dry_run else "deleted"
    lines = [f"{plural(len(done.deleted), 'object')} {verb}, {size_text(done.bytes)}; what remains:"]
    lines += [f"  {one['where']}: {one['what']}" for one in shown["remaining"]]
    s.out.result(shown, "\n".join(lines))
