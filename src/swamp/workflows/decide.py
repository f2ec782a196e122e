"""What people ask of runs: to approve, reject or cancel one, what a new one would do, how one goes on, what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from swamp.data.document import RecordFiles
from swamp.data.run_record import RUNS, RunState, RunSummary, StepState
from swamp.env import rfc3339, user_name
from swamp.errors import CorruptData, Failed, LockTimeout, NotFound, StoreError, SwampError, UsageError
from swamp.models.expressions import evaluate
from swamp.models.inputs import check_inputs
from swamp.values import value
from swamp.workflows.execute import Instance
from swamp.workflows.perform import TaskRunner
from swamp.workflows.recorder import NullWatcher, RunRecorder
from swamp.workflows.run import Driver
from swamp.workflows.schema import ApprovalTask, Job, ModelTask, Step, WorkflowTask, build
from swamp.workflows.state import stop_all, stop_path

Decision = Literal["approved", "rejected"]


@value
class DecidedRun:
    """The run after a decision, and whether steps wait for `resume`."""

    run: RunState
    step: str
    decision: Decision
    left_waiting: bool

    def to_json(self) -> dict[str, Any]:
        """What became of a run that waited for a person."""
        known = {"step": self.step, "decision": self.decision, "status": self.run.status}
        return {"id": self.run.id, "workflowName": self.run.workflow_name, **known, "resumable": self.left_waiting}


def decide(
    driver: Driver, run_id: str, decision: Decision, *, step: str | None = None, reason: str | None = None
) -> DecidedRun:
    """Answers the question that a run waits with. What has to run for it runs with `resume`."""
    known = driver.find_anywhere(run_id)
    with (
        driver.locks.hold(known.workflow_id, run_id) as hold,
        driver.shared_record(f"workflow {decision}"),  # guards of the steps behind it may ask for any data
    ):
        run = driver.runs.get(run_id, known.workflow_id)
        state = _gate(run, step)
        if "approval" not in state.extra:  # the question is asked by a nested run: it is answered there
            inner = decide(driver, str(state.extra["childRunId"]), decision, reason=reason)
            return DecidedRun(run, inner.step, decision, True)
        workflow = driver.workflow_of(run)
        recorder = driver.recorder(run)
        with recorder.change():
            words = {
                "decision": decision,
                "decidedBy": user_name(),
                "decidedAt": rfc3339(driver.context.env.clock.now()),
            }
            state.extra["approval"] |= {**words, "reason": reason} if reason else words
        left = driver.settle(TaskRunner(driver, workflow, recorder, hold))
    return DecidedRun(run, state.name, decision, left)


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


TRIES: Final = 4
ANSWER_SECONDS: Final = 30.0


CancelStatus = Literal["cancelled", "cancelling"]


def cancel_run(driver: Driver, run_id: str) -> CancelStatus:
    """Stops a run: at once when nothing runs, else by a request that reaches its process wherever it is.

    What this says is in the run's record, or will be: or it says that it came too late. K14, inv[run.decided]
    """
    workflow_id = driver.find_anywhere(run_id).workflow_id
    for _ in range(TRIES):
        done = _asked_or_stopped(driver, workflow_id, run_id)
        if done is not None:
            return done
    raise LockTimeout(f"run {run_id} changes hands all the time", hint="try again, or stop who resumes it")


def _asked_or_stopped(driver: Driver, workflow_id: str, run_id: str) -> CancelStatus | None:
    """None if the run was taken up, or let go of, between the look and the act: look again."""
    known = driver.runs.get(run_id, workflow_id)
    with driver.shared_record("workflow cancel", known, and_request=True):
        run = _not_over(driver, workflow_id, run_id, "is over")
        # One that says `running` and that nobody can judge is asked, not overruled.
        verdict = driver.locks.verdict(run.workflow_id, run.id, fresh=True)
        alive = verdict == "alive" or (run.status == "running" and verdict != "dead")
        if alive:
            said = f"{rfc3339(driver.context.env.clock.now())}\n"
            RecordFiles(driver.context.repo.tree, RUNS).write(stop_path(run), said.encode())
    return _acknowledged(driver, run) if alive else _stopped(driver, run)


def _acknowledged(driver: Driver, asked: RunState) -> CancelStatus | None:
    """The request is in the store. Whoever ends the run after that commit sees it; whoever ended it before is seen."""
    clock = driver.context.env.clock
    until = clock.monotonic() + ANSWER_SECONDS
    while True:
        with driver.shared_record("workflow cancel", asked, and_request=True):
            run = driver.runs.get(asked.id, asked.workflow_id)
        alive = driver.locks.verdict(run.workflow_id, run.id, fresh=True) != "dead"
        if run.status == "cancelled":
            return "cancelled"
        if not run.over:
            return "cancelling" if alive and run.status == "running" else None
        if not alive or clock.monotonic() > until:
            break
        clock.sleep(0.3)  # it has ended, and its process has yet to look for a request that came at the last moment
    with driver.shared_record("workflow cancel", asked, and_request=True):
        driver.withdraw_request(run)
    raise Failed(f"run {run.id} had ended before it could be cancelled: {run.status}", hint="what it wrote is there")


def _stopped(driver: Driver, seen: RunState) -> CancelStatus | None:
    """Nobody runs it: its record says so, under its lock until that is in the store."""
    try:
        with (
            driver.locks.hold(seen.workflow_id, seen.id),
            driver.shared_record("workflow cancel", seen, and_request=True),
        ):
            run = _not_over(driver, seen.workflow_id, seen.id, "has just ended")
            with driver.recorder(run).change():
                stop_all(run, "cancelled", "cancelled before it ran")
                run.status, run.completed_at = "cancelled", rfc3339(driver.context.env.clock.now())
                driver.withdraw_request(run)
    except LockTimeout:
        return None
    return "cancelled"


def _not_over(driver: Driver, workflow_id: str, run_id: str, words: str) -> RunState:
    run = driver.runs.get(run_id, workflow_id)
    if run.over:
        raise UsageError(f"run {run_id} {words}: {run.status}", hint="there is nothing to cancel")
    return run


# -- runs whose process is gone


def as_seen(driver: Driver, run: RunState) -> RunState:
    """The run as it is: one that says `running` and has no process was interrupted. Nothing is written."""
    if run.status != "running" or driver.locks.verdict(run.workflow_id, run.id, fresh=False) != "dead":
        return run
    again = driver.runs.get(run.id)
    if again.status == "running":  # else it ended between the two looks
        interrupt(again)
    return again


def interrupt(run: RunState) -> None:
    """Says what happened: which steps were under way when the process ended."""
    under_way = [step.name for _, step in run.steps if step.status == "running"]
    at = f" at {', '.join(under_way)}" if under_way else ""
    run.error = f"interrupted{at}: process {run.pid} on {run.host} ended without finishing the run"
    stop_all(run, "failed", "interrupted: the process that ran it is gone")
    run.status = "failed"
    run.extra["interrupted"] = True


def note_interrupted(driver: Driver) -> list[RunState]:
    """Writes down which runs of this machine were killed. Costs a look into one directory when there are none."""
    noted: list[RunState] = []
    for run_id in driver.locks.here():
        try:
            run = driver.runs.get(run_id)
        except (NotFound, UsageError, CorruptData):
            continue  # not of this repository, or its record never came to be
        if run.status != "running" or driver.locks.verdict(run.workflow_id, run.id, fresh=False) != "dead":
            continue
        with (
            driver.locks.hold(run.workflow_id, run.id),
            driver.shared_record("workflow interrupted", run),
        ):
            run = driver.runs.get(run_id)  # it may have ended after it was read, and then nobody had its lock either
            if run.status != "running":
                continue
            with driver.recorder(run).change():
                interrupt(run)
        noted.append(run)
    return noted


def seen_summary(driver: Driver, summary: RunSummary) -> tuple[RunSummary, bool]:
    """A line of a search, and whether it is of a run that was interrupted."""
    if summary.status != "running" or driver.locks.verdict(summary.workflow_id, summary.run_id, fresh=False) != "dead":
        return summary, False
    again = driver.runs.get(summary.run_id, summary.workflow_id)
    if again.status != "running":
        return again.summary, False  # it ended between the two looks
    interrupt(again)
    failed = next((f"{job.name}.{step.name}" for job, step in again.steps if step.status == "failed"), None)
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
    return {"items": results, "total": total, "results": results}  # `results`: the older name, for one minor version


def approvals(driver: Driver, limit: int = 100) -> list[dict[str, Any]]:
    """Every question that a run waits with, the newest runs first; one of a nested run is told there."""
    found: list[dict[str, Any]] = []
    for summary in driver.runs.search(status="suspended", limit=limit).results:
        run = driver.runs.get(summary.run_id, summary.workflow_id)
        found += [
            {
                "runId": run.id,
                "workflowName": run.workflow_name,
                "job": job.name,
                "step": step.name,
                "prompt": step.extra["approval"].get("prompt", ""),
                "since": step.started_at,
            }
            for job, step in run.steps
            if "approval" in step.extra and _waits(step)
        ]
    return found


# -- following a run's log while it grows, here or elsewhere (docs/decisions/0015-running-logs.md)

HERE_SECONDS: Final = 0.3
ELSEWHERE_SECONDS: Final = 2.0


def followed(driver: Driver, run_id: str, notify: Callable[[str], None]) -> Iterator[str]:
    """Each line once, until the run is over, waits for a person, or its process is gone.

    Elsewhere a line is seen when a push has brought it into the store: at the end of the step that said it.
    """
    told = 0
    away = False
    while True:
        run = as_seen(driver, driver.runs.get(run_id))  # first: what was said before its end is then all there
        text = driver.logs.text(run)
        whole = text[: text.rfind("\n") + 1] if run.status == "running" else text
        if len(whole) > told:
            yield from whole[told:].splitlines()
            told = len(whole)
        if run.status != "running":
            return
        here = driver.context.log_of(run_id).exists()  # every line of it can be read at once
        driver.context.env.clock.sleep(HERE_SECONDS if here else ELSEWHERE_SECONDS)
        if not here:
            away = _fetched(driver, run, notify, away)


def _fetched(driver: Driver, run: RunState, notify: Callable[[str], None], was_away: bool) -> bool:
    """Brings the record and the log; whether the store was away. One conditional request where nothing has changed."""
    engine = driver.context.repo.datastore.engine
    if engine is None:
        return False
    try:
        engine.pull((run.path, f"logs/workflow-runs/{run.id}.log"))
    except StoreError as error:
        if not was_away:
            notify(f"the store does not answer, trying again: {error.message}")
        return True
    return False


# -- a plan: what a run would do, its steps expanded and guarded as far as that is known


def plan_run(driver: Driver, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The steps of `workflow run NAME` with these inputs. Nothing is written and nothing runs.

    Raises UsageError for wrong inputs, as the run would.
    """
    workflow = driver.files.find(name).workflow
    values = check_inputs(inputs, workflow.inputs, f"workflow {workflow.name}", driver.context.masker)
    run = driver.new_run(workflow, values, dict(workflow.tags), {"kind": "plan"}, None)
    recorder = RunRecorder(run, lambda _: None, driver.context.env, NullWatcher())
    runner = TaskRunner(driver, workflow, recorder, lambda: None)
    order: list[dict[str, Any]] = []
    sorter = build(workflow)
    stage = 0
    while sorter.is_active():
        ready = sorter.get_ready()
        steps = [node for node in ready if node.kind == "step"]
        stage += bool(steps)
        for node in steps:
            job = workflow.job(node.job)
            order += [{**one, "stage": stage} for one in _planned(driver, runner, job, job.step(node.step))]
        sorter.done(*ready)
    shown = driver.context.masker.value(dict(values))
    return {"workflowName": workflow.name, "workflowId": workflow.id, "inputs": shown, "steps": order}


def _planned(driver: Driver, runner: TaskRunner, job: Job, step: Step) -> list[dict[str, Any]]:
    waits = [f"{job.name}.{dependency.step}" for dependency in step.depends_on]
    waits += [dependency.job for dependency in job.depends_on]
    about: dict[str, Any] = {"job": job.name, "dependsOn": waits}
    about |= {"retries": step.retries} if step.retries else {}
    about |= {"timeout": step.timeout} if step.timeout is not None else {}
    about |= {"allowFailure": True} if step.allow_failure else {}
    try:
        instances = runner.expand(job, step)
    except SwampError as error:  # it needs what an earlier step makes
        unknown = driver.context.masker.text(error.message.splitlines()[0])
        return [{"step": step.name, **about, "runs": "unknown", "why": unknown, **_task(step, None, runner)}]
    return [
        {"step": one.name, **about, **_guarded(driver, runner, one), **_task(step, one, runner)} for one in instances
    ]


def _guarded(driver: Driver, runner: TaskRunner, instance: Instance) -> dict[str, Any]:
    if isinstance(instance.step.task, ApprovalTask):
        return {"runs": "asks"}
    try:
        return {"runs": "yes"} if runner.wanted(instance) else {"runs": "no", "why": f"guard: {instance.step.guard}"}
    except SwampError as error:
        return {"runs": "unknown", "why": driver.context.masker.text(error.message.splitlines()[0])}


def _task(step: Step, instance: Instance | None, runner: TaskRunner) -> dict[str, Any]:
    task = step.task
    if isinstance(task, ModelTask):
        model = task.model_id_or_name or task.model_name or ""
        return {"task": "model_method", "model": _shown(model, instance, runner), "method": task.method_name}
    if isinstance(task, WorkflowTask):
        return {"task": "workflow", "workflow": _shown(task.workflow_id_or_name, instance, runner)}
    return {"task": task.type}


def _shown(text: str, instance: Instance | None, runner: TaskRunner) -> str:
    """A name with its expressions resolved where that is possible now."""
    if instance is None:
        return text
    try:
        return str(evaluate(text, runner.scope_of(instance)).shown)
    except SwampError:
        return text
