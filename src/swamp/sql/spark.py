"""The same query on Spark: metadata tables and datasets as views of a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from swamp.bulk.executors import check_plugin
from swamp.bulk.jobs import Jobs
from swamp.bulk.keep import with_server
from swamp.bulk.session import live_session, open_session, stop_session
from swamp.bulk.settings import SparkSettings, resolve_settings
from swamp.datasets import sql
from swamp.datasets.source import register
from swamp.errors import UsageError
from swamp.sql.answer import Answer, Prepared, SqlEngineChoice
from swamp.sql.relations import place_in, written

if TYPE_CHECKING:
    from swamp.repo.repository import Repo
    from swamp.sync.progress import Progress


@contextmanager
def on_spark(
    repo: Repo,
    prepared: Prepared,
    choice: SqlEngineChoice,
    *,
    master: str | None,
    progress: Progress | None,
    warn: Callable[[str], None],
) -> Iterator[Answer]:
    """Asks in the live session, or in one that ends with the block."""
    own = live_session() is None
    settings = with_server(resolve_settings(repo.settings.spark, master=master), os.environ)
    fresh = not _only_what_is_here(repo, prepared, settings, warn)
    session = register(open_session(settings))
    jobs = Jobs(session, progress) if progress is not None else Jobs(session)
    idle_timeout = repo.datastore.idle_timeout()
    try:
        check_plugin(session, settings, idle_timeout, repo.datastore.plugin if fresh else None)
        sql.register_tables(session, repo.path, [table.name for table in prepared.tables], fresh=fresh)
        for view, version in prepared.by_view.items():
            sql.register_dataset(session, repo.path, view, version.ref)
        query = written(prepared.query, prepared.views, "spark")
        frame = sql.query(session, query.text, lambda offset: place_in(prepared.query.text, query.origin(offset)))
        rows = partial(sql.rows_of, frame, jobs, idle_timeout)
        yield Answer(choice, list(frame.columns), rows, partial(sql.write_parquet, frame, jobs, idle_timeout))
    finally:
        jobs.close()
        if own:
            stop_session(session)


def _only_what_is_here(repo: Repo, prepared: Prepared, settings: SparkSettings, warn: Callable[[str], None]) -> bool:
    """Whether nobody is to be asked (`--cached`, SWAMP_FRESH=never). Raises UsageError where tasks cannot see the cache
    of this machine, and for datasets, which Spark reads from the store."""
    if repo.settings.fresh != "never" or not repo.datastore.synced:
        return False
    if prepared.versions:
        raise UsageError("with --cached Spark reads tables and no datasets", hint="add --engine duckdb")
    if not settings.sees_cache:
        raise UsageError(
            f"--cached shows what is on this machine, and Spark works on {settings.where}",
            hint="leave out --cached, or add --master 'local[*]'",
        )
    if not repo.datastore.is_hydrated:
        warn("this machine has not fetched all that the store holds: `swamp datastore sync --pull` does")
    return True
