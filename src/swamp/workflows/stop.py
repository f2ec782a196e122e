"""Stopping a run: the request that reaches its process wherever it is, and what a stopped run's record says."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from swamp.data.runs import RUNS
from swamp.workflows.state import JobState, RunState, job_outcome


def stop_path(workflow_id: str, run_id: str) -> str:
    """The request to cancel a run: a file of the tree, so that it reaches the run wherever it is."""
    return f"{RUNS}/{workflow_id}/cancel-{run_id}.request"


def requested(root: Path, run: RunState) -> str | None:
    """When somebody asked this run to stop, as far as this machine knows; None if nobody did."""
    try:
        return (root / stop_path(run.workflow_id, run.id)).read_text(encoding="utf-8").strip() or "at some time"
    except FileNotFoundError:
        return None


def stop_all(run: RunState, status: Literal["cancelled", "failed"], error: str) -> None:
    for job, step in run.steps:
        if step.status in ("running", "suspended") or (status == "cancelled" and not step.over):
            step.status, step.error = status, error
        _settle_job(job)


def _settle_job(job: JobState) -> None:
    if job.status != "skipped":
        job.status = job_outcome(job)
