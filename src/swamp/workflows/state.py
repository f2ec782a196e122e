"""Says what became of jobs and runs from the state of their steps, and prints runs as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swamp.data.run_record import JobState, RunState, RunStatus, StepState, StepStatus

if TYPE_CHECKING:
    from swamp.workflows.decide import DecidedRun
    from swamp.workflows.files import FoundWorkflow


def overall(states: list[StepState]) -> StepStatus:
    """Several expanded steps as one: what a condition on their template sees. Nothing to do is done."""
    found = [state.status for state in states]
    for status in ("running", "pending", "suspended", "cancelled", "failed"):
        if status in found:
            return status
    return "skipped" if found and all(status == "skipped" for status in found) else "succeeded"


def job_outcome(job: JobState) -> StepStatus:
    """A job fails with its steps, except with those that may fail."""
    relevant = ["succeeded" if s.status == "failed" and s.allowed_failure else s.status for s in job.steps]
    for status in ("running", "suspended", "pending", "cancelled", "failed"):
        if status in relevant:
            return status
    return "skipped" if relevant and all(status == "skipped" for status in relevant) else "succeeded"


def run_outcome(run: RunState) -> RunStatus:
    found = [job.status for job in run.jobs]
    if "cancelled" in found:
        return "cancelled"
    if "failed" in found:
        return "failed"
    return "succeeded"


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


def history_document(run: RunState) -> dict[str, Any]:
    """A run with when, where, why and with which inputs it ran."""
    source = run.trigger_source or "cli"
    document = {
        **run_document(run),
        "workflowId": run.workflow_id,
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "inputs": run.inputs,
        "tags": run.tags,
        "host": run.host or "",
        "pid": run.pid or 0,
        "triggerSource": source,
        "trigger": dict(run.trigger) if run.trigger else {"kind": source},
    }
    return {**document, "interrupted": True} if run.extra.get("interrupted") else document


def workflow_item(found: FoundWorkflow) -> dict[str, Any]:
    """A workflow as a line of a list."""
    workflow = found.workflow
    return {
        "id": workflow.id,
        "name": workflow.name,
        "version": workflow.version,
        "description": workflow.description,
        "tags": dict(workflow.tags),
        "jobs": [job.name for job in workflow.jobs],
        "file": found.file,
    }


def decided_document(run_id: str, decision: str, found: DecidedRun) -> dict[str, Any]:
    """What became of a run that waited for a person."""
    return {
        "id": run_id,
        "workflowName": found.run.workflow_name,
        "step": found.step,
        "decision": decision,
        "status": found.run.status,
        "resumable": found.left_waiting,
    }
