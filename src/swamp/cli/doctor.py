"""`swamp datastore doctor`: examine, put right, and decide what becomes of files beside the index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from swamp.cli.command import Session, session
from swamp.cli.render import plural, size_text
from swamp.errors import UsageError


def doctor(
    engine: Annotated[str | None, typer.Option(metavar="auto|spark|inline", help="What runs bulk work.")] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Put right what can be put right.")] = False,
    from_listing: Annotated[bool, typer.Option("--from-listing", help="With --repair: guess a lost index.")] = False,
    adopt: Annotated[
        list[str] | None,
        typer.Option("--adopt", metavar="PATH", help="With --repair: take in what another client added."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="More paths to --adopt.")] = None,
    adopt_all: Annotated[bool, typer.Option("--adopt-all", help="With --repair: take in all that was added.")] = False,
    leave: Annotated[bool, typer.Option("--leave", help="With --repair: list what was added and leave it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
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
        document: dict[str, Any] = {"checks": [check.to_json() for check in checks], "ok": ok}
        if examiner.packs is not None:
            document["packs"] = examiner.packs.to_json()
        if repair:
            document["repaired"] = done
        document |= found or {}
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


def _beside(s: Session, paths: list[str], adopt_all: bool, leave: bool) -> dict[str, Any]:
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
