"""Records a run: one state that many threads change, saved after every change before anyone builds on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from swamp.data.document import dump
from swamp.data.run_record import JobState, RunState, StepState, StepStatus
from swamp.env import Env, rfc3339
from swamp.models.mask import Masker


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
        jobs = b"".join(self._job(number, job) for number, job in enumerate(run.jobs))
        return self._text(run.head()) + (b"jobs:\n" + jobs if jobs else b"jobs: []\n") + self._text(run.tail())

    def _text(self, value: Any) -> bytes:
        return dump(self._masker.value(value))

    def _job(self, number: int, job: JobState) -> bytes:
        steps = b"".join(self._step((number, at), step.to_document()) for at, step in enumerate(job.steps))
        return self._text([job.head()]) + (b"  steps:\n" + steps if steps else b"  steps: []\n")

    def _step(self, place: tuple[int, int], step: Mapping[str, Any]) -> bytes:
        seen = repr(step)
        known = self._steps.get(place)
        if known is not None and known[0] == seen:
            return known[1]
        lines = self._text([step]).splitlines(keepends=True)
        text = b"".join(_INDENT + line for line in lines)
        self._steps[place] = (seen, text)
        return text
