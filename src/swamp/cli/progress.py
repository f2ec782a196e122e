"""Progress of long work: bars with bytes, files, rate and time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
from typing import Any, TextIO


class Bars:
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


class ProgressLines:
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
