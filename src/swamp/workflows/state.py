"""Says what became of jobs and runs from the state of their steps, prints runs as documents, prepares a resume."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from swamp.data.document import keys_of, values_of
from swamp.data.run_record import RUNS, JobState, RunState, RunStatus, StepState, StepStatus
from swamp.errors import Failed, UsageError
from swamp.models.inputs import check_inputs
from swamp.models.mask import MASK, Masker
from swamp.workflows.schema import WorkflowFile


def overall(states: list[StepState]) -> StepStatus:
    """Several expanded steps as one: what a condition on their template sees."""
    return _joined([state.status for state in states])


def job_outcome(job: JobState) -> StepStatus:
    """A job fails with its steps, except with those that may fail."""
    return _joined(["succeeded" if s.status == "failed" and s.allowed_failure else s.status for s in job.steps])


def _joined(found: list[StepStatus]) -> StepStatus:
    """What is left to do says it before what went wrong. Nothing to do is done."""
    for status in ("running", "suspended", "pending", "cancelled", "failed"):
        if status in found:
            return status
    return "skipped" if found and set(found) == {"skipped"} else "succeeded"


def run_outcome(run: RunState) -> RunStatus:
    found = {job.status for job in run.jobs}
    return "cancelled" if "cancelled" in found else "failed" if "failed" in found else "succeeded"


def run_document(run: RunState) -> dict[str, Any]:
    """A run as the contract prints it."""
    jobs = [
        {"name": job.name, "status": job.status, "steps": [_step_document(step) for step in job.steps]}
        for job in run.jobs
    ]
    document = {**values_of(run, keys_of("id workflow_name status")), "jobs": jobs, "durationMs": run.duration_ms}
    return {**document, **({"error": run.error} if run.error else {})}


def _step_document(step: StepState) -> dict[str, Any]:
    error = {"error": step.error} if step.error else {}
    artifacts = [{key: wrote.get(key) for key in ("name", "version", "modelName")} for wrote in step.artifacts]
    known = {"name": step.name, "status": step.status, **error}
    return {**known, "durationMs": step.duration_ms, "dataArtifacts": artifacts}


def history_document(run: RunState, *, waits: bool = False) -> dict[str, Any]:
    """A run with when, where, why and with which inputs it ran. `waits`: its end has not reached the store yet."""
    source = run.trigger_source or "cli"
    document = {
        **run_document(run),
        **values_of(run, keys_of("workflow_id started_at completed_at inputs tags")),
        "host": run.host or "",
        "pid": run.pid or 0,
        "triggerSource": source,
        "trigger": dict(run.trigger) if run.trigger else {"kind": source},
    }
    document |= {"interrupted": True} if run.extra.get("interrupted") else {}
    return {**document, "shared": False} if waits else document


def must_be_resumable(run: RunState, from_step: str | None) -> None:
    """Raises UsageError for a run in which nothing is left to do."""
    if run.status == "succeeded" and from_step is None:
        raise UsageError(f"run {run.id} has succeeded", hint="do a part again with `resume --from STEP`")


def must_not_be_cancelled_since(known: RunState, run: RunState) -> None:
    """Raises Failed for a run that somebody cancelled after this machine last heard of it: who cancelled was told so,
    and who resumes did not know. A second resume knows, and goes on. inv[run.decided]"""
    if run.status == "cancelled" and known.status != "cancelled":
        raise Failed(
            f"run {run.id} was cancelled meanwhile, at {run.completed_at}",
            hint="to go on in spite of that, resume it once more",
        )


def inputs_again(masker: Masker, workflow: WorkflowFile, run: RunState, given: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the record and those `given` now. A record holds no secrets: they have to be given again."""
    known = {**run.inputs, **given}
    lost = [name for name, value in known.items() if MASK in json.dumps(value, default=str)]
    if lost:
        raise UsageError(
            f"the input `{lost[0]}` was a secret and is not in the record", hint=f"add --input {lost[0]}=…"
        )
    return check_inputs(known, workflow.inputs, f"workflow {workflow.name}", masker)


def do_again(workflow: WorkflowFile, run: RunState, wanted: str) -> None:
    """Forget what `wanted` (job.step, or step) and all that depends on it did; their data stays as it is."""
    targets = {
        (job.name, step.template)
        for job, step in run.steps
        for name in (step.name, step.template)
        if wanted in (name, f"{job.name}.{name}")
    }
    if not targets:
        names = sorted({step.template for _, step in run.steps})
        raise UsageError(f"there is no step `{wanted}` in this run", hint=f"its steps: {', '.join(names)}")
    again = after(workflow, targets)
    for job, step in run.steps:
        if (job.name, step.template) in again:
            step.extra = {}
            step.reset()


def after(workflow: WorkflowFile, targets: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The steps named and every step that runs because of them: what `resume --from` does again."""
    again = set(targets)
    while True:
        jobs = {job for job, _ in again}
        grown = again | {
            (job.name, step.name)
            for job in workflow.jobs
            for step in job.steps
            if any(one.job in jobs for one in job.depends_on)
            or any((job.name, one.step) in again for one in step.depends_on)
        }
        if grown == again:
            return again
        again = grown


def mark_resumed(run: RunState, now: str) -> None:
    """Running again, in this process: what was under way when it stopped is still to be done."""
    run.status, run.completed_at, run.error = "running", None, None
    run.pid, run.host = os.getpid(), socket.gethostname()
    run.extra.pop("interrupted", None)
    run.extra["resumedAt"] = now
    for job in run.jobs:
        job.status = "pending"
        for step in job.steps:
            if step.status in ("running", "cancelled"):
                step.status, step.error = "pending", None


def stop_path(run: RunState) -> str:
    """The request to cancel a run: a file of the tree, so that it reaches the run wherever it is."""
    return f"{RUNS}/{run.workflow_id}/cancel-{run.id}.request"


def stop_all(run: RunState, status: Literal["cancelled", "failed"], error: str) -> None:
    for job, step in run.steps:
        if step.status in ("running", "suspended") or (status == "cancelled" and not step.over):
            step.status, step.error = status, error
        if job.status != "skipped":
            job.status = job_outcome(job)
