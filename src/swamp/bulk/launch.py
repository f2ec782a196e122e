"""Finds a Java that Spark can run on, starts the Java machine of a session here, and ends it. What can be known before
is said before, in words that a user can act on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.settings import SparkSettings, conf_of, python_of
from swamp.errors import MissingTool, Unavailable
from swamp.extras import needs

if TYPE_CHECKING:
    from pyspark import SparkContext

REACH_SECONDS: Final = 5.0
LOG_TAIL_BYTES: Final = 2000
JAVA_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
QUICK_COMPILER: Final = "-XX:TieredStopAtLevel=1"


def check_startable(settings: SparkSettings) -> None:
    """What can be known of a start on this machine in a moment: Spark itself, options, a Java, a master."""
    needs("pyspark", "Spark", "spark")
    conf_of(settings)
    find_java(os.environ)
    _check_master(settings.master)


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


def _check_master(master: str) -> None:
    """A standalone master that does not answer is found out in seconds, not after Spark's own minute."""
    if not master.startswith("spark://"):
        return
    hosts = [part for part in master.removeprefix("spark://").split(",") if part]
    if not any(reachable(f"spark://{host}", 7077, seconds=REACH_SECONDS) for host in hosts):
        raise Unavailable(
            f"the Spark master {master} does not answer",
            hint="start it, correct spark.master in .swamp.yaml, or use --engine inline",
            details={"master": master},
        )


def reachable(url: str, port: int, *, seconds: float) -> bool:
    """Whether somebody takes connections there; `port` where the address names none."""
    host, _, given = url.split("://", 1)[1].split("/", 1)[0].split(";", 1)[0].rpartition(":")
    try:
        with socket.create_connection((host or given, int(given) if host else port), timeout=seconds):
            return True
    except (OSError, ValueError):
        return False


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


SUPPORTED: Final = (17, 21)
ANSWER_SECONDS: Final = 60
INSTALL_HINT: Final = (
    "install Java 17 or 21: Debian and Ubuntu `sudo apt install openjdk-17-jre-headless`, macOS "
    "`brew install openjdk@17`, conda `conda install -c conda-forge openjdk=17`; "
    "or set JAVA_HOME. Everything that does not need Spark works without it (--engine inline)"
)


@dataclass(frozen=True, slots=True)
class Java:
    """An executable and the major version it says it has."""

    path: str
    major: int


def find_java(environ: Mapping[str, str]) -> Java:
    """The Java that Spark would start. Raises MissingTool when there is none or Spark cannot run on it."""
    path = _executable(environ)
    if path is None:
        raise MissingTool("Spark needs Java and none was found", hint=INSTALL_HINT)
    major = _major_version(path)
    if major not in SUPPORTED:
        found = f"version {major}" if major else "an unknown version"
        raise MissingTool(f"Spark runs on Java 17 and 21; {path} is {found}", hint=INSTALL_HINT, details={"java": path})
    return Java(path, major)


def _executable(environ: Mapping[str, str]) -> str | None:
    """Spark's own order: JAVA_HOME first, then the path."""
    home = environ.get("JAVA_HOME")
    if home:
        inside = Path(home) / "bin" / "java"
        return str(inside) if inside.is_file() else None
    return shutil.which("java", path=environ.get("PATH"))


def _major_version(path: str) -> int:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_version(done.stderr + done.stdout)


def parse_version(banner: str) -> int:
    """The major version in what `java -version` prints; 0 if it says none (`1.8.0_392` is 8)."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', banner)
    if not found:
        return 0
    first, second = int(found[1]), int(found[2] or 0)
    return second if first == 1 else first
