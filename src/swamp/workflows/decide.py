"""What people decide about runs: approve, reject, cancel; and what is said of a run whose process is gone."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from swamp.data.records import RecordFiles
from swamp.data.runs import RUNS, RunSummary, path_of
from swamp.env import rfc3339
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.repo.alive import Verdict
from swamp.workflows.presence import Presence
from swamp.workflows.run import Driver, stop_path
from swamp.workflows.state import JobState, RunState, StepState, job_outcome, run_of

Decision = Literal["approved", "rejected"]


@dataclass(frozen=True)
class Decided:
    """The run after a decision, and whether steps wait for `resume`."""

    run: RunState
    step: str
    left_waiting: bool


def decide(
    driver: Driver, run_id: str, decision: Decision, *, step: str | None = None, reason: str | None = None
) -> Decided:
    """Answers the question that a run waits with. What has to run for it runs with `resume`."""
    known = driver.find_anywhere(run_id)
    with (
        driver.presence.hold(known.workflow_id, run_id) as hold,
        driver.shared_record("", f"workflow {decision}"),  # guards of the steps behind it may ask for any data
    ):
        run = run_of(driver.runs.get(run_id, known.workflow_id))
        state = _gate(run, step)
        if "approval" not in state.extra:
            return _decide_inside(driver, run, state, decision, reason)
        workflow = driver.workflow_of(run)
        book = driver.book(run)
        with book.change():
            state.extra["approval"] |= _words(driver, decision, reason)
        left = driver.settle(book, workflow, hold)
    return Decided(run, state.name, left)


def _decide_inside(driver: Driver, run: RunState, state: StepState, decision: Decision, reason: str | None) -> Decided:
    """The question is asked by a nested run: it is answered there."""
    inner = decide(driver, str(state.extra["childRunId"]), decision, reason=reason)
    return Decided(run, inner.step, True)


def _words(driver: Driver, decision: Decision, reason: str | None) -> dict[str, Any]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    words = {"decision": decision, "decidedBy": user, "decidedAt": rfc3339(driver.shop.env.clock.now())}
    return {**words, "reason": reason} if reason else words


def _gate(run: RunState, wanted: str | None) -> StepState:
    """The step that waits. Raises UsageError when there is none, or several and none was named."""
    open_gates = [(job, step) for job, step in run.steps if _waits(step)]
    if wanted is not None:
        open_gates = [(job, step) for job, step in open_gates if wanted in (step.name, f"{job.name}.{step.name}")]
    if not open_gates:
        what = f"step `{wanted}` does not wait" if wanted else f"run {run.id} ({run.status}) does not wait"
        raise UsageError(f"{what} for a decision", hint=f"`swamp workflow history get {run.id}` shows its steps")
    if len(open_gates) > 1:
        names = ", ".join(f"{job.name}.{step.name}" for job, step in open_gates)
        raise UsageError(f"several steps wait: {names}", hint="name one of them")
    return open_gates[0][1]


def _waits(step: StepState) -> bool:
    if step.status != "suspended":
        return False
    return "childRunId" in step.extra or "decision" not in step.extra.get("approval", {"decision": ""})


# -- cancelling


@dataclass(frozen=True)
class Cancelled:
    run_id: str
    status: Literal["cancelled", "cancelling"]


def cancel_run(driver: Driver, run_id: str) -> Cancelled:
    """Stops a run: at once when nothing runs, else by a request that reaches its process wherever it is."""
    known = driver.find_anywhere(run_id)
    path = path_of(known.workflow_id, run_id)
    with driver.shared_record(path, "workflow cancel"):
        run = run_of(driver.runs.get(run_id, known.workflow_id))
        if run.over:
            raise UsageError(f"run {run_id} is over: {run.status}", hint="there is nothing to cancel")
        dead = run.status != "running" or _verdict(driver.presence, run, fresh=True) == "dead"
        if not dead:
            request = {"requestedAt": rfc3339(driver.shop.env.clock.now())}
            files = RecordFiles(driver.shop.repo.tree, RUNS)
            files.write(stop_path(run.workflow_id, run.id), f"{request['requestedAt']}\n".encode())
            return Cancelled(run_id, "cancelling")
        with driver.presence.hold(run.workflow_id, run.id), driver.book(run).change():
            if run_of(driver.runs.get(run_id, run.workflow_id)).over:
                raise UsageError(f"run {run_id} has just ended", hint="there is nothing to cancel")
            _stop_all(run, "cancelled", "cancelled before it ran")
            run.status = "cancelled"
            run.completed_at = rfc3339(driver.shop.env.clock.now())
    return Cancelled(run_id, "cancelled")


def _stop_all(run: RunState, status: Literal["cancelled", "failed"], error: str) -> None:
    for job, step in run.steps:
        if step.status in ("running", "suspended") or (status == "cancelled" and not step.over):
            step.status, step.error = status, error
        _settle_job(job)


def _settle_job(job: JobState) -> None:
    if job.status != "skipped":
        job.status = job_outcome(job)


# -- runs whose process is gone


def _verdict(presence: Presence, run: RunState | RunSummary, *, fresh: bool) -> Verdict:
    run_id = run.id if isinstance(run, RunState) else run.run_id
    return presence.verdict(run.workflow_id, run_id, fresh=fresh)


def as_seen(driver: Driver, run: RunState) -> RunState:
    """The run as it is: one that says `running` and has no process was interrupted. Nothing is written."""
    if run.status != "running" or _verdict(driver.presence, run, fresh=False) != "dead":
        return run
    again = driver.find(run.id)
    if again.status == "running":  # else it ended between the two looks
        interrupt(again)
    return again


def interrupt(run: RunState) -> None:
    """Says what happened: which steps were under way when the process ended."""
    under_way = [step.name for _, step in run.steps if step.status == "running"]
    at = f" at {', '.join(under_way)}" if under_way else ""
    run.error = f"interrupted{at}: process {run.pid} on {run.host} ended without finishing the run"
    _stop_all(run, "failed", "interrupted: the process that ran it is gone")
    run.status = "failed"
    run.extra["interrupted"] = True


def note_interrupted(driver: Driver) -> list[RunState]:
    """Writes down which runs of this machine were killed. Costs a look into one directory when there are none."""
    noted: list[RunState] = []
    for run_id in driver.presence.here():
        try:
            run = driver.find(run_id)
        except (NotFound, UsageError, CorruptData):
            continue  # not of this repository, or its record never came to be
        if run.status != "running" or _verdict(driver.presence, run, fresh=False) != "dead":
            continue
        with (
            driver.presence.hold(run.workflow_id, run.id),
            driver.shared_record(path_of(run.workflow_id, run.id), "workflow interrupted"),
        ):
            run = driver.find(run_id)  # it may have ended after it was read, and then nobody had its lock either
            if run.status != "running":
                continue
            with driver.book(run).change():
                interrupt(run)
        noted.append(run)
    return noted


def seen_summary(driver: Driver, summary: RunSummary) -> tuple[RunSummary, bool]:
    """A line of a search, and whether it is of a run that was interrupted."""
    if summary.status != "running" or _verdict(driver.presence, summary, fresh=False) != "dead":
        return summary, False
    again = driver.runs.get(summary.run_id, summary.workflow_id)
    if again.status != "running":
        return again.summary, False  # it ended between the two looks
    run = run_of(again)
    interrupt(run)
    failed = next((f"{job.name}.{step.name}" for job, step in run.steps if step.status == "failed"), None)
    return replace(summary, status="failed", failed_step=failed), True


def search(driver: Driver, query: str, *, status: str | None, since: str | None, limit: int) -> Mapping[str, Any]:
    """Runs that fit, newest first, with interrupted ones told as what they are."""
    found = driver.runs.search(query, status=status, since=since, limit=limit)
    rows = [seen_summary(driver, summary) for summary in found.results]
    total = found.total
    if status == "running":
        total -= sum(dead for _, dead in rows)
        rows = [row for row in rows if not row[1]]
    if status == "failed":
        running = driver.runs.search(query, status="running", since=since, limit=limit)
        dead_rows = [row for row in (seen_summary(driver, summary) for summary in running.results) if row[1]]
        rows = sorted([*rows, *dead_rows], key=lambda row: row[0].started_at, reverse=True)[:limit]
        total += len(dead_rows)
    results = [summary.to_json() | ({"interrupted": True} if dead else {}) for summary, dead in rows]
    return {"results": results, "total": total}
