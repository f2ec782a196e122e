"""Runs and workflows as documents: what `--json` prints is what the server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swamp.workflows.state import RunState

if TYPE_CHECKING:
    from swamp.workflows.decide import Decided
    from swamp.workflows.files import Found


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
    document = {
        **run_document(run),
        "workflowId": run.workflow_id,
        "startedAt": run.started_at,
        "completedAt": run.completed_at,
        "inputs": run.inputs,
        "tags": run.tags,
        "host": run.host,
        "pid": run.pid,
        "triggerSource": run.trigger_source,
        "trigger": dict(run.trigger) if run.trigger else {"kind": run.trigger_source},
    }
    return {**document, "interrupted": True} if run.extra.get("interrupted") else document


def workflow_item(found: Found) -> dict[str, Any]:
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


def decided_document(run_id: str, decision: str, found: Decided) -> dict[str, Any]:
    """What became of a run that waited for a person."""
    return {
        "id": run_id,
        "workflowName": found.run.workflow_name,
        "step": found.step,
        "decision": decision,
        "status": found.run.status,
        "resumable": found.left_waiting,
    }
