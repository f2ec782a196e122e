"""Keeps the logs of runs, and the workflow as each run evaluated it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from swamp.data.document import RecordFiles, dump
from swamp.data.names import check_id
from swamp.data.run_record import RunState
from swamp.errors import NotFound
from swamp.models.context import Log
from swamp.models.run_context import RunContext
from swamp.values import mutable, value
from swamp.workflows.recorder import Watcher
from swamp.workflows.schema import WorkflowFile

EVALUATED = "workflows-evaluated"
MOST_SHARED = 4 << 20
"""A longer log travels when the run ends: with each step it would travel whole."""


@mutable
class RunLogs:
    """Logs of runs: a file of this machine while a run goes, a file of the tree when it is over."""

    context: RunContext
    _open: dict[str, Log] = field(default_factory=dict)

    def of(self, run: RunState) -> Log:
        """The run's log on this machine, from the first line on; a resumed run goes on in it."""
        if run.id not in self._open:
            text = self._kept(run)
            log = Log(self.context.local / "run-logs" / f"{run.id}.log", self.context.masker, lambda line: None)
            if text:
                log.write(text.rstrip("\n"))
            self._open[run.id] = log
        return self._open[run.id]

    def text(self, run: RunState) -> str:
        """What the steps of a run said: from the tree when it is over, from this machine while it runs."""
        live = self.context.local / "run-logs" / f"{run.id}.log"
        return live.read_text(encoding="utf-8") if live.exists() else self._kept(run)

    def share(self, run: RunState) -> None:
        """What was said so far, into the tree for the next push: others follow a run by it (decision 0015).

        Written beside the command's own changes, like the run's record meanwhile: no step answers for its arrival.
        """
        log = self._open.get(run.id)
        if log is not None and log.file.exists() and log.file.stat().st_size <= MOST_SHARED:
            self.context.keep_log(log.file, f"workflow-runs/{run.id}.log", self.context.repo.datastore.tree)

    def is_here(self, run: RunState) -> bool:
        """Whether this machine writes the log, so that every line of it can be read at once."""
        return (self.context.local / "run-logs" / f"{run.id}.log").exists()

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


@value
class Listener:
    """Passes on what happens in a run and keeps what its steps said."""

    watcher: Watcher
    logs: RunLogs
    run: RunState

    def changed(self, run: RunState) -> None:
        self.watcher.changed(run)

    def said(self, job: str, step: str, line: str) -> None:
        self.logs.of(self.run).write(f"{job}/{step} | {line}")
        self.watcher.said(job, step, line)


def keep_evaluated(
    context: RunContext, workflow: WorkflowFile, run: RunState, tasks: Mapping[tuple[str, str], Any]
) -> None:
    """The workflow as this run saw it: expanded steps with their tasks, without secrets.

    Steps that an earlier attempt did keep the task that it wrote down.
    """
    path = f"{EVALUATED}/{run.workflow_id}/{run.id}.yaml"
    files = RecordFiles(context.repo.tree, EVALUATED)
    known = {**_tasks_of(files.read(path) or {}), **{place: task for place, task in tasks.items() if task}}
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


def _tasks_of(document: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """(job, step) -> task, of a document that `keep_evaluated` wrote."""
    return {
        (job["name"], step["name"]): step.get("task")
        for job in document.get("jobs") or ()
        for step in job.get("steps") or ()
    }
