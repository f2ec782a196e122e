"""Records a run: one state that many threads change, saved after every change before anyone builds on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from swamp.data.document import dump
from swamp.data.runs import decode
from swamp.data.runs import encode as encode_whole
from swamp.env import Env, rfc3339
from swamp.models.mask import Masker
from swamp.workflows.state import JobState, RunState, StepState, StepStatus


class Watcher(Protocol):
    """Someone who looks at a run while it goes. Called from several threads, one at a time."""

    def changed(self, run: RunState) -> None: ...

    def said(self, job: str, step: str, line: str) -> None: ...


class NullWatcher:
    """Looks at nothing."""

    def changed(self, run: RunState) -> None: ...

    def said(self, job: str, step: str, line: str) -> None: ...


class RunRecorder:
    """Changes the state of one run; `save` writes its record after each change. inv[run.saved]"""

    def __init__(
        self,
        run: RunState,
        save: Callable[[RunState], None],
        env: Env,
        *,
        watcher: Watcher | None = None,
    ) -> None:
        self.run = run
        self._save = save
        self._env = env
        self._watcher = watcher or NullWatcher()
        self._lock = threading.RLock()
        self._started: dict[int, float] = {}

    @contextmanager
    def change(self) -> Iterator[RunState]:
        """Change the state inside; it is saved when the block ends."""
        with self._lock:
            yield self.run
            self._save(self.run)
            self._watcher.changed(self.run)

    def started(self, step: StepState, **extra: Any) -> None:
        with self.change():
            step.status = "running"
            step.started_at = rfc3339(self._env.clock.now())
            step.extra.update(extra)
            self._started[id(step)] = self._env.clock.monotonic()

    def ended(self, step: StepState, status: StepStatus, *, error: str | None = None, **extra: Any) -> None:
        """`extra` with `artifacts` replaces what the step wrote; the rest is kept beside it in the record."""
        with self.change():
            step.status = status
            step.error = error
            step.artifacts = list(extra.pop("artifacts", step.artifacts))
            step.extra.update({key: value for key, value in extra.items() if value is not None})
            if status != "suspended":
                step.completed_at = rfc3339(self._env.clock.now())
            begun = self._started.pop(id(step), None)
            if begun is not None:
                step.duration_ms = round((self._env.clock.monotonic() - begun) * 1000)

    def said(self, job: JobState, step: StepState, line: str) -> None:
        with self._lock:
            self._watcher.said(job.name, step.name, line)


_INDENT = b"  "


class RunEncoder:
    """Encodes one run again and again; keeps the text of every step that is as it was."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._generation = -1
        self._steps: dict[tuple[int, int], tuple[str, bytes]] = {}

    def encode(self, run: RunState) -> bytes:
        if self._generation != self._masker.generation:  # a new secret is known: nothing written before counts
            self._generation = self._masker.generation
            self._steps.clear()
        record = run.to_record()
        jobs = [self._job(number, job) for number, job in enumerate(record["jobs"])]
        head, _, tail = self._around(run, record).partition(b"jobs: []\n")
        return head + (b"jobs:\n" + b"".join(jobs) if jobs else b"jobs: []\n") + tail

    def _around(self, run: RunState, record: Mapping[str, Any]) -> bytes:
        """Everything but the jobs, with the summary that a search reads."""
        masked = self._masker.value({**record, "jobs": []})
        whole = decode({**masked, "jobs": _outlines(run)}, run.id)
        summary = whole.summary
        text = encode_whole(decode(masked, run.id))
        counts = {"failedStep": summary.failed_step, "done": summary.steps_done, "total": summary.steps_total}
        empty = dump({"summary": {"failedStep": None, "done": 0, "total": 0}})
        return text.replace(empty, dump({"summary": self._masker.value(counts)}), 1)

    def _job(self, number: int, job: Mapping[str, Any]) -> bytes:
        steps = [self._step((number, position), step) for position, step in enumerate(job["steps"])]
        head = dump([self._masker.value({"jobName": job["jobName"], "status": job["status"]})])
        return head + (b"  steps:\n" + b"".join(steps) if steps else b"  steps: []\n")

    def _step(self, place: tuple[int, int], step: Mapping[str, Any]) -> bytes:
        seen = repr(step)
        known = self._steps.get(place)
        if known is not None and known[0] == seen:
            return known[1]
        lines = dump([self._masker.value(step)]).splitlines(keepends=True)
        text = b"".join(_INDENT + line for line in lines)
        self._steps[place] = (seen, text)
        return text


def _outlines(run: RunState) -> list[dict[str, Any]]:
    """As much of the steps as the summary counts."""
    return [
        {
            "jobName": job.name,
            "status": job.status,
            "steps": [
                {"stepName": s.name, "status": s.status, **({"allowedFailure": True} if s.allowed_failure else {})}
                for s in job.steps
            ],
        }
        for job in run.jobs
    ]
