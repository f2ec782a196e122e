"""`swamp datastore`: set up a bucket, sync with it, look into trouble."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import CommandSession, DryRun, Engine, Yes, group, session
from swamp.cli.maintain import doctor, upgrade
from swamp.cli.maintain import purge as purge_paths
from swamp.cli.render import plural, size_text, when
from swamp.errors import Unavailable, UsageError
from swamp.values import as_document

if TYPE_CHECKING:
    from swamp.commit.repack import Repacked
    from swamp.repo.put import Delivered
    from swamp.repo.setup import SetUp
    from swamp.sync.result import Mode, SyncResult

app = group("Share the data: set up a bucket, sync, look into trouble.")
lock_app = group("Leases: who holds them, and taking one away.")
namespace_app = group("Several repositories' stores side by side below one prefix.")
app.add_typer(lock_app, name="lock")
app.add_typer(namespace_app, name="namespace")
app.command("upgrade")(upgrade)

Timeout = Annotated[float | None, typer.Option(metavar="S", help="Seconds without progress before giving up.")]
RepackFiles = Annotated[int | None, typer.Option(metavar="N", min=1, help="Move at most so many (default 200000).")]
Hydrate = Annotated[
    str | None, typer.Option(metavar="full|lazy", help="On this machine: content now, or when it is read.")
]


@app.command("setup")
def setup(
    target: Annotated[str, typer.Argument(metavar="URL|TYPE", help="s3://…, gs://…, az://…, file:///… or a type.")],
    path: Annotated[str | None, typer.Option(metavar="P", help="The directory of a filesystem datastore.")] = None,
    config: Annotated[str | None, typer.Option(metavar="JSON", help="bucket, prefix, region, endpoint, …")] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NS", help="A part of the store of its own.")] = None,
    hydrate: Hydrate = None,
    skip_migration: Annotated[bool, typer.Option("--skip-migration", help="Leave existing data where it is.")] = False,
    engine: Engine = None,
    timeout: Timeout = None,
) -> None:
    """Make a bucket (or a directory) this repository's datastore, and move what is here into it."""
    from swamp.repo.open import read_target

    with session(engine=engine, timeout_ms=_ms(timeout)) as s:
        if hydrate not in (None, "full", "lazy"):
            raise UsageError(f"--hydrate {hydrate}", hint="allowed: full or lazy")
        wanted = read_target(target, path=path, config=_json(config), namespace=namespace)
        _show_setup(s, s.repo.set_up(wanted, migrate=not skip_migration, hydrate=hydrate))


def _show_setup(s: CommandSession, done: SetUp) -> None:
    for warning in (*done.warnings, *done.errors):
        s.out.warn(warning)
    text = (
        f"{done.datastore.url} is this repository's datastore: {plural(done.sync.files_pushed, 'file')} pushed, "
        f"{done.sync.files_pulled} pulled{_found(done.sync)}"
        if done.joined
        else f"Nothing was changed: {plural(len(done.errors), 'file')} did not make it"
    )
    s.out.result(done.to_json(), text)
    if not done.ok:
        raise typer.Exit(Unavailable.exit_code if done.sync.lost_store else 1)


def _json(text: str | None) -> dict[str, Any] | None:
    import json

    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--config is not JSON: {error}", hint='such as --config \'{"bucket": "b"}\'') from error
    if not isinstance(found, dict):
        raise UsageError("--config is not a JSON object", hint='such as --config \'{"bucket": "b"}\'')
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


@app.command("sync")
def sync(
    push: Annotated[bool, typer.Option("--push", help="Only push.")] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Only pull.")] = False,
    dry_run: DryRun = False,
    engine: Engine = None,
    full: Annotated[bool, typer.Option("--full", help="Walk the whole tree and compare everything.")] = False,
    allow_deletes: Annotated[int | None, typer.Option(metavar="N", help="Deletes one push may carry out.")] = None,
    timeout: Timeout = None,
) -> None:
    """Bring this machine and the store in step."""
    if push and pull:
        raise UsageError("--push and --pull exclude each other", hint="without either, sync does both")
    mode: Mode = "push" if push else "pull" if pull else "sync"
    with session(engine=engine, timeout_ms=_ms(timeout), allow_deletes=allow_deletes) as s:
        if dry_run:
            plan = s.repo.datastore.plan(mode, full=full)
            document = plan.to_json(mode) if plan else {"mode": mode, "plan": [], "totals": {}}
            rows = [(row["action"], row["path"], size_text(row["size"]), row["reason"]) for row in document["plan"]]
            s.out.result(document, lambda: s.out.table(("ACTION", "PATH", "SIZE", "REASON"), rows))
        else:
            kept = s.repo.kept.deliver() if mode != "pull" and s.repo.datastore.synced else None  # C05
            _show_sync(s, s.repo.datastore.sync(mode, full=full), kept)


def _show_sync(s: CommandSession, result: SyncResult, kept: Delivered | None = None) -> None:
    for warning in result.warnings:
        s.out.warn(warning)
    for failed in result.failed:
        s.out.warn(f"{failed.path}: {failed.error}")
    for conflict in result.conflicts:
        s.out.warn(f"{conflict.path} was changed here and elsewhere; your copy is kept in {conflict.kept}")
    if result.deletes_held:
        held = result.deletes_held
        s.out.warn(f"{plural(held, 'delete')} held back: look at them, then use --allow-deletes {held}")
    document = result.to_json()
    if kept is not None and kept.versions:
        document["delivered"] = [version.artifact() for version in kept.versions]
    if kept is not None and kept.left:
        document["failed"] += [{"path": str(one.place), "error": error.message} for one, error in kept.left]
    s.out.result(document, _sync_line(result))
    if result.ok and kept is not None and kept.left:
        raise typer.Exit(1)
    if not result.ok:
        raise typer.Exit(Unavailable.exit_code if result.lost_store else 1)


def _found(result: SyncResult) -> str:
    """Said to people too: the index was not there, and was made."""
    return "; the store had no index, and one was made of what it holds" if result.discovered else ""


def _sync_line(result: SyncResult) -> str:
    if result.fast_path:
        return f"In sync: nothing to do{_found(result)}"
    parts = [
        f"{plural(result.files_pushed, 'file')} pushed ({size_text(result.bytes_pushed)})",
        f"{result.files_pulled} pulled ({size_text(result.bytes_pulled)})",
        f"{result.files_deleted} deleted",
    ]
    return f"{', '.join(parts)} in {result.duration_ms / 1000:.1f} s{_found(result)}"


@app.command("status")
def status() -> None:
    """Where the data is, whether the store answers, and what is still owed to it.

    With `--json` also `packs: {count, liveBytes}`, as far as this machine has pulled the index; `datastore doctor`
    lists the store and adds `deadBytes`.
    """
    with session(reading=True) as s:
        found = s.repo.datastore.maintenance.status()
        s.out.result(found, lambda: _show_status(s, found))
        if not found["healthy"]:
            raise typer.Exit(69)


def _show_status(s: CommandSession, found: dict[str, Any]) -> None:
    s.out.line(found["summary"])
    s.out.line()
    plain = {key: value for key, value in found.items() if not isinstance(value, dict) and key != "summary"}
    nested = {f"{key}.{k}": v for key, value in found.items() if isinstance(value, dict) for k, v in value.items()}
    s.out.fields({**plain, **nested})


app.command("doctor")(doctor)


@app.command("verify")
def verify(
    engine: Engine = None,
    repair: Annotated[bool, typer.Option("--repair", help="Upload again what this machine has the bytes of.")] = False,
    drop: Annotated[list[str] | None, typer.Option("--drop", metavar="PATH", help="With --repair: give it up.")] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="More paths to --drop.")] = None,
    yes: Yes = False,
) -> None:
    """Read every payload in the store and compare it with its hash."""
    given = [*(drop or ()), *((more or ()) if drop else ())]
    if more and not drop:
        raise UsageError("paths belong to --drop", hint="swamp datastore verify --repair --drop PATH…")
    del yes
    with session(engine=engine) as s:
        found = s.repo.datastore.maintenance.verify(repair=repair, drop=given)
        listed = {word: list(getattr(found, word)) for word in ("missing", "corrupt", "healed", "dropped", "gone")}
        lines = [f"Checked {plural(found.checked, 'file')}, {size_text(found.bytes)}"]
        lines += [f"{word}: {path}" for word, paths in listed.items() for path in paths]
        s.out.result({"checked": found.checked, "bytes": found.bytes, **listed}, "\n".join(lines))
        if not found.ok:
            raise typer.Exit(65)


@app.command("gc")
def gc(
    dry_run: DryRun = False,
    keep_days: Annotated[int | None, typer.Option(metavar="N", help="The undo window (default 7).")] = None,
    yes: Yes = False,
    repack_files: RepackFiles = None,
    purge: Annotated[bool, typer.Option("--purge", help="Delete what is left of deleted PATHs now.")] = False,
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="For --purge: deleted files.")] = None,
) -> None:
    """Delete payloads that nothing has named for longer than the undo window."""
    with session(keep_days=keep_days) as s:
        if purge or paths:
            purge_paths(s, paths or (), asked=purge, dry_run=dry_run, yes=yes)
            return
        days = s.repo.settings.keep_days
        if days < 1 and not dry_run:
            s.out.confirm("Without an undo window, readers that are running now may lose what they read. Go on?", yes)
        maintenance = s.repo.datastore.maintenance
        if dry_run:
            found = maintenance.gc(keep_days=days, dry_run=True)
            moved = maintenance.repack(keep_days=days, dry_run=True, most=repack_files)
        else:
            with s.repo.changes.structural("datastore gc"):
                found = maintenance.gc(keep_days=days)
                moved = maintenance.repack(keep_days=days, most=repack_files)
        gone = f"{plural(found.candidates, 'object')} no longer needed"
        text = f"{gone}, {found.deleted} deleted, {size_text(found.bytes)}"
        s.out.result({**as_document(found), "repacked": as_document(moved)}, text + _repacked_text(moved, dry_run))


@app.command("compact")
def compact() -> None:
    """Merge index segments into fewer, larger ones."""
    with session() as s:
        with s.repo.changes.structural("datastore compact"):
            done = s.repo.datastore.maintenance.compact()
            moved = s.repo.datastore.maintenance.repack(keep_days=s.repo.settings.keep_days)
        text = f"{done.segments_before} segments became {done.segments_after}, {done.rows} rows"
        s.out.result({**as_document(done), "repacked": as_document(moved)}, text + _repacked_text(moved, False))


def _repacked_text(moved: Repacked, dry_run: bool) -> str:
    if not moved.packs:
        return ""
    verb = "would be moved" if dry_run else "moved"
    out_of = f"{plural(moved.rows, 'file')} {verb} out of {plural(moved.packs, 'pack')}"
    return f"; {out_of}, which saves {size_text(moved.bytes)}"


@app.command("undelete")
def undelete(
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Files or directories.")] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="All since an ISO time, or 1h, 2d.")] = None,
) -> None:
    """Bring back what was deleted, while the undo window lasts."""
    from swamp.repo.data import parse_since
    from swamp.repo.leases import store_clock

    with session() as s:
        moment = None
        if since is not None:
            s.repo.datastore.must_sync()
            moment = parse_since(since, store_clock(s.repo.datastore))  # a span counts back from the store's now (C25)
        done = s.repo.datastore.maintenance.undelete(paths or (), since=moment)
        said = f"Restored {plural(len(done.restored), 'file')}, {len(done.gone)} are gone for good"
        s.out.result(as_document(done), said)
        if done.gone:
            raise typer.Exit(1)


@app.command("log")
def log(limit: Annotated[int, typer.Option(metavar="N", help="At most so many.")] = 20) -> None:
    """The commits of the store, newest first: who, with which command, and which data."""
    from swamp.repo.maintain import commit_items

    with session(reading=True) as s:
        commits = commit_items(s.repo, s.repo.datastore.maintenance.log(limit))
        columns = ("SEQ", "AT", "WRITER", "COMMAND", "ADDED", "CHANGED", "DELETED", "DATA")
        rows = []
        for c in commits:
            who = f"{c['writer'].get('user')}@{c['writer'].get('host')}"
            few = " ".join(c["names"][:3]) + (f" and {len(c['names']) - 3} more" if len(c["names"]) > 3 else "")
            rows.append((c["seq"], when(c["at"]), who, c["command"], c["added"], c["changed"], c["deleted"], few))
        s.out.items(commits, columns, rows, commits=commits)


@lock_app.command("status")
def lock_status() -> None:
    """Who holds the global lease, and which models are leased."""
    with session(reading=True) as s:
        found = s.repo.datastore.maintenance.lock_status()
        lines = [f"global: {'held by ' + found['info']['holder'] if found['held'] else 'free'}"]
        lines += [f"{model['model']}: held by {model['holder']}" for model in found["models"]]
        s.out.result(found, "\n".join(lines))


@lock_app.command("release")
def lock_release(
    force: Annotated[bool, typer.Option("--force", help="You know that its holder is gone.")] = False,
    model: Annotated[str | None, typer.Option(metavar="TYPE/ID", help="A model's lease, not the global one.")] = None,
) -> None:
    """Take a lease away from its holder."""
    if not force:
        raise UsageError("a lease that somebody holds is released only with --force", hint="it runs out by itself")
    with session() as s:
        done = s.repo.datastore.maintenance.lock_release(model)
        text = f"Released, held by {done['previousHolder']}" if done["released"] else "Nothing was held"
        s.out.result(done, text)


@namespace_app.command("set")
def namespace_set(name: Annotated[str, typer.Argument(metavar="NS")]) -> None:
    """Move this repository's data into a namespace of its store."""
    with session() as s:
        _show_setup(s, _renamespaced(s, name))


@namespace_app.command("unset")
def namespace_unset() -> None:
    """Move this repository's data out of its namespace."""
    with session() as s:
        _show_setup(s, _renamespaced(s, None))


def _renamespaced(s: CommandSession, name: str | None) -> SetUp:
    from swamp.commit.namespace import validate_name

    s.repo.datastore.must_sync()
    moved = replace(s.repo.config.datastore, namespace=None if name is None else validate_name(name))
    return s.repo.set_up(moved, hydrate=s.repo.datastore.chosen)


@namespace_app.command("list")
def namespace_list() -> None:
    """The namespaces of this repository's store, and who owns them."""
    with session(reading=True) as s:
        items = [as_document(found) for found in s.repo.datastore.maintenance.namespaces()]
        more = {"current": s.repo.config.datastore.namespace, "namespaces": items}
        s.out.items(items, ("NAMESPACE", "REPOSITORY", "SINCE"), map(dict.values, items), **more)
