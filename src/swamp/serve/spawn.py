"""Starts the processes of runs: one small process that has everything imported and forks, so that a run begins at once.

A fresh interpreter takes half a second to import what a run needs; a fork takes milliseconds. The server itself has
threads and must not fork. Lines on stdin are jobs, lines on stdout say which process has which run and how it ended.
When the server is gone stdin ends, and so does this process; the runs go on: each has a session of its own, and writes
what happens in it line by line to a file that the server follows, `.swamp/serve/runs/<id>.jsonl`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from swamp.data.run_record import RunState
from swamp.errors import SwampError
from swamp.sync.progress import Cancel
from swamp.trace import flush

LOCK_MS: Final = 600_000
_NEEDED: Final = """
yaml swamp.data.artifacts swamp.wiring swamp.cache.outbox swamp.catalog.catalog swamp.locks.leases
getpass swamp.models.builtin swamp.models.run swamp.bulk.choose swamp.repo.transaction
swamp.repo.definitions swamp.repo.leases swamp.repo.maintain swamp.repo.conflicts swamp.repo.put
swamp.repo.ask swamp.store.directory swamp.store.objects swamp.store.open swamp.sync.engine
swamp.workflows.decide swamp.workflows.run
""".split()
"""What is imported late elsewhere, where most commands do without it."""


def main() -> int:
    """The process that forks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which decides about its runs
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _import_everything()
    children: dict[int, str] = {}
    signal.signal(signal.SIGCHLD, lambda number, frame: _reap(children))  # in the midst of a read, which then goes on
    _tell({"ready": True})
    for line in sys.stdin.buffer:
        job = WorkerJob.decode(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))  # nobody hears of its end before it is known
        children[_fork(job)] = job.run_id
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
    return 0


def _import_everything() -> None:
    """What a run needs, once and before the fork: a run imports only the plug-ins of its repository."""
    from swamp.extras import names
    from swamp.index.pack import zstd
    from swamp.models.inputs import check_inputs, check_schema

    for name in _NEEDED:
        importlib.import_module(name)
    names("models")
    zstd()
    check_schema({"type": "object", "properties": {"name": {"type": "string", "default": ""}}})
    check_inputs({"name": ""}, {"type": "object"}, "")


def _fork(job: WorkerJob) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        _tell({"run": job.run_id, "pid": pid})
        return pid
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
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


def runs_directory(repo: Path) -> Path:
    return repo / ".swamp" / "serve" / "runs"


def events_file(repo: Path, run_id: str) -> Path:
    return runs_directory(repo) / f"{run_id}.jsonl"


def log_file(repo: Path, run_id: str) -> Path:
    """What the process itself says: warnings, a traceback."""
    return runs_directory(repo) / f"{run_id}.log"


def exit_code(error: BaseException) -> int:
    return error.exit_code if isinstance(error, SwampError) else 1


def changed_steps(run: RunState, seen: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What there is to tell of the steps whose status is another than `seen` says, which is brought up to date."""
    for job, step in run.steps:
        place = f"{job.name}\n{step.name}"
        if seen.get(place, "pending") != step.status:
            seen[place] = step.status
            error = {"error": step.error} if step.error else {}
            yield {"job": job.name, "step": step.name, "status": step.status, **error}


def changed_status(run: RunState, seen: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The same of the whole run."""
    if seen.get("") != run.status:
        seen[""] = run.status
        error = {"error": run.error} if run.error else {}
        trigger = {"trigger": dict(run.trigger)} if run.trigger else {}
        yield {"workflow": run.workflow_name, "status": run.status, **trigger, **error}


class Teller:
    """Watches a run and writes down what changes, one JSON object a line."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._seen: dict[str, str] = {}

    def changed(self, run: RunState) -> None:
        for told in changed_steps(run, self._seen):
            self._say({"event": "step", **told})
        if not run.over:  # the end is said when it is shared
            self.tell_status(run)

    def tell_status(self, run: RunState) -> None:
        """Says the state of the whole run, if it is another; its last after the last record is where it belongs."""
        for told in changed_status(run, self._seen):
            self._say({"event": "run", **told})

    def said(self, job: str, step: str, line: str) -> None:
        self._say({"event": "log", "job": job, "step": step, "line": line})

    def failed(self, error: BaseException) -> None:
        known = isinstance(error, SwampError)
        said = str(error) if known else f"{type(error).__name__}: {error}"
        self._say({"event": "failed", "error": said, "code": exit_code(error)})

    def _say(self, document: Mapping[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class WorkerJob:
    """What a worker is told to do."""

    repo: str
    run_id: str
    workflow: str
    action: str
    inputs: Mapping[str, Any]
    trigger: Mapping[str, Any]
    from_step: str | None = None

    def encode(self) -> bytes:
        return json.dumps(self.__dict__, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> WorkerJob:
        return cls(**json.loads(line))


def work(job: WorkerJob) -> int:
    """Does the run to its end in this process; its exit code. Never raises."""
    repo = Path(job.repo)
    teller = Teller(events_file(repo, job.run_id))
    cancel = Cancel()
    _listen(cancel)
    try:
        return _run(job, repo, teller, cancel)
    except Exception as error:  # noqa: BLE001 - the end of a process: said to the server, with the traceback in the log
        import traceback

        traceback.print_exc()
        teller.failed(error)
        return exit_code(error)
    finally:
        teller.close()
        flush()


def _run(job: WorkerJob, repo: Path, teller: Teller, cancel: Cancel) -> int:
    from swamp.models.context import RunContext
    from swamp.repo.open import COMMAND
    from swamp.wiring import open_repo
    from swamp.workflows.run import Driver

    COMMAND.set(f"workflow {job.action}")  # what its commits say, as those of the same command do
    # Nobody sits and waits for it: a lease that is held is waited for, unless somebody has set a limit.
    patient = {} if os.environ.get("SWAMP_LOCK_TIMEOUT_MS") else {"lock_timeout_ms": LOCK_MS}

    def note(text: str) -> None:
        os.write(2, f"{text}\n".encode("utf-8", "replace"))

    with open_repo(repo, notify=note, overrides=patient) as opened, RunContext(opened) as context:
        driver = Driver(context, teller, cancel)
        if job.action == "resume":
            done = driver.resume(job.run_id, from_step=job.from_step, inputs=job.inputs)
        else:
            done = driver.start(job.workflow, job.inputs, trigger=job.trigger, run_id=job.run_id)
    teller.tell_status(done)
    return 0


def _listen(cancel: Cancel) -> None:
    """The first signal cancels the run as `workflow cancel` does, the second ends the process at once."""

    def heard(number: int, frame: FrameType | None) -> None:
        del number, frame
        if cancel.requested:
            os._exit(130)
        cancel.request()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)


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
