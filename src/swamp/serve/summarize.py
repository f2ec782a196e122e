"""Run records in one line each, read again only when their file has changed: a list costs a look at a directory."""

from __future__ import annotations

import base64
import heapq
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swamp.data.run_record import PREFIX, RUNS, RunSummary, read_summary
from swamp.errors import CorruptData, UsageError
from swamp.workflows.decide import seen_summary

if TYPE_CHECKING:
    from swamp.repo.repository import Repo
    from swamp.workflows.run import Driver


@dataclass
class RunIndex:
    """The summaries of all runs of a repository."""

    repo: Repo
    _known: dict[str, tuple[tuple[int, int], RunSummary]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def all(self) -> list[RunSummary]:
        with self._lock:
            found: dict[str, tuple[tuple[int, int], RunSummary]] = {}
            for path, stamp in self._stamps():
                known = self._known.get(path)
                if known is not None and known[0] == stamp:
                    found[path] = known
                    continue
                summary = self._read(path)
                if summary is not None:
                    found[path] = (stamp, summary)
            self._known = found
            return [summary for _, summary in found.values()]

    def _read(self, path: str) -> RunSummary | None:
        try:
            return read_summary((self.repo.tree.root / path).read_bytes(), path)
        except (OSError, CorruptData):
            return None  # being replaced or damaged: `doctor` speaks of it, a list goes on

    def _stamps(self) -> Iterator[tuple[str, tuple[int, int]]]:
        top = self.repo.tree.root / RUNS
        for directory in sorted(top.iterdir()) if top.is_dir() else ():
            if not directory.is_dir():
                continue
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.name.startswith(PREFIX) and entry.name.endswith(".yaml"):
                        seen = entry.stat()
                        yield f"{RUNS}/{directory.name}/{entry.name}", (seen.st_mtime_ns, seen.st_size)

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
        before = _decode(cursor) if cursor else None
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
        following = _encode(_key(found[limit - 1][0])) if len(found) > limit else None
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


def _encode(key: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode("\n".join(key).encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[str, str]:
    try:
        at, identity = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode().split("\n")
    except ValueError as error:
        raise UsageError("this is not a place in a list", hint="use `next` of the page before") from error
    return at, identity
