"""Workflow runs: one record per run, and a search that holds summaries, never the history."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Final

from swamp.data.document import SUFFIX, RecordFiles
from swamp.data.names import by_prefix, check_id, meant
from swamp.data.run_record import (
    OVER,
    PREFIX,
    RUNS,
    RunState,
    RunSummary,
    decode,
    encode,
    path_of,
    read_summary,
)
from swamp.errors import NotFound
from swamp.sync.port import Tree
from swamp.values import value

DEFAULT_LIMIT: Final = 100
LATEST_RUN: Final = "latest"


@value
class RunPage:
    """The newest runs that fit, and how many fit in all."""

    results: tuple[RunSummary, ...]
    total: int


class RunRepository:
    """The workflow runs of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._files = RecordFiles(tree, RUNS)

    def save(self, run: RunState) -> str:
        """Writes the record, over an earlier state of the same run; its path."""
        self._files.write(run.path, encode(run))
        return run.path

    def get(self, run_id: str, workflow_id: str | None = None) -> RunState:
        """The run with this id. Raises NotFound."""
        path = path_of(workflow_id, run_id) if workflow_id else self._path_of_run(run_id)
        document = self._files.read(path) if path else None
        if path is None or document is None:
            raise _no_run(run_id)
        return decode(document, path)

    def resolve(self, wanted: str) -> str:
        """The id that `wanted` means: an id, the beginning of one, or `latest`. Raises NotFound or UsageError."""
        if wanted == LATEST_RUN:
            newest = self.search(limit=1).results
            if not newest:
                raise NotFound("there is no run yet", hint="`swamp workflow run NAME` makes one")
            return newest[0].run_id
        found = by_prefix(wanted, self._ids(), "run")
        if found is None:
            raise _no_run(wanted, self._ids())
        return found

    def _ids(self) -> Iterator[str]:
        for path in self._files.paths():
            name = path.rpartition("/")[2]
            if name.startswith(PREFIX):
                yield name.removeprefix(PREFIX).removesuffix(SUFFIX)

    def list(self, workflow_id: str | None = None) -> Iterator[RunSummary]:
        """Summaries of all runs, in no particular order, one in memory at a time."""
        for path in self._files.paths(check_id(workflow_id) if workflow_id else ""):
            summary = self._summary(path)
            if summary is not None:
                yield summary

    def search(
        self,
        query: str = "",
        *,
        status: str | None = None,
        since: str | None = None,
        workflow_id: str | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> RunPage:
        """The newest `limit` runs that fit. Memory holds those and nothing else, however long the history."""
        total = 0

        def fitting() -> Iterator[RunSummary]:
            nonlocal total
            for summary in self.list(workflow_id):
                if _fits(summary, query.lower(), status, since):
                    total += 1
                    yield summary

        newest = heapq.nlargest(limit, fitting(), key=lambda summary: (summary.started_at, summary.run_id))
        return RunPage(tuple(newest), total)

    def is_over(self, run_id: str) -> bool:
        """Whether a run is known and has ended: what its lifetime was bound to may go."""
        path = self._path_of_run(run_id)
        summary = self._summary(path) if path else None
        return summary is not None and summary.status in OVER

    def delete(self, run_id: str, *, confirmed: bool = False) -> bool:
        """Removes one record; False if there is none."""
        path = self._path_of_run(run_id)
        return path is not None and self._files.remove([path], confirmed=confirmed) > 0

    def delete_all_by_workflow(self, workflow_id: str, *, confirmed: bool = False) -> int:
        """Removes every run of a workflow; how many there were."""
        return self._files.remove(list(self._files.paths(check_id(workflow_id))), confirmed=confirmed)

    def _path_of_run(self, run_id: str) -> str | None:
        wanted = f"/{PREFIX}{check_id(run_id)}{SUFFIX}"
        return next((path for path in self._files.paths() if path.endswith(wanted)), None)

    def _summary(self, path: str) -> RunSummary | None:
        raw = self._files.read_bytes(path)
        return None if raw is None else read_summary(raw, path)


def _no_run(wanted: str, known: Iterable[str] = ()) -> NotFound:
    shown = "`swamp workflow run search` shows what is there"
    return NotFound(f"there is no run {wanted}", hint=meant(wanted, known) + shown)


def _fits(summary: RunSummary, query: str, status: str | None, since: str | None) -> bool:
    if status is not None and summary.status != status:
        return False
    if since is not None and summary.started_at < since:
        return False
    texts = (summary.run_id, summary.workflow_name, summary.status, *summary.tags.values())
    return not query or any(query in text.lower() for text in texts)
