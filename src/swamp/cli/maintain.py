"""`swamp datastore doctor`, `upgrade` and `gc --purge`: look into trouble, raise the format, delete for good."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from swamp.cli.command import CommandSession, DryRun, Engine, Yes, session
from swamp.cli.render import plural, size_text
from swamp.errors import UsageError


def doctor(
    engine: Engine = None,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be put right.")] = False,
    from_listing: Annotated[bool, typer.Option("--from-listing", help="With --repair: guess a lost index.")] = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option("--adopt", metavar="PATH", help="With --repair: take in what another client added."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="More paths to --adopt.")] = None,
    adopt_all: Annotated[bool, typer.Option("--adopt-all", help="With --repair: take in all that was added.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="With --repair: list what was added and leave it.")] = False,
    yes: Yes = False,
) -> None:
    """Examine everything the datastore rests on.

    With `--json`: `checks`, `ok`, and `packs: {count, liveBytes, deadBytes}` once it has come to them. Dead bytes are
    those of packs that no file needs any more, deleted ones of the undo window included; `gc` makes them free.
    """
    from swamp.repo.doctor import Doctor

    paths = [*(adopt or ()), *((more or ()) if adopt else ())]
    _check_doctor(repair, from_listing, paths, bool(more) and not adopt, adopt_all, leave)
    with session(reading=not repair, engine=engine) as s:
        examiner = Doctor(s.repo)
        beside = bool(paths or adopt_all or leave) or (repair and examiner.overwritten())
        done = examiner.repair(from_listing=from_listing, agree=lambda q: s.out.confirm(q, yes)) if repair else []
        found = _beside(s, paths, adopt_all, leave) if beside else None
        checks = examiner.examine()
        ok = all(check.ok for check in checks) and not (found and found["refused"])
        packs = {} if examiner.packs is None else {"packs": examiner.packs.to_json()}
        document: dict[str, Any] = {"checks": [check.to_json() for check in checks], "ok": ok, **packs}
        document |= ({"repaired": done} if repair else {}) | (found or {})
        rows = [("ok" if c.ok else "WRONG", c.name, c.detail, c.fix or "") for c in checks]

        def text() -> None:
            for line in done:
                s.out.line(f"Repaired: {line}")
            if repair and not done:
                s.out.line("Nothing had to be repaired")
            s.out.table(("", "CHECK", "DETAIL", "FIX"), rows)

        s.out.result(document, text)
        if not ok:
            raise typer.Exit(1)


def _check_doctor(
    repair: bool, from_listing: bool, paths: list[str], stray: bool, adopt_all: bool, leave: bool
) -> None:
    if stray:
        raise UsageError("paths belong to --adopt", hint="swamp datastore doctor --repair --adopt PATH…")
    if not repair and (from_listing or paths or adopt_all or leave):
        word = "--from-listing" if from_listing else "--leave" if leave else "--adopt-all" if adopt_all else "--adopt"
        raise UsageError(f"{word} belongs to --repair")
    if sum((bool(paths), adopt_all, leave)) > 1:
        raise UsageError("--adopt, --adopt-all and --leave exclude each other")


def _beside(s: CommandSession, paths: list[str], adopt_all: bool, leave: bool) -> dict[str, Any]:
    """What appeared beside the index, after a person, or the command line, has decided what becomes of it."""
    from swamp.commit.appeared import Appeared, chosen
    from swamp.repo.repair import look_beside

    def decide(found: Sequence[Appeared]) -> Sequence[Appeared]:
        if paths or adopt_all:
            return chosen(found, paths)
        if leave or not found:
            return ()
        for one in found:
            s.out.warn(f"{one.path} ({size_text(one.meta.size)}) is not in the index: {one.state}")
        safe = chosen(found, ())
        agreed = s.out.ask(f"Adopt {plural(len(safe), 'file')} that appeared beside the index?") if safe else False
        if agreed is None:
            s.out.warn("they stay where they are: --adopt PATH…, --adopt-all or --leave decides")
        return safe if agreed else ()

    done = look_beside(s.repo.datastore, decide)
    for reason in done.refused:
        s.out.warn(f"not adopted: {reason}")
    return done.to_json()


def purge(s: CommandSession, paths: Sequence[str], *, asked: bool, dry_run: bool, yes: bool) -> None:
    """Looks first, asks, and says what remains."""
    from swamp.repo.repair import Purging

    if not paths or not asked:
        raise UsageError("paths and --purge belong together", hint="swamp datastore gc --purge PATH...")
    with nullcontext() if dry_run else s.repo.changes.structural("datastore gc --purge"):
        purging = Purging(s.repo.datastore, paths)
        planned = purging.planned()
        if not dry_run:
            what = f"{plural(len(planned.deleted), 'object')} ({size_text(planned.bytes)})"
            s.out.confirm(f"{what} hold it and go at once: nothing brings it back. Go on?", yes)
        done = planned if dry_run else purging.run()
        shown = purging.document(done, dry_run=dry_run)
    verb = "would go" if dry_run else "deleted"
    lines = [f"{plural(len(done.deleted), 'object')} {verb}, {size_text(done.bytes)}; what remains:"]
    lines += [f"  {one['where']}: {one['what']}" for one in shown["remaining"]]
    s.out.result(shown, "\n".join(lines))


def upgrade(dry_run: DryRun = False, yes: Yes = False) -> None:
    """Raise the store's format version to this swamp's. Older clients stop with exit 65 from then on."""
    from swamp.repo.repair import plan_upgrade
    from swamp.repo.repair import upgrade as raise_version

    with session() as s:
        committer = s.repo.datastore.must_sync().committer
        planned = plan_upgrade(committer)
        who = ", ".join(str(writer) for writer in planned.writers) or "nobody"
        if planned.is_due and not dry_run:
            question = (
                f"Upgrade the store from format version {planned.before} to {planned.after}? There is no way back: "
                f"a swamp that does not know version {planned.after} stops with exit 65. "
                f"In the last 30 days wrote: {who}."
            )
            s.out.confirm(question, yes)
            planned = raise_version(committer, s.cancel.check, planned)
        if planned.done:
            text = f"The store has format version {planned.after} now (commit {planned.seq})"
        elif planned.is_due:
            steps = f"from format version {planned.before} to {planned.after}"
            text = f"Would upgrade {steps}; wrote in the last 30 days: {who}"
        elif planned.before:
            text = f"Nothing to do: the store has format version {planned.before}"
        else:
            text = f"Nothing to do: the store has no index yet, its first commit makes format version {planned.after}"
        s.out.result({**planned.to_json(), "dryRun": dry_run}, text)
