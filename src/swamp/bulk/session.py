"""One Spark in a process: the one that is there, a new one here, or one on a Spark Connect server.

A new one is a context first: lists of files need no more. The session, with SQL, is made on it when somebody
asks (it costs as much CPU again as the start). It does not know the `swamp` format: `datasets/source.py` registers it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Union

from swamp.bulk.settings import ARCHIVE, SparkSettings, conf_of, find_java, is_elsewhere, python_of
from swamp.errors import MissingTool, Unavailable, UsageError
from swamp.extras import needs

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Spark = Union["SparkSession", "SparkContext"]
"""Whoever runs jobs."""
log = logging.getLogger("swamp.spark")
REACH_SECONDS: Final = 5.0
LOG_TAIL_BYTES: Final = 2000
JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"


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


def end_jvm(gateway: Any) -> None:
    """Ends the Java machine that this process has started."""
    from pyspark import SparkContext

    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM watches this pipe and exits with it
    try:
        gateway.proc.wait(timeout=20)
    except subprocess.TimeoutExpired:  # the work is done: a JVM that is slow to go fails nobody
        gateway.proc.kill()
        gateway.proc.wait()
    finally:
        SparkContext._gateway = None
        SparkContext._jvm = None


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


# -- the start of a Java machine: what can be known before is said before, in words that a user can act on


def check_startable(settings: SparkSettings) -> None:
    """What can be known of a start on this machine in a moment: Spark itself, options, a Java, a master."""
    needs("pyspark", "Spark", "spark")
    conf_of(settings)
    find_java(os.environ)
    # A standalone master that does not answer is found out in seconds, not after Spark's own minute.
    master = settings.master
    hosts = [part for part in master.removeprefix("spark://").split(",") if part]
    if master.startswith("spark://") and not any(
        reachable(f"spark://{host}", 7077, seconds=REACH_SECONDS) for host in hosts
    ):
        raise Unavailable(
            f"the Spark master {master} does not answer",
            hint="start it, correct spark.master in .swamp.yaml, or use --engine inline",
            details={"master": master},
        )


def launch(settings: SparkSettings, log: Path) -> SparkContext:
    """Start the JVM with its noise in `log`, not in the terminal."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    conf = conf_of(settings)
    os.environ["PYSPARK_PYTHON"] = python_of(settings, os.environ)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    pairs = SparkConf(loadDefaults=False)
    pairs.setAll(list(conf.items()))
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    try:
        gateway = None
        if SparkContext._gateway is None:
            with log.open("ab") as noise, _java_options(settings):
                gateway = launch_gateway(pairs, {"stderr": noise, "stdout": noise})  # type: ignore[no-untyped-call]
        return SparkContext(conf=pairs, gateway=gateway)
    except (PySparkException, Py4JError) as error:
        raise _start_failed(settings, log) from error
    finally:
        # Spark puts its own SIGINT handler in; ours stops starting work and releases leases.
        if handler is not None:
            signal.signal(signal.SIGINT, handler)


@contextmanager
def _java_options(settings: SparkSettings) -> Iterator[None]:
    """Ours before everybody else's: what the user or an administrator says of Java comes later, and wins."""
    before = os.environ.get(JAVA_OPTIONS)
    if settings.brief:
        os.environ[JAVA_OPTIONS] = " ".join(filter(None, (QUICK_COMPILER, before)))
    try:
        yield
    finally:
        os.environ.pop(JAVA_OPTIONS, None)
        os.environ.update({} if before is None else {JAVA_OPTIONS: before})


def _start_failed(settings: SparkSettings, log: Path) -> MissingTool:
    size = log.stat().st_size if log.exists() else 0
    tail = ""
    if size:
        with log.open("rb") as file:
            file.seek(max(0, size - LOG_TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace").strip()
    return MissingTool(
        f"Spark did not start on {settings.where}",
        hint=f"the reason is at the end of {log}; --engine inline works without Spark",
        details={"log": str(log), "tail": tail},
    )


def log_file() -> Path:
    """Where the noise of this process's Java goes."""
    home = os.environ.get("SWAMP_HOME")
    folder = Path(home) if home else Path.home() / ".swamp"
    try:
        folder = folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir())
    return folder / f"spark-{os.getpid()}.log"


def reachable(url: str, port: int, *, seconds: float) -> bool:
    """Whether somebody takes connections there; `port` where the address names none."""
    host, _, given = url.split("://", 1)[1].split("/", 1)[0].split(";", 1)[0].rpartition(":")
    try:
        with socket.create_connection((host or given, int(given) if host else port), timeout=seconds):
            return True
    except (OSError, ValueError):
        return False
