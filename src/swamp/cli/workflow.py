"""`swamp workflow`: workflow files, runs and what people decide about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli import command
from swamp.cli.command import (
    CommandSession,
    InputFile,
    Inputs,
    NewText,
    RunId,
    Tags,
    Workflow,
    Yes,
    common,
    group,
    reading,
    session,
)
from swamp.cli.model import collect_after, given_as, new_text, show_problems, warn_of_broken
from swamp.cli.render import short, when
from swamp.cli.watch import SIGNS, seconds_text, step_text, watching
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.data.run_record import RunState
    from swamp.workflows.run import Driver

app = group("Workflows and their runs.")
history = group("Runs that were.")
app.add_typer(history, name="history")


@contextmanager
def open_driver(s: CommandSession) -> Iterator[Driver]:
    from swamp.workflows.run import Driver

    with s.run_context() as context:
        yield Driver(context)


def search_runs(query: str | None, status: str | None, since: str | None, limit: int) -> None:
    from swamp.data.run_record import RUN_STATUSES
    from swamp.env import rfc3339
    from swamp.repo.data import parse_since
    from swamp.workflows.decide import search

    if status is not None and status not in RUN_STATUSES:
        raise UsageError(f"`{status}` is not a status", hint=f"there is {', '.join(RUN_STATUSES)}")
    with session(reading=True) as s, open_driver(s) as driver:
        moment = None if since is None else rfc3339(parse_since(since, s.repo.env.clock.now()))
        found = search(driver, query or "", status=status, since=moment, limit=limit)
        ids = [r["runId"] for r in found["items"]]
        rows = [
            (short(r["runId"], ids), r["workflowName"], r["status"], when(r["startedAt"]), r["stepProgress"],
             r.get("failedStep"))
            for r in found["items"]
        ]  # fmt: skip
        s.answer(found, lambda: s.out.table(("RUN", "WORKFLOW", "STATUS", "STARTED", "STEPS", "FAILED AT"), rows))


def _watched(work: Callable[[CommandSession, Driver], RunState]) -> None:
    """Runs a workflow, or what is left of a run, while somebody watches.

    Its end is said after its record is where it belongs. Failed: exit 1.
    """
    from swamp.workflows.state import run_document

    with session() as s:
        # A live tree and the bars of pushes would overwrite each other.
        s.out = replace(s.out, bars=not sys.stdout.isatty() or s.out.json)
        with watching(s.out) as watcher, open_driver(s) as driver:
            driver.watcher, driver.cancel = watcher, s.cancel
            done = work(s, driver)
        collect_after(s)
        s.out.result(run_document(done), lambda: _run_text(s, done))
        if done.status in ("failed", "cancelled"):
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


@app.command("resume")
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
    _watched(lambda _, driver: driver.resume(driver.resolve(run_id), from_step=from_step, inputs=values))


def _decided(run_id: str, decision: Any, step: str | None, reason: str | None) -> None:
    from swamp.workflows.decide import decide

    with session() as s, open_driver(s) as driver:
        run_id = driver.resolve(run_id)
        found = decide(driver, run_id, decision, step=step, reason=reason)
        then = f"; continue with: swamp workflow resume {run_id}" if found.left_waiting else f"; run {found.run.status}"
        s.out.result(found.to_json(), f"{found.step}: {decision}{then}")


Step = Annotated[str | None, typer.Argument(metavar="[STEP]", help="Which step, if several wait.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Kept in the record.")]


@app.command("approve")
def approve(run_id: RunId, step: Step = None, reason: Reason = None) -> None:
    """Answer a run that waits for a person: yes. `resume` then continues it."""
    _decided(run_id, "approved", step, reason)


@app.command("reject")
def reject(run_id: RunId, step: Step = None, reason: Reason = None) -> None:
    """Answer a run that waits for a person: no."""
    _decided(run_id, "rejected", step, reason)


@app.command("cancel")
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

    with session(reading=True) as s, open_driver(s) as driver:
        found = as_seen(driver, driver.runs.get(driver.resolve(run_id)))
        waits = found.over and s.repo.changes.wait_here(found.path)
        s.answer(history_document(found, waits=waits), lambda: _history_text(s, found, waits))


def _history_text(s: CommandSession, run: RunState, waits: bool) -> None:
    s.out.line(f"{SIGNS[run.status][0]} {run.workflow_name}  {run.status}  {seconds_text(run.duration_ms)}")
    s.out.line(f"  run {run.id}, started {when(run.started_at)} on {run.host or ''}")
    if waits:
        s.out.line(f"  {run.status} here, not shared yet: `swamp datastore sync` delivers it")
    if run.error:
        s.out.line(f"  {run.error}")
    for job in run.jobs:
        s.out.line(f"{SIGNS[job.status][0]} {job.name}")
        for step in job.steps:
            note = step_text(step)
            s.out.line(f"  {SIGNS[step.status][0]} {step.name}" + (f"  {note}" if note else ""))
            for artifact in step.artifacts:
                s.out.line(f"      {artifact.get('modelName')}/{artifact['name']} version {artifact['version']}")


@reading(app, "approvals")
def approvals() -> None:
    """List the steps that wait for somebody's decision, on any machine."""
    from swamp.workflows.decide import approvals as waiting

    with session(reading=True) as s, open_driver(s) as driver:
        items = waiting(driver)
        ids = [item["runId"] for item in items]
        rows = [
            (short(i["runId"], ids), i["workflowName"], f"{i['job']}.{i['step']}", i["prompt"], when(i["since"]))
            for i in items
        ]
        columns = ("RUN", "WORKFLOW", "STEP", "PROMPT", "SINCE")
        s.items(items, columns, rows)


Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over, wherever it runs.")]


@reading(history, "logs")
@reading(app, "logs")
def logs(run_id: RunId, follow: Follow = False) -> None:
    """Show what the steps of a run said; with -f, as they say it."""
    from swamp.workflows.decide import followed

    with session(reading=True) as s, open_driver(s) as driver:
        found = driver.runs.get(driver.resolve(run_id))
        if not follow:
            text = driver.logs.text(found)
            s.answer({"id": found.id, "lines": text.splitlines()}, lambda: s.out.line(text.rstrip("\n")))
            return
        lines: list[str] = []
        for line in followed(driver, found.id, s.out.info):
            lines.append(line) if s.common.json else s.out.line(line)
        if s.common.json:
            s.answer({"id": found.id, "status": driver.runs.get(found.id).status, "lines": lines})


# -- files


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new workflow's name.")], file: NewText = None
) -> None:
    """Write workflows/workflow-NAME.yaml: a skeleton that runs, or the text of --file."""
    with session() as s, open_driver(s) as driver:
        text = new_text("", file, lambda text: None) if file is not None else None
        made = driver.files.create(name, text, given_as(file, "the text"))
        document = {"id": made.workflow.id, "name": made.workflow.name, "file": made.file}
        s.out.result(document, f"Created {made.file}")


@app.command("list")
def list_workflows() -> None:
    """List all workflows."""
    with session() as s, open_driver(s) as driver:
        found = list(driver.files.all())
        items = [f.to_json() for f in found]
        rows = [
            (f.workflow.name, len(f.workflow.jobs), sum(len(j.steps) for j in f.workflow.jobs), f.file) for f in found
        ]
        s.out.items(items, ("NAME", "JOBS", "STEPS", "FILE"), rows, **warn_of_broken(s, driver.files.broken()))


@app.command("get")
def get_workflow(name: Workflow) -> None:
    """Show a workflow."""
    with session() as s, open_driver(s) as driver:
        found = driver.files.find(name)
        text = (s.repo.path / found.file).read_text(encoding="utf-8")
        s.out.result({**found.workflow.to_document(), "file": found.file}, lambda: s.out.line(text.rstrip("\n")))


@app.command("edit")
def edit_workflow(name: Workflow, file: NewText = None) -> None:
    """Change a workflow in your editor, or with --file. A wrong text changes nothing."""
    from swamp.models.document import refuse
    from swamp.workflows.schema import inspect

    with session() as s, open_driver(s) as driver:
        source = driver.files.file_of(name)
        current = (s.repo.path / source).read_text(encoding="utf-8")
        shown = given_as(file, source)
        text = new_text(current, file, lambda text: refuse(shown, inspect(text, shown)[2]))
        changed = driver.files.save_text(text, source)
        s.out.result({"id": changed.workflow.id, "name": changed.workflow.name, "file": source}, f"Saved {source}")


@app.command("delete")
def delete_workflow(name: Workflow, yes: Yes = False) -> None:
    """Remove a workflow and the records of its runs. The data that its runs wrote stays."""
    from swamp.workflows.recorder import forget_evaluated

    with session() as s, open_driver(s) as driver:
        found = driver.files.find(name)
        s.out.confirm(f"Delete {found.file} and the records of its runs?", yes)
        with s.repo.changes.structural("workflow delete") as change:
            removed = driver.runs.delete_all_by_workflow(found.workflow.id, confirmed=True)
            forget_evaluated(driver.context, found.workflow.id)
            driver.files.delete(found)
        change.must_be_delivered()
        document = {"deleted": found.workflow.name, "file": found.file, "runsDeleted": removed}
        s.out.result(document, f"Deleted {found.file} and {removed} run record(s)")


@reading(app, "validate")
def validate_workflows(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="All of them by default.", autocompletion=command.workflows)
    ] = None,
) -> None:
    """Check workflows without running anything. Exit 1 when something is wrong."""
    with session(reading=True) as s, open_driver(s) as driver:
        names = [name] if name is not None else [str(file.relative_to(s.repo.path)) for file in driver.files.paths()]
        problems: list[dict[str, Any]] = []
        for one in names:
            try:
                source, found = driver.files.validate(one)
            except UsageError as error:  # not even YAML: that is what it has to say
                if "problems" not in error.details and name is not None:
                    raise
                said = error.details.get("problems") or [{"path": "", "message": error.message}]
                problems += [{"file": error.details.get("file", one), **problem} for problem in said]
                continue
            problems += [{"file": source, **problem.to_json()} for problem in found]
        show_problems(s, len(names), problems)


# -- a new run


@reading(app, "run")
def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|search", help="A workflow; or `search` for its runs.", autocompletion=command.workflows
        ),
    ],
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="With `search`: a part of name or id.")] = None,
    inputs: Inputs = None,
    input_file: InputFile = None,
    tag: Tags = None,
    status: Annotated[str | None, typer.Option(metavar="S", help="With `search`: only runs in this state.")] = None,
    since: Annotated[str | None, typer.Option(metavar="T", help="With `search`: an ISO time, or 1h, 2d.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="With `search`: at most so many.")] = 100,
    plan: Annotated[bool, typer.Option("--plan", help="Tell what would run, and run nothing.")] = False,
) -> None:
    """Run a workflow; or `run search [QUERY]`: find runs."""
    if name == "search":
        search_runs(query, status, since, limit)
        return
    if query is not None or status is not None or since is not None:
        raise UsageError(
            f"`{query or status or since}` belongs to `workflow run search`", hint="inputs are --input k=v"
        )
    if plan:
        plan_workflow(name, inputs, input_file)
        return
    run_workflow(name, inputs, input_file, tag)


def run_workflow(name: str, inputs: list[str] | None, input_file: str | None, tag: list[str] | None) -> None:
    from swamp.models.inputs import parse_inputs, parse_tags
    from swamp.workflows.decide import note_interrupted

    values = parse_inputs(inputs or (), Path(input_file) if input_file else None)
    tags = parse_tags(tag or ())
    if common().cached:
        raise UsageError("a run always works with what the store holds", hint="--cached belongs to `run search`")

    def start(s: CommandSession, driver: Driver) -> RunState:
        driver.files.find(name)
        for killed in note_interrupted(driver):
            s.out.info(f"run {killed.id} of {killed.workflow_name} was interrupted: swamp workflow resume {killed.id}")
        return driver.start(name, values, tags=tags)

    _watched(start)


def plan_workflow(name: str, inputs: list[str] | None, input_file: str | None) -> None:
    """`workflow run NAME --plan`: nothing is leased, written or run."""
    from swamp.models.inputs import parse_inputs
    from swamp.workflows.decide import plan_run

    values = parse_inputs(inputs or (), Path(input_file) if input_file else None)
    with session(reading=True) as s, open_driver(s) as driver:
        found = plan_run(driver, name, values)
        rows = [
            (one["stage"], f"{one['job']}.{one['step']}", _does(one), one["runs"], one.get("why", ""))
            for one in found["steps"]
        ]
        columns = ("STAGE", "STEP", "DOES", "RUNS", "WHY")
        s.answer({**found, "items": found["steps"]}, lambda: s.out.table(columns, rows))


def _does(one: dict[str, Any]) -> str:
    if "model" in one:
        return f"{one['model']}.{one['method']}"
    return f"workflow {one['workflow']}" if "workflow" in one else str(one["task"])
