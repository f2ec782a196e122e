"""The order of a workflow: one graph of job starts, steps and job ends, and the conditions on its edges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Literal

from swamp.workflows.schema import Condition, Not, Several, Workflow


@dataclass(frozen=True, slots=True)
class Node:
    """A point in a run: a job may start, a step (all its expansions) is done, a job is done."""

    kind: Literal["start", "step", "end"]
    job: str
    step: str = ""


def build(workflow: Workflow) -> TopologicalSorter[Node]:
    """Ready to hand out nodes in order. Circles were refused when the file was read."""
    sorter: TopologicalSorter[Node] = TopologicalSorter()
    for job in workflow.jobs:
        start, end = Node("start", job.name), Node("end", job.name)
        sorter.add(start, *(Node("end", dependency.job) for dependency in job.depends_on))
        sorter.add(end, start)
        for step in job.steps:
            node = Node("step", job.name, step.name)
            sorter.add(node, start, *(Node("step", job.name, dependency.step) for dependency in step.depends_on))
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


def after(workflow: Workflow, targets: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The steps named and every step that runs because of them: what `resume --from` does again."""
    again = set(targets)
    while True:
        grown = again | _next_steps(workflow, again)
        if grown == again:
            return again
        again = grown


def _next_steps(workflow: Workflow, again: set[tuple[str, str]]) -> set[tuple[str, str]]:
    jobs = {job for job, _ in again}
    found: set[tuple[str, str]] = set()
    for job in workflow.jobs:
        if any(dependency.job in jobs for dependency in job.depends_on):
            found |= {(job.name, step.name) for step in job.steps}
        for step in job.steps:
            if any((job.name, dependency.step) in again for dependency in step.depends_on):
                found.add((job.name, step.name))
    return found
