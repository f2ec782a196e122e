"""What goes on, while it goes: bars of transfers and a live tree of a run on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from swamp.cli.render import Printer, print_line
from swamp.env import SYSTEM
from swamp.sync.progress import Progress as AnyProgress

if TYPE_CHECKING:
    from swamp.data.run_record import JobState, RunState, StepState

SIGNS = {
    "pending": ("·", "dim"),
    "running": ("●", "cyan"),
    "suspended": ("⏸", "yellow"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "skipped": ("–", "dim"),
    "cancelled": ("⊘", "yellow"),
}


def seconds_text(millis: int | None) -> str:
    if millis is None:
        return ""
    if millis < 60_000:
        return f"{millis / 1000:.1f} s"
    return f"{millis // 60_000} min {millis % 60_000 // 1000} s"


def step_text(step: StepState) -> str:
    """What is to say about a step's end besides its name."""
    parts = [seconds_text(step.duration_ms)] if step.duration_ms is not None else []
    if step.status == "failed" and step.allowed_failure:
        parts.append("allowed to fail")
    if step.status == "suspended" and "approval" in step.extra:
        parts.append(f"waits: {step.extra['approval'].get('prompt', '')}")
    if step.error:
        parts.append(step.error.splitlines()[0])
    return ", ".join(part for part in parts if part)


class RunLines:
    """One line per change and per line of output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._seen: dict[tuple[str, str], str] | None = None

    def changed(self, run: RunState) -> None:
        if self._seen is None:  # what an earlier attempt did is not news
            self._seen = {(job.name, step.name): step.status for job, step in run.steps}
        for job, step in run.steps:
            key = (job.name, step.name)
            before = self._seen.get(key, "pending")
            if step.status != before:
                self._seen[key] = step.status
                note = step_text(step)
                print_line(f"{job.name}/{step.name}: {step.status}" + (f" ({note})" if note else ""), self._stream)

    def said(self, job: str, step: str, line: str) -> None:
        print_line(f"{job}/{step} | {line}", self._stream)


class LiveTree:
    """The whole run as a tree that redraws itself; the last line of a running step stands beside it."""

    def __init__(self, color: bool) -> None:
        self._color = color
        self._run: RunState | None = None
        self._last: dict[tuple[str, str], str] = {}
        self._began: dict[tuple[str, str], float] = {}

    def changed(self, run: RunState) -> None:
        self._run = run
        for job, step in run.steps:
            if step.status == "running":
                self._began.setdefault((job.name, step.name), SYSTEM.clock.monotonic())
            else:
                self._began.pop((job.name, step.name), None)

    def said(self, job: str, step: str, line: str) -> None:
        self._last[job, step] = line

    def __rich__(self) -> Any:
        from rich.tree import Tree

        if self._run is None:
            return Tree("starting")
        tree = Tree(self._label(self._run.status, self._run.workflow_name, "bold"))
        for job in list(self._run.jobs):
            branch = tree.add(self._label(job.status, job.name))
            for step in list(job.steps):
                branch.add(self._step(job, step))
        return tree

    def _label(self, status: str, name: str, style: str = "") -> Any:
        from rich.text import Text

        sign, color = SIGNS.get(status, ("?", ""))
        return Text.assemble((f"{sign} ", color if self._color else ""), (name, style))

    def _step(self, job: JobState, step: StepState) -> Any:
        from rich.text import Text

        label = self._label(step.status, step.name)
        key = (job.name, step.name)
        if step.status == "running":
            took = seconds_text(
                round((SYSTEM.clock.monotonic() - self._began.get(key, SYSTEM.clock.monotonic())) * 1000)
            )
            note = f"{took}  {self._last.get(key, '')[:80]}"
        else:
            note = step_text(step)
        return Text.assemble(label, (f"  {note}", "dim")) if note.strip() else label


@contextmanager
def watching(out: Printer) -> Iterator[Any]:
    """The watcher that fits where the command prints: terminal, pipe, JSON (then on stderr), or nobody."""
    from swamp.workflows.recorder import NullWatcher

    if out.quiet:
        yield NullWatcher()
    elif out.json or not sys.stdout.isatty():
        yield RunLines(sys.stderr if out.json else sys.stdout)
    else:
        from rich.console import Console
        from rich.live import Live

        tree = LiveTree(out.color)
        with Live(tree, console=Console(no_color=not out.color), refresh_per_second=8):
            yield tree


class Bars(AnyProgress):
    """One rich bar per stage, made when the first stage begins so that quick commands never pay for it."""

    def __init__(self, color: bool = True) -> None:
        self._color = color
        self._lock = threading.Lock()
        self._live: Any = None
        self._task: Any = None

    def begin(self, stage: str, files: int | None = None, size: int | None = None) -> None:
        with self._lock:
            if self._live is None:
                self._live = self._make()
                self._live.start()
            self._task = self._live.add_task(stage, total=size or None, done=0, files=files or "?")

    def advance(self, files: int = 0, size: int = 0) -> None:
        with self._lock:
            if self._live is None:
                return
            done = self._live.tasks[self._task].fields["done"] + files
            self._live.update(self._task, advance=size, done=done)

    def end(self) -> None:
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _make(self) -> Any:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[done]}/{task.fields[files]} files"),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True, no_color=not self._color),
            transient=True,
        )


class ProgressLines(AnyProgress):
    """One line when a stage begins and one when it ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._stage = ""
        self._files = 0
        self._size = 0

    def begin(self, stage: str, files: int | None = None, size: int | None = None) -> None:
        with self._lock:
            self._stage, self._files, self._size = stage, 0, 0
            expected = "" if files is None else f": {files} files, {size or 0} bytes"
            self._stream.write(f"{stage}{expected}\n")
            self._stream.flush()

    def advance(self, files: int = 0, size: int = 0) -> None:
        with self._lock:
            self._files += files
            self._size += size

    def end(self) -> None:
        with self._lock:
            self._stream.write(f"{self._stage} done: {self._files} files, {self._size} bytes\n")
            self._stream.flush()
