"""Starts the processes of runs: one small process that has everything imported and forks, so that a run begins at once.

A fresh interpreter takes half a second to import what a run needs; a fork takes milliseconds. The server itself has
threads and must not fork. Lines on stdin are jobs, lines on stdout say which process has which run and how it ended.
When the server is gone stdin ends, and so does this process; the runs go on.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Final

from swamp.serve.work import WorkerJob, log_file, runs_directory, work

_NEEDED: Final = """
yaml swamp.index.frames swamp.wiring swamp.cache.outbox swamp.catalog.catalog swamp.locks.leases
swamp.models.run swamp.models.run_context swamp.bulk.choose swamp.repo.audit swamp.repo.transaction
swamp.repo.definitions swamp.repo.leases swamp.repo.maintain swamp.repo.conflicts swamp.repo.outbox
swamp.repo.wait swamp.repo.probe swamp.store.directory swamp.store.objects swamp.store.open swamp.sync.engine
swamp.workflows.decide swamp.workflows.run swamp.workflows.schedule
""".split()
"""What is imported late elsewhere, where most commands do without it."""


def main() -> int:
    """The process that forks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which decides about its runs
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _import_everything()
    children: dict[int, str] = {}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    waiting = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(reading, selectors.EVENT_READ)
        _tell({"ready": True})
        while True:
            for key, _ in selector.select():
                if key.fd == reading:
                    os.read(reading, 4096)
                    _reap(children)
                    continue
                got = os.read(0, 1 << 16)
                if not got:
                    return 0
                *lines, waiting = (waiting + got).split(b"\n")
                for line in lines:
                    job = WorkerJob.decode(line)
                    children[_fork(job, (reading, writing))] = job.run_id


def _import_everything() -> None:
    """What a run needs, once and before the fork: a run imports only the plug-ins of its repository."""
    from swamp.models.inputs import check_inputs, check_schema
    from swamp.models.registry import builtin_types
    from swamp.plugins import names

    for name in _NEEDED:
        importlib.import_module(name)
    builtin_types()
    names("models")
    check_schema({"type": "object", "properties": {"name": {"type": "string", "default": ""}}})
    check_inputs({"name": ""}, {"type": "object"}, "")


def _fork(job: WorkerJob, close: tuple[int, ...]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        _tell({"run": job.run_id, "pid": pid})
        return pid
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in close:
            os.close(descriptor)
        _redirect(log_file(Path(job.repo), job.run_id))
        code = work(job)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)
    return 0


def _redirect(log: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(nothing)
    os.close(out)


def _reap(children: dict[int, str]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell({"run": children.pop(pid, ""), "exit": os.waitstatus_to_exitcode(status)})


def _tell(document: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the server is gone: stdin says so too
        os.write(1, json.dumps(document).encode() + b"\n")


class Spawner:
    """The server's side: asks for processes, hears of their ends, signals them. A spawner that dies is made again."""

    def __init__(self, repo: Path, ended: Callable[[str, int], None], *, withheld: Sequence[str] = ()) -> None:
        runs_directory(repo).mkdir(parents=True, exist_ok=True)
        self._ended = ended
        self.environment = {key: value for key, value in os.environ.items() if key not in withheld}
        self._lock = threading.Lock()
        self._pids: dict[str, int] = {}
        self._asked: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, job: WorkerJob) -> None:
        """Asks for the process of a run."""
        line = job.encode()
        with self._lock:
            self._asked.add(job.run_id)
            process = self._alive()
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()

    def warm(self) -> None:
        """Makes the process that forks, so that the first run does not wait for it."""
        with self._lock:
            self._alive()

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "swamp.serve.spawn"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env=self.environment,
            )
            assert self._process.stdout is not None
            threading.Thread(target=self._hear, args=(self._process.stdout,), name="spawner", daemon=True).start()
        return self._process

    def _hear(self, out: IO[bytes]) -> None:
        for line in out:
            told = json.loads(line)
            if "pid" in told:
                self._pids[told["run"]] = told["pid"]
            elif "exit" in told:
                self._pids.pop(told["run"], None)
                self._ended(told["run"], told["exit"])
                self._asked.discard(told["run"])
        with self._lock:  # it is gone: what became of its runs is found out from their records
            self._pids.clear()
            self._asked.clear()

    def running(self) -> set[str]:
        """The runs that were asked for and whose end was not heard of yet."""
        with self._lock:
            return set(self._asked)

    def signal(self, run_id: str) -> bool:
        """Asks a run of this server to stop; False if it is not one."""
        pid = self._pids.get(run_id)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            return False
        return True

    def close(self) -> None:
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._process.stdin.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=5)


if __name__ == "__main__":
    sys.exit(main())
