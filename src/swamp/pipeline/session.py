"""One Spark session, every option written out: local, a master URL, or Spark Connect."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import MissingTool, Unavailable, UsageError
from swamp.pipeline.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL: Final = "local[*]"
REACH_SECONDS: Final = 5.0
LOG_TAIL_BYTES: Final = 2000
# Settings of ours that travel in the `conf` of the `spark:` block.
SHARED_CACHE: Final = "spark.swamp.sharedCache"
ARCHIVE: Final = "spark.swamp.archive"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how. `conf` is the user's and wins over every default here."""

    master: str = LOCAL
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")

    @property
    def sees_cache(self) -> bool:
        """Whether tasks run where the cache is: this machine, or a shared path declared as such."""
        return self.is_local or self.conf.get(SHARED_CACHE, "false").lower() == "true"

    @property
    def where(self) -> str:
        return self.remote or self.master


def resolve_settings(
    block: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
) -> SparkSettings:
    """Flag, then environment, then the `spark:` block of `.swamp.yaml`, then `local[*]`."""
    environ = os.environ if environ is None else environ
    block = block or {}
    conf = {str(k): _conf_text(v) for k, v in dict(block.get("conf") or {}).items()}
    chosen = master or environ.get("SWAMP_SPARK_MASTER")
    remote = None if chosen else environ.get("SPARK_REMOTE")
    if not chosen and not remote:
        remote = block.get("remote")
    if chosen and chosen.startswith("sc://"):
        chosen, remote = None, chosen
    found = SparkSettings(chosen or str(block.get("master") or LOCAL), remote, conf)
    _check_where(found)
    return found


def _conf_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_where(settings: SparkSettings) -> None:
    known = re.compile(r"local(\[.+\])?$|spark://.+:\d+|yarn$|k8s://.+|local-cluster\[.+\]$")
    if settings.remote is None and not known.match(settings.master):
        raise UsageError(
            f"spark master {settings.master!r} is not one Spark knows",
            hint="use local[*], local[N], spark://host:port, yarn, k8s://https://host:port, "
            "or a Spark Connect URL sc://host:port",
        )


def live_session() -> SparkSession | None:
    """The session this process already has, if any: using it costs nothing. Never imports pyspark."""
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
    return url.startswith("sc://") and _reachable(url, 15002, seconds=1.0)


def open_session(settings: SparkSettings, *, log: Path | None = None) -> SparkSession:
    """The live session, or a new one as `settings` say. Every failure names what to do about it."""
    live = live_session()
    if live is not None:
        return _registered(live)
    if settings.remote is not None:
        return _registered(_connect(settings))
    find_java(os.environ)
    _check_master(settings.master)
    return _registered(_launch(settings, log or _log_file()))


def stop_session(session: SparkSession) -> None:
    """End a session that this process opened; the JVM behind it goes with it."""
    context = getattr(session, "_sc", None)
    gateway = getattr(context, "_gateway", None)
    session.stop()
    if context is None:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # else pyspark goes on building plans for the server
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        _end_jvm(gateway)


def _end_jvm(gateway: Any) -> None:
    from pyspark import SparkContext

    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM watches this pipe and exits with it
    try:
        gateway.proc.wait(timeout=20)
    finally:
        SparkContext._gateway = None
        SparkContext._jvm = None


def _registered(session: SparkSession) -> SparkSession:
    """With the `swamp` format known to it."""
    from swamp.pipeline.source import SwampDataSource

    session.dataSource.register(SwampDataSource)
    return session


def conf_of(settings: SparkSettings) -> dict[str, str]:
    """Every option of a session that we start, the user's own last."""
    return {**_conf_everywhere(settings), **(_conf_local() if settings.is_local else {}), **settings.conf}


def _conf_everywhere(settings: SparkSettings) -> dict[str, str]:
    return {
        "spark.master": _with_retries(settings.master),
        "spark.app.name": "swamp",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.submit.deployMode": "client",
        "spark.driver.memory": "2g",
        "spark.driver.maxResultSize": "512m",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.python.worker.reuse": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.sql.shuffle.partitions": "64",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
        # Off by default in Spark; without it metadata filters are evaluated after the scan.
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.cleaner.referenceTracking.cleanCheckpoints": "true",
        **_conf_archive(settings),
    }


def _conf_local() -> dict[str, str]:
    cores = os.cpu_count() or 2
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(4, cores * 2)),
    }


def _conf_archive(settings: SparkSettings) -> dict[str, str]:
    """How code reaches executors that do not have the package installed: `swamp spark package`."""
    archive = settings.conf.get(ARCHIVE)
    if not archive:
        return {}
    if not Path(archive).is_file():
        raise UsageError(f"{archive} does not exist", hint="build it: swamp spark package --output FILE")
    return {"spark.archives": f"{archive}#swamp-code", "spark.executorEnv.PYTHONPATH": "./swamp-code"}


def _with_retries(master: str) -> str:
    """`local[N]` gives a task one attempt only; ours may have four, because attempts never share a key."""
    found = re.fullmatch(r"local\[([^,\]]+)\]", master)
    if master == "local":
        return "local[1,4]"
    return f"local[{found[1]},4]" if found else master


def _launch(settings: SparkSettings, log: Path) -> SparkSession:
    """Start the JVM with its noise in `log`, not in the terminal."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = conf_of(settings)
    os.environ["PYSPARK_PYTHON"] = conf.get("spark.pyspark.python", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    pairs = SparkConf(loadDefaults=False)
    pairs.setAll(list(conf.items()))
    handler = _current_handler()
    try:
        gateway = None
        if SparkContext._gateway is None:
            with log.open("ab") as noise:
                gateway = launch_gateway(pairs, {"stderr": noise, "stdout": noise})  # type: ignore[no-untyped-call]
        context = SparkContext(conf=pairs, gateway=gateway)
        return SparkSession(context)
    except PySparkException as error:
        raise _start_failed(settings, log) from error
    finally:
        # Spark puts its own SIGINT handler in; ours stops starting work and releases leases.
        _restore_handler(handler)


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


def _current_handler() -> Any:
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.getsignal(signal.SIGINT)


def _restore_handler(handler: Any) -> None:
    if handler is not None:
        signal.signal(signal.SIGINT, handler)


def _log_file() -> Path:
    home = os.environ.get("SWAMP_HOME")
    folder = Path(home) if home else Path.home() / ".swamp"
    try:
        folder = folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir())
    return folder / f"spark-{os.getpid()}.log"


def _check_master(master: str) -> None:
    """A standalone master that does not answer is found out in seconds, not after Spark's own minute."""
    if not master.startswith("spark://"):
        return
    hosts = [part for part in master.removeprefix("spark://").split(",") if part]
    if not any(_reachable(f"spark://{host}", 7077, seconds=REACH_SECONDS) for host in hosts):
        raise Unavailable(
            f"the Spark master {master} does not answer",
            hint="start it, correct spark.master in .swamp.yaml, or use --engine inline",
            details={"master": master},
        )


def _reachable(url: str, port: int, *, seconds: float) -> bool:
    host, _, given = url.split("://", 1)[1].split("/", 1)[0].split(";", 1)[0].rpartition(":")
    try:
        with socket.create_connection((host or given, int(given) if host else port), timeout=seconds):
            return True
    except (OSError, ValueError):
        return False


def _connect(settings: SparkSettings) -> SparkSession:
    """A session on a Spark Connect server: no JVM here."""
    url = settings.remote or ""
    if not _reachable(url, 15002, seconds=REACH_SECONDS):
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
