"""Has a second process write the files of fetched packs to staging, while this one fetches, names and records them.

Half of a pull of small files is making them, and Python runs on one core at a time. The copy of this process is told
slices and bytes and says which files it has verified and written. About a file that it does not confirm it has said
nothing, and whoever asked looks for himself: nothing is decided there, and a copy that dies, hangs or has no room costs
time only (docs/decisions/0023-a-second-process-writes.md).
"""

from __future__ import annotations

import gc
import marshal
import mmap
import os
import select
import signal
import struct
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from swamp.cache.files import stage_bytes
from swamp.cache.second import forked, may_fork
from swamp.errors import SwampError
from swamp.index.entry import Slice
from swamp.index.pack import unpacked, zstd
from swamp.sync.bulk import Download

zstd()  # loaded before the fork

ENOUGH: Final = 2_000
"""Files that are worth a second process: some 0.1 s of making them."""
ROOM: Final = 24 << 20
"""What both see: a group's bytes, 16 MiB at most, and what is to become of them."""
PORTION: Final = 250
"""Files that are confirmed at a time."""
SILENT_MS: Final = 60_000
"""Who takes longer for a portion hangs: a quarter of a second for each file."""
_LENGTH: Final = struct.Struct("<Q")

Told = tuple[tuple[str, int, int, bool], tuple[str, int, str | None, int | None, bool], int]
"""A slice (pack, offset, length, whether it is a frame), what becomes of it (staging, size, hash, mtime, durable), and
how many of its bytes have come."""


class SecondWriter:
    """The second process, as the first one sees it. One thread at a time asks it."""

    def __init__(self) -> None:
        self._room = mmap.mmap(-1, ROOM)
        self._hears, self._asks = os.pipe()
        self._answers, self._says = os.pipe()
        self.process = forked(self._serve)
        os.close(self._hears)
        os.close(self._says)

    def stage(self, parts: Sequence[tuple[Slice, Download]], stored: Sequence[memoryview]) -> Sequence[str | None]:
        """The staged file of each slice; None for one that it did not confirm. inv[pack.each-checked]"""
        asked = marshal.dumps([_told(cut, job, part) for (cut, job), part in zip(parts, stored, strict=True)])
        files: list[str | None] = []
        if len(asked) + sum(map(len, stored)) <= ROOM:
            self._room.seek(0)
            self._room.write(asked)
            for part in stored:
                self._room.write(part)
            with suppress(OSError):  # it is no more
                os.write(self._asks, _LENGTH.pack(len(asked)))
                while len(files) < len(parts) and (portion := self._heard()):
                    files += portion
        return files + [None] * (len(parts) - len(files))

    def _heard(self) -> Sequence[str | None] | None:
        """What it says next; None if it ended or hangs instead: an answer that was cut off is none."""
        length = self._read(_LENGTH.size)
        said = length and self._read(_LENGTH.unpack(length)[0])
        return marshal.loads(said) if said else None

    def _read(self, length: int) -> bytes | None:
        asked, read = select.poll(), b""
        asked.register(self._answers, select.POLLIN)
        while len(read) < length:
            if not asked.poll(SILENT_MS) and self.process is not None:
                os.kill(self.process, signal.SIGKILL)
            piece = os.read(self._answers, length - len(read))
            if not piece:
                return None
            read += piece
        return read

    def close(self) -> None:
        """Ends it and waits for that. It has nothing to do any more: one that does not leave hangs, and is killed."""
        os.close(self._asks)
        self._read(1)  # nothing but its end
        os.close(self._answers)
        if self.process is not None:
            with suppress(ChildProcessError):  # whoever ignores SIGCHLD has no children to wait for
                os.waitpid(self.process, 0)
        self._room.close()

    def _serve(self) -> None:
        """Never returns: nothing of what the first process has begun is to be ended twice."""
        code = 1
        try:
            os.close(self._asks)  # or nobody's leaving would be noticed: this one would wait for itself, with our locks
            os.close(self._answers)
            gc.disable()  # nothing of the first process is to be taken apart here
            while length := os.read(self._hears, _LENGTH.size):
                [asked] = _LENGTH.unpack(length)
                room = memoryview(self._room)
                files = _staged(marshal.loads(room[:asked]), room[asked:])
                while portion := list(islice(files, PORTION)):
                    said = marshal.dumps(portion)
                    os.write(self._says, _LENGTH.pack(len(said)) + said)
            code = 0
        finally:
            os._exit(code)


@contextmanager
def second_writer(jobs: Iterable[Download]) -> Iterator[SecondWriter | None]:
    """A second process for these downloads; None where they are few, there is no second core or no room for a process,
    or other threads are at work: a copy has none of them, but the locks that they hold."""
    if not isinstance(jobs, Sized) or len(jobs) < ENOUGH or not may_fork():
        yield None
        return
    writer = SecondWriter()
    try:
        yield writer if writer.process is not None else None
    finally:
        writer.close()


def _told(cut: Slice, job: Download, stored: memoryview) -> Told:
    wanted = (job.staging, job.size, job.sha256, job.mtime_ns, job.durable)
    return (cut.pack, cut.offset, cut.length, cut.zstd), wanted, len(stored)


def _staged(asked: Sequence[Told], body: memoryview) -> Iterator[str | None]:
    """The files in staging, verified; None for each that is not right or could not be written."""
    begin = 0
    for cut, (staging, size, sha256, mtime_ns, durable), arrived in asked:
        stored, file = body[begin : begin + arrived], None
        if sha256 is not None:
            with suppress(SwampError):  # the first process tries again, and says what is wrong
                file = stage_bytes(staging, unpacked(Slice(*cut), stored, size), size, sha256, mtime_ns, durable).file
        yield file
        begin += arrived
