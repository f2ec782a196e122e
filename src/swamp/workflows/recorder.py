"""Records a run: one state that many threads change, saved after every change before anyone builds on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from swamp.env import Env, rfc3339
from swamp.workflows.state import JobState, RunState, StepState, StepStatus


class Watcher(Protocol):
    """Someone who looks at a run while it goes. Called from several threads, one at a time."""

    def changed(self, run: RunState) -> None: ...

    def said(self, job: str, step: str, line: str) -> None: ...


class NullWatcher:
    """Looks at nothing."""

    def changed(self, run: RunState) -> None: ...

    def said(self, job: str, step: str, line: str) -> None: ...


class RunRecorder:
    """Changes the state of one run; `save` writes its record after each change. inv[run.saved]"""

    def __init__(
        self,
        run: RunState,
        save: Callable[[RunState], None],
        env: Env,
        *,
        watcher: Watcher | None = None,
    ) -> None:
        self.run = run
        self._save = save
        self._env = env
        self._watcher = watcher or NullWatcher()
        self._lock = threading.RLock()
        self._started: dict[int, float] = {}

    @contextmanager
    def change(self) -> Iterator[RunState]:
        """Change the state inside; it is saved when the block ends."""
        with self._lock:
            yield self.run
            self._save(self.run)
            self._watcher.changed(self.run)

    def started(self, step: StepState, **extra: Any) -> None:
        with self.change():
            step.status = "running"
            step.started_at = rfc3339(self._env.clock.now())
            step.extra.update(extra)
            self._started[id(step)] = self._env.clock.monotonic()

    def ended(self, step: StepState, status: StepStatus, *, error: str | None = None, **extra: Any) -> None:
        """`extra` with `artifacts` replaces what the step wrote; the rest is kept beside it in the record."""
        with self.change():
            step.status = status
            step.error = error
            step.artifacts = list(extra.pop("artifacts", step.artifacts))
            step.extra.update({key: value for key, value in extra.items() if value is not None})
            if status != "suspended":
                step.completed_at = rfc3339(self._env.clock.now())
            begun = self._started.pop(id(step), None)
            if begun is not None:
                step.duration_ms = round((self._env.clock.monotonic() - begun) * 1000)

    def said(self, job: JobState, step: StepState, line: str) -> None:
        with self._lock:
            self._watcher.said(job.name, step.name, line)
