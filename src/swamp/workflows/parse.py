"""Parses the YAML text of a workflow, or lists every problem in it with its line and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pydantic import ValidationError

from swamp.data.names import suggest
from swamp.models.document import ParsedFile, Path, Problem, parse, refuse, spell
from swamp.models.inputs import check_schema
from swamp.workflows.schema import Job, Step, WorkflowFile, fault_of

RESERVED_NAMES = frozenset({"search"})
TASKS = ("model_method", "workflow", "manual_approval", "assert")
CONDITIONS = ("always", "succeeded", "failed", "completed", "skipped", "and", "or", "not")


def parse_workflow(text: str, source: str) -> WorkflowFile:
    """The workflow, or one UsageError that lists all its problems."""
    _, workflow, problems = inspect(text, source)
    refuse(source, problems)
    assert workflow is not None
    return workflow


def inspect(text: str, source: str) -> tuple[ParsedFile, WorkflowFile | None, list[Problem]]:
    """Everything there is to say about a workflow file without looking at anything else."""
    document = parse(text, source)
    if not isinstance(document.value, Mapping):
        return document, None, [document.problem((), "a workflow is a mapping with id, name and jobs")]
    try:
        workflow = WorkflowFile.model_validate(document.value)
    except ValidationError as error:
        found = [problem for detail in error.errors() for problem in _problems_of(detail, document)]
        return document, None, sorted(found, key=lambda problem: problem.line or 0)
    return document, workflow, sorted(_meaning(workflow, document), key=lambda problem: problem.line or 0)


def _problems_of(detail: Any, document: ParsedFile) -> Iterator[Problem]:
    """One pydantic complaint as problems at the right line."""
    where: Path = _real_path(detail["loc"], document)
    context = detail.get("ctx") or {}
    match detail["type"]:
        case "unknown_key":
            for key in context["keys"]:
                meant = suggest(key, context["allowed"])
                listed = "" if meant else f" (allowed: {', '.join(context['allowed'])})"
                yield document.problem((*where, key), f"unknown key `{key}` in {_owner(where)}{listed}", meant)
        case "union_tag_invalid" | "union_tag_not_found":
            yield _unknown_word(where, document)
        case "too_short" if _value_at(document.value, where):
            return  # its items are wrong, and each of them says so itself
        case "missing":
            yield document.problem(where[:-1], f"`{where[-1]}` is missing in {_owner(where[:-1])}")
        case _:
            message = str(detail["msg"])
            if detail["type"] == "string_type" and isinstance(_value_at(document.value, where), bool | int | float):
                message = "not read as text by YAML: put it in quotes"  # no, yes, on, off, 1.0
            yield document.problem(where, f"{spell(where)}: {message[:1].lower()}{message[1:]}")


def _unknown_word(where: Path, document: ParsedFile) -> Problem:
    """A `type` that nobody knows, or none at all."""
    allowed, what = (TASKS, "a kind of task") if where[-1] == "task" else (CONDITIONS, "a condition")
    value = _value_at(document.value, where)
    word = value.get("type") if isinstance(value, Mapping) else None
    if word is None:
        return document.problem(where, f"`type` is missing in {_owner(where)}: it can be {', '.join(allowed)}")
    meant = suggest(str(word), allowed)
    listed = "" if meant else f"; it can be {', '.join(allowed)}"
    return document.problem((*where, "type"), f"`{word}` is not {what}{listed}", meant)


def _value_at(value: Any, where: Path) -> Any:
    for part in where:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _owner(where: Path) -> str:
    return f"`{spell(where)}`" if where else "the workflow"


def _real_path(loc: tuple[Any, ...], document: ParsedFile) -> Path:
    """Without the names of union members, which pydantic adds and the file does not have."""
    kept: list[Any] = []
    for part in loc:
        if part in (*TASKS, *CONDITIONS) and (*kept, part) not in document.lines:
            continue
        kept.append(part)
    return tuple(kept)


def _meaning(workflow: WorkflowFile, document: ParsedFile) -> Iterator[Problem]:
    """What is well-formed and still wrong: names twice, dependencies on nothing, circles, a bad input schema."""
    if workflow.name in RESERVED_NAMES:
        yield document.problem(("name",), f"no workflow may be called `{workflow.name}`: it is a command")
    if "/" in workflow.name or ".." in workflow.name:
        yield document.problem(("name",), "a workflow's name has no `/` and no `..`")
    if workflow.inputs is not None and (wrong := check_schema(workflow.inputs)):
        yield document.problem(("inputs",), wrong)
    yield from _schedule_meaning(workflow, document)
    jobs = [job.name for job in workflow.jobs]
    yield from _twice("job", ("jobs",), jobs, document)
    for i, job in enumerate(workflow.jobs):
        yield from _dangling(("jobs", i), "job", [d.job for d in job.depends_on], jobs, job.name, document)
        yield from _job_meaning(("jobs", i), job, document)
    yield from _circle(("jobs",), {job.name: [d.job for d in job.depends_on] for job in workflow.jobs}, document)


def _schedule_meaning(workflow: WorkflowFile, document: ParsedFile) -> Iterator[Problem]:
    if workflow.schedule is None:
        return
    fault = fault_of(workflow.schedule, workflow.timezone)
    if fault is not None:
        yield document.problem((fault[0],), fault[1])
    schema = workflow.inputs or {}
    properties = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if "default" not in (properties.get(name) or {}):
            yield document.problem(("schedule",), f"nobody gives `{name}` to a run that a schedule starts")


def _job_meaning(path: Path, job: Job, document: ParsedFile) -> Iterator[Problem]:
    steps = [step.name for step in job.steps]
    yield from _twice("step", (*path, "steps"), steps, document)
    for i, step in enumerate(job.steps):
        here = (*path, "steps", i)
        yield from _dangling(here, "step", [d.step for d in step.depends_on], steps, step.name, document)
        yield from _step_meaning(here, step, document)
    graph = {step.name: [d.step for d in step.depends_on] for step in job.steps}
    yield from _circle((*path, "steps"), graph, document)


def _step_meaning(path: Path, step: Step, document: ParsedFile) -> Iterator[Problem]:
    from swamp.models.expressions import check_expressions

    if step.concurrency is not None and step.for_each is None:
        yield document.problem((*path, "concurrency"), "`concurrency` of a step limits its `forEach`: add one")
    for where, message in check_expressions(_value_at(document.value, path), path):
        yield document.problem(where, message)


def _twice(what: str, path: Path, names: list[str], document: ParsedFile) -> Iterator[Problem]:
    for i, name in enumerate(names):
        if name in names[:i]:
            yield document.problem((*path, i, "name"), f"two {what}s are called `{name}`")


def _dangling(
    path: Path, what: str, wanted: list[str], names: list[str], own: str, document: ParsedFile
) -> Iterator[Problem]:
    for i, name in enumerate(wanted):
        place = (*path, "dependsOn", i, what)
        if name == own:
            yield document.problem(place, f"{what} `{own}` depends on itself")
        elif name not in names:
            yield document.problem(place, f"there is no {what} `{name}`", suggest(name, names))


def _circle(path: Path, graph: Mapping[str, list[str]], document: ParsedFile) -> Iterator[Problem]:
    known = {name: [d for d in wanted if d in graph and d != name] for name, wanted in graph.items()}
    try:
        TopologicalSorter(known).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        position = list(graph).index(circle[0])
        yield document.problem((*path, position), "these wait for each other: " + " -> ".join(circle))
