"""The bytes of a run record, made anew only where it changed: a run of a thousand steps changes thousands of times.

The result is what `swamp.data.runs.encode` makes of the same record; a test holds both equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swamp.data.document import dump
from swamp.data.runs import decode
from swamp.data.runs import encode as encode_whole
from swamp.models.mask import Masker
from swamp.workflows.state import RunState

_INDENT = b"  "


class RunEncoder:
    """Encodes one run again and again; keeps the text of every step that is as it was."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._generation = -1
        self._steps: dict[tuple[int, int], tuple[str, bytes]] = {}

    def encode(self, run: RunState) -> bytes:
        if self._generation != self._masker.generation:  # a new secret is known: nothing written before counts
            self._generation = self._masker.generation
            self._steps.clear()
        record = run.to_record()
        jobs = [self._job(number, job) for number, job in enumerate(record["jobs"])]
        head, _, tail = self._around(run, record).partition(b"jobs: []\n")
        return head + (b"jobs:\n" + b"".join(jobs) if jobs else b"jobs: []\n") + tail

    def _around(self, run: RunState, record: Mapping[str, Any]) -> bytes:
        """Everything but the jobs, with the summary that a search reads."""
        masked = self._masker.value({**record, "jobs": []})
        whole = decode({**masked, "jobs": _outlines(run)}, run.id)
        summary = whole.summary
        text = encode_whole(decode(masked, run.id))
        counts = {"failedStep": summary.failed_step, "done": summary.steps_done, "total": summary.steps_total}
        empty = dump({"summary": {"failedStep": None, "done": 0, "total": 0}})
        return text.replace(empty, dump({"summary": self._masker.value(counts)}), 1)

    def _job(self, number: int, job: Mapping[str, Any]) -> bytes:
        steps = [self._step((number, position), step) for position, step in enumerate(job["steps"])]
        head = dump([self._masker.value({"jobName": job["jobName"], "status": job["status"]})])
        return head + (b"  steps:\n" + b"".join(steps) if steps else b"  steps: []\n")

    def _step(self, place: tuple[int, int], step: Mapping[str, Any]) -> bytes:
        seen = repr(step)
        known = self._steps.get(place)
        if known is not None and known[0] == seen:
            return known[1]
        lines = dump([self._masker.value(step)]).splitlines(keepends=True)
        text = b"".join(_INDENT + line for line in lines)
        self._steps[place] = (seen, text)
        return text


def _outlines(run: RunState) -> list[dict[str, Any]]:
    """As much of the steps as the summary counts."""
    return [
        {
            "jobName": job.name,
            "status": job.status,
            "steps": [
                {"stepName": s.name, "status": s.status, **({"allowedFailure": True} if s.allowed_failure else {})}
                for s in job.steps
            ],
        }
        for job in run.jobs
    ]
