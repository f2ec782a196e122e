"""Who may work now: one model's lease, or the global one that waits for all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from swamp.cache.locks import FileLock
from swamp.env import Env
from swamp.errors import LockTimeout

LOCAL_LOCKS_VARIABLE: Final = "SWAMP_LOCAL_LOCKS"


class Held(Protocol):
    """A lease that is mine until `check` says otherwise."""

    def check(self) -> None:
        """Raises LockTimeout when it can no longer be shown to be mine."""
        ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """`environ` for a child process, which then does not wait for its parent (K09)."""
        ...


class Leases(Protocol):
    def model(self, model_type: str, model_id: str) -> AbstractContextManager[Held]:
        """One model's runs in order; steps back while the global lease is held."""
        ...

    def whole_store(self) -> AbstractContextManager[Held]:
        """Nobody else works: takes the global lease, then waits for every model's."""
        ...


@dataclass(frozen=True)
class NoLease:
    """For work that needs none."""

    def check(self) -> None: ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ)


@dataclass(frozen=True)
class LocalHeld:
    """A flock of this process: it cannot be lost, and a child is told its name."""

    name: str

    def check(self) -> None: ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        names = [n for n in environ.get(LOCAL_LOCKS_VARIABLE, "").split("\n") if n and n != self.name]
        return {**environ, LOCAL_LOCKS_VARIABLE: "\n".join([*names, self.name])}


@dataclass(frozen=True)
class DirectoryLeases:
    """Leases of a datastore that is a plain directory: file locks beside the tier, gone with their process."""

    directory: Path
    env: Env
    timeout: float

    @contextmanager
    def model(self, model_type: str, model_id: str) -> Iterator[Held]:
        name = f"{self.directory}/{model_type}/{model_id}"
        with ExitStack() as stack:
            if not self._inherited(name):
                stack.enter_context(self._global().shared(self.timeout))
                file = f"model-{model_type.replace('/', '+')}-{model_id}.lock"
                stack.enter_context(self._exclusive(file, name))
            yield LocalHeld(name)

    @contextmanager
    def whole_store(self) -> Iterator[Held]:
        name = f"{self.directory}/*"
        with ExitStack() as stack:
            if not self._inherited(name):
                stack.enter_context(self._exclusive("global.lock", name))
            yield LocalHeld(name)

    def _global(self) -> FileLock:
        return FileLock(self.directory / "global.lock", self.env)

    @contextmanager
    def _exclusive(self, file: str, name: str) -> Iterator[None]:
        """Notes who holds it in a file beside it, for `lock status` and for the message of who waits in vain."""
        note = self.directory / f"{file}.holder"
        try:
            with FileLock(self.directory / file, self.env).exclusive(self.timeout):
                note.write_text(json.dumps({"name": name, "pid": os.getpid()}), encoding="utf-8")
                try:
                    yield
                finally:
                    note.unlink(missing_ok=True)
        except LockTimeout as error:
            error.details |= self._holder(note)
            raise

    def _holder(self, note: Path) -> dict[str, Any]:
        try:
            found = json.loads(note.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {"holder": found} if isinstance(found, dict) else {}

    def _inherited(self, name: str) -> bool:
        held = os.environ.get(LOCAL_LOCKS_VARIABLE, "").split("\n")
        return name in held or f"{self.directory}/*" in held
