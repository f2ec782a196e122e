"""Running one Spark job the way the rest of swamp runs work: with progress, a way to stop it, and a deadline."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import swamp.errors as errors
from swamp.bulk.session import Spark, application_id, context_of, session_of
from swamp.bulk.spread import Address, Beacon, Kernel, OnShares, named_frame, values_of
from swamp.env import SYSTEM, Env
from swamp.errors import Failed, SwampError
from swamp.sync.progress import IdleTimeout, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
POLL_SECONDS: Final = 0.1
CANCEL_SECONDS: Final = 20.0


@dataclass
class Jobs:
    """The jobs of one command on one session or context: what they were, and how to stop the one that runs."""

    spark: Spark
    progress: Progress = field(default_factory=Progress)
    env: Env = SYSTEM
    stages: int = 0
    tasks: int = 0

    def __post_init__(self) -> None:
        self._context: Any = context_of(self.spark)
        self._beacon = Beacon(
            self._conf("spark.driver.host") or "127.0.0.1", self.env.ulid(), self._conf("spark.driver.bindAddress")
        )
        self._remote = RemoteStages()
        if self._context is None:
            self._server.registerProgressHandler(self._remote)

    @cached_property
    def session(self) -> SparkSession:
        """What SQL and DataFrames need; made on the context when they are first asked for."""
        return session_of(self.spark)

    @property
    def beacon(self) -> Address | None:
        """Where tasks report to; None on Spark Connect, where the driver is another machine."""
        return None if self._context is None else self._beacon.address

    @property
    def _server(self) -> Any:
        """The session as one of Spark Connect, which takes any callable for a progress handler."""
        return self.spark

    @property
    def parallelism(self) -> int:
        """Cores that work for this session; on Spark Connect nobody says, so a modest guess."""
        return int(self._context.defaultParallelism) if self._context is not None else 8

    def run(
        self,
        stage: str,
        action: Callable[[], T],
        idle_timeout: IdleTimeout,
        *,
        files: int | None = None,
        bar: bool = True,
    ) -> T:
        """`action` on a thread of its own, watched from here: cancel and deadline reach the job.

        Without a `bar` of its own it moves the one that its caller has begun.
        """
        if bar:
            self.progress.begin(stage, files)
        try:
            return self.finish(self.begin(stage, action), idle_timeout)
        finally:
            if bar:
                self.progress.end()

    def spread(self, shares: Sequence[Sequence[Any]], kernel: Kernel) -> list[Any]:
        """A task for each share of jobs; the results of all of them. An RDD, where there are any, needs no session."""
        if self._context is None:
            return list(values_of(named_frame(self.session, shares, kernel, named=True).toArrow()))
        work: Any = self._context.parallelize(shares, max(1, len(shares)))
        return list(work.mapPartitions(OnShares(kernel)).collect())

    def begin(self, stage: str, action: Callable[[], T]) -> Running[T]:
        """Starts `action`; whoever begins a job finishes or cancels it."""
        return Running(self._context, self.spark, f"swamp-{self.env.ulid()}", stage, action, self.env)

    def finish(self, job: Running[T], idle_timeout: IdleTimeout) -> T:
        """Waits for it; when the idle timeout ends first, the job ends too."""
        try:
            self._watch(job, idle_timeout)
        except BaseException:
            job.cancel()
            raise
        finally:
            for stage in job.stage_infos():
                self.stages += 1 if stage.numCompletedTasks else 0
                self.tasks += stage.numCompletedTasks
        return job.result()

    def report(self) -> dict[str, Any]:
        """What `--json` says of a Spark run."""
        stages, tasks = self.stages + self._remote.stages, self.tasks + self._remote.tasks
        return {"applicationId": application_id(self.spark), "stages": stages, "tasks": tasks}

    def close(self) -> None:
        self._beacon.close()
        if self._context is None:
            self._server.removeProgressHandler(self._remote)

    def _watch(self, job: Running[Any], idle_timeout: IdleTimeout) -> None:
        done = 0
        while job.running(POLL_SECONDS):
            heard = self._beacon.take()
            finished = sum(stage.numCompletedTasks for stage in job.stage_infos()) + self._remote.tasks
            if heard.alive or finished > done or self._remote.at_work or self._works_unheard(job):
                idle_timeout.progressed()
                self.progress.advance(heard.files, heard.size)
            done = max(done, finished)
            idle_timeout.check()
        last = self._beacon.take()
        self.progress.advance(last.files, last.size)

    def _works_unheard(self, job: Running[Any]) -> bool:
        """Executors elsewhere are at work, and a network that lets no sign of theirs through is no standstill: what
        tasks do with a store ends by itself, and Spark itself gives up an executor that is gone."""
        if self._context is None or self._beacon.heard or str(self._context.master).startswith("local"):
            return False
        return any(stage.numActiveTasks for stage in job.stage_infos())

    def _conf(self, name: str) -> str | None:
        return None if self._context is None else self._context.getConf().get(name)


class Running(Generic[T]):
    """One action in one thread, under one job group (a tag on Spark Connect)."""

    def __init__(self, context: Any, server: Any, group: str, stage: str, action: Callable[[], T], env: Env) -> None:
        self._context, self._server, self._group, self._stage = context, server, group, stage
        self._action, self._env = action, env
        self.seconds = 0.0
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"spark-{stage}", daemon=True)
        self._thread.start()

    def running(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> T:
        if self._error is not None:
            raise translated(self._error, self._stage) from self._error
        value: T = self._value
        return value

    def cancel(self) -> None:
        """Stop the tasks and wait for them, so that nothing of ours still runs when we return."""
        if self._context is not None:
            self._context.cancelJobGroup(self._group)
        else:
            self._server.interruptTag(self._group)
        self._thread.join(CANCEL_SECONDS)

    def stage_infos(self) -> list[Any]:
        if self._context is None:
            return []
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self._group)]
        numbers = {number for job in jobs if job is not None for number in job.stageIds}
        return [info for info in map(tracker.getStageInfo, numbers) if info is not None]

    def _work(self) -> None:
        started = self._env.clock.monotonic()
        try:
            if self._context is not None:
                self._context.setJobGroup(self._group, f"swamp: {self._stage}", True)
            else:
                self._server.addTag(self._group)
            self._value = self._action()
        except BaseException as error:  # noqa: BLE001  (the Spark task boundary: handed to the thread that waits)
            self._error = error
        self.seconds = self._env.clock.monotonic() - started


class RemoteStages:
    """A progress handler of a Connect session: tasks that have ended, and whether any are under way. There is no status
    tracker there, only what the server reports by itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, int], int] = {}
        self._under_way: set[str] = set()

    def __call__(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        name = operation_id or ""
        with self._lock:
            for stage in stages or ():
                self._ended[name, stage.stage_id] = stage.num_completed_tasks
            self._under_way.discard(name)
            if inflight_tasks and not done:
                self._under_way.add(name)

    @property
    def tasks(self) -> int:
        with self._lock:
            return sum(self._ended.values())

    @property
    def stages(self) -> int:
        with self._lock:
            return sum(1 for ended in self._ended.values() if ended)

    @property
    def at_work(self) -> bool:
        """Nobody hears the tasks themselves, but what they do with a store ends by itself in bounded time."""
        with self._lock:
            return bool(self._under_way)


# What follows an error's own words: Java's stack, another error, or nothing. They may have several lines.
_AFTER = (
    r"(?=\s*(?:\n\s+at \S|\n(?:The above exception|During handling|Driver stacktrace|JVM stacktrace|Traceback )|\Z))"
)
_OURS = re.compile(rf"swamp\.errors\.(\w+): (.*?)(?:\n{errors.HINT}(.*?))?{_AFTER}", re.DOTALL)


def translated(error: BaseException, stage: str) -> BaseException:
    """Spark's error as ours: a swamp error raised in a task keeps its kind, its message and its hint."""
    if isinstance(error, SwampError) or not isinstance(error, Exception):
        return error
    text = str(error)
    for name, message, hint in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, SwampError):
            return kind(message.strip(), hint=hint.strip() or None, details={"stage": stage})
    if "No module named 'swamp" in text:
        return errors.MissingTool(
            "a Spark executor does not have the swamp package",
            hint="install it there, or build an archive with `swamp spark package --output FILE` and set "
            "spark.conf spark.swamp.archive to it",
        )
    if "spark.driver.maxResultSize" in text:
        return Failed(
            "the result is larger than what the driver takes (spark.driver.maxResultSize)",
            hint="ask for less, or raise it and spark.driver.memory under spark.conf in .swamp.yaml",
            details={"stage": stage},
        )
    return Failed(
        f"Spark failed in stage {stage}: {_first_line(text)}",
        hint="run again with -v for the whole report, or use --engine inline",
        details={"stage": stage, "cause": text[:4000]},
    )


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (causes or lines or ["no message"])[-1 if causes else 0][:300]
