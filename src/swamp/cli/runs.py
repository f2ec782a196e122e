"""`swamp workflow`: runs: found, shown, continued, decided about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.arguments import Inputs, RunId
from swamp.cli.command import CommandSession, group, reading, session
from swamp.cli.model import collect_after
from swamp.cli.render import short, when
from swamp.cli.watch import SIGNS, seconds_text, step_text, watching, without_bars
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.data.run_record import RunState
    from swamp.workflows.run import Driver

history = group("Runs that were.")


@contextmanager
def open_driver(s: CommandSession, watcher: Any = None) -> Iterator[Driver]:
    from swamp.workflows.recorder import NullWatcher
    from swamp.workflows.run import Driver

    with s.run_context() as context:
        yield Driver(context, watcher or NullWatcher())


@contextmanager
def asking(s: CommandSession) -> Iterator[Driver]:
    """The same for a command that reads: the store is asked first."""
    s.repo.freshen()
    with open_driver(s) as driver:
        yield driver


def search_runs(query: str | None, status: str | None, since: str | None, limit: int) -> None:
    from swamp.data.run_record import RUN_STATUSES
    from swamp.env import rfc3339
    from swamp.repo.data import parse_since
    from swamp.workflows.decide import search

    if status is not None and status not in RUN_STATUSES:
        raise UsageError(f"`{status}` is not a status", hint=f"there is {', '.join(RUN_STATUSES)}")
    with session(reading=True) as s, asking(s) as driver:
        moment = None if since is None else rfc3339(parse_since(since, s.repo.env.clock.now()))
        found = search(driver, query or "", status=status, since=moment, limit=limit)
        ids = [r["runId"] for r in found["items"]]
        rows = [
            (short(r["runId"], ids), r["workflowName"], r["status"], when(r["startedAt"]), r["stepProgress"],
             r.get("failedStep"))
            for r in found["items"]
        ]  # fmt: skip
        s.answer(found, lambda: s.out.table(("RUN", "WORKFLOW", "STATUS", "STARTED", "STEPS", "FAILED AT"), rows))


def show_run(s: CommandSession, run: RunState) -> None:
    """The end of a run, said after its record is where it belongs. Failed: exit 1."""
    from swamp.workflows.state import run_document

    s.out.result(run_document(run), lambda: _run_text(s, run))
    if run.status in ("failed", "cancelled"):
        raise typer.Exit(1)


def _run_text(s: CommandSession, run: RunState) -> None:
    versions = sum(len(step.artifacts) for _, step in run.steps)
    sign = SIGNS[run.status][0]
    s.out.line(f"{sign} {run.workflow_name}: {run.status}, {seconds_text(run.duration_ms)}, {versions} data version(s)")
    s.out.line(f"  run {run.id}")
    waiting = [step for _, step in run.steps if step.status == "suspended"]
    for step in waiting:
        s.out.line(f"  {step.name} waits: {step.extra.get('approval', {}).get('prompt', 'a nested run')}")
    if waiting:
        s.out.line(f"  swamp workflow approve {run.id}, then swamp workflow resume {run.id}")
    if run.status == "failed":
        s.out.line(f"  swamp workflow resume {run.id} does what is not done")


def resume(
    run_id: RunId,
    from_step: Annotated[
        str | None, typer.Option("--from", metavar="STEP", help="Do this step and what follows it again.")
    ] = None,
    inputs: Inputs = None,
) -> None:
    """Continue a run that was suspended, failed, cancelled or killed, at the first step that is not done."""
    from swamp.models.inputs import parse_inputs

    values = parse_inputs(inputs or ())
    with session() as s:
        s.out = without_bars(s.out)
        with watching(s.out) as watcher, open_driver(s, watcher) as driver:
            driver.cancel = s.cancel
            done = driver.resume(driver.resolve(run_id), from_step=from_step, inputs=values)
        collect_after(s)
        show_run(s, done)


def _decided(run_id: str, decision: Any, step: str | None, reason: str | None) -> None:
    from swamp.workflows.decide import decide
    from swamp.workflows.state import decided_document

    with session() as s, open_driver(s) as driver:
        run_id = driver.resolve(run_id)
        found = decide(driver, run_id, decision, step=step, reason=reason)
        document = decided_document(run_id, decision, found)
        then = f"; continue with: swamp workflow resume {run_id}" if found.left_waiting else f"; run {found.run.status}"
        s.out.result(document, f"{found.step}: {decision}{then}")


Step = Annotated[str | None, typer.Argument(metavar="[STEP]", help="Which step, if several wait.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Kept in the record.")]


def approve(run_id: RunId, step: Step = None, reason: Reason = None) -> None:
    """Answer a run that waits for a person: yes. `resume` then continues it."""
    _decided(run_id, "approved", step, reason)


def reject(run_id: RunId, step: Step = None, reason: Reason = None) -> None:
    """Answer a run that waits for a person: no."""
    _decided(run_id, "rejected", step, reason)


def cancel(run_id: RunId) -> None:
    """Stop a run, on this machine or another: its processes are ended, what it wrote stays."""
    from swamp.workflows.decide import cancel_run

    with session() as s, open_driver(s) as driver:
        run_id = driver.resolve(run_id)
        done = cancel_run(driver, run_id)
        words = {
            "cancelled": f"Cancelled {run_id}",
            "cancelling": f"Asked the process of {run_id} to stop; it ends before its next step at the latest",
        }
        s.out.result({"id": run_id, "status": done}, words[done])


@reading(history, "get")
def history_get(run_id: RunId) -> None:
    """Show a run: its jobs, steps, times and what they wrote."""
    from swamp.workflows.decide import as_seen
    from swamp.workflows.state import history_document

    with session(reading=True) as s, asking(s) as driver:
        found = as_seen(driver, driver.find(driver.resolve(run_id)))
        s.answer(history_document(found), lambda: _history_text(s, found))


def _history_text(s: CommandSession, run: RunState) -> None:
    s.out.line(f"{SIGNS[run.status][0]} {run.workflow_name}  {run.status}  {seconds_text(run.duration_ms)}")
    s.out.line(f"  run {run.id}, started {when(run.started_at)} on {run.host or ''}")
    if run.error:
        s.out.line(f"  {run.error}")
    for job in run.jobs:
        s.out.line(f"{SIGNS[job.status][0]} {job.name}")
        for step in job.steps:
            note = step_text(step)
            s.out.line(f"  {SIGNS[step.status][0]} {step.name}" + (f"  {note}" if note else ""))
            for artifact in step.artifacts:
                s.out.line(f"      {artifact.get('modelName')}/{artifact['name']} version {artifact['version']}")


def approvals() -> None:
    """List the steps that wait for somebody's decision, on any machine."""
    from swamp.workflows.decide import approvals as waiting

    with session(reading=True) as s, asking(s) as driver:
        items = waiting(driver)
        ids = [item["runId"] for item in items]
        rows = [
            (short(i["runId"], ids), i["workflowName"], f"{i['job']}.{i['step']}", i["prompt"], when(i["since"]))
            for i in items
        ]
        columns = ("RUN", "WORKFLOW", "STEP", "PROMPT", "SINCE")
        s.items(items, columns, rows)


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over, wherever it runs.")]


def logs(run_id: RunId, follow: Follow = False) -> None:
    """Show what the steps of a run said; with -f, as they say it."""
    from swamp.workflows.decide import followed

    with session(reading=True) as s, asking(s) as driver:
        found = driver.find(driver.resolve(run_id))
        if not follow:
            text = driver.logs.text(found)
            s.answer({"id": found.id, "lines": text.splitlines()}, lambda: s.out.line(text.rstrip("\n")))
            return
        lines: list[str] = []
        for line in followed(driver, found.id, s.out.info):
            lines.append(line) if s.common.json else s.out.line(line)
        if s.common.json:
            s.answer({"id": found.id, "status": driver.find(found.id).status, "lines": lines})


reading(history, "logs")(logs)
