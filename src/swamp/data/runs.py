"""Workflow runs: one record per run, and a search that holds summaries, never the history."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from swamp.data.document import SUFFIX, RecordFiles, damaged, dump, load_mapping
from swamp.data.names import by_prefix, check_id, meant
from swamp.errors import NotFound
from swamp.sync.port import Tree

RUNS: Final = "workflow-runs"
PREFIX: Final = "workflow-run-"
RunStatus = Literal["pending", "running", "suspended", "succeeded", "failed", "cancelled"]
OVER: Final = frozenset({"succeeded", "failed", "cancelled"})
RAN: Final = frozenset({"succeeded", "failed"})
"""What the progress of a run counts: a step that was skipped or cancelled did not run."""
DEFAULT_LIMIT: Final = 100
LATEST_RUN: Final = "latest"


@dataclass(frozen=True, slots=True)
class StepRun:
    step_name: str
    status: str
    started_at: str | None = None
    completed_at: str | None = None
    error: str | None = None
    artifacts: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobRun:
    job_name: str
    status: str
    steps: tuple[StepRun, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One workflow run as its record says; `extra` keeps what the workflow engine adds."""

    id: str
    workflow_id: str
    workflow_name: str
    status: RunStatus
    started_at: str
    completed_at: str | None = None
    jobs: tuple[JobRun, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    pid: int | None = None
    host: str | None = None
    trigger_source: str | None = None
    trigger: Mapping[str, Any] | None = None
    """What started it: `kind`, and for an event the `deliveryId` by which it is found again."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return path_of(self.workflow_id, self.id)

    @property
    def summary(self) -> RunSummary:
        steps = [(job, step) for job in self.jobs for step in job.steps]
        wrong = ((j, s) for j, s in steps if s.status == "failed" and not s.extra.get("allowedFailure"))
        failed = next((f"{job.job_name}.{step.step_name}" for job, step in wrong), None)
        done = sum(step.status in RAN for _, step in steps)
        return RunSummary(
            run_id=self.id,
            workflow_id=self.workflow_id,
            workflow_name=self.workflow_name,
            status=self.status,
            started_at=self.started_at,
            completed_at=self.completed_at,
            failed_step=failed,
            steps_done=done,
            steps_total=len(steps),
            tags=self.tags,
            trigger=self.trigger,
        )


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class RunPage:
    """The newest runs that fit, and how many fit in all."""

    results: tuple[RunSummary, ...]
    total: int


def path_of(workflow_id: str, run_id: str) -> str:
    return f"{RUNS}/{check_id(workflow_id)}/{PREFIX}{check_id(run_id)}{SUFFIX}"


class RunRepository:
    """The workflow runs of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._files = RecordFiles(tree, RUNS)

    def save(self, run: Run) -> str:
        """Writes the record, over an earlier state of the same run; its path."""
        self._files.write(run.path, encode(run))
        return run.path

    def get(self, run_id: str, workflow_id: str | None = None) -> Run:
        """The run with this id. Raises NotFound."""
        path = path_of(workflow_id, run_id) if workflow_id else self._path_of_run(run_id)
        document = self._files.read(path) if path else None
        if path is None or document is None:
            raise _no_run(run_id)
        return decode(document, path)

    def resolve(self, wanted: str) -> str:
        """The id that `wanted` means: an id, the beginning of one, or `latest`. Raises NotFound or UsageError."""
        if wanted == LATEST_RUN:
            newest = self.search(limit=1).results
            if not newest:
                raise NotFound("there is no run yet", hint="`swamp workflow run NAME` makes one")
            return newest[0].run_id
        found = by_prefix(wanted, self._ids(), "run")
        if found is None:
            raise _no_run(wanted, self._ids())
        return found

    def _ids(self) -> Iterator[str]:
        for path in self._files.paths():
            name = path.rpartition("/")[2]
            if name.startswith(PREFIX):
                yield name.removeprefix(PREFIX).removesuffix(SUFFIX)

    def list(self, workflow_id: str | None = None) -> Iterator[RunSummary]:
        """Summaries of all runs, in no particular order, one in memory at a time."""
        for path in self._files.paths(check_id(workflow_id) if workflow_id else ""):
            summary = self._summary(path)
            if summary is not None:
                yield summary

    def search(
        self,
        query: str = "",
        *,
        status: str | None = None,
        since: str | None = None,
        workflow_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> RunPage:
        """The newest `limit` runs that fit. Memory holds those and nothing else, however long the history."""
        total = 0

        def fitting() -> Iterator[RunSummary]:
            nonlocal total
            for summary in self.list(workflow_id):
                if _fits(summary, query.lower(), status, since):
                    total += 1
                    yield summary

        newest = heapq.nlargest(limit, fitting(), key=lambda summary: (summary.started_at, summary.run_id))
        return RunPage(tuple(newest), total)

    def is_over(self, run_id: str) -> bool:
        """Whether a run is known and has ended: what its lifetime was bound to may go."""
        path = self._path_of_run(run_id)
        summary = self._summary(path) if path else None
        return summary is not None and summary.status in OVER

    def delete(self, run_id: str, *, confirmed: bool = False) -> bool:
        """Removes one record; False if there is none."""
        path = self._path_of_run(run_id)
        return path is not None and self._files.remove([path], confirmed=confirmed) > 0

    def delete_all_by_workflow(self, workflow_id: str, *, confirmed: bool = False) -> int:
        """Removes every run of a workflow; how many there were."""
        return self._files.remove(list(self._files.paths(check_id(workflow_id))), confirmed=confirmed)

    def _path_of_run(self, run_id: str) -> str | None:
        wanted = f"/{PREFIX}{check_id(run_id)}{SUFFIX}"
        return next((path for path in self._files.paths() if path.endswith(wanted)), None)

    def _summary(self, path: str) -> RunSummary | None:
        raw = self._files.read_bytes(path)
        return None if raw is None else read_summary(raw, path)


def _no_run(wanted: str, known: Iterable[str] = ()) -> NotFound:
    shown = "`swamp workflow run search` shows what is there"
    return NotFound(f"there is no run {wanted}", hint=meant(wanted, known) + shown)


def _fits(summary: RunSummary, query: str, status: str | None, since: str | None) -> bool:
    if status is not None and summary.status != status:
        return False
    if since is not None and summary.started_at < since:
        return False
    texts = (summary.run_id, summary.workflow_name, summary.status, *summary.tags.values())
    return not query or any(query in text.lower() for text in texts)


_KNOWN: Final = frozenset(
    "id workflowId workflowName status startedAt completedAt summary jobs inputs tags pid host triggerSource "
    "trigger".split()
)
_STEP_KNOWN: Final = frozenset("stepName status startedAt completedAt error dataArtifacts".split())


def encode(run: Run) -> bytes:
    """Top-level fields and a summary first, so that a search reads only the head of the file."""
    summary = run.summary
    head: dict[str, Any] = {
        "id": run.id,
        "workflowId": run.workflow_id,
        "workflowName": run.workflow_name,
        "status": run.status,
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "tags": dict(run.tags) or None,
        "trigger": dict(run.trigger) if run.trigger else None,
        "summary": {"failedStep": summary.failed_step, "done": summary.steps_done, "total": summary.steps_total},
    }
    tail: dict[str, Any] = {
        "jobs": [_encode_job(job) for job in run.jobs],
        "inputs": dict(run.inputs),
        "pid": run.pid,
        "host": run.host,
        "triggerSource": run.trigger_source,
        **run.extra,
    }
    return dump({key: value for key, value in {**head, **tail}.items() if value is not None})


def _encode_job(job: JobRun) -> dict[str, Any]:
    return {
        "jobName": job.job_name,
        "status": job.status,
        "steps": [_encode_step(step) for step in job.steps],
        **job.extra,
    }


def _encode_step(step: StepRun) -> dict[str, Any]:
    document = {
        "stepName": step.step_name,
        "status": step.status,
        "startedAt": step.started_at,
        "completedAt": step.completed_at,
        "error": step.error,
    }
    found = {key: value for key, value in document.items() if value is not None}
    return {**found, "dataArtifacts": [dict(artifact) for artifact in step.artifacts], **step.extra}


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


def decode(document: Mapping[str, Any], path: str) -> Run:
    """The run in a document. Raises CorruptData naming the file."""
    try:
        return Run(
            id=document["id"],
            workflow_id=document["workflowId"],
            workflow_name=document["workflowName"],
            status=document["status"],
            started_at=document["startedAt"],
            completed_at=document.get("completedAt"),
            jobs=tuple(_decode_job(job) for job in document.get("jobs") or ()),
            inputs=document.get("inputs") or {},
            tags=document.get("tags") or {},
            pid=document.get("pid"),
            host=document.get("host"),
            trigger_source=document.get("triggerSource"),
            trigger=document.get("trigger"),
            extra={key: value for key, value in document.items() if key not in _KNOWN},
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise damaged(path, f"it is not a run record ({error})") from error


def _decode_job(job: Mapping[str, Any]) -> JobRun:
    extra = {key: value for key, value in job.items() if key not in ("jobName", "status", "steps")}
    steps = tuple(_decode_step(step) for step in job.get("steps") or ())
    return JobRun(job["jobName"], job["status"], steps, extra)


def _decode_step(step: Mapping[str, Any]) -> StepRun:
    return StepRun(
        step_name=step["stepName"],
        status=step["status"],
        started_at=step.get("startedAt"),
        completed_at=step.get("completedAt"),
        error=step.get("error"),
        artifacts=tuple(step.get("dataArtifacts") or ()),
        extra={key: value for key, value in step.items() if key not in _STEP_KNOWN},
    )
