"""Commands of swamp as processes of their own that need not import swamp first.

Thousands of commands run in these tests, and most of a command's processor time is the import of its modules. One
process per worker imports them once and then forks: each command is still a real process with its own number,
environment, working directory, output, signals and exit code. It ends as an interpreter ends but for the modules, which
are not taken apart, and all commands of a worker share one hash seed. A command whose interpreter would be another one
(see `_fits`) is started the long way, and so is everything with SWAMP_TEST_COLD=1.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

LONGEST = 60_000
"""Bytes of one request: with more, a socket might refuse it."""
_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "COVERAGE", "SWAMP_TRACE")
"""Settings that an interpreter reads when it starts, before there is anything to fork."""
_LATER = ("swamp.bulk", "swamp.datasets", "swamp.spark", "swamp.sql", "swamp.testing")
"""What few commands load, and what brings threads with it: those do not live on in a child."""
_BY_HAND = (
    "fastapi",
    "jsonschema",
    "obstore.store",
    "pwd",
    "rich.console",
    "rich.table",
    "statistics",
    "uvicorn",
    "yaml",
)
"""What commands import inside their functions."""


class Process:
    """One command: as much of `subprocess.Popen` as tests use."""

    def __init__(self, status: socket.socket, ends: dict[str, Any], args: Sequence[str]):
        self.args, self.returncode = args, None
        self.stdin, self.stdout, self.stderr = ends.get("stdin"), ends.get("stdout"), ends.get("stderr")
        self._status, self._lock = status.detach(), threading.Lock()
        # Threads may ask at any time, and who lets a command run on may not ask at all: nobody closes these sooner.
        weakref.finalize(self, os.close, self._status)
        for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
            weakref.finalize(self, stream.close)
        self._readers: dict[Any, _Reader] = {}
        self.pid = int.from_bytes(_exactly(self._status, 4), "little")

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it says, and its end. Asked again after a timeout, it goes on."""
        by = None if timeout is None else time.monotonic() + timeout
        if not self._readers:
            self._readers = {s: _Reader(s) for s in (self.stdout, self.stderr) if s}
        for reader in self._readers.values():
            reader.join(_left(by))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.wait(_left(by))
        out, err = (self._readers[stream].said if stream else None for stream in (self.stdout, self.stderr))
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def halt(self) -> bool:
        """Lets its group stand still, and returns when it does; False if it has ended."""
        os.killpg(self.pid, signal.SIGSTOP)
        while self.poll() is None:
            with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "T":
                    return True
            time.sleep(0.001)
        return False

    def _ended(self, timeout: float | None) -> int | None:
        """Threads may ask at once: whoever finds it ended first takes the code, and the others see it."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._status, selectors.EVENT_READ)
            if self.returncode is None and not ready.select(timeout):
                return None
        with self._lock:
            if self.returncode is None:
                self.returncode = int.from_bytes(_exactly(self._status, 4), "little", signed=True)
        return self.returncode

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream:
                stream.close()
        self.wait()


class _Reader(threading.Thread):
    def __init__(self, stream: IO[str]):
        super().__init__(daemon=True)
        self._stream, self.said = stream, ""
        self.start()

    def run(self) -> None:
        with self._stream:
            self.said = self._stream.read()


def _left(by: float | None) -> float | None:
    return None if by is None else max(0.0, by - time.monotonic())


def _exactly(status: int, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = os.read(status, count - len(found))
        if not more:
            raise ChildProcessError("the process that forks commands has ended")
        found += more
    return found


class Nursery:
    """Asks the process that forks; starts it when the first command asks."""

    def __init__(self, command: Path):
        self._command = command
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._forks: subprocess.Popen[bytes] | None = None
        self._born: dict[str, str] = {}

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        """Whoever forks ends when nobody is left to ask. That of a worker does so with the worker."""
        if self._channel is not None and self._forks is not None:
            self._channel.close()
            self._forks.wait()

    def start(
        self, args: Sequence[str], env: Mapping[str, str], cwd: Path, *, group: bool = False, first: Path | None = None
    ) -> Process | subprocess.Popen[str]:
        """That command of swamp, with nothing to read and its output in two pipes of text.

        `first` is a directory whose `sitecustomize.py` the interpreter runs first; so do those that it starts.
        """
        words = [str(self._command), *args]
        asked = {"args": words, "env": dict(env), "cwd": str(cwd), "group": group}
        if first is not None:
            asked["env"]["PYTHONPATH"] = str(first)
            asked["first"] = str(first / "sitecustomize.py")
        packed = json.dumps(asked).encode()
        with self._lock:
            channel = self._open(env) if len(packed) < LONGEST and self._fits(env) else None
        if channel is not None:
            return self._ask(channel, packed, words)
        ends = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, env=asked["env"], cwd=cwd, text=True, start_new_session=group, **ends)

    def _fits(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter that starts with `env` is the one that has already started."""
        if sys.platform != "linux" or os.environ.get("SWAMP_TEST_COLD"):
            return False
        asked = _interpreter(env)
        if self._channel is None:  # an odd one that came first would have all that follow started the long way
            return asked.items() <= os.environ.items()
        return asked == self._born

    def _open(self, env: Mapping[str, str]) -> socket.socket:
        if self._channel is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._born = _interpreter(env)
            with theirs:
                number = theirs.fileno()
                self._forks = subprocess.Popen(
                    [sys.executable, "-P", __file__, str(number), str(self._command.parent), _source()],
                    env={**self._born, "PATH": env.get("PATH", os.defpath)},
                    pass_fds=(number,),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            self._channel = ours
        return self._channel

    def _ask(self, channel: socket.socket, packed: bytes, args: Sequence[str]) -> Process:
        ours, theirs = socket.socketpair()
        ends: dict[str, Any] = {}
        with theirs, open(os.devnull) as nothing, contextlib.ExitStack() as stack:
            given = []
            for name in ("stdout", "stderr"):
                reading, writing = os.pipe()
                stack.callback(os.close, writing)
                ends[name] = os.fdopen(reading, encoding="utf-8")
                given.append(writing)
            socket.send_fds(channel, [packed], [theirs.fileno(), nothing.fileno(), *given])
        return Process(ours, ends, args)


def _source() -> str:
    """Where the tests have swamp from, which need not be where it is installed from: what they say is about one."""
    import swamp

    return str(Path(swamp.__file__).parent.parent)


def _interpreter(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(_INTERPRETER)}


# --- the process that forks -----------------------------------------------------------------------------------------


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    """Forks whenever asked. In a child: what it shall become; None when nobody is left to ask."""
    running: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as ready:
        ready.register(channel, selectors.EVENT_READ)
        ready.register(woken, selectors.EVENT_READ)
        while True:
            found = {key.fileobj for key, _ in ready.select()}
            if woken in found:
                woken.recv(4096)
                _bury(running)
            if channel not in found:
                continue
            packed, numbers, _, _ = socket.recv_fds(channel, 2 * LONGEST, 4)
            if not packed:
                return None
            child = os.fork()
            if child == 0:
                for other in (channel, woken, wake, *running.values()):
                    other.close()
                return {**json.loads(packed), "numbers": numbers}
            running[child] = socket.socket(fileno=numbers[0])
            for number in numbers[1:]:
                os.close(number)


def _bury(running: dict[int, socket.socket]) -> None:
    """Tells those who wait how their commands ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as waiting, contextlib.suppress(OSError):
            waiting.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


def _become(asked: dict[str, Any]) -> None:
    """This child is that command from here on."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if asked["group"]:
        os.setsid()
    status, *ends = asked["numbers"]
    with socket.socket(fileno=status) as told:
        told.sendall(os.getpid().to_bytes(4, "little"))  # whoever knows the number can end its group
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv = asked["args"]
    if "first" in asked:
        exec(compile(Path(asked["first"]).read_text(), asked["first"], "exec"), {"__name__": "sitecustomize"})


def _run() -> int:
    from swamp.cli.main import main

    try:
        return main()
    except SystemExit as error:  # what `sys.exit(main())` in the installed script would do
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        raise
    except BaseException:  # noqa: BLE001 - the last frame of this process: said as an interpreter says it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1


def _end(code: int) -> None:
    """As an interpreter ends: threads, then what was registered, then what is not written yet. Only the modules, which
    this process did not load, are not taken apart: that is a third of a short command."""
    import atexit

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = 120
    os._exit(code & 0xFF)


def _import_everything() -> None:
    import importlib
    import mimetypes
    import pkgutil

    import swamp
    from swamp import values

    values._first_init = values._init  # compiled here once, and not by each command that makes its first value
    for module in pkgutil.walk_packages(swamp.__path__, "swamp."):
        if not module.name.startswith(_LATER):
            importlib.import_module(module.name)
    for name in _BY_HAND:
        importlib.import_module(name)
    mimetypes.init()
    _build_commands()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"{len(threads)} threads after the imports: a child would have one of them"


def _build_commands() -> None:
    """Every group of commands as `click` wants it: half of a short command is the work of making one from signatures.

    What a group looks like depends on whether stdout is a terminal, and here it never is."""
    import functools

    from swamp.cli import program as cli

    cli.build = functools.cache(cli.build)
    cli.CommandPart.load = functools.cache(cli.CommandPart.load)  # type: ignore[method-assign]
    cli.build()
    for part in cli.PARTS:
        if not part.module.startswith(_LATER):
            part.load()


if __name__ == "__main__":
    import gc

    if sys.argv[3] not in sys.path:
        sys.path.insert(0, sys.argv[3])
    sys.path.insert(0, sys.argv[2])
    _import_everything()
    gc.freeze()
    wanted = _serve(socket.socket(fileno=int(sys.argv[1])))
    if wanted is None:
        os._exit(0)
    _become(wanted)
    _end(_run())
