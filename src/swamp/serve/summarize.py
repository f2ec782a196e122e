"""Run records in one line each, read again only when their file has changed, and told of when they change."""

from __future__ import annotations

import contextlib
import heapq
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.data.run_record import PREFIX, RUNS, RunState, RunSummary, read_summary
from swamp.errors import CorruptData, SwampError, UsageError
from swamp.serve.respond import decode_cursor, encode_cursor
from swamp.workflows.decide import seen_summary

if TYPE_CHECKING:
    from swamp.repo.repository import Repo
    from swamp.serve.events import Draft
    from swamp.workflows.run import Driver


def record_files(repo: Repo) -> Iterator[tuple[str, tuple[int, int]]]:
    """The run records of a repository, each with the time and size by which a change of it is noticed."""
    top = repo.tree.root / RUNS
    for directory in sorted(top.iterdir()) if top.is_dir() else ():
        if not directory.is_dir():
            continue
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and entry.name.endswith(".yaml"):
                    seen = entry.stat()
                    yield f"{RUNS}/{directory.name}/{entry.name}", (seen.st_mtime_ns, seen.st_size)


@dataclass
class RunIndex:
    """The summaries of all runs of a repository."""

    repo: Repo
    _known: dict[str, tuple[tuple[int, int], RunSummary]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all(self) -> list[RunSummary]:
        with self._lock:
            found: dict[str, tuple[tuple[int, int], RunSummary]] = {}
            for path, stamp in record_files(self.repo):
                known = self._known.get(path)
                if known is not None and known[0] == stamp:
                    found[path] = known
                    continue
                # One that is being replaced or damaged is left out: `doctor` speaks of it, a list goes on.
                with contextlib.suppress(OSError, CorruptData):
                    found[path] = stamp, read_summary((self.repo.tree.root / path).read_bytes(), path)
            self._known = found
            return [summary for _, summary in found.values()]

    def page(
        self,
        driver: Driver,
        *,
        workflow: str | None = None,
        status: str | None = None,
        since: str | None = None,
        query: str = "",
        cursor: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """The newest runs that fit, and where the next page begins."""
        before = tuple(decode_cursor(cursor).split("\n")) if cursor else None
        if before is not None and len(before) != 2:
            raise UsageError("this is not a place in a list", hint="use `next` of the page before")
        fitting = [
            s for s in self.all() if _fits(s, workflow, since, query.lower()) and (not before or _key(s) < before)
        ]
        found: list[tuple[RunSummary, bool]] = []
        for summary in (
            heapq.nlargest(len(fitting), fitting, key=_key) if status else heapq.nlargest(limit + 1, fitting, key=_key)
        ):
            if status and status != summary.status and not (status == "failed" and summary.status == "running"):
                continue
            seen = seen_summary(driver, summary)
            if status in (None, seen[0].status):
                found.append(seen)
            if len(found) > limit:
                break
        items = [run_item(summary, dead) for summary, dead in found[:limit]]
        following = encode_cursor("\n".join(_key(found[limit - 1][0]))) if len(found) > limit else None
        return {"items": items, "next": following}


def run_item(summary: RunSummary, interrupted: bool = False) -> dict[str, Any]:
    """A run as a line of a list: what `workflow run search` prints, and the names of the API."""
    document = {"id": summary.run_id, "workflow": summary.workflow_name, **summary.to_json()}
    document.setdefault("trigger", {"kind": "cli"})
    return {**document, **({"interrupted": True} if interrupted else {})}


def _key(summary: RunSummary) -> tuple[str, str]:
    return summary.started_at, summary.run_id


def _fits(summary: RunSummary, workflow: str | None, since: str | None, query: str) -> bool:
    if workflow is not None and workflow not in (summary.workflow_name, summary.workflow_id):
        return False
    if since is not None and summary.started_at < since:
        return False
    texts = (summary.run_id, summary.workflow_name, summary.status, *summary.tags.values())
    return not query or any(query in text.lower() for text in texts)


@dataclass
class ChangedRuns:
    """Notices when the record of a run changes, whoever runs it: this machine's command line, or another machine."""

    repo: Repo
    _mark: int = 0
    _times: dict[str, tuple[int, int]] = field(default_factory=dict)
    _seen: dict[str, dict[str, str]] = field(default_factory=dict)

    def begin(self) -> None:
        """What is there now is no news."""
        if self.repo.datastore.synced:
            self._mark = self.repo.tree.touched_since(0).mark
        else:
            self._times = dict(record_files(self.repo))

    def known(self, run_id: str) -> None:
        """Its states were told line by line."""
        with contextlib.suppress(SwampError):
            self._seen[run_id] = _states(self.repo.runs.get(run_id))

    def changed(self, own: set[str]) -> Iterator[Draft]:
        for path in self._paths():
            run_id = Path(path).name.removeprefix(PREFIX).removesuffix(".yaml")
            if run_id in own or not Path(path).name.startswith(PREFIX):
                continue
            try:
                run = self.repo.runs.get(run_id, path.split("/")[1])
            except SwampError:
                continue
            yield from self._differences(run)

    def _differences(self, run: RunState) -> Iterator[Draft]:
        before, now = self._seen.get(run.id, {}), _states(run)
        self._seen[run.id] = now
        for job in run.jobs:
            for step in job.steps:
                place = f"{job.name}\n{step.name}"
                if before.get(place, "pending") != now[place]:
                    told = {"job": job.name, "step": step.name, "status": step.status}
                    error = {"error": step.error} if step.error else {}
                    yield "step", run.id, {"runId": run.id, **told, **error}
        if before.get("") != now[""]:
            trigger = {"trigger": dict(run.trigger)} if run.trigger else {}
            yield "run", run.id, {"runId": run.id, "workflow": run.workflow_name, "status": run.status, **trigger}
        if len(self._seen) > 1000:
            self._seen.pop(next(iter(self._seen)))

    def _paths(self) -> list[str]:
        if self.repo.datastore.synced:
            touched = self.repo.tree.touched_since(self._mark)
            self._mark = touched.mark
            return [path for path in touched.paths or () if path.startswith(f"{RUNS}/") and path.endswith(".yaml")]
        now = dict(record_files(self.repo))
        changed = [path for path, stamp in now.items() if self._times.get(path) != stamp]
        self._times = now
        return changed


def _states(run: RunState) -> dict[str, str]:
    steps = {f"{job.name}\n{step.name}": step.status for job in run.jobs for step in job.steps}
    return {"": run.status, **steps}
