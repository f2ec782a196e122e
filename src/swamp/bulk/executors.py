"""What the executors must have before work is sent to them: the package, by an archive where it is not installed, and
sight of the cache."""

from __future__ import annotations

import importlib.metadata as metadata
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.jobs import Jobs
from swamp.bulk.session import context_of
from swamp.bulk.settings import SHARED_CACHE, SparkSettings
from swamp.errors import Misconfigured, MissingTool, Unavailable
from swamp.extras import GROUPS
from swamp.sync.progress import IdleTimeout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from swamp.store.open import StoreSpec

Question = Callable[[], str]
PACKAGE_HINT: Final = (
    "install swamp where the executors run, or build an archive with `swamp spark package --output FILE` "
    "and set `spark: {conf: {spark.swamp.archive: FILE}}` in .swamp.yaml"
)


def check_executors(jobs: Jobs, settings: SparkSettings, idle_timeout: IdleTimeout, plugin: str | None = None) -> None:
    """Raises MissingTool if an executor lacks the package, or the `plugin` that brings the store, or another version
    runs there, and Unavailable if no executor answers while `idle_timeout` lasts. Local mode needs no question."""
    if settings.is_local:
        return
    import swamp

    wrong = _wrong(jobs, settings, _which_package(), swamp.__version__, idle_timeout)
    if wrong:
        raise MissingTool(
            f"a Spark executor cannot run swamp {swamp.__version__}: {wrong[0]}",
            hint=PACKAGE_HINT,
            details={"found": wrong},
        )
    wrong = _wrong(jobs, settings, _has_plugin(plugin), "there", idle_timeout) if plugin is not None else []
    if wrong:
        raise MissingTool(
            f"a Spark executor cannot open the datastore {plugin}: {wrong[0]}",
            hint="install the package that brings it where the executors run, or build an archive with it here "
            "(`swamp spark package` takes installed plug-ins along); or use --engine inline",
            details={"plugin": plugin},
        )


def check_plugin(session: SparkSession, settings: SparkSettings, idle_timeout: IdleTimeout, plugin: str | None) -> None:
    """For queries and steps: whether executors elsewhere can open a plug-in's store, before any task needs it."""
    if settings.is_local or plugin is None:
        return
    with closing(Jobs(session)) as jobs:
        check_executors(jobs, settings, idle_timeout, plugin)


def check_store(jobs: Jobs, settings: SparkSettings, store: StoreSpec, idle_timeout: IdleTimeout) -> None:
    """Executors open the store with what they find where they run: whether they may is asked before they have work."""
    if settings.is_local:
        return
    wrong = _wrong(jobs, settings, _reads_store(store), "read", idle_timeout)
    if wrong:
        raise Misconfigured(
            f"a Spark executor cannot read {store.url}: {wrong[0]}",
            hint="executors find credentials where they run: give them a role, or the variables with "
            "spark.executorEnv.NAME under spark.conf in .swamp.yaml; or use --engine inline",
            details={"found": wrong},
        )


def check_cache_visible(jobs: Jobs, settings: SparkSettings, cache: Path, idle_timeout: IdleTimeout) -> None:
    """Stages that touch the cache run where the cache is. Refuses before anything has begun."""
    if settings.is_local:
        return
    if settings.sees_cache:
        mark = cache / f".swamp-tmp-{idle_timeout.env.ulid()}"
        mark.write_text(mark.name)
        try:
            if not _wrong(jobs, settings, _is_seen(str(mark)), "seen", idle_timeout):
                return
        finally:
            mark.unlink()
    raise Misconfigured(
        f"executors of {settings.where} cannot see the cache {cache}",
        hint="this work touches local files: use --engine inline, master local[*], or a cache on a path that "
        f"every executor shares (SWAMP_HOME) declared with {SHARED_CACHE}: true",
    )


def _wrong(jobs: Jobs, settings: SparkSettings, question: Question, right: str, idle_timeout: IdleTimeout) -> list[str]:
    """What executors answer other than `right`: one small task per core, on all that the scheduler gives us."""
    count = max(2, jobs.parallelism)

    def each(rows: Iterable[Any]) -> Iterable[str]:
        del rows
        yield question()

    def each_batch(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            pass
        yield pyarrow.RecordBatch.from_pydict({"answer": [question()]})

    def answers() -> list[str]:
        context = context_of(jobs.spark)
        if context is not None:
            return list(context.parallelize(range(count), count).mapPartitions(each).collect())
        rows = jobs.session.range(0, count, 1, count).mapInArrow(each_batch, "answer string").collect()
        return [str(row.answer) for row in rows]

    idle_timeout.progressed()  # the session had limits of its own; an executor may have to be brought up first
    try:
        return sorted(set(jobs.run("check executors", answers, idle_timeout)) - {right})
    except Unavailable as error:
        raise Unavailable(
            f"no executor of {settings.where} has answered for {idle_timeout.seconds:g} s",
            hint="see whether the cluster has workers with as many free cores and as much free memory as spark.conf in "
            ".swamp.yaml asks for; or use --engine inline",
        ) from error


# The questions are inner functions and import what they need themselves: so they are pickled by value, and an
# executor without our package can still answer that it has none.


def _which_package() -> Question:
    def answer() -> str:
        try:
            import swamp
            import swamp.bulk.kernels
            import swamp.store.open
        except ImportError as error:
            return str(error)
        return swamp.__version__

    return answer


def _has_plugin(kind: str) -> Question:
    def answer() -> str:
        try:
            from swamp.errors import UsageError
            from swamp.extras import find
        except ImportError as error:
            return str(error)
        try:
            plugin = find("datastores", kind)
            return "there" if plugin and plugin.load() else "no package that is installed there brings it"
        except UsageError as error:
            return str(error)

    return answer


def _reads_store(store: StoreSpec) -> Question:
    def answer() -> str:
        from swamp.bulk.spread import opened
        from swamp.errors import ObjectMissing, SwampError
        from swamp.index.read import read_root

        try:
            read_root(opened(store))
        except ObjectMissing:
            return "read"  # and nothing has been pushed yet
        except SwampError as error:
            return error.message
        return "read"

    return answer


def _is_seen(mark: str) -> Question:
    def answer() -> str:
        import os

        return "seen" if os.path.exists(mark) else "not seen"  # noqa: PTH110

    return answer


# -- how the code reaches executors that do not have it: an archive that Spark unpacks beside each of them

# What a Spark installation that runs Python with Arrow has anyway.
ON_EXECUTORS: Final = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})
# What only the command line needs.
DRIVER_ONLY: Final = frozenset({"typer", "rich", "shellingham", "markdown-it-py", "mdurl", "pygments"})


@dataclass(frozen=True, slots=True)
class Package:
    file: Path
    bytes: int
    distributions: tuple[str, ...]


def build_archive(file: Path, *, full: bool = False, exclude: Iterable[str] = ()) -> Package:
    """swamp and what it needs as a tar.gz for the same platform and Python. `full` adds pyarrow, pandas and numpy."""
    left_out = DRIVER_ONLY | {_normal(name) for name in exclude}
    left_out |= {"pyspark", "py4j"} if full else ON_EXECUTORS
    more = [name for name in ("pyarrow", "pandas") if full and _is_installed(name)]
    # The packages that bring datastores: what they store must be opened on executors too.
    points = metadata.entry_points(group=GROUPS["datastores"])
    roots = ("swamp", *{point.dist.name for point in points if point.dist}, *more)
    wanted = sorted(set[str]().union(*(_closure(name, left_out) for name in roots)))
    with tarfile.open(file, "w:gz", compresslevel=6) as archive:
        for name in wanted:
            for source, target in _files_of(name):
                archive.add(source, target, recursive=False)
    return Package(file, file.stat().st_size, tuple(wanted))


def _closure(start: str, left_out: frozenset[str] | set[str]) -> set[str]:
    """The distribution and everything it requires here, extras aside."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = _normal(waiting.pop())
        if name in found or name in left_out:
            continue
        found.add(name)
        waiting += list(_requires(name))
    return found


def _requires(name: str) -> Iterator[str]:
    for text in _distribution(name).requires or []:
        requirement, _, marker = text.partition(";")
        match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
        if match and "extra ==" not in marker and _is_installed(match[0]):
            yield match[0]


def _is_installed(name: str) -> bool:
    """A requirement under a marker that does not hold here is not installed here."""
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _distribution(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError as error:
        raise MissingTool(f"{name} is not installed here", hint="install swamp as a package first") from error


def _files_of(name: str) -> Iterator[tuple[Path, str]]:
    if name == "swamp":  # from the package itself: an editable installation lists no files
        import swamp

        root = Path(swamp.__file__).parent
        for source in sorted(root.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                yield source, f"swamp/{source.relative_to(root).as_posix()}"
        return
    files = _distribution(name).files
    if files is None:
        raise MissingTool(
            f"the package {name} does not say which files it has",
            hint=f"install it with pip, or leave it out with --exclude {name}",
        )
    for entry in files:
        source = Path(str(entry.locate()))
        if ".." not in entry.parts and source.is_file() and "__pycache__" not in entry.parts:
            yield source, str(entry)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
