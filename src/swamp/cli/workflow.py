"""`swamp workflow`: workflow files, runs and what people decide about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from swamp.cli import arguments
from swamp.cli.arguments import InputFile, Inputs, NewText, Tags, Workflow, Yes
from swamp.cli.command import common, group, reading, session
from swamp.cli.model import collect_after, given_as, new_text, show_problems, warn_of_broken
from swamp.cli.runs import (
    approvals,
    approve,
    asking,
    cancel,
    history,
    logs,
    open_driver,
    reject,
    resume,
    search_runs,
    show_run,
)
from swamp.cli.watch import watching, without_bars
from swamp.errors import UsageError

app = group("Workflows and their runs.")
app.add_typer(history, name="history")
for _verb, _function in (("resume", resume), ("approve", approve), ("reject", reject), ("cancel", cancel)):
    app.command(_verb)(_function)
reading(app, "approvals")(approvals)
reading(app, "logs")(logs)


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
    from swamp.workflows.state import workflow_item

    with session() as s, open_driver(s) as driver:
        found = list(driver.files.all())
        items = [workflow_item(f) for f in found]
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
    from swamp.workflows.parse import inspect

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
        str | None, typer.Argument(metavar="NAME", help="All of them by default.", autocompletion=arguments.workflows)
    ] = None,
) -> None:
    """Check workflows without running anything. Exit 1 when something is wrong."""
    with session(reading=True) as s, asking(s) as driver:
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


@reading(app, "run")
def run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|search", help="A workflow; or `search` for its runs.", autocompletion=arguments.workflows
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
    with session() as s:
        s.out = without_bars(s.out)
        with watching(s.out) as watcher, open_driver(s, watcher) as driver:
            driver.cancel = s.cancel
            driver.files.find(name)
            for killed in note_interrupted(driver):
                s.out.info(
                    f"run {killed.id} of {killed.workflow_name} was interrupted: swamp workflow resume {killed.id}"
                )
            done = driver.start(name, values, tags=tags)
        collect_after(s)
        show_run(s, done)


def plan_workflow(name: str, inputs: list[str] | None, input_file: str | None) -> None:
    """`workflow run NAME --plan`: nothing is leased, written or run."""
    from swamp.models.inputs import parse_inputs
    from swamp.workflows.decide import plan_run

    values = parse_inputs(inputs or (), Path(input_file) if input_file else None)
    with session(reading=True) as s, asking(s) as driver:
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
