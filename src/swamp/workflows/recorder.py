"""Records a run: its state, saved after every change before anyone builds on it; its log; the workflow as it saw it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from swamp.data.document import RecordFiles, dump
from swamp.data.names import check_id
from swamp.data.run_record import JobState, RunState, StepState, StepStatus
from swamp.env import Env, rfc3339
from swamp.errors import NotFound
from swamp.models.context import Log
from swamp.models.mask import Masker
from swamp.values import mutable

if TYPE_CHECKING:
    from swamp.models.context import RunContext
    from swamp.workflows.schema import WorkflowFile


EVALUATED = "workflows-evaluated"
MOST_SHARED = 4 << 20
"""A longer log travels when the run ends: with each step it would travel whole."""


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
        watcher: Watcher,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.run, self._save, self._env, self._watcher, self._log = run, save, env, watcher, log
        self.lock = threading.RLock()
        """Who holds it changes the state alone; a change takes it by itself."""
        self._started: dict[int, float] = {}

    @contextmanager
    def change(self) -> Iterator[RunState]:
        """Change the state inside; it is saved when the block ends."""
        with self.lock:
            yield self.run
            self._save(self.run)
            self._watcher.changed(self.run)

    def save(self) -> None:
        """The record as it is."""
        with self.change():
            pass

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
        with self.lock:
            self._log(f"{job.name}/{step.name} | {line}")
            self._watcher.said(job.name, step.name, line)


class Once:
    """Does something the first time that it is called, and again after it has failed; whoever comes meanwhile waits."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act, self._lock, self._done = act, threading.Lock(), False

    def __call__(self) -> None:
        with self._lock:
            if not self._done:
                self._act()
                self._done = True


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
        jobs = b"".join(self._job(number, job) for number, job in enumerate(run.jobs))
        return self._text(run.head()) + (b"jobs:\n" + jobs if jobs else b"jobs: []\n") + self._text(run.tail())

    def _text(self, value: Any) -> bytes:
        return dump(self._masker.value(value))

    def _job(self, number: int, job: JobState) -> bytes:
        steps = b"".join(self._step((number, at), step.to_document()) for at, step in enumerate(job.steps))
        return self._text([job.head()]) + (b"  steps:\n" + steps if steps else b"  steps: []\n")

    def _step(self, place: tuple[int, int], step: Mapping[str, Any]) -> bytes:
        seen = repr(step)
        known = self._steps.get(place)
        if known is not None and known[0] == seen:
            return known[1]
        lines = self._text([step]).splitlines(keepends=True)
        text = b"".join(_INDENT + line for line in lines)
        self._steps[place] = (seen, text)
        return text


@mutable
class RunLogs:
    """Logs of runs: a file of this machine while a run goes, a file of the tree when it is over."""

    context: RunContext
    _open: dict[str, Log] = field(default_factory=dict)

    def of(self, run: RunState) -> Log:
        """The run's log on this machine, from the first line on; a resumed run goes on in it."""
        if run.id not in self._open:
            text = self._kept(run)
            log = Log(self.context.log_of(run.id), self.context.masker, lambda line: None)
            if text:
                log.write(text.rstrip("\n"))
            self._open[run.id] = log
        return self._open[run.id]

    def text(self, run: RunState) -> str:
        """What the steps of a run said: from the tree when it is over, from this machine while it runs."""
        live = self.context.log_of(run.id)
        return live.read_text(encoding="utf-8") if live.exists() else self._kept(run)

    def share(self, run: RunState) -> None:
        """What was said so far, into the tree for the next push: others follow a run by it (decision 0015).

        Written beside the command's own changes, like the run's record meanwhile: no step answers for its arrival.
        """
        log = self._open.get(run.id)
        if log is not None and log.file.exists() and log.file.stat().st_size <= MOST_SHARED:
            self.context.keep_log(log.file, f"workflow-runs/{run.id}.log", self.context.repo.datastore.tree)

    def close(self, run: RunState) -> None:
        """Into the tree, where the other machines find it."""
        log = self._open.pop(run.id, None)
        if log is None:
            return
        log.close()
        self.context.keep_log(log.file, f"workflow-runs/{run.id}.log")
        log.file.unlink(missing_ok=True)

    def _kept(self, run: RunState) -> str:
        """The log that an earlier attempt has left in the tree, here or on another machine."""
        try:
            return self.context.repo.tree.materialize(f"logs/workflow-runs/{run.id}.log").read_text(encoding="utf-8")
        except NotFound:
            return ""


def keep_evaluated(
    context: RunContext, workflow: WorkflowFile, run: RunState, tasks: Mapping[tuple[str, str], Any]
) -> None:
    """The workflow as this run saw it: expanded steps with their tasks, without secrets.

    Steps that an earlier attempt did keep the task that it wrote down.
    """
    path = f"{EVALUATED}/{run.workflow_id}/{run.id}.yaml"
    files = RecordFiles(context.repo.tree, EVALUATED)
    before = {
        (job["name"], step["name"]): step.get("task")
        for job in (files.read(path) or {}).get("jobs") or ()
        for step in job.get("steps") or ()
    }
    known = before | {place: task for place, task in tasks.items() if task}
    jobs = [
        {"name": job.name, "steps": [{"name": s.name, "task": known.get((job.name, s.name))} for s in job.steps]}
        for job in run.jobs
    ]
    document = {
        "id": workflow.id,
        "name": workflow.name,
        "version": workflow.version,
        "runId": run.id,
        "inputs": run.inputs,
        "jobs": jobs,
    }
    files.write(path, dump(context.masker.value(document)))


def forget_evaluated(context: RunContext, workflow_id: str) -> None:
    """Removes what `keep_evaluated` wrote of a workflow's runs: they go with their records."""
    files = RecordFiles(context.repo.tree, EVALUATED)
    files.remove(list(files.paths(check_id(workflow_id))), confirmed=True)
