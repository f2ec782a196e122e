"""`swamp spark`: the session that bulk work runs on."""

from __future__ import annotations

from pathlib import Path

import typer

from swamp.cli.command import common, group, session
from swamp.cli.render import Output

app = group("The Spark session that bulk work runs on.")


@app.command("package")
def package(
    output: str = typer.Option("swamp-spark.tar.gz", "--output", help="The archive to write.", metavar="FILE"),
    full: bool = typer.Option(False, "--full", help="With pyarrow, pandas and numpy, for executors without them."),
    exclude: list[str] = typer.Option([], "--exclude", help="Leave out a distribution.", metavar="NAME"),  # noqa: B008
) -> None:
    """Build an archive of swamp for executors that do not have it installed (same platform and Python)."""
    from swamp.pipeline.package import build_archive

    out = Output.of(common())
    made = build_archive(Path(output).absolute(), full=full, exclude=exclude)
    document = {"path": str(made.file), "bytes": made.bytes, "distributions": list(made.distributions)}
    hint = f"spark: {{conf: {{spark.swamp.archive: {made.file}}}}}"
    out.result(document, f"Wrote {made.file} ({made.bytes} bytes). In .swamp.yaml: {hint}")


@app.command("check")
def check(
    master: str | None = typer.Option(None, "--master", help="Where Spark runs (default: .swamp.yaml, local[*])."),
) -> None:
    """Start the configured Spark session, run a small job on its executors, and say what was found."""
    import os

    from swamp.env import SYSTEM
    from swamp.pipeline.executors import check_executors
    from swamp.pipeline.java import find_java
    from swamp.pipeline.jobs import Jobs
    from swamp.pipeline.session import application_id, open_session, stop_session
    from swamp.pipeline.settings import resolve_settings
    from swamp.sync.progress import Patience

    with session() as s:
        settings = resolve_settings(s.repo.settings.spark, master=master)
        java = find_java(os.environ) if settings.remote is None else None
        started = SYSTEM.clock.monotonic()
        spark = open_session(settings)
        jobs = Jobs(spark)
        try:
            check_executors(jobs, settings, Patience(SYSTEM, s.repo.settings.sync_timeout, s.cancel))
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
