"""The one interface to locks: a model's lease, or the global one that waits for all of them.

`flock.DirectoryLeases` keeps it for a plain directory, `leases.StoreLeases` for a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from swamp.env import Env
from swamp.values import value


class Held(Protocol):
    """A lease that is mine until `check` says otherwise."""

    @property
    def unbroken(self) -> bool:
        """Whether nobody else has held it since this machine did, or since ever."""
        ...

    def check(self) -> None:
        """Raises LockTimeout when it can no longer be shown to be mine."""
        ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` for a child process, which then does not wait for its parent (K09)."""
        ...


class Leases(Protocol):
    def within(self, changed: Callable[[Env], Env]) -> Leases:
        """The same leases for who waits by another clock, such as one that a request to cancel stops."""
        ...

    def model(self, model_type: str, model_id: str) -> AbstractContextManager[Held]:
        """One model's runs in order; steps back while the global lease is held."""
        ...

    def whole_store(self) -> AbstractContextManager[Held]:
        """Nobody else works: takes the global lease, then waits for every model's."""
        ...


@value
class NoLease:
    """For work that needs none."""

    unbroken: bool = True

    def check(self) -> None: ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ)
