"""What a workflow file says, as values, or every problem in it with its line and what was probably meant."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from swamp.data.names import suggest
from swamp.models.builtin import parse_seconds
from swamp.models.document import ParsedFile, Path, Problem, parse, refuse, spell
from swamp.models.inputs import check_schema
from swamp.values import value

Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")]
Expression = str | bool
RESERVED_NAMES = frozenset({"search"})
TASKS = ("model_method", "workflow", "manual_approval", "assert")
CONDITIONS = ("always", "succeeded", "failed", "completed", "skipped", "and", "or", "not")
Length = Annotated[float, BeforeValidator(parse_seconds, json_schema_input_type=str | float)]


class Strict(BaseModel):
    """A mapping with known keys in camelCase."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        json_schema_extra={"additionalProperties": False},  # `_known_keys_only` refuses them, with a better message
    )

    @model_validator(mode="before")
    @classmethod
    def _known_keys_only(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        allowed = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [str(key) for key in value if key not in allowed]
        if unknown:
            raise PydanticCustomError("unknown_key", "unknown key", {"keys": unknown, "allowed": allowed})
        return value


class Simple(Strict):
    """True or false by the state of what it waits for."""

    type: Literal["always", "succeeded", "failed", "completed", "skipped"]


class Several(Strict):
    type: Literal["and", "or"]
    conditions: tuple[Condition, ...] = Field(min_length=1)


class Not(Strict):
    type: Literal["not"]
    condition: Condition


Condition = Annotated[Simple | Several | Not, Field(discriminator="type")]
SUCCEEDED = Simple(type="succeeded")


class JobDependency(Strict):
    job: Name
    condition: Condition = SUCCEEDED


class StepDependency(Strict):
    step: Name
    condition: Condition = SUCCEEDED


class ForEach(Strict):
    """One step per item; the item is `self.<item>` in the step's name and task."""

    item: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    in_: Any = Field(alias="in")


class ModelTask(Strict):
    """Run a method of a model: one that is defined, or one made on the spot from a type and a name."""

    type: Literal["model_method"]
    model_id_or_name: Name | None = None
    model_type: Name | None = None
    model_name: Name | None = None
    method_name: Name
    inputs: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_way_to_name_it(self) -> ModelTask:
        made = self.model_type is not None or self.model_name is not None
        if (self.model_id_or_name is not None) == made:
            raise PydanticCustomError("model", "give either `modelIdOrName`, or `modelType` and `modelName`")
        if made and (self.model_type is None or self.model_name is None):
            raise PydanticCustomError("model", "`modelType` and `modelName` belong together")
        return self


class WorkflowTask(Strict):
    type: Literal["workflow"]
    workflow_id_or_name: Name
    inputs: Mapping[str, Any] = Field(default_factory=dict)


class ApprovalTask(Strict):
    type: Literal["manual_approval"]
    prompt: str = "Continue?"


class AssertTask(Strict):
    type: Literal["assert"]
    expression: Expression
    message: str | None = None


Task = Annotated[ModelTask | WorkflowTask | ApprovalTask | AssertTask, Field(discriminator="type")]


class Step(Strict):
    name: Name
    task: Task
    description: str | None = None
    depends_on: tuple[StepDependency, ...] = ()
    for_each: ForEach | None = None
    allow_failure: bool = False
    guard: Expression | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    backoff: Length = 1.0
    """Seconds before the second attempt; doubled before each one after it."""
    timeout: Length | None = None
    """Seconds that one attempt may take."""


class Job(Strict):
    name: Name
    steps: tuple[Step, ...] = Field(min_length=1)
    description: str | None = None
    depends_on: tuple[JobDependency, ...] = ()

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)


class WorkflowFile(Strict):
    id: Name
    name: Name
    jobs: tuple[Job, ...] = Field(min_length=1)
    version: int | str = 1
    description: str | None = None
    tags: Mapping[str, str] = Field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    schedule: str | None = None
    """When `swamp serve` starts it by itself: cron, in `timezone`."""
    timezone: str = "UTC"
    overlap: Literal["skip", "queue", "cancel-running"] = "skip"
    catchup: Literal["none", "last"] = "none"

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)

    def to_document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)


for _model in (Several, Not, Step, Job, WorkflowFile):
    _model.model_rebuild()


@value
class GraphNode:
    """A point in a run: a job may start, a step (all its expansions) is done, a job is done."""

    kind: Literal["start", "step", "end"]
    job: str
    step: str = ""


def build(workflow: WorkflowFile) -> TopologicalSorter[GraphNode]:
    """Ready to hand out nodes in order. Circles were refused when the file was read."""
    sorter: TopologicalSorter[GraphNode] = TopologicalSorter()
    for job in workflow.jobs:
        start, end = GraphNode("start", job.name), GraphNode("end", job.name)
        sorter.add(start, *(GraphNode("end", dependency.job) for dependency in job.depends_on))
        sorter.add(end, start)
        for step in job.steps:
            node = GraphNode("step", job.name, step.name)
            sorter.add(node, start, *(GraphNode("step", job.name, dependency.step) for dependency in step.depends_on))
            sorter.add(end, node)
    sorter.prepare()
    return sorter


def holds(condition: Condition, status: str) -> bool:
    """Whether `condition` is true of something that ended as `status`."""
    if isinstance(condition, Several):
        judge = all if condition.type == "and" else any
        return judge(holds(inner, status) for inner in condition.conditions)
    if isinstance(condition, Not):
        return not holds(condition.condition, status)
    if condition.type == "always":
        return True
    if condition.type == "completed":
        return status in ("succeeded", "failed")
    return condition.type == status


# -- from the text of a file


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


def fault_of(schedule: str, timezone: str) -> tuple[str, str] | None:
    """Which of `schedule` and `timezone` is wrong, and why; None if both are fine."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "timezone", f"`{timezone}` is not a time zone; such as UTC or Europe/Berlin"
    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(schedule, dt.datetime(2026, 1, 1, tzinfo=zone)))
    except (CronSimError, StopIteration) as error:
        why = str(error) or "it never comes"
        return "schedule", f"`{schedule}` is not a schedule: {why}; five fields as in cron, or six with seconds first"
    return None
