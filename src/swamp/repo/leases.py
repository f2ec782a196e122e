"""Who may work now: one model's lease, or the global one that waits for all of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from swamp.cache.locks import FileLock, is_free
from swamp.env import Env, parse_rfc3339, rfc3339
from swamp.errors import LockTimeout

LOCAL_LOCKS_VARIABLE: Final = "SWAMP_LOCAL_LOCKS"
GLOBAL_FILE: Final = "global.lock"


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


@dataclass(frozen=True)
class NoLease:
    """For work that needs none."""

    unbroken: bool = True

    def check(self) -> None: ...

    def child_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return dict(environ)


@dataclass(frozen=True)
class LocalHeld:
    """A flock of this process: it cannot be lost, and a child is told its name."""

    name: str
    unbroken: bool = False

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
    on_waiting: Callable[[str], object] = lambda _: None
    """Hears of a holder that has to be waited for."""

    def within(self, changed: Callable[[Env], Env]) -> DirectoryLeases:
        return replace(self, env=changed(self.env))

    @contextmanager
    def model(self, model_type: str, model_id: str) -> Iterator[Held]:
        name = f"{self.directory}/{model_type}/{model_id}"
        with ExitStack() as stack:
            if not self._inherited(name):
                with self._naming_the_holder(GLOBAL_FILE):
                    stack.enter_context(self._lock(GLOBAL_FILE).shared(self.timeout))
                file = f"model-{model_type.replace('/', '+')}-{model_id}.lock"
                stack.enter_context(self._exclusive(file, {"model": f"{model_type}/{model_id}"}))
            yield LocalHeld(name)

    @contextmanager
    def whole_store(self) -> Iterator[Held]:
        name = f"{self.directory}/*"
        with ExitStack() as stack:
            if not self._inherited(name):
                stack.enter_context(self._exclusive(GLOBAL_FILE, {}))
            yield LocalHeld(name)

    def whole_store_holder(self) -> dict[str, Any] | None:
        """Who holds the global lease now, as `lock status` tells it; None when nobody does."""
        return self._held(GLOBAL_FILE)

    def model_holders(self) -> list[dict[str, Any]]:
        """Who holds which model now, in the order of the models' names."""
        files = sorted(file.name for file in self.directory.glob("model-*.lock"))
        return [held for file in files if (held := self._held(file)) is not None]

    def _lock(self, file: str) -> FileLock:
        return FileLock(self.directory / file, self.env)

    @contextmanager
    def _exclusive(self, file: str, about: Mapping[str, str]) -> Iterator[None]:
        """Notes who holds it in a file beside it, for `lock status` and for the message of who waits in vain."""
        note = self._note(file)
        with ExitStack() as stack:
            with self._naming_the_holder(file):
                stack.enter_context(self._lock(file).exclusive(self.timeout))
            note.write_text(json.dumps({**about, **self._myself()}), encoding="utf-8")
            try:
                yield
            finally:
                note.unlink(missing_ok=True)

    @contextmanager
    def _naming_the_holder(self, file: str) -> Iterator[None]:
        held = self._held(file)
        if held is not None:
            what = f"the model {held['model']}" if "model" in held else "the datastore"
            since = f" since {held['acquiredAt']}" if "acquiredAt" in held else ""
            self.on_waiting(f"Waiting for {what}, held by {held['holder']}{since}")
        try:
            yield
        except LockTimeout as error:
            held = self._held(file)
            if held is not None:
                error.details["holder"] = held
            raise

    def _myself(self) -> dict[str, Any]:
        from swamp.commit.lease import Holder

        me = Holder.of_process()
        acquired = rfc3339(self.env.clock.now())
        return {"holder": str(me), "hostname": me.hostname, "pid": me.pid, "acquiredAt": acquired}

    def _held(self, file: str) -> dict[str, Any] | None:
        """The kernel says whether it is held, the note by whom: a note outlives a killed process, a lock does not."""
        try:
            if is_free(self.directory / file):
                return None
        except FileNotFoundError:
            return None  # nobody ever took it
        noted = self._noted(file)
        if file != GLOBAL_FILE:
            noted.setdefault("model", file.removeprefix("model-").removesuffix(".lock").replace("+", "/"))
        noted.setdefault("holder", "another process")
        return noted

    def _noted(self, file: str) -> dict[str, Any]:
        """What the holder wrote of itself; empty in the moment before it does."""
        try:
            found = json.loads(self._note(file).read_text(encoding="utf-8"))
            age = self.env.clock.now() - parse_rfc3339(found["acquiredAt"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        return {**found, "ageMs": max(0, int(age.total_seconds() * 1000))}

    def _note(self, file: str) -> Path:
        return self.directory / f"{file}.holder"

    def _inherited(self, name: str) -> bool:
        held = os.environ.get(LOCAL_LOCKS_VARIABLE, "").split("\n")
        return name in held or f"{self.directory}/*" in held
