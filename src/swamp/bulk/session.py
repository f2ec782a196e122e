"""One Spark in a process: the one that is there, a new one here, or one on a Spark Connect server.

A new one is a context first: lists of files need no more. The session, with SQL, is made on it when somebody
asks (it costs as much CPU again as the start). It does not know the `swamp` format: `datasets/source.py` registers it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union

from swamp.bulk.launch import REACH_SECONDS, check_startable, end_jvm, launch, log_file, reachable
from swamp.bulk.settings import ARCHIVE, SparkSettings, is_elsewhere
from swamp.errors import MissingTool, Unavailable, UsageError
from swamp.extras import needs

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Spark = Union["SparkSession", "SparkContext"]
"""Whoever runs jobs."""
log = logging.getLogger("swamp.spark")


def live_spark() -> Spark | None:
    """The session or context this process already has, if any: using it costs nothing. Never imports pyspark.

    One that is just starting is waited for: Spark refuses a second one beside it.
    """
    wait(_starting)
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    context = context_of(active) if active is not None else None
    stopped = context is not None and getattr(context, "_jsc", None) is None
    return SparkContext._active_spark_context if active is None or stopped else active


def live_session() -> SparkSession | None:
    """The session this process already has, or one on the context that it has."""
    live = live_spark()
    return None if live is None else session_of(live)


def context_of(spark: Spark) -> SparkContext | None:
    """What runs its jobs here; None on Spark Connect."""
    from pyspark import SparkContext

    return spark if isinstance(spark, SparkContext) else getattr(spark, "_sc", None)


def session_of(spark: Spark) -> SparkSession:
    """The session of a context, made if it has none."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession(spark) if isinstance(spark, SparkContext) else spark


def of_session(spark: Spark, settings: SparkSettings) -> SparkSettings:
    """What a session that somebody else opened really is; our own settings still say what is shared."""
    context = context_of(spark)
    if context is None:
        return replace(settings, remote=settings.remote or "sc://", master="")
    return replace(settings, remote=None, master=str(context.master))


def remote_answers(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the Spark Connect server named in the environment takes connections."""
    url = (os.environ if environ is None else environ).get("SPARK_REMOTE", "")
    return url.startswith("sc://") and reachable(url, 15002, seconds=1.0)


def open_session(settings: SparkSettings, *, log: Path | None = None) -> SparkSession:
    """The live session, or a new one as `settings` say. Every failure names what to do about it."""
    return session_of(open_spark(settings, log=log))


def open_spark(settings: SparkSettings, *, log: Path | None = None) -> Spark:
    """The same for work that needs no SQL: the live session, a Spark Connect session, or a new context."""
    live = live_spark()
    if live is not None:
        return live
    if settings.remote is not None:
        return _connect(settings)
    check_startable(settings)
    return start_context(settings, log=log)


class Starting(Future[Spark]):
    """A context on its way up. Whoever does not need it any more drops it, and need not wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._dropped = False

    def start(self, settings: SparkSettings) -> None:
        try:
            context = start_context(settings)
        except BaseException as error:  # noqa: BLE001  (raised again where the context is asked for)
            self.set_exception(error)
            return
        with self._lock:
            if not self._dropped:
                self.set_result(context)
                return
        stop_session(context)
        self.set_exception(MissingTool("Spark was not needed any more when it was up"))

    def drop(self) -> bool:
        """Has it stopped as soon as it is up; False if it already is. A process that ends before takes Java with it."""
        with self._lock:
            self._dropped = not self.done()
            return self._dropped


def begin_context(settings: SparkSettings) -> Starting:
    """A new context, started by a thread of its own, after `check_startable`."""
    import pyspark.sql  # noqa: F401  (here: two threads that import one package may meet in the middle of it)

    begun = Starting()
    threading.Thread(target=begun.start, args=(settings,), name="spark-start", daemon=True).start()
    _starting[:] = [begun]
    return begun


def end_context(begun: Future[Spark]) -> None:
    """Ends a session or context that this process has begun: one that is not up yet as soon as it is."""
    if isinstance(begun, Starting) and begun.drop():
        return
    if begun.exception() is None:
        stop_session(begun.result())


_starting: Final[list[Future[Spark]]] = []
"""The context that this process has begun to start, if it has; up or not by now."""


def start_context(settings: SparkSettings, *, log: Path | None = None) -> SparkContext:
    """A new context with a JVM of its own, after `check_startable`; on this machine with workers that are warm."""
    _hush()
    context = launch(settings, log or log_file())
    if settings.is_local:
        warm(context)
    return context


def warm(context: SparkContext) -> None:
    """Workers that have loaded the package, before there is work for them: a plan is being made meanwhile."""
    cores = context.defaultParallelism
    try:
        context.parallelize(range(cores), cores).foreachPartition(_load)
    except Exception as error:  # noqa: BLE001  (what keeps workers from starting is told by the first real job)
        log.debug("workers could not be warmed: %s", error)


def _load(rows: object) -> None:
    """In a worker: what its first task would load."""
    import swamp.bulk.kernels
    import swamp.store.open  # noqa: F401

    del rows


def stop_session(spark: Spark) -> None:
    """End a session or context that this process opened; the JVM behind it goes with it."""
    from pyspark.sql import SparkSession

    context = context_of(spark)
    gateway = getattr(context, "_gateway", None)
    made: Any = getattr(SparkSession, "_instantiatedSession", None)  # perhaps on this very context, by `session_of`
    (made if made is not None and context is not None and made._sc is context else spark).stop()
    if context is None:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # else pyspark goes on building plans for the server
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        end_jvm(gateway)


def _hush() -> None:
    """For a session of ours: its Python side logs no error that it also raises, unless swamp's own log is at DEBUG."""
    from pyspark.logger import PySparkLogger

    if not logging.getLogger("swamp").isEnabledFor(logging.DEBUG):
        for name in _TALKATIVE:
            # Made by Spark's own class: it hands its loggers arguments that another one does not take.
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


_TALKATIVE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Each writes a line of JSON to stderr that holds the whole Java stack."""


def _connect(settings: SparkSettings) -> SparkSession:
    """A session on a Spark Connect server: no JVM here."""
    needs("pyspark", "Spark", "spark")
    url = settings.remote or ""
    if not reachable(url, 15002, seconds=REACH_SECONDS):
        raise Unavailable(
            f"the Spark Connect server {settings.where} does not answer", hint="start it, or unset spark.remote"
        )
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # The general builder: it also tells pyspark's functions to build plans for a server.
    builder: Any = SparkSession.builder.remote(url).appName("swamp")
    for name, value in settings.conf.items():
        builder = builder.config(name, value)
    try:
        session: SparkSession = builder.getOrCreate()
    except ImportError as error:
        raise MissingTool(
            "this Python cannot speak Spark Connect", hint="install pyspark[connect] (grpcio and friends)"
        ) from error
    except PySparkException as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]
        raise Unavailable(
            f"{settings.where} answers, but it does not open a Spark Connect session: {said}",
            hint="it must be a Spark Connect server of the same Spark version; or unset spark.remote",
        ) from error
    archive = settings.conf.get(ARCHIVE)
    if archive and is_elsewhere(archive):
        raise UsageError(
            f"a Spark Connect client cannot send {archive}",
            hint=f"give the server spark.archives={archive}#swamp-code, or name a file of this machine",
        )
    if archive:
        session.addArtifacts(f"{archive}#swamp-code", archive=True)
    _hush()
    return session


def application_id(spark: Spark) -> str:
    context = context_of(spark)
    if context is not None:
        return str(context.applicationId)
    return str(getattr(spark, "session_id", ""))
