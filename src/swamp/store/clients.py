"""The obstore clients of one bucket: how long each waits, and whether it may send something twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Clients:
    """obstore clients of one bucket, each with connections of its own.

    `make(timeout factor, retries, stall)` builds one; `stall`: it also ends when no byte comes for half of the plain
    limit, the time of sending included.

    A single PUT is never sent twice by a client (inv[store.no-blind-retry]): only parts of a multipart upload,
    which nobody can see before it is completed, are.
    """

    make: Callable[[float, int, bool], Any]

    @cached_property
    def quick(self) -> Any:
        return self.make(1, 0, True)

    @cached_property
    def steady(self) -> Any:
        """For what may well take half of the limit in which nothing comes back: a PUT of some size, many deletes."""
        return self.make(1, 0, False)

    @cached_property
    def patient(self) -> Any:
        """For single PUTs of megabytes over a slow line."""
        return self.make(10, 0, False)

    @cached_property
    def streaming(self) -> Any:
        """For bodies of any length in one answer: it may take hours, and must not stand still."""
        return self.make(10_000, 0, True)

    @cached_property
    def parts(self) -> Any:
        return self.make(10, 6, False)
