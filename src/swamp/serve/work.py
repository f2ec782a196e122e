"""The process of one run: made by `spawn`, of a session of its own, so that it outlives a server that is killed.

What happens in the run is written line by line to a file that the server follows: `.swamp/serve/runs/<id>.jsonl`.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from swamp.data.run_record import RunState
from swamp.errors import SwampError
from swamp.sync.progress import Cancel
from swamp.trace import flush

RUNS: Final = "serve/runs"
LOCK_MS: Final = 600_000


def runs_directory(repo: Path) -> Path:
    return repo / ".swamp" / RUNS


def events_file(repo: Path, run_id: str) -> Path:
    return runs_directory(repo) / f"{run_id}.jsonl"


def log_file(repo: Path, run_id: str) -> Path:
    """What the process itself says: warnings, a traceback."""
    return runs_directory(repo) / f"{run_id}.log"


class Teller:
    """Watches a run and writes down what changes, one JSON object a line."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], str] = {}
        self._status = ""

    def changed(self, run: RunState) -> None:
        for job, step in run.steps:
            if self._seen.get((job.name, step.name), "pending") != step.status:
                self._seen[job.name, step.name] = step.status
                error = {"error": step.error} if step.error else {}
                self._say({"event": "step", "job": job.name, "step": step.name, "status": step.status, **error})
        if not run.over:  # the end is said when it is shared
            self._tell_status(run)

    def _tell_status(self, run: RunState) -> None:
        if run.status != self._status:
            self._status = run.status
            error = {"error": run.error} if run.error else {}
            self._say({"event": "run", "workflow": run.workflow_name, "status": run.status, **_trigger(run), **error})

    def said(self, job: str, step: str, line: str) -> None:
        self._say({"event": "log", "job": job, "step": step, "line": line})

    def ended(self, run: RunState) -> None:
        """Said after the last record is where it belongs."""
        self._tell_status(run)

    def failed(self, error: BaseException) -> None:
        known = isinstance(error, SwampError)
        code = error.exit_code if isinstance(error, SwampError) else 1
        self._say(
            {"event": "failed", "error": str(error) if known else f"{type(error).__name__}: {error}", "code": code}
        )

    def _say(self, document: Mapping[str, Any]) -> None:
        with self._lock:
            self._file.write(json.dumps(document, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def close(self) -> None:
        self._file.close()


def _trigger(run: RunState) -> dict[str, Any]:
    return {"trigger": dict(run.trigger)} if run.trigger else {}


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
        return error.exit_code if isinstance(error, SwampError) else 1
    finally:
        teller.close()
        flush()


def _run(job: WorkerJob, repo: Path, teller: Teller, cancel: Cancel) -> int:
    from swamp.models.run_context import RunContext
    from swamp.repo.open import COMMAND
    from swamp.wiring import open_repo
    from swamp.workflows.run import Driver

    COMMAND.set(f"workflow {job.action}")  # what its commits say, as those of the same command do
    # Nobody sits and waits for it: a lease that is held is waited for, unless somebody has set a limit.
    patient = {} if os.environ.get("SWAMP_LOCK_TIMEOUT_MS") else {"lock_timeout_ms": LOCK_MS}
    with open_repo(repo, notify=_note, overrides=patient) as opened:
        context = RunContext(opened)
        try:
            driver = Driver(context, teller, cancel)
            if job.action == "resume":
                done = driver.resume(job.run_id, from_step=job.from_step, inputs=job.inputs)
            else:
                done = driver.start(job.workflow, job.inputs, trigger=job.trigger, run_id=job.run_id)
        finally:
            context.close()
    teller.ended(done)
    return 0


def _note(text: str) -> None:
    os.write(2, f"{text}\n".encode("utf-8", "replace"))


def _listen(cancel: Cancel) -> None:
    """The first signal cancels the run as `workflow cancel` does, the second ends the process at once."""

    def heard(number: int, frame: FrameType | None) -> None:
        del number, frame
        if cancel.requested:
            os._exit(130)
        cancel.request()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, heard)
