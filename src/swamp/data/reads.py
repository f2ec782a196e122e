"""Which versions a run or a program has read: what it writes afterwards was made from them.

A method's thread notes in its run (`noting`); its child processes append lines to the file that SWAMP_READS names. A
program that is part of no run notes nothing here: its `Repository` does.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from swamp.data.names import version_of_directory

READS: Final = "SWAMP_READS"
MOST: Final = 1000
"""A run that reads more names the first ones: its record stays a record."""

Read = Mapping[str, Any]
"""A version as `DataVersion.artifact` names it."""


class Reads:
    """Versions in the order in which they were first read, each once. Threads share it.

    `file`: where other processes of the same run note what they read.
    """

    def __init__(self, known: Iterable[Read] = (), file: Path | None = None) -> None:
        self.file = file
        self._found: dict[str, Read] = {}
        self._lock = threading.Lock()
        for read in known:
            self.add(read)

    def add(self, read: Read) -> None:
        with self._lock:
            if len(self._found) < MOST:
                self._found.setdefault(str(read["path"]), dict(read))

    def all(self) -> tuple[Read, ...]:
        for read in lines_of(self.file) if self.file is not None else ():
            self.add(read)
        with self._lock:
            return tuple(self._found.values())


_current: Final[ContextVar[Reads | None]] = ContextVar("swamp_reads", default=None)


@contextmanager
def noting(reads: Reads) -> Iterator[Reads]:
    """What is read inside, in this thread, is noted there."""
    outer = _current.set(reads)
    try:
        yield reads
    finally:
        _current.reset(outer)


def file_of_run() -> str | None:
    """Where a process that works for the run of this thread notes what it reads; None outside of runs."""
    reads = _current.get()
    return str(reads.file) if reads is not None and reads.file is not None else None


def note(read: Read, file: str | None = None) -> None:
    """This was read: by the run of this thread, or by a child process of one (`file`, else SWAMP_READS)."""
    reads, told = _current.get(), file or os.environ.get(READS)
    if reads is not None:
        reads.add(read)
    elif told and read not in (known := list(lines_of(Path(told)))) and len(known) < MOST:
        with Path(told).open("a", encoding="utf-8") as out:
            out.write(json.dumps(dict(read)) + "\n")


def read_so_far() -> tuple[Read, ...]:
    """What the run that this thread or process belongs to has read; nothing outside of runs."""
    reads, told = _current.get(), os.environ.get(READS)
    if reads is not None:
        return reads.all()
    return Reads(lines_of(Path(told))).all() if told else ()


def lines_of(file: Path) -> Iterator[Read]:
    """What was noted in a file. Anything else in it is somebody's own doing and stands for nothing."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if is_read(found):
            yield found


def is_read(found: Any) -> bool:
    """Whether it names a version as `DataVersion.artifact` does."""
    return isinstance(found, dict) and version_of_directory(str(found.get("path"))) is not None
