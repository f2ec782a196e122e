"""Object stores for tests: real servers on free loopback ports, each with a bounded start.

    with start("moto") as server:
        store = server.open("team/data")

What is not installed raises `MissingTool`; the caller decides between skipping and failing.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from swamp.env import SYSTEM
from swamp.errors import MissingTool, StoreError, Unavailable
from swamp.store.login import AZURITE_ACCOUNT, AZURITE_KEY
from swamp.testing.listen import free_port
from swamp.testing.running import ACCESS, SECRET, RunningServer

BUCKET: Final = "swamp-tests"
START_SECONDS: Final = 60.0
_AWS_LOGIN: Final = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


@contextmanager
def start(name: str) -> Iterator[RunningServer]:
    """Starts one of `STARTERS`, waits until it answers, stops it at the end."""
    with ExitStack() as stack:
        yield _started(stack, name)


def _started(stack: ExitStack, name: str) -> RunningServer:
    """Somebody may take the free port between its choice and its use: then another one is tried."""
    for last in (False, False, True):
        with ExitStack() as attempt:
            try:
                running = STARTERS[name](attempt)
            except Unavailable:
                if last:
                    raise
                continue
            stack.enter_context(attempt.pop_all())
            return running
    raise AssertionError("the last attempt returns or raises")


def _moto(stack: ExitStack) -> RunningServer:
    port = free_port()
    _script("moto_server")
    process = _spawn(stack, [sys.executable, "-P", os.fspath(Path(__file__).with_name("moto_atomic.py")), str(port)])
    return _s3("moto", port, process)


def _ministack(stack: ExitStack) -> RunningServer:
    port = free_port()
    home = _scratch(stack)
    env = {"GATEWAY_PORT": str(port), "BIND_HOST": "127.0.0.1", "SERVICES": "s3", "HOME": str(home)}
    env |= {"LOG_LEVEL": "ERROR", "S3_PERSIST": "0", "PERSIST_STATE": "0"}
    process = _spawn(stack, [_script("ministack")], env=env, cwd=home)
    return _s3("ministack", port, process)


def _rclone(stack: ExitStack) -> RunningServer:
    """Accepts conditional writes and ignores their conditions: the store that a probe must find out."""
    port = free_port()
    home = _scratch(stack)
    (home / "data" / BUCKET).mkdir(parents=True)
    command = [_script("rclone"), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS},{SECRET}"]
    command += ["--vfs-cache-mode", "off", "--config", str(home / "none"), str(home / "data")]
    process = _spawn(stack, command, cwd=home)
    return _s3("rclone", port, process, create=False)


def _s3(name: str, port: int, process: subprocess.Popen[bytes], *, create: bool = True) -> RunningServer:
    endpoint = f"http://127.0.0.1:{port}"
    _await_port(name, port, process)
    if create:
        _until(name, process, lambda: _plain_request("PUT", f"{endpoint}/{BUCKET}"))
    config = {"endpoint": endpoint, "region": "us-east-1", "forcePathStyle": True}
    running = RunningServer(name, f"s3://{BUCKET}", config, _AWS_LOGIN, endpoint, process.pid)
    _until(name, process, lambda: _answers(running))
    return running


def _azurite(stack: ExitStack) -> RunningServer:
    port = free_port()
    home = _scratch(stack)
    command = [_azurite_program(), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--disableTelemetry", "--skipApiVersionCheck", "--silent", "--loose", "--inMemoryPersistence"]
    process = _spawn(stack, command, cwd=home)
    _await_port("azurite", port, process)
    endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
    secret = (
        f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
    )
    running = RunningServer(
        "azurite", f"az://{BUCKET}", {}, {"AZURE_STORAGE_CONNECTION_STRING": secret}, endpoint, process.pid
    )
    _until("azurite", process, lambda: _azure_container(endpoint))
    return running


def _s3_double(stack: ExitStack) -> RunningServer:
    from swamp.testing.s3_double import S3Double

    return stack.enter_context(S3Double(BUCKET)).running()


def _gcs_double(stack: ExitStack) -> RunningServer:
    from servers.gcs_double import GcsDouble

    double = stack.enter_context(GcsDouble(BUCKET))
    return RunningServer("gcs", f"gs://{BUCKET}", {"endpoint": double.endpoint}, {}, double.endpoint)


def _gcs_emulator(stack: ExitStack) -> RunningServer:
    """Google's API without its preconditions: the other store that a probe must find out."""
    port = free_port()
    home = _scratch(stack)
    command = [_script("gcp-storage-emulator"), "start", "-H", "127.0.0.1", "--port", str(port)]
    command += ["--in-memory", "--quiet", "--default-bucket", BUCKET]
    process = _spawn(stack, command, cwd=home)
    endpoint = f"http://127.0.0.1:{port}"
    _await_port("gcs-emulator", port, process)
    return RunningServer("gcs-emulator", f"gs://{BUCKET}", {"endpoint": endpoint}, {}, endpoint, process.pid)


def _directory(stack: ExitStack) -> RunningServer:
    return RunningServer("directory", _scratch(stack).joinpath("bucket").as_uri())


def _memory(stack: ExitStack) -> RunningServer:
    return RunningServer("memory", f"memory://{SYSTEM.ulid().lower()}")


STARTERS: Final[Mapping[str, Callable[[ExitStack], RunningServer]]] = {
    "memory": _memory,
    "directory": _directory,
    "moto": _moto,
    "ministack": _ministack,
    "s3-double": _s3_double,
    "azurite": _azurite,
    "gcs": _gcs_double,
    "rclone": _rclone,
    "gcs-emulator": _gcs_emulator,
}
SAFE: Final = ("memory", "directory", "moto", "ministack", "s3-double", "azurite", "gcs")
"""Those that enforce conditions; the others accept and ignore them."""


def _script(name: str) -> str:
    """A console script of this environment, or one on the path."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise MissingTool(f"{name} is not installed", hint="install the development dependencies")
    return found


def _azurite_program() -> str:
    for base in (Path.cwd(), *Path.cwd().parents, *Path(__file__).resolve().parents):
        local = base / ".tools" / "node_modules" / ".bin" / "azurite-blob"
        if local.exists() and shutil.which("node"):
            return str(local)
    found = shutil.which("azurite-blob")
    if not found:
        raise MissingTool("azurite is not installed", hint="npm install --prefix .tools azurite (needs Node)")
    return found


def _scratch(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swamp-server-", ignore_cleanup_errors=True)))


def _spawn(
    stack: ExitStack, command: list[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    log = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    process = subprocess.Popen(
        command,
        env=_quiet_environment() | dict(env or {}),
        cwd=cwd or _scratch(stack),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    process.swamp_log = log  # type: ignore[attr-defined]
    stack.callback(stop, process)
    return process


def _quiet_environment() -> dict[str, str]:
    """Without proxies and cloud settings of the machine: a test server talks to nobody."""
    dropped = ("AWS_", "AZURE_", "GOOGLE_", "STORAGE_")
    return {k: v for k, v in os.environ.items() if not k.startswith(dropped) and "proxy" not in k.lower()}


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a server and its children: politely, then not."""
    for number, idle_timeout in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(idle_timeout)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            pass
        return


def _await_port(name: str, port: int, process: subprocess.Popen[bytes]) -> None:
    _until(name, process, lambda: _listening(port))


def _listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _until(name: str, process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    deadline = SYSTEM.clock.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or SYSTEM.clock.monotonic() > deadline:
            raise Unavailable(f"{name} did not start: {_last_words(process)}", hint="run it by hand")
        SYSTEM.clock.sleep(0.05)


def _last_words(process: subprocess.Popen[bytes]) -> str:
    log = process.swamp_log  # type: ignore[attr-defined]
    log.seek(0)
    return log.read().decode(errors="replace")[-500:] or f"exit code {process.poll()}"


def _plain_request(method: str, url: str, headers: Mapping[str, str] | None = None) -> bool:
    request = urllib.request.Request(url, method=method, headers=dict(headers or {}))
    try:
        with _direct.open(request, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 409
    except OSError:
        return False


def _answers(running: RunningServer) -> bool:
    try:
        running.open().level()
    except StoreError:
        return False
    return True


def _azure_container(endpoint: str) -> bool:
    """Creates the container with a shared-key signature: obstore has no call for it."""
    from servers.azure_sign import signed_put

    return _plain_request("PUT", f"{endpoint}/{BUCKET}?restype=container", signed_put(endpoint, BUCKET))


_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
