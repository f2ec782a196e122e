"""What a Spark Connect server tells of its work: there is no status tracker here, only what it reports by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any


class RemoteStages:
    """A progress handler of a Connect session: tasks that have ended, and whether any are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: dict[tuple[str, int], int] = {}
        self._under_way: set[str] = set()

    def __call__(self, stages: Iterable[Any] | None, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        name = operation_id or ""
        with self._lock:
            for stage in stages or ():
                self._ended[name, stage.stage_id] = stage.num_completed_tasks
            self._under_way.discard(name)
            if inflight_tasks and not done:
                self._under_way.add(name)

    @property
    def tasks(self) -> int:
        with self._lock:
            return sum(self._ended.values())

    @property
    def stages(self) -> int:
        with self._lock:
            return sum(1 for ended in self._ended.values() if ended)

    @property
    def at_work(self) -> bool:
        """Nobody hears the tasks themselves, but what they do with a store ends by itself in bounded time."""
        with self._lock:
            return bool(self._under_way)
