"""`swamp spark`: the session that bulk work runs on."""

from __future__ import annotations

from pathlib import Path

import typer

from swamp.cli.command import common, group, session
from swamp.cli.render import Printer

app = group("The Spark session that bulk work runs on.")


@app.command("package")
def package(
    output: str = typer.Option("swamp-spark.tar.gz", "--output", help="The archive to write.", metavar="FILE"),
    full: bool = typer.Option(False, "--full", help="With pyarrow, pandas and numpy, for executors without them."),
    exclude: list[str] = typer.Option([], "--exclude", help="Leave out a distribution.", metavar="NAME"),  # noqa: B008
) -> None:
    """Build an archive of swamp for executors that do not have it installed (same platform and Python)."""
    from swamp.bulk.executors import build_archive

    out = Printer.of(common())
    made = build_archive(Path(output).absolute(), full=full, exclude=exclude)
    document = {"path": str(made.file), "bytes": made.bytes, "distributions": list(made.distributions)}
    hint = f"spark: {{conf: {{spark.swamp.archive: {made.file}}}}}"
    out.result(document, f"Wrote {made.file} ({made.bytes} bytes). In .swamp.yaml: {hint}")


@app.command("serve")
def serve(
    idle: str = typer.Option("30m", "--idle", help="Stop when nobody has used it for so long.", metavar="TIME"),
    stop: bool = typer.Option(False, "--stop", help="Stop the server that is running."),
) -> None:
    """Keep one Spark warm for your commands and notebooks: started once, used by --engine spark, stopped when idle."""
    import os

    from swamp.bulk.keep import start_server, stop_server
    from swamp.data.lifetimes import parse_duration
    from swamp.errors import UsageError

    out = Printer.of(common())
    if stop:
        stopped = stop_server(os.environ)
        out.result({"running": False, "stopped": stopped}, "Stopped." if stopped else "There was none.")
        return
    wait = parse_duration(idle)
    if wait is None:
        raise UsageError(f"--idle {idle!r} is not a time", hint="e.g. 30m or 2h")
    kept = start_server(os.environ, wait.total_seconds())
    document = {"running": True, "url": kept.shown, "pid": kept.pid, "idleSeconds": int(wait.total_seconds())}
    out.result(document, f"Spark is up at {kept.shown} (process {kept.pid}); `swamp spark serve --stop` ends it.")


@app.command("check")
def check(
    master: str | None = typer.Option(None, "--master", help="Where Spark runs (default: .swamp.yaml, local[*])."),
) -> None:
    """Start the configured Spark session, run a small job on its executors, and say what was found."""
    import os

    from swamp.bulk.executors import check_executors
    from swamp.bulk.jobs import Jobs
    from swamp.bulk.session import application_id, open_session, stop_session
    from swamp.bulk.settings import find_java, resolve_settings
    from swamp.env import SYSTEM

    with session() as s:
        settings = resolve_settings(s.repo.settings.spark, master=master)
        java = find_java(os.environ) if settings.remote is None else None
        started = SYSTEM.clock.monotonic()
        spark = open_session(settings)
        jobs = Jobs(spark)
        try:
            check_executors(jobs, settings, s.repo.datastore.idle_timeout())
            found = {
                "master": settings.where,
                "java": java.major if java else None,
                "spark": spark.version,
                "applicationId": application_id(spark),
                "parallelism": jobs.parallelism,
                "startMs": int((SYSTEM.clock.monotonic() - started) * 1000),
            }
        finally:
            jobs.close()
            stop_session(spark)
        s.out.result(found, lambda: s.out.fields(found))
