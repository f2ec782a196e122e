"""Plans a run without doing it: steps in their order, expanded and guarded as far as that is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swamp.data.run_record import RunState
from swamp.errors import SwampError
from swamp.models.expressions import evaluate
from swamp.models.inputs import check_inputs, secret_values
from swamp.workflows.execute import Instance
from swamp.workflows.perform import TaskRunner
from swamp.workflows.recorder import NullWatcher, RunRecorder
from swamp.workflows.run import Driver
from swamp.workflows.schema import ApprovalTask, Job, ModelTask, Step, WorkflowTask, build


def plan_run(driver: Driver, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The steps of `workflow run NAME` with these inputs. Nothing is written and nothing runs.

    Raises UsageError for wrong inputs, as the run would.
    """
    workflow = driver.files.find(name).workflow
    values = check_inputs(inputs, workflow.inputs, f"workflow {workflow.name}")
    driver.context.masker.learn_inputs(secret_values(values, workflow.inputs))
    run = driver.new_run(workflow, values, dict(workflow.tags), {"kind": "plan"}, None)
    recorder = RunRecorder(run, lambda _: None, driver.context.env, NullWatcher())
    runner = TaskRunner(driver, recorder, lambda: None)
    order: list[dict[str, Any]] = []
    sorter = build(workflow)
    stage = 0
    while sorter.is_active():
        ready = sorter.get_ready()
        steps = [node for node in ready if node.kind == "step"]
        stage += bool(steps)
        for node in steps:
            job = workflow.job(node.job)
            order += [{**one, "stage": stage} for one in _planned(driver, runner, run, job, job.step(node.step))]
        sorter.done(*ready)
    shown = driver.context.masker.value(dict(values))
    return {"workflowName": workflow.name, "workflowId": workflow.id, "inputs": shown, "steps": order}


def _planned(driver: Driver, runner: TaskRunner, run: RunState, job: Job, step: Step) -> list[dict[str, Any]]:
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
