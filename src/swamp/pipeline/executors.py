"""What the executors must have before work is sent to them: the package, and sight of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import Misconfigured, MissingTool, Unavailable
from swamp.pipeline.settings import SHARED_CACHE, SparkSettings
from swamp.sync.progress import Patience

if TYPE_CHECKING:
    from swamp.pipeline.jobs import Jobs

Question = Callable[[Iterator[Any]], Iterator[Any]]
PACKAGE_HINT: Final = (
    "install swamp where the executors run, or build an archive with `swamp spark package --output FILE` "
    "and set `spark: {conf: {spark.swamp.archive: FILE}}` in .swamp.yaml"
)


def check_executors(jobs: Jobs, settings: SparkSettings, patience: Patience) -> None:
    """Raises MissingTool if an executor lacks the package or another version of it runs there, and
    Unavailable if no executor answers while `patience` lasts. Local mode needs no question."""
    if settings.is_local:
        return
    import swamp

    found = _ask(jobs, settings, _which_package(), patience)
    wrong = sorted({text for text in found if text != swamp.__version__})
    if wrong:
        raise MissingTool(
            f"a Spark executor cannot run swamp {swamp.__version__}: {wrong[0]}",
            hint=PACKAGE_HINT,
            details={"found": wrong},
        )


def check_cache_visible(jobs: Jobs, settings: SparkSettings, cache: Path, patience: Patience) -> None:
    """Stages that touch the cache run where the cache is. Refuses before anything has begun."""
    if settings.is_local:
        return
    if settings.sees_cache:
        mark = cache / f".swamp-tmp-{patience.env.ulid()}"
        mark.write_text(mark.name)
        try:
            if all(text == "seen" for text in _ask(jobs, settings, _is_seen(str(mark)), patience)):
                return
        finally:
            mark.unlink()
    raise Misconfigured(
        f"executors of {settings.where} cannot see the cache {cache}",
        hint="this work touches local files: use --engine inline, master local[*], or a cache on a path that "
        f"every executor shares (SWAMP_HOME) declared with {SHARED_CACHE}: true",
    )


def _ask(jobs: Jobs, settings: SparkSettings, question: Question, patience: Patience) -> list[str]:
    """One small task per core: the answer of every executor that the scheduler gives us."""
    session = jobs.session
    count = max(2, jobs.parallelism)

    def answers() -> list[str]:
        rows = session.range(0, count, 1, count).mapInArrow(question, "answer string").collect()
        return [str(row.answer) for row in rows]

    patience.progressed()  # the session had limits of its own; an executor may have to be brought up first
    try:
        return jobs.run("check executors", answers, patience)
    except Unavailable as error:
        raise Unavailable(
            f"no executor of {settings.where} has answered for {patience.seconds:g} s",
            hint="see whether the cluster has workers with as many free cores and as much free memory as spark.conf in "
            ".swamp.yaml asks for; or use --engine inline",
        ) from error


# The questions are inner functions and import what they need themselves: so they are pickled by value, and an
# executor without our package can still answer that it has none.


def _which_package() -> Question:
    def answer(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            pass
        try:
            import swamp
            import swamp.pipeline.kernels
            import swamp.store.open

            text = swamp.__version__
        except ImportError as error:
            text = str(error)
        yield pyarrow.RecordBatch.from_pydict({"answer": [text]})

    return answer


def _is_seen(mark: str) -> Question:
    def answer(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        import pyarrow

        for _ in batches:
            pass
        seen = os.path.exists(mark)  # noqa: PTH110
        yield pyarrow.RecordBatch.from_pydict({"answer": ["seen" if seen else "not seen"]})

    return answer
