"""Where Spark runs, how and on which Java: from a flag, the environment and `.swamp.yaml`, every option written out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from swamp.errors import MissingTool, UsageError

LOCAL: Final = "local[*]"
# Settings of ours that travel in the `conf` of the `spark:` block.
SHARED_CACHE: Final = "spark.swamp.sharedCache"
ARCHIVE: Final = "spark.swamp.archive"
COMPARE_ROWS: Final = "spark.swamp.compareRows"
COPY_BYTES: Final = "spark.swamp.copyBytes"
NATIVE_FORMAT: Final = "spark.swamp.nativeFormat"
COPIED_HERE: Final = 4 << 30
"""Bytes of parts that are kept on this machine's disk once Spark has read them from a bucket (`datasets/copies.py`)."""
COMPARED_HERE: Final = 300_000
"""Rows that one process compares while Spark starts, by what 100,000 took (2 to 3 s); Spark itself took 9 to 11 s for
those, and 28 to 30 s for 1,000,000 (bench/results/spark-stages.md)."""
HIDDEN: Final = "spark.sql.redaction.string.regex"
HIDDEN_EVERYWHERE: Final = "spark.redaction.string.regex"
LENT_SECRET: Final = r"(?<=webhdfs://127\.0\.0\.1:\d{1,5}/)[0-9a-f-]{1,36}"
"""The part of a lent part's address that is a secret (`datasets/lend.py`): Spark's plans, and its UI, leave it out."""
FEW_CORES: Final = 2
SHORT_ROWS: Final = 500_000


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Where Spark runs and how. `conf` is the user's and wins over every default here."""

    master: str = LOCAL
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    brief: bool = False
    """Without Java's second compiler."""
    served: bool = False
    """`remote` is this user's own server on this machine (`swamp spark serve`)."""

    @property
    def is_local(self) -> bool:
        return self.remote is None and self.master.startswith("local")

    @property
    def sees_cache(self) -> bool:
        """Whether tasks run where the cache is: this machine, or a shared path declared as such."""
        return self.is_local or self.served or self.conf.get(SHARED_CACHE, "false").lower() == "true"

    @property
    def compared_here(self) -> int:
        """Up to so many rows a session that starts on this machine for one command is not waited for."""
        if not self.is_local:
            return 0
        given = self.conf.get(COMPARE_ROWS, str(COMPARED_HERE))
        if not given.isdecimal():
            raise UsageError(f"{COMPARE_ROWS} is {given!r}", hint="a number of rows; 0: Spark compares everything")
        return int(given)

    @property
    def where(self) -> str:
        return (self.remote or self.master).partition(";")[0].rstrip("/")  # what follows may be a token

    def for_work(self, rows: int) -> SparkSettings:
        """For one command of ours; 0 rows: not known, and mostly few. On few cores Java's second compiler pays only in
        long work: 20,000 files were pushed in 30 to 32 s without it and in 39 to 46 s with it, 1,000,000 rows merged in
        24 s and 18 s."""
        return replace(self, brief=self.is_local and (os.cpu_count() or 1) <= FEW_CORES and rows <= SHORT_ROWS)


def resolve_settings(
    block: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    master: str | None = None,
) -> SparkSettings:
    """Flag, then environment, then the `spark:` block of `.swamp.yaml`, then `local[*]`."""
    environ = os.environ if environ is None else environ
    block = block or {}
    given = dict(block.get("conf") or {})
    conf = {str(key): str(said).lower() if isinstance(said, bool) else str(said) for key, said in given.items()}
    chosen = master or environ.get("SWAMP_SPARK_MASTER")
    remote = None if chosen else environ.get("SPARK_REMOTE")
    if not chosen and not remote:
        remote = block.get("remote")
    if chosen and chosen.startswith("sc://"):
        chosen, remote = None, chosen
    found = SparkSettings(chosen or str(block.get("master") or LOCAL), remote, conf)
    _check_where(found)
    return found


def _check_where(settings: SparkSettings) -> None:
    known = re.compile(r"local(\[.+\])?$|spark://.+:\d+|yarn$|k8s://.+|local-cluster\[.+\]$")
    if settings.remote is None and not known.match(settings.master):
        raise UsageError(
            f"spark master {settings.master!r} is not one Spark knows",
            hint="use local[*], local[N], spark://host:port, yarn, k8s://https://host:port, "
            "or a Spark Connect URL sc://host:port",
        )


def conf_of(settings: SparkSettings) -> dict[str, str]:
    """Every option of a session that we start, the user's own last."""
    ours = {**_conf_everywhere(settings), **(_conf_local() if settings.is_local else {})}
    if HIDDEN_EVERYWHERE in settings.conf:  # what the one for SQL would be, if nobody had set that
        ours.pop(HIDDEN, None)
    return {**ours, **settings.conf, **_conf_archive(settings)}


def python_of(settings: SparkSettings, environ: Mapping[str, str]) -> str:
    """The Python of the executors: the user's word for a cluster, this one where nobody says, and always here."""
    asked = settings.conf.get("spark.pyspark.python")
    return asked or (not settings.is_local and environ.get("PYSPARK_PYTHON")) or sys.executable


def _conf_everywhere(settings: SparkSettings) -> dict[str, str]:
    """What our own jobs need; sizes, the UI and whatever else an administrator decides are the cluster's."""
    return {
        "spark.master": _with_retries(settings.master),
        "spark.app.name": "swamp",
        "spark.ui.showConsoleProgress": "false",
        "spark.submit.deployMode": "client",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5000",
    }


def _conf_local() -> dict[str, str]:
    cores = os.cpu_count() or 2
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.maxResultSize": "512m",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.python.worker.reuse": "true",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.coalescePartitions.enabled": "true",
        "spark.cleaner.referenceTracking.cleanCheckpoints": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(4, cores * 2)),
        HIDDEN: LENT_SECRET,
    }


def _conf_archive(settings: SparkSettings) -> dict[str, str]:
    """How code reaches executors that do not have the package installed: `swamp spark package`, beside archives and
    paths of the user's own (a packed conda environment, say)."""
    archive = settings.conf.get(ARCHIVE)
    if not archive:
        return {}
    if not is_elsewhere(archive) and not Path(archive.removeprefix("file://")).is_file():
        raise UsageError(f"{archive} does not exist", hint="build it: swamp spark package --output FILE")
    added = {"spark.archives": (",", f"{archive}#swamp-code"), "spark.executorEnv.PYTHONPATH": (":", "./swamp-code")}
    return {name: mark.join(filter(None, (settings.conf.get(name), ours))) for name, (mark, ours) in added.items()}


def is_elsewhere(address: str) -> bool:
    """Whether it lies on a file system that only Spark reads: hdfs://, s3a://, …"""
    return "://" in address and not address.startswith("file://")


def _with_retries(master: str) -> str:
    """`local[N]` gives a task one attempt only; ours may have four, because attempts never share a key."""
    found = re.fullmatch(r"local\[([^,\]]+)\]", master)
    if master == "local":
        return "local[1,4]"
    return f"local[{found[1]},4]" if found else master


# -- Java

SUPPORTED: Final = (17, 21)
JAVA_SECONDS: Final = 60
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
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False)
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
