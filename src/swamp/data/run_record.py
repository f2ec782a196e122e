"""The record of one workflow run: the state that the engine changes, its summary, and their document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from swamp.data.document import SUFFIX, damaged, dump, load_mapping
from swamp.data.names import check_id
from swamp.values import value

RUNS: Final = "workflow-runs"
PREFIX: Final = "workflow-run-"
RunStatus = Literal["pending", "running", "suspended", "succeeded", "failed", "cancelled"]
StepStatus = Literal["pending", "running", "suspended", "succeeded", "failed", "skipped", "cancelled"]
RUN_STATUSES: Final[tuple[RunStatus, ...]] = (
    "pending", "running", "suspended", "succeeded", "failed", "cancelled"
)  # fmt: skip
OVER: Final = frozenset({"succeeded", "failed", "skipped", "cancelled"})
RAN: Final = frozenset({"succeeded", "failed"})
"""What the progress of a run counts: a step that was skipped or cancelled did not run."""
ATTEMPT_KEYS: Final[tuple[str, ...]] = ("outputFile", "childRunId")


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
        last: dict[str, Any] = {key: self.extra[key] for key in ATTEMPT_KEYS if key in self.extra}
        self.status = "pending"
        self.started_at = self.completed_at = self.error = self.duration_ms = None
        self.artifacts, self.allowed_failure, self.extra = [], False, last

    def to_document(self) -> dict[str, Any]:
        known = {
            "stepName": self.name,
            "template": self.template if self.template != self.name else None,
            "status": self.status,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
            "durationMs": self.duration_ms,
            "error": self.error,
            "allowedFailure": self.allowed_failure or None,
        }
        return {**_without_none(known), **self.extra, "dataArtifacts": self.artifacts}


@dataclass
class JobState:
    """One job of one run."""

    name: str
    status: StepStatus = "pending"
    steps: list[StepState] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def of_template(self, template: str) -> list[StepState]:
        return [step for step in self.steps if step.template == template]

    def head(self) -> dict[str, Any]:
        """Its document without the steps."""
        return {"jobName": self.name, "status": self.status, **self.extra}

    def to_document(self) -> dict[str, Any]:
        return {**self.head(), "steps": [step.to_document() for step in self.steps]}


@dataclass
class RunState:
    """One workflow run: what its record says. The engine changes it and saves it after every change."""

    id: str
    workflow_id: str
    workflow_name: str
    status: RunStatus
    started_at: str
    jobs: list[JobState] = field(default_factory=list)
    inputs: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pid: int | None = None
    host: str | None = None
    trigger_source: str | None = None
    trigger: Mapping[str, Any] | None = None
    """What started it: `kind`, and for an event the `deliveryId` by which it is found again."""
    completed_at: str | None = None
    duration_ms: int | None = None
    error: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """What a newer writer has added: kept as it is."""

    @property
    def path(self) -> str:
        return path_of(self.workflow_id, self.id)

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def steps(self) -> Iterator[tuple[JobState, StepState]]:
        return ((job, step) for job in self.jobs for step in job.steps)

    def job(self, name: str) -> JobState:
        return next(job for job in self.jobs if job.name == name)

    @property
    def summary(self) -> RunSummary:
        wrong = ((job, step) for job, step in self.steps if step.status == "failed" and not step.allowed_failure)
        return RunSummary(
            run_id=self.id,
            workflow_id=self.workflow_id,
            workflow_name=self.workflow_name,
            status=self.status,
            started_at=self.started_at,
            completed_at=self.completed_at,
            failed_step=next((f"{job.name}.{step.name}" for job, step in wrong), None),
            steps_done=sum(step.status in RAN for _, step in self.steps),
            steps_total=sum(1 for _ in self.steps),
            tags=self.tags,
            trigger=self.trigger,
        )

    def head(self) -> dict[str, Any]:
        """What stands before the jobs, with a summary: all that a search reads of the file."""
        summary = self.summary
        known = {
            "id": self.id,
            "workflowId": self.workflow_id,
            "workflowName": self.workflow_name,
            "status": self.status,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
            "tags": dict(self.tags) or None,
            "trigger": dict(self.trigger) if self.trigger else None,
            "summary": {"failedStep": summary.failed_step, "done": summary.steps_done, "total": summary.steps_total},
        }
        return _without_none(known)

    def tail(self) -> dict[str, Any]:
        """What stands after the jobs."""
        known = {
            "inputs": dict(self.inputs),
            "pid": self.pid,
            "host": self.host,
            "triggerSource": self.trigger_source,
            "durationMs": self.duration_ms,
            "error": self.error,
        }
        return {**_without_none(known), **self.extra}


def _without_none(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


@value
class RunSummary:
    """A run in one line."""

    run_id: str
    workflow_id: str
    workflow_name: str
    status: str
    started_at: str
    completed_at: str | None = None
    failed_step: str | None = None
    steps_done: int = 0
    steps_total: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    trigger: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "runId": self.run_id,
            "workflowName": self.workflow_name,
            "status": self.status,
            "startedAt": self.started_at,
            "completedAt": self.completed_at,
        }
        if self.failed_step:
            document["failedStep"] = self.failed_step
        if self.trigger:
            document["trigger"] = dict(self.trigger)
        return {**document, "stepProgress": f"{self.steps_done}/{self.steps_total}"}


def path_of(workflow_id: str, run_id: str) -> str:
    return f"{RUNS}/{check_id(workflow_id)}/{PREFIX}{check_id(run_id)}{SUFFIX}"


def encode(run: RunState) -> bytes:
    """The whole record. `RunEncoder` makes the same bytes piece by piece."""
    return dump({**run.head(), "jobs": [job.to_document() for job in run.jobs], **run.tail()})


def read_summary(raw: bytes, path: str) -> RunSummary:
    """From the head of a record that has a summary, else from the whole record."""
    head, found, _ = raw.partition(b"\njobs:")
    head += b"\n"
    if found and b"\nsummary:" in head:
        document = load_mapping(head, path)
        counts = document.get("summary") or {}
        if isinstance(counts, dict) and isinstance(counts.get("total"), int):
            return _summary_of(document, counts, path)
    return decode(load_mapping(raw, path), path).summary


def _summary_of(document: Mapping[str, Any], counts: Mapping[str, Any], path: str) -> RunSummary:
    try:
        return RunSummary(
            run_id=document["id"],
            workflow_id=document["workflowId"],
            workflow_name=document["workflowName"],
            status=document["status"],
            started_at=document["startedAt"],
            completed_at=document.get("completedAt"),
            failed_step=counts.get("failedStep"),
            steps_done=counts.get("done", 0),
            steps_total=counts["total"],
            tags=document.get("tags") or {},
            trigger=document.get("trigger"),
        )
    except KeyError as error:
        raise damaged(path, f"it is not a run record ({error} is missing)") from error


_RUN_KEYS: Final = frozenset(
    "id workflowId workflowName status startedAt completedAt summary jobs inputs tags pid host triggerSource "
    "trigger durationMs error".split()
)
_JOB_KEYS: Final = frozenset(("jobName", "status", "steps"))
_STEP_KEYS: Final = frozenset(
    "stepName template status startedAt completedAt durationMs error allowedFailure dataArtifacts".split()
)


def decode(document: Mapping[str, Any], path: str) -> RunState:
    """The run in a document; keys of a newer writer are kept. Raises CorruptData naming the file."""
    try:
        return RunState(
            id=document["id"],
            workflow_id=document["workflowId"],
            workflow_name=document["workflowName"],
            status=document["status"],
            started_at=document["startedAt"],
            jobs=[_decode_job(job) for job in document.get("jobs") or ()],
            inputs=dict(document.get("inputs") or {}),
            tags=dict(document.get("tags") or {}),
            pid=document.get("pid"),
            host=document.get("host"),
            trigger_source=document.get("triggerSource"),
            trigger=document.get("trigger"),
            completed_at=document.get("completedAt"),
            duration_ms=document.get("durationMs"),
            error=document.get("error"),
            extra=_unknown(document, _RUN_KEYS),
        )
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise damaged(path, f"it is not a run record ({error})") from error


def _decode_job(job: Mapping[str, Any]) -> JobState:
    steps = [_decode_step(step) for step in job.get("steps") or ()]
    return JobState(job["jobName"], job["status"], steps, _unknown(job, _JOB_KEYS))


def _decode_step(step: Mapping[str, Any]) -> StepState:
    return StepState(
        name=step["stepName"],
        template=step.get("template", step["stepName"]),
        status=step["status"],
        started_at=step.get("startedAt"),
        completed_at=step.get("completedAt"),
        duration_ms=step.get("durationMs"),
        error=step.get("error"),
        artifacts=[dict(artifact) for artifact in step.get("dataArtifacts") or ()],
        allowed_failure=bool(step.get("allowedFailure", False)),
        extra=_unknown(step, _STEP_KEYS),
    )


def _unknown(document: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in known}
