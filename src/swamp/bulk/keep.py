"""`swamp spark serve`: one Spark for this user's commands and notebooks, kept warm behind Spark Connect.

It listens on loopback and asks for a token that lies in a file of this user's, so nobody else on the machine can use
it. It is used by who has the same credentials in the environment as whoever started it, because its workers have those.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.session import check_startable, launch, log_file, reachable, warm
from swamp.bulk.settings import SHARED_CACHE, SparkSettings
from swamp.cache.files import write_atomic
from swamp.env import SYSTEM
from swamp.errors import LockTimeout, MissingTool
from swamp.locks.flock import FileLock
from swamp.settings import swamp_home

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("swamp.spark")
IDLE_SECONDS: Final = 30 * 60.0
START_SECONDS: Final = 180.0
STOP_SECONDS: Final = 30.0
POLL_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 2.0
_CREDENTIALS: Final = ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_")
_PLUGIN: Final = "org.apache.spark.sql.connect.SparkConnectPlugin"
_SERVICE: Final = "org.apache.spark.sql.connect.service.SparkConnectService$"


@dataclass(frozen=True, slots=True)
class WarmServer:
    """A server of this user's: where it is, whose process, and what it was started with."""

    port: int
    token: str
    pid: int
    version: str
    environment: str

    @property
    def url(self) -> str:
        """For Spark Connect clients; the token in it is a password."""
        return f"sc://localhost:{self.port}/;token={self.token}"

    @property
    def shown(self) -> str:
        return f"sc://localhost:{self.port}"


def find_server(environ: Mapping[str, str]) -> WarmServer | None:
    """The server that is up and fits: this version of swamp, these credentials. Without one: a look at a file."""
    import swamp

    kept = _noted(environ)
    fits = kept is not None and kept.version == swamp.__version__ and kept.environment == environment_of(environ)
    answers = kept is not None and fits and reachable(kept.shown, kept.port, seconds=ANSWER_SECONDS)
    return kept if answers else None


def environment_of(environ: Mapping[str, str]) -> str:
    """A fingerprint of the variables that decide how workers open a store; it tells nothing of them."""
    told = sorted((name, value) for name, value in environ.items() if name.startswith(_CREDENTIALS))
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def start_server(environ: Mapping[str, str], idle: float = IDLE_SECONDS) -> WarmServer:
    """The server that is up, or a new one, as a process that outlives this one. Raises MissingTool with its log."""
    place = swamp_home(environ)
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / "spark-server.lock").exclusive(START_SECONDS):
        kept = find_server(environ)
        if kept is not None:
            return kept
        stop_server(environ)  # one that does not fit any more
        check_startable(SparkSettings())
        code = f"import os; from swamp.bulk.keep import serve; serve(os.environ, {float(idle)!r})"
        with (place / "spark-server.log").open("ab") as noise:
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=noise,
                stderr=noise,
                env=dict(environ),
                start_new_session=True,
            )
        return _await_server(environ, process, place / "spark-server.log")


def _await_server(environ: Mapping[str, str], process: subprocess.Popen[bytes], noise: Path) -> WarmServer:
    until = SYSTEM.clock.monotonic() + START_SECONDS
    while process.poll() is None and SYSTEM.clock.monotonic() < until:
        kept = find_server(environ)
        if kept is not None:
            return kept
        SYSTEM.clock.sleep(POLL_SECONDS / 4)
    process.terminate()
    raise MissingTool("the Spark server did not start", hint=f"the reason is at the end of {noise}")


def stop_server(environ: Mapping[str, str]) -> bool:
    """Ends the server of this user's, whatever it was started with; whether there was one."""
    kept = _noted(environ)
    if kept is None:
        return False
    with suppress(ProcessLookupError):
        os.kill(kept.pid, signal.SIGTERM)
    until = SYSTEM.clock.monotonic() + STOP_SECONDS
    while _noted(environ) is not None and SYSTEM.clock.monotonic() < until:
        SYSTEM.clock.sleep(POLL_SECONDS / 4)
    _note(environ).unlink(missing_ok=True)
    return True


def serve(environ: Mapping[str, str], idle: float) -> None:
    """In the server's own process: Spark until it is told to stop, or nobody has used it for `idle` seconds."""
    import swamp

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    token = SYSTEM.uuid() + SYSTEM.uuid()
    with _connect_service(token) as (service, context):
        kept = WarmServer(int(service.localPort()), token, os.getpid(), swamp.__version__, environment_of(environ))
        _loaded(context)
        with noted(environ, kept):
            last_used = last_activity(lambda: str(service.listActiveExecutions().toString()))
            while not stop.wait(POLL_SECONDS):
                if last_used() > idle:
                    log.info("nobody has used it for %d seconds", idle)
                    break


def last_activity(ask: Callable[[], str]) -> Callable[[], float]:
    """How long ago something ran, by asking now and then: `Right(…)` runs, `Left(…)` says when the last ended."""
    seen, at = "", SYSTEM.clock.monotonic()

    def seconds() -> float:
        nonlocal seen, at
        told = ask()
        if told != seen or told.startswith("Right"):
            seen, at = told, SYSTEM.clock.monotonic()
        return SYSTEM.clock.monotonic() - at

    return seconds


@contextmanager
def _connect_service(token: str) -> Iterator[tuple[Any, SparkContext]]:
    conf = {
        "spark.plugins": _PLUGIN,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
        SHARED_CACHE: "true",
    }
    context = launch(SparkSettings(conf=conf), log_file())
    try:
        jvm: Any = context._jvm
        yield getattr(getattr(jvm, _SERVICE), "MODULE$"), context
    finally:
        context.stop()


def _loaded(context: SparkContext) -> None:
    """What the first command would wait for: SQL's classes, and workers that have loaded the package."""
    from pyspark.sql import SparkSession

    warm(context)
    session = SparkSession(context)
    session.range(0, 8, 1, 2).mapInArrow(lambda batches: batches, "id bigint").collect()


@contextmanager
def noted(environ: Mapping[str, str], kept: WarmServer) -> Iterator[None]:
    """While the body runs, commands of this user find the server. The note holds a password: only they can read it."""
    file = _note(environ)
    before = os.umask(0o077)
    try:
        write_atomic(file, json.dumps(asdict(kept)).encode())
        file.chmod(0o600)
    finally:
        os.umask(before)
    with _alive(environ).exclusive(STOP_SECONDS):
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _noted(environ: Mapping[str, str]) -> WarmServer | None:
    """What the note says, if whoever wrote it is alive: a number alone may be another process's by now."""
    try:
        kept = WarmServer(**json.loads(_note(environ).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    try:
        with _alive(environ).exclusive(0):
            return None
    except LockTimeout:
        return kept


def _alive(environ: Mapping[str, str]) -> FileLock:
    """Held by the server for as long as it lives; it goes with the process, however that ends."""
    return FileLock(swamp_home(environ) / "spark-server.alive")


def _note(environ: Mapping[str, str]) -> Path:
    return swamp_home(environ) / "spark-server.json"


def with_server(settings: SparkSettings, environ: Mapping[str, str]) -> SparkSettings:
    """The settings, on this user's warm server if one is up and nothing else was asked for."""
    if settings != SparkSettings():
        return settings
    kept = find_server(environ)
    return settings if kept is None else replace(settings, remote=kept.url, served=True)
