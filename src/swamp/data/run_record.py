"""Workflow runs: the record that the engine changes, its summary, its document, and a search over all of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from swamp.data.document import (
    SUFFIX,
    RecordFiles,
    attributes_of,
    damaged,
    dump,
    keys_of,
    load_mapping,
    told,
    unknown_keys,
)
from swamp.data.names import by_prefix, check_id, meant
from swamp.errors import NotFound
from swamp.sync.port import Tree
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
        known = told(self, _STEP)
        if self.template == self.name:
            del known["template"]
        return {**known, **self.extra, "dataArtifacts": self.artifacts}


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
        return _summary_of(self.head())

    def head(self) -> dict[str, Any]:
        """What stands before the jobs, with a summary: all that a search reads of the file."""
        wrong = ((job, step) for job, step in self.steps if step.status == "failed" and not step.allowed_failure)
        counts = {
            "failedStep": next((f"{job.name}.{step.name}" for job, step in wrong), None),
            "done": sum(step.status in RAN for _, step in self.steps),
            "total": sum(1 for _ in self.steps),
        }
        return {**told(self, _HEAD), "summary": counts}

    def tail(self) -> dict[str, Any]:
        """What stands after the jobs."""
        return {"inputs": dict(self.inputs), **told(self, _TAIL), **self.extra}


_STEP: Final = {
    "stepName": "name",
    **keys_of("template status started_at completed_at duration_ms error allowed_failure"),
}
"""The keys of a step in the record, each with the attribute that it tells."""
_HEAD: Final = keys_of("id workflow_id workflow_name status started_at completed_at tags trigger")
_TAIL: Final = keys_of("pid host trigger_source duration_ms error")


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
        known = told(self, keys_of("run_id workflow_name status started_at"))
        more = told(self, keys_of("failed_step trigger"))
        progress = f"{self.steps_done}/{self.steps_total}"
        return {**known, "completedAt": self.completed_at, **more, "stepProgress": progress}


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
            try:
                return _summary_of(document)
            except KeyError as error:
                raise damaged(path, f"it is not a run record ({error} is missing)") from error
    return decode(load_mapping(raw, path), path).summary


def _summary_of(head: Mapping[str, Any]) -> RunSummary:
    counts = head["summary"]
    return RunSummary(
        run_id=head["id"],
        workflow_id=head["workflowId"],
        workflow_name=head["workflowName"],
        status=head["status"],
        started_at=head["startedAt"],
        completed_at=head.get("completedAt"),
        failed_step=counts.get("failedStep"),
        steps_done=counts.get("done", 0),
        steps_total=counts["total"],
        tags=head.get("tags") or {},
        trigger=head.get("trigger"),
    )


def decode(document: Mapping[str, Any], path: str) -> RunState:
    """The run in a document; keys of a newer writer are kept. Raises CorruptData naming the file."""
    try:
        return RunState(
            **{**attributes_of(document, _HEAD | _TAIL), "tags": dict(document.get("tags") or {})},
            jobs=[_decode_job(job) for job in document.get("jobs") or ()],
            inputs=dict(document.get("inputs") or {}),
            extra=unknown_keys(document, (*_HEAD, *_TAIL, "summary", "jobs", "inputs")),
        )
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise damaged(path, f"it is not a run record ({error})") from error


def _decode_job(job: Mapping[str, Any]) -> JobState:
    steps = [
        StepState(
            **{"template": step["stepName"], **attributes_of(step, _STEP), "status": step["status"]},
            artifacts=[dict(artifact) for artifact in step.get("dataArtifacts") or ()],
            extra=unknown_keys(step, (*_STEP, "dataArtifacts")),
        )
        for step in job.get("steps") or ()
    ]
    return JobState(job["jobName"], job["status"], steps, unknown_keys(job, ("jobName", "status", "steps")))


# -- all runs of a tree

DEFAULT_LIMIT: Final = 100
LATEST_RUN: Final = "latest"


@value
class RunPage:
    """The newest runs that fit, and how many fit in all."""

    results: tuple[RunSummary, ...]
    total: int


class RunRepository:
    """The workflow runs of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._files = RecordFiles(tree, RUNS)

    def save(self, run: RunState) -> str:
        """Writes the record, over an earlier state of the same run; its path."""
        self._files.write(run.path, encode(run))
        return run.path

    def get(self, run_id: str, workflow_id: str | None = None) -> RunState:
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
                if fits(summary, query.lower(), since) and status in (None, summary.status):
                    total += 1
                    yield summary

        newest = heapq.nlargest(limit, fitting(), key=lambda summary: (summary.started_at, summary.run_id))
        return RunPage(tuple(newest), total)

    def is_over(self, run_id: str) -> bool:
        """Whether a run is known and has ended: what its lifetime was bound to may go."""
        path = self._path_of_run(run_id)
        summary = self._summary(path) if path else None
        return summary is not None and summary.status in OVER

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


def fits(summary: RunSummary, query: str, since: str | None) -> bool:
    """Whether a run began since then and its id, names, state or tags hold the text, which is in lower case."""
    if since is not None and summary.started_at < since:
        return False
    texts = (summary.run_id, summary.workflow_name, summary.status, *summary.tags.values())
    return not query or any(query in text.lower() for text in texts)
