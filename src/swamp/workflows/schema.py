"""What a workflow file says, as values. Unknown keys are refused where they stand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from swamp.env import UTC
from swamp.models.builtin import parse_seconds
from swamp.values import value

Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00-\x1f]+$")]
Expression = str | bool


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


def after(workflow: WorkflowFile, targets: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The steps named and every step that runs because of them: what `resume --from` does again."""
    again = set(targets)
    while True:
        grown = again | _next_steps(workflow, again)
        if grown == again:
            return again
        again = grown


def _next_steps(workflow: WorkflowFile, again: set[tuple[str, str]]) -> set[tuple[str, str]]:
    jobs = {job for job, _ in again}
    found: set[tuple[str, str]] = set()
    for job in workflow.jobs:
        if any(dependency.job in jobs for dependency in job.depends_on):
            found |= {(job.name, step.name) for step in job.steps}
        for step in job.steps:
            if any((job.name, dependency.step) in again for dependency in step.depends_on):
                found.add((job.name, step.name))
    return found


# -- when a scheduled workflow runs: cron expressions in a time zone, read by a library


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


def tick_after(schedule: str, timezone: str, moment: dt.datetime) -> dt.datetime:
    """The first tick behind `moment`, in UTC."""
    from cronsim import CronSim

    return next(CronSim(schedule, moment.astimezone(ZoneInfo(timezone)))).astimezone(UTC)


def tick_before(schedule: str, timezone: str, moment: dt.datetime) -> dt.datetime | None:
    """The last tick at or before `moment`, in UTC; None if there was none for years."""
    from cronsim import CronSim

    later = moment.astimezone(ZoneInfo(timezone)) + dt.timedelta(seconds=1)
    try:
        return next(CronSim(schedule, later.replace(microsecond=0), reverse=True)).astimezone(UTC)
    except StopIteration:
        return None
