"""`swamp workflow`: workflow files, runs and what people decide about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli.command import Session, group, session
from swamp.cli.model import InputFile, Inputs, NewText, Tags, Yes, collect_after, show_problems, warn_of_broken
from swamp.cli.watch import SIGNS, seconds_text, step_text, watching, without_bars
from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.workflows.run import Driver
    from swamp.workflows.state import RunState

app = group("Workflows and their runs.")
history = group("Runs that were.")
app.add_typer(history, name="history")

Workflow = Annotated[str, typer.Argument(help="A workflow's name or id.", metavar="NAME")]
RunId = Annotated[str, typer.Argument(help="A run's id.", metavar="RUN")]


@contextmanager
def _driver(s: Session, watcher: Any = None) -> Iterator[Driver]:
    from swamp.models.workshop import Workshop
    from swamp.workflows.book import Nobody
    from swamp.workflows.run import Driver

    shop = Workshop(s.repo)
    try:
        yield Driver(shop, watcher or Nobody())
    finally:
        shop.close()


# -- files


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new workflow's name.")], file: NewText = None
) -> None:
    """Write workflows/workflow-NAME.yaml: a skeleton that runs, or the text of --file."""
    from swamp.cli.edit import given_as, new_text

    with session() as s, _driver(s) as driver:
        text = new_text("", file, lambda text: None) if file is not None else None
        made = driver.files.create(name, text, given_as(file, "the text"))
        document = {"id": made.workflow.id, "name": made.workflow.name, "file": made.file}
        s.out.result(document, f"Created {made.file}")


@app.command("list")
def list_workflows() -> None:
    """List all workflows."""
    with session() as s, _driver(s) as driver:
        found = list(driver.files.all())
        items = [
            {
                "id": f.workflow.id,
                "name": f.workflow.name,
                "version": f.workflow.version,
                "description": f.workflow.description,
                "tags": dict(f.workflow.tags),
                "jobs": [job.name for job in f.workflow.jobs],
                "file": f.file,
            }
            for f in found
        ]
        rows = [
            (f.workflow.name, len(f.workflow.jobs), sum(len(j.steps) for j in f.workflow.jobs), f.file) for f in found
        ]
        broken = warn_of_broken(s, driver.files.broken())
        s.out.result(
            {"items": items, "total": len(items), **broken},
            lambda: s.out.table(("NAME", "JOBS", "STEPS", "FILE"), rows),
        )


@app.command("get")
def get_workflow(name: Workflow) -> None:
    """Show a workflow."""
    with session() as s, _driver(s) as driver:
        found = driver.files.find(name)
        text = (s.repo.path / found.file).read_text(encoding="utf-8")
        s.out.result({**found.workflow.to_document(), "file": found.file}, lambda: s.out.line(text.rstrip("\n")))


@app.command("edit")
def edit_workflow(name: Workflow, file: NewText = None) -> None:
    """Change a workflow in your editor, or with --file. A wrong text changes nothing."""
    from swamp.cli.edit import given_as, new_text
    from swamp.models.document import refuse
    from swamp.workflows.parse import inspect

    with session() as s, _driver(s) as driver:
        source = driver.files.file_of(name)
        current = (s.repo.path / source).read_text(encoding="utf-8")
        shown = given_as(file, source)
        text = new_text(current, file, lambda text: refuse(shown, inspect(text, shown)[2]))
        changed = driver.files.save_text(text, source)
        s.out.result({"id": changed.workflow.id, "name": changed.workflow.name, "file": source}, f"Saved {source}")


@app.command("delete")
def delete_workflow(name: Workflow, yes: Yes = False) -> None:
    """Remove a workflow and the records of its runs. The data that its runs wrote stays."""
    from swamp.workflows.keep import forget_evaluated

    with session() as s, _driver(s) as driver:
        found = driver.files.find(name)
        s.out.confirm(f"Delete {found.file} and the records of its runs?", yes)
        with s.repo.changes.structural("workflow delete") as change:
            removed = driver.runs.delete_all_by_workflow(found.workflow.id, confirmed=True)
            forget_evaluated(driver.shop, found.workflow.id)
            driver.files.delete(found)
        change.must_be_delivered()
        document = {"deleted": found.workflow.name, "file": found.file, "runsDeleted": removed}
        s.out.result(document, f"Deleted {found.file} and {removed} run record(s)")


@app.command("validate")
def validate_workflows(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="All of them by default.")] = None,
) -> None:
    """Check workflows without running anything. Exit 1 when something is wrong."""
    with session() as s, _driver(s) as driver:
        names = [name] if name is not None else [str(file.relative_to(s.repo.path)) for file in driver.files.paths()]
        problems: list[dict[str, Any]] = []
        for one in names:
            try:
                source, found = driver.files.validate(one)
            except UsageError as error:  # not even YAML: that is what it has to say
                if "problems" not in error.details:
                    raise
                problems += [{"file": error.details["file"], **problem} for problem in error.details["problems"]]
                continue
            problems += [{"file": source, **problem.to_json()} for problem in found]
        show_problems(s, len(names), problems)


# -- runs


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(metavar="NAME|search", help="A workflow; or `search` for its runs.")],
    query: Annotated[str | None, typer.Argument(metavar="[QUERY]", help="With `search`: a part of name or id.")] = None,
    inputs: Inputs = None,
    input_file: InputFile = None,
    tag: Tags = None,
    status: Annotated[str | None, typer.Option(metavar="S", help="With `search`: only runs in this state.")] = None,
    since: Annotated[str | None, typer.Option(metavar="T", help="With `search`: an ISO time, or 1h, 2d.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="With `search`: at most so many.")] = 100,
) -> None:
    """Run a workflow; or `run search [QUERY]`: find runs."""
    if name == "search":
        _search(query, status, since, limit)
        return
    if query is not None or status is not None or since is not None:
        raise UsageError(
            f"`{query or status or since}` belongs to `workflow run search`", hint="inputs are --input k=v"
        )
    _run(name, inputs, input_file, tag)


def _run(name: str, inputs: list[str] | None, input_file: str | None, tag: list[str] | None) -> None:
    from swamp.models.inputs import parse_inputs, parse_tags
    from swamp.workflows.decide import note_interrupted

    values = parse_inputs(inputs or (), Path(input_file) if input_file else None)
    tags = parse_tags(tag or ())
    with session() as s:
        s.out = without_bars(s.out)
        with watching(s.out) as watcher, _driver(s, watcher) as driver:
            driver.cancel = s.cancel
            driver.files.find(name)
            for killed in note_interrupted(driver):
                s.out.info(
                    f"run {killed.id} of {killed.workflow_name} was interrupted: swamp workflow resume {killed.id}"
                )
            done = driver.start(name, values, tags=tags)
        collect_after(s)
        show_run(s, done)


def _search(query: str | None, status: str | None, since: str | None, limit: int) -> None:
    from swamp.env import rfc3339
    from swamp.repo.data import parse_since
    from swamp.workflows.decide import search
    from swamp.workflows.state import RUN_STATUSES

    if status is not None and status not in RUN_STATUSES:
        raise UsageError(f"`{status}` is not a status", hint=f"there is {', '.join(RUN_STATUSES)}")
    with session() as s, _driver(s) as driver:
        moment = None if since is None else rfc3339(parse_since(since, s.repo.env.clock.now()))
        found = search(driver, query or "", status=status, since=moment, limit=limit)
        rows = [
            (r["runId"], r["workflowName"], r["status"], r["startedAt"], r["stepProgress"], r.get("failedStep"))
            for r in found["results"]
        ]
        s.out.result(found, lambda: s.out.table(("RUN", "WORKFLOW", "STATUS", "STARTED", "STEPS", "FAILED AT"), rows))


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


def show_run(s: Session, run: RunState) -> None:
    """The end of a run, said after its record is where it belongs. Failed: exit 1."""
    s.out.result(run_document(run), lambda: _run_text(s, run))
    if run.status in ("failed", "cancelled"):
        raise typer.Exit(1)


def _run_text(s: Session, run: RunState) -> None:
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
    with session() as s:
        s.out = without_bars(s.out)
        with watching(s.out) as watcher, _driver(s, watcher) as driver:
            driver.cancel = s.cancel
            done = driver.resume(run_id, from_step=from_step, inputs=values)
        collect_after(s)
        show_run(s, done)


def _decided(run_id: str, decision: Any, step: str | None, reason: str | None) -> None:
    from swamp.workflows.decide import decide

    with session() as s, _driver(s) as driver:
        found = decide(driver, run_id, decision, step=step, reason=reason)
        document = {
            "id": run_id,
            "workflowName": found.run.workflow_name,
            "step": found.step,
            "decision": decision,
            "status": found.run.status,
            "resumable": found.left_waiting,
        }
        then = f"; continue with: swamp workflow resume {run_id}" if found.left_waiting else f"; run {found.run.status}"
        s.out.result(document, f"{found.step}: {decision}{then}")


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

    with session() as s, _driver(s) as driver:
        done = cancel_run(driver, run_id)
        words = {
            "cancelled": f"Cancelled {run_id}",
            "cancelling": f"Asked the process of {run_id} to stop; it ends before its next step at the latest",
        }
        s.out.result({"id": run_id, "status": done.status}, words[done.status])


@history.command("get")
def history_get(run_id: RunId) -> None:
    """Show a run: its jobs, steps, times and what they wrote."""
    from swamp.workflows.decide import as_seen

    with session() as s, _driver(s) as driver:
        found = as_seen(driver, driver.find(run_id))
        document = {
            **run_document(found),
            "workflowId": found.workflow_id,
            "startedAt": found.started_at,
            "completedAt": found.completed_at,
            "inputs": found.inputs,
            "tags": found.tags,
            "host": found.host,
            "pid": found.pid,
            "triggerSource": found.trigger_source,
        }
        if found.extra.get("interrupted"):
            document["interrupted"] = True
        s.out.result(document, lambda: _history_text(s, found))


def _history_text(s: Session, run: RunState) -> None:
    s.out.line(f"{SIGNS[run.status][0]} {run.workflow_name}  {run.status}  {seconds_text(run.duration_ms)}")
    s.out.line(f"  run {run.id}, started {run.started_at} on {run.host}")
    if run.error:
        s.out.line(f"  {run.error}")
    for job in run.jobs:
        s.out.line(f"{SIGNS[job.status][0]} {job.name}")
        for step in job.steps:
            note = step_text(step)
            s.out.line(f"  {SIGNS[step.status][0]} {step.name}" + (f"  {note}" if note else ""))
            for artifact in step.artifacts:
                s.out.line(f"      {artifact.get('modelName')}/{artifact['name']} version {artifact['version']}")


@history.command("logs")
def history_logs(run_id: RunId) -> None:
    """Show what the steps of a run said."""
    with session() as s, _driver(s) as driver:
        found = driver.find(run_id)
        text = driver.logs.text(found)
        s.out.result({"id": found.id, "lines": text.splitlines()}, lambda: s.out.line(text.rstrip("\n")))
