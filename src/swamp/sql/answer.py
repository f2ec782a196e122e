"""One query from its text to its rows: what it reads is looked up once, then one engine answers.

with answered(repo, "SELECT count(*) AS n FROM versions") as answer:
    print(answer.engine, answer.columns, list(answer.rows()))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from swamp.data.versions import DataVersion
from swamp.datasets.content import Artifact, format_of
from swamp.datasets.place import FileRef, Folder
from swamp.datasets.tables import TABLES, Table
from swamp.errors import MissingTool, NotFound, SwampError, UsageError
from swamp.extras import has, missing, needs
from swamp.settings import SqlChoice
from swamp.sql.relations import Query, Relation, parse, place_in, written
from swamp.values import value

if TYPE_CHECKING:
    from swamp.bulk.settings import SparkSettings
    from swamp.repo.repository import Repo
    from swamp.sync.progress import Progress


@value
class Answer:
    """The rows of a query, and who found them."""

    choice: SqlEngineChoice
    columns: list[str]
    rows: Callable[[], Iterator[Sequence[Any]]]
    write_parquet: Callable[[Path], int]


@value
class Prepared:
    """A query whose datasets are known versions; equal ones share a view."""

    query: Query
    versions: Mapping[Relation, DataVersion]

    @property
    def views(self) -> dict[Relation, str]:
        names: dict[str, str] = {}
        return {
            relation: names.setdefault(version.ref.path, f"swamp_{len(names) + 1}")
            for relation, version in self.versions.items()
        }

    @property
    def by_view(self) -> dict[str, DataVersion]:
        return {view: self.versions[relation] for relation, view in self.views.items()}

    @property
    def tables(self) -> list[Table]:
        """The metadata tables that are read; all of them where the question is which there are."""
        if self.query.tokens[0].upper == "SHOW":
            return list(TABLES.values())
        named = {one.parts[0].lower() for one in self.query.relations if len(one.parts) == 1}
        return [table for name, table in TABLES.items() if name in named]


@contextmanager
def answered(
    repo: Repo,
    text: str,
    *,
    engine: SqlChoice = "auto",
    master: str | None = None,
    progress: Progress | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[Answer]:
    """Asks one query. The rows can be read until the block ends. Raises UsageError with the place of a mistake."""
    prepared = prepare(repo, text)
    choice = choose_sql_engine(engine, _loads(repo, prepared), live=_spark_is_live(repo))
    if choice.engine == "spark":
        needs("pyspark", "--engine spark", "spark")
        with _on_spark(repo, prepared, choice, master=master, progress=progress, warn=warn) as answer:
            yield answer
        return
    with _on_duckdb(repo, prepared, choice, warn) as answer:
        yield answer


def prepare(repo: Repo, text: str) -> Prepared:
    """Looks up every dataset that the text names, in one state of the repository. inv[read.snapshot]"""
    query = parse(text)
    repo.freshen()
    return Prepared(query, {relation: _found(repo, query, relation) for relation in query.datasets})


def _found(repo: Repo, query: Query, relation: Relation) -> DataVersion:
    model, name = relation.parts
    try:
        version = relation.version
        if relation.moment is not None:
            version = _version_at(repo, model, name, relation.moment)
        return repo.data.get(model, name, version, fresh=False)
    except NotFound as error:
        where = place_in(query.text, relation.start)
        raise UsageError(f"{error.message} ({where})", hint=error.hint, details=error.details) from error


def _version_at(repo: Repo, model: str, name: str, text: str) -> int:
    """The version that was the latest at a time, in UTC unless it says otherwise."""
    from swamp.env import parse_rfc3339
    from swamp.repo.data import parse_since

    moment = parse_since(text.strip().replace(" ", "T"), repo.env.clock.now())
    rows = repo.data.versions(model, name, fresh=False)
    here = [row for row in rows if row.away is None]
    for row in here:  # newest first
        if parse_rfc3339(row.fields["createdAt"]) <= moment:
            return int(row.ref.version)
    numbers = sorted(row.ref.version for row in here)
    raise NotFound(f"{name} of {model} had no version at {text}", hint=f"there are: {numbers[-20:]}")


def _loads(repo: Repo, prepared: Prepared) -> list[Load]:
    found = []
    for version in prepared.by_view.values():
        here = not any(True for _ in repo.tree.remote_only(version.ref.raw_path))
        first = version.meta.parts[0].name if version.meta.parts else version.ref.raw_path
        kind = format_of(Artifact(version.ref, version.meta, (FileRef(first, "", 0),)))
        found.append(Load(kind, version.meta.size, here))
    return found


def _spark_is_live(repo: Repo) -> bool:
    """A session of this process, or this user's warm server: then Spark costs nothing before it reads."""
    from swamp.bulk.keep import find_server
    from swamp.bulk.session import live_session

    return live_session() is not None or (not repo.settings.spark and find_server(os.environ) is not None)


@contextmanager
def _on_duckdb(
    repo: Repo, prepared: Prepared, choice: SqlEngineChoice, warn: Callable[[str], None]
) -> Iterator[Answer]:
    from swamp.sql.duck import Dataset, Duck, table_rows

    place = Folder(str(repo.tree.root))
    datasets = [Dataset(view, place, _local(repo, version)) for view, version in prepared.by_view.items()]
    opened = [name for dataset in datasets if dataset.in_place for name in dataset.files]
    query = written(prepared.query, prepared.views, "duckdb")
    with Duck(seconds=repo.settings.query_timeout, files=opened) as duck:
        for table in prepared.tables:
            duck.add_table(table, table_rows(repo, table))
        for dataset in datasets:
            duck.add_dataset(dataset)
        if any(table.name in ("data", "versions") for table in prepared.tables):
            for ref, why in repo.artifacts.elsewhere().items():  # in the store only, and not to be fetched (S23)
                warn(f"version {ref.version} of {ref.data.name} is not here and not among the rows: {why}")
        found = duck.run(query, prepared.query.text, lambda: [*TABLES, *known_datasets(repo)])
        yield Answer(choice, found.columns, found.rows, found.write_parquet)


@contextmanager
def _on_spark(
    repo: Repo,
    prepared: Prepared,
    choice: SqlEngineChoice,
    *,
    master: str | None,
    progress: Progress | None,
    warn: Callable[[str], None],
) -> Iterator[Answer]:
    """Asks in the live session, or in one that ends with the block."""
    from swamp.bulk.executors import check_plugin
    from swamp.bulk.jobs import Jobs
    from swamp.bulk.keep import with_server
    from swamp.bulk.session import live_session, open_session, stop_session
    from swamp.bulk.settings import resolve_settings
    from swamp.datasets import sql
    from swamp.datasets.source import register

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


def _local(repo: Repo, version: DataVersion) -> Artifact:
    """A version with its files on this machine, fetched first where the cache is lazy."""
    files = repo.data.contents.files(version)
    raw = version.ref.raw_path
    listed = [FileRef(f"{raw}/{one.name}".rstrip("/"), str(one.path), one.size) for one in files]
    return Artifact(version.ref, version.meta, tuple(sorted(listed, key=lambda file: file.path)))


def known_datasets(repo: Repo) -> Iterator[str]:
    """What can be asked for, for who typed something else."""
    try:
        yield from (f"{row.model_name}.{row.ref.data.name}" for row in repo.catalog.latest())
    except SwampError:
        return


SqlEngine = Literal["duckdb", "spark"]

BYTES_PER_SECOND: Final[Mapping[str, float]] = {"parquet": 50e6, "csv": 16e6, "jsonl": 2e6, "json": 2e6, "text": 24e6}
"""What DuckDB is given in a second, by format. This and what follows: bench/results/sql.md."""
FETCH_PER_SECOND: Final = 50e6
"""What has to come from the store first."""
SPARK_SECONDS: Final = 17.0
"""What Spark costs before it reads a row: 17 s for a count over 64 rows, as issue 20 tells it; not timed again."""
SPARK_GAIN: Final = 0.4
"""The share of the time in process that Spark saves once it runs, as with transfers (bulk/choose.py)."""


@value
class Load:
    """What one dataset of a query weighs: all of it is counted, whatever columns are asked for."""

    format: str
    size: int
    here: bool


@value
class SqlEngineChoice:
    engine: SqlEngine
    reason: str


def duck_seconds(loads: Sequence[Load]) -> float:
    """What reading the datasets takes in this process. Metadata tables weigh nothing: they are in the catalog."""
    fetching = sum(load.size / FETCH_PER_SECOND for load in loads if not load.here)
    return fetching + sum(load.size / BYTES_PER_SECOND.get(load.format, 20e6) for load in loads)


def choose_sql_engine(asked: SqlChoice, loads: Sequence[Load], *, live: bool = False) -> SqlEngineChoice:
    """Raises MissingTool when neither is installed, or the one that was asked for is not."""
    if asked == "duckdb":
        return SqlEngineChoice("duckdb", "--engine duckdb")
    if asked == "spark":
        return SqlEngineChoice("spark", "--engine spark")
    if not has("duckdb"):
        obstacle = spark_obstacle()
        if obstacle is not None:
            raise missing("`swamp sql`", "duckdb") from obstacle
        return SqlEngineChoice("spark", "DuckDB is not installed")
    alone = duck_seconds(loads)
    if alone * SPARK_GAIN <= (0 if live else SPARK_SECONDS) or alone < 1:
        return SqlEngineChoice("duckdb", f"about {alone:.1f} s of reading: Spark would cost more than it saves")
    obstacle = spark_obstacle()
    if obstacle is not None:
        return SqlEngineChoice("duckdb", f"about {alone:.0f} s of reading, but {obstacle.message}")
    return SqlEngineChoice("spark", f"about {alone:.0f} s of reading for one process: more than Spark costs")


def spark_obstacle() -> SwampError | None:
    """Why Spark cannot run here, as far as that can be known without starting it."""
    if not has("pyspark"):
        return missing("Spark", "spark")
    from swamp.bulk.settings import find_java

    try:
        if not os.environ.get("SPARK_REMOTE"):
            find_java(os.environ)
    except MissingTool as error:
        return error
    return None
