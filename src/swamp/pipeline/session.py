"""One Spark session in a process: the one that is there, a new one here, or one on a Spark Connect server."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import MissingTool, Unavailable
from swamp.pipeline.launch import REACH_SECONDS, check_startable, end_jvm, launch, log_file, reachable
from swamp.pipeline.settings import ARCHIVE, SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def live_session() -> SparkSession | None:
    """The session this process already has, if any: using it costs nothing. Never imports pyspark.

    One that is just starting is waited for: Spark refuses a second one beside it.
    """
    wait(_starting)
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or getattr(SparkSession, "_instantiatedSession", None)
    if active is None:
        return None
    context = getattr(active, "_sc", None)
    stopped = context is not None and getattr(context, "_jsc", None) is None
    return None if stopped else active


def of_session(session: SparkSession, settings: SparkSettings) -> SparkSettings:
    """What a session that somebody else opened really is; our own settings still say what is shared."""
    context = getattr(session, "_sc", None)
    if context is None:
        return replace(settings, remote=settings.remote or "sc://", master="")
    return replace(settings, remote=None, master=str(context.master))


def remote_answers(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the Spark Connect server named in the environment takes connections."""
    url = (os.environ if environ is None else environ).get("SPARK_REMOTE", "")
    return url.startswith("sc://") and reachable(url, 15002, seconds=1.0)


def open_session(settings: SparkSettings, *, log: Path | None = None) -> SparkSession:
    """The live session, or a new one as `settings` say. Every failure names what to do about it."""
    live = live_session()
    if live is not None:
        return _registered(live)
    if settings.remote is not None:
        return _registered(_hushed(_connect(settings)))
    check_startable(settings)
    return start_session(settings, log=log)


def begin_session(settings: SparkSettings) -> Future[SparkSession]:
    """A new session, started by a thread of its own, after `check_startable`."""
    import pyspark.sql  # noqa: F401  (here: two threads that import one package may meet in the middle of it)

    pool = ThreadPoolExecutor(1, "spark-start")
    begun = pool.submit(start_session, settings)
    pool.shutdown(wait=False)
    _starting[:] = [begun]
    return begun


_starting: Final[list[Future[SparkSession]]] = []
"""The session that this process has begun to start, if it has; up or not by now."""


def start_session(settings: SparkSettings, *, log: Path | None = None) -> SparkSession:
    """A new session with a JVM of its own, after `check_startable`."""
    return _registered(_hushed(launch(settings, log or log_file())))


def stop_session(session: SparkSession) -> None:
    """End a session that this process opened; the JVM behind it goes with it."""
    context = getattr(session, "_sc", None)
    gateway = getattr(context, "_gateway", None)
    session.stop()
    if context is None:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # else pyspark goes on building plans for the server
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        end_jvm(gateway)


def _hushed(session: SparkSession) -> SparkSession:
    """A session of ours: its Python side logs no error that it also raises, unless swamp's own log is at DEBUG."""
    from pyspark.logger import PySparkLogger

    if not logging.getLogger("swamp").isEnabledFor(logging.DEBUG):
        for name in _TALKATIVE:
            # Made by Spark's own class: it hands its loggers arguments that another one does not take.
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    return session


_TALKATIVE: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Each writes a line of JSON to stderr that holds the whole Java stack."""


def _registered(session: SparkSession) -> SparkSession:
    """With the `swamp` format known to it."""
    from swamp.pipeline.source import SwampDataSource

    session.dataSource.register(SwampDataSource)
    return session


def _connect(settings: SparkSettings) -> SparkSession:
    """A session on a Spark Connect server: no JVM here."""
    url = settings.remote or ""
    if not reachable(url, 15002, seconds=REACH_SECONDS):
        raise Unavailable(f"the Spark Connect server {url} does not answer", hint="start it, or unset spark.remote")
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
        raise Unavailable(
            f"{url} answers, but it does not open a Spark Connect session: {_first_line(error)}",
            hint="it must be a Spark Connect server of the same Spark version; or unset spark.remote",
        ) from error
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    archive = settings.conf.get(ARCHIVE)
    if archive:
        session.addArtifacts(f"{archive}#swamp-code", archive=True)
    return session


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


def application_id(session: SparkSession) -> str:
    context = getattr(session, "_sc", None)
    if context is not None:
        return str(context.applicationId)
    return str(getattr(session, "session_id", ""))
