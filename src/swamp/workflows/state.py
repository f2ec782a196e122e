"""Holds the state of a run (jobs, steps, what became of them), and makes it from a record and a record from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from swamp.data.runs import Run, StepRun

if TYPE_CHECKING:
    from swamp.workflows.decide import Decided
    from swamp.workflows.files import FoundWorkflow

StepStatus = Literal["pending", "running", "suspended", "succeeded", "failed", "skipped", "cancelled"]
RunStatus = Literal["pending", "running", "suspended", "succeeded", "failed", "cancelled"]
RUN_STATUSES: tuple[RunStatus, ...] = ("pending", "running", "suspended", "succeeded", "failed", "cancelled")
OVER = frozenset({"succeeded", "failed", "skipped", "cancelled"})
ATTEMPT_KEYS = ("outputFile", "childRunId")


@dataclass
class StepState:
    """One step of one run; `template` is its name in the file, which several share after a `forEach`."""

    name: str
    template: str
    status: StepStatus = "pending"
    started_at: str | None = None
    completed_at: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    allowed_failure: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """What only some steps have: model, output, approval, child run."""

    @property
    def over(self) -> bool:
        return self.status in OVER

    def reset(self) -> None:
        """As if it had never been tried, except that the last attempt can still be found."""
        last = {key: self.extra[key] for key in ATTEMPT_KEYS if key in self.extra}
        self.status = "pending"
        self.started_at = self.completed_at = self.error = self.duration_ms = None
        self.artifacts, self.allowed_failure, self.extra = [], False, last

    def to_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"stepName": self.name}
        if self.template != self.name:
            record["template"] = self.template
        record["status"] = self.status
        optional = {
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
            "durationMs": self.duration_ms,
            "error": self.error,
            "allowedFailure": self.allowed_failure or None,
        }
        record.update({key: value for key, value in optional.items() if value is not None})
        return {**record, **self.extra, "dataArtifacts": self.artifacts}


_STEP_KEYS = {
    "stepName",
    "template",
    "status",
    "startedAt",
    "completedAt",
    "durationMs",
    "error",
    "allowedFailure",
    "dataArtifacts",
}


def step_from(record: Mapping[str, Any]) -> StepState:
    return StepState(
        name=record["stepName"],
        template=record.get("template", record["stepName"]),
        status=record["status"],
        started_at=record.get("startedAt"),
        completed_at=record.get("completedAt"),
        duration_ms=record.get("durationMs"),
        error=record.get("error"),
        artifacts=[dict(artifact) for artifact in record.get("dataArtifacts") or ()],
        allowed_failure=bool(record.get("allowedFailure", False)),
        extra={key: value for key, value in record.items() if key not in _STEP_KEYS},
    )


@dataclass
class JobState:
    name: str
    status: StepStatus = "pending"
    steps: list[StepState] = field(default_factory=list)

    def of_template(self, template: str) -> list[StepState]:
        return [step for step in self.steps if step.template == template]

    def to_record(self) -> dict[str, Any]:
        return {
            "jobName": self.name,
            "status": self.status,
            "steps": [step.to_record() for step in self.steps],
        }


@dataclass
class RunState:
    id: str
    workflow_id: str
    workflow_name: str
    status: RunStatus
    started_at: str
    jobs: list[JobState]
    inputs: dict[str, Any]
    tags: dict[str, str]
    pid: int
    host: str
    trigger_source: str
    trigger: Mapping[str, Any] | None = None
    completed_at: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def steps(self) -> Iterator[tuple[JobState, StepState]]:
        return ((job, step) for job in self.jobs for step in job.steps)

    def job(self, name: str) -> JobState:
        return next(job for job in self.jobs if job.name == name)

    def to_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "id": self.id,
            "workflowId": self.workflow_id,
            "workflowName": self.workflow_name,
            "status": self.status,
            "startedAt": self.started_at,
        }
        optional = {"completedAt": self.completed_at, "durationMs": self.duration_ms, "error": self.error}
        record.update({key: value for key, value in optional.items() if value is not None})
        return {
            **record,
            "jobs": [job.to_record() for job in self.jobs],
            "inputs": self.inputs,
            "tags": self.tags,
            "pid": self.pid,
            "host": self.host,
            "triggerSource": self.trigger_source,
            **({"trigger": dict(self.trigger)} if self.trigger else {}),
            **self.extra,
        }


_RUN_KEYS = {
    "id",
    "workflowId",
    "workflowName",
    "status",
    "startedAt",
    "completedAt",
    "durationMs",
    "error",
    "jobs",
    "inputs",
    "tags",
    "pid",
    "host",
    "triggerSource",
    "trigger",
}


def run_from(record: Mapping[str, Any]) -> RunState:
    """The state that a saved record describes; keys of a newer writer are kept."""
    return RunState(
        id=record["id"],
        workflow_id=record["workflowId"],
        workflow_name=record["workflowName"],
        status=record["status"],
        started_at=record["startedAt"],
        completed_at=record.get("completedAt"),
        duration_ms=record.get("durationMs"),
        error=record.get("error"),
        jobs=[
            JobState(job["jobName"], job["status"], [step_from(step) for step in job.get("steps") or ()])
            for job in record.get("jobs") or ()
        ],
        inputs=dict(record.get("inputs") or {}),
        tags=dict(record.get("tags") or {}),
        pid=int(record.get("pid") or 0),
        host=str(record.get("host") or ""),
        trigger_source=str(record.get("triggerSource") or "cli"),
        trigger=record.get("trigger"),
        extra={key: value for key, value in record.items() if key not in _RUN_KEYS},
    )


def run_of(run: Run) -> RunState:
    """The state in a saved record."""
    record: dict[str, Any] = {
        **run.extra,
        "id": run.id,
        "workflowId": run.workflow_id,
        "workflowName": run.workflow_name,
        "status": run.status,
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "inputs": run.inputs,
        "tags": run.tags,
        "pid": run.pid,
        "host": run.host,
        "triggerSource": run.trigger_source,
        "trigger": run.trigger,
        "jobs": [
            {"jobName": job.job_name, "status": job.status, "steps": [_step_record(step) for step in job.steps]}
            for job in run.jobs
        ],
    }
    return run_from(record)


def _step_record(step: StepRun) -> dict[str, Any]:
    return {
        **step.extra,
        "stepName": step.step_name,
        "status": step.status,
        "startedAt": step.started_at,
        "completedAt": step.completed_at,
        "error": step.error,
        "dataArtifacts": list(step.artifacts),
    }


def overall(states: list[StepState]) -> StepStatus:
    """Several expanded steps as one: what a condition on their template sees. Nothing to do is done."""
    found = [state.status for state in states]
    for status in ("running", "pending", "suspended", "cancelled", "failed"):
        if status in found:
            return status
    return "skipped" if found and all(status == "skipped" for status in found) else "succeeded"


def job_outcome(job: JobState) -> StepStatus:
    """A job fails with its steps, except with those that may fail."""
    relevant = ["succeeded" if s.status == "failed" and s.allowed_failure else s.status for s in job.steps]
    for status in ("running", "suspended", "pending", "cancelled", "failed"):
        if status in relevant:
            return status
    return "skipped" if relevant and all(status == "skipped" for status in relevant) else "succeeded"


def run_outcome(run: RunState) -> RunStatus:
    found = [job.status for job in run.jobs]
    if "cancelled" in found:
        return "cancelled"
    if "failed" in found:
        return "failed"
    return "succeeded"


def run_document(run: RunState) -> dict[str, Any]:
    """A run as the contract prints it."""
    document: dict[str, Any] = {
        "id": run.id,
        "workflowName": run.workflow_name,
        "status": run.status,
        "jobs": [
            {
                "name": job.name,
                "status": job.status,
                "steps": [
                    {
                        "name": step.name,
                        "status": step.status,
                        **({"error": step.error} if step.error else {}),
                        "durationMs": step.duration_ms,
                        "dataArtifacts": [
                            {"name": a["name"], "version": a["version"], "modelName": a.get("modelName")}
                            for a in step.artifacts
                        ],
                    }
                    for step in job.steps
                ],
            }
            for job in run.jobs
        ],
        "durationMs": run.duration_ms,
    }
    return {**document, **({"error": run.error} if run.error else {})}


def history_document(run: RunState) -> dict[str, Any]:
    """A run with when, where, why and with which inputs it ran."""
    document = {
        **run_document(run),
        "workflowId": run.workflow_id,
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "inputs": run.inputs,
        "tags": run.tags,
        "host": run.host,
        "pid": run.pid,
        "triggerSource": run.trigger_source,
        "trigger": dict(run.trigger) if run.trigger else {"kind": run.trigger_source},
    }
    return {**document, "interrupted": True} if run.extra.get("interrupted") else document


def workflow_item(found: FoundWorkflow) -> dict[str, Any]:
    """A workflow as a line of a list."""
    workflow = found.workflow
    return {
        "id": workflow.id,
        "name": workflow.name,
        "version": workflow.version,
        "description": workflow.description,
        "tags": dict(workflow.tags),
        "jobs": [job.name for job in workflow.jobs],
        "file": found.file,
    }


def decided_document(run_id: str, decision: str, found: Decided) -> dict[str, Any]:
    """What became of a run that waited for a person."""
    return {
        "id": run_id,
        "workflowName": found.run.workflow_name,
        "step": found.step,
        "decision": decision,
        "status": found.run.status,
        "resumable": found.left_waiting,
    }
