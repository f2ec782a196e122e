"""Which jobs may be given to another process, and in which order. Pure: nothing is moved here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from swamp.sync.bulk import Download, Upload, Work
from swamp.sync.transfer import LARGE

SHARED_FILES: Final = 2_000
"""From so many files on a second process should pay for its start: 0.3 s of CPU beside a second or more of work. An
estimate; measured are 10,000 and 100,000 (docs/decisions/0010-a-second-process.md)."""
J = TypeVar("J", Upload, Download)


def worth_sharing(work: Work) -> bool:
    """Whether two processes would be done sooner than one."""
    return work.stage in ("upload", "download") and work.files >= SHARED_FILES


def directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def firsts(jobs: Iterable[J]) -> tuple[list[J], list[J]]:
    """One job of every directory, and all others: once those are done, no other has to make a directory."""
    first: dict[str, J] = {}
    others = [job for job in jobs if first.setdefault(directory_of(job.path), job) is not job]
    return list(first.values()), others


class Supply(Generic[J]):
    """Jobs that nobody has begun.

    `by_directory`: the first upload into a directory is done here and the others wait for it, so that no two processes
    make the same directory at once (docs/decisions/0007-servers-with-directories.md).
    """

    def __init__(self, jobs: Iterable[J], *, by_directory: bool = False) -> None:
        self._here: deque[J] = deque()
        self._anywhere: deque[J] = deque()
        self._behind: dict[str, list[J]] = {}
        self._waiting = 0
        opening, others = firsts(jobs) if by_directory else ([], jobs)
        for job in opening:
            self._behind[directory_of(job.path)] = []
            self._here.append(job)
        for job in others:
            if by_directory:
                self._behind[directory_of(job.path)].append(job)
                self._waiting += 1
            else:
                self._queue(job)

    @property
    def left(self) -> int:
        return len(self._here) + len(self._anywhere) + self._waiting

    def next(self) -> J | None:
        """A job for this process."""
        if self._here:
            return self._here.popleft()
        return self._anywhere.popleft() if self._anywhere else None

    def to_lend(self, most: int) -> list[J]:
        """Jobs for another process, from the far end: neighbours stay together."""
        return [self._anywhere.pop() for _ in range(min(most, len(self._anywhere)))]

    def take_back(self, job: J) -> None:
        """Another process has not done it: it is done here."""
        self._here.append(job)

    def settle(self, path: str, *, done: bool) -> None:
        """Whoever waited behind this path may go: anywhere if its directory is there now, else only here."""
        followers = self._behind.pop(directory_of(path), ()) if self._behind else ()
        self._waiting -= len(followers)
        for job in followers:
            self._queue(job, anywhere=done)

    def _queue(self, job: J, *, anywhere: bool = True) -> None:
        """A large file stays here: it may take longer than the time without progress, and only this process sees it
        move."""
        (self._anywhere if anywhere and job.size < LARGE else self._here).append(job)
