"""Locks a run for the process that works on it, and says whether that process is alive: never by a pid (K08).

A run holds its lock from before its first record to after its last. So a record that says `running` without anybody
holding the lock is a run whose process is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from swamp.env import Env
from swamp.errors import LockTimeout
from swamp.locks.flock import FileLock, Verdict, by_lock
from swamp.repo.leases import by_lease
from swamp.values import value

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

TAKEOVER_SECONDS = 45.0


StillOurs = Callable[[], None]
"""Raises when another process has taken the run over."""


@value
class DirectoryRunLocks:
    """Runs of a datastore that is a plain directory: file locks beside it."""

    directory: Path
    env: Env

    @contextmanager
    def hold(self, workflow_id: str, run_id: str, *, new: bool = False) -> Iterator[StillOurs]:
        del workflow_id, new
        file, stack = self._file(run_id), ExitStack()
        try:
            stack.enter_context(FileLock(file, self.env).exclusive(timeout=1.0))
        except LockTimeout as error:
            raise _still_running(run_id, error) from error
        with stack:
            try:
                yield lambda: None
            finally:
                file.unlink(missing_ok=True)
                file.with_name(file.name + ".queue").unlink(missing_ok=True)

    def verdict(self, workflow_id: str, run_id: str, *, fresh: bool) -> Verdict:
        del workflow_id, fresh
        return by_lock(self._file(run_id)) or "dead"

    def here(self) -> list[str]:
        return [file.stem for file in sorted(self.directory.glob("*.lock"))]

    def _file(self, run_id: str) -> Path:
        return self.directory / f"{run_id}.lock"


@value
class StoreRunLocks:
    """Runs of a shared datastore: a lease beside the run's record, shadowed by a file lock on this machine."""

    repo: Repo

    @contextmanager
    def hold(self, workflow_id: str, run_id: str, *, new: bool = False) -> Iterator[StillOurs]:
        """Be the process of this run. Raises LockTimeout while another one is; of a `new` one nobody else can be."""
        from swamp.locks.decide import Holder, read_lease
        from swamp.locks.leases import AWAY_S, StoreLeases

        self.repo.datastore.must_be_there()  # a lease would make the directory of a bucket that is away
        key = lease_key(workflow_id, run_id)
        if not new:
            read_lease(self.repo.datastore.store, key)  # an unreachable store is told at once, as what it is
        local = self._local(run_id)
        # Long enough to see that a dead process renews nothing; one that lives on this machine is not waited out.
        asked = self.repo.settings.lock_timeout
        client = StoreLeases(
            self.repo.datastore.store,
            Holder.of_process(),
            self.repo.env,
            timeout_s=asked if self._here_is(local) == "alive" else max(TAKEOVER_SECONDS, asked),
            capabilities=self.repo.datastore.capabilities,
            local_lock_dir=local,
            inherited=(),
            away_s=0.0 if new else AWAY_S,
        )
        try:
            lease = client.acquire(key)
        except LockTimeout as error:
            raise _still_running(run_id, error) from error
        try:
            yield lease.check
        finally:
            shutil.rmtree(local, ignore_errors=True)
            lease.release()  # it stays in the store, marked: who waits for this run may have it already (K14)

    def verdict(self, workflow_id: str, run_id: str, *, fresh: bool) -> Verdict:
        """`fresh`: the record was pulled just now, so that a missing lease cannot mean a newer record elsewhere."""
        here = self._here_is(self._local(run_id))
        return here or by_lease(self.repo.datastore, lease_key(workflow_id, run_id), fresh=fresh)

    def _here_is(self, local: Path) -> Verdict | None:
        """What the locks of this machine say of a run, None if they know nothing of it."""
        files = local.glob("*.lock") if local.is_dir() else ()
        return next(filter(None, map(by_lock, files)), None)

    def here(self) -> list[str]:
        """Ids of runs that began on this machine and whose lock is still there: alive, or dead and not yet noticed."""
        return [directory.name for directory in sorted(self._runs.glob("*")) if directory.is_dir()]

    @property
    def _runs(self) -> Path:
        return self.repo.datastore.cache.base / "runs"

    def _local(self, run_id: str) -> Path:
        return self._runs / run_id


RunLocks = DirectoryRunLocks | StoreRunLocks


def run_locks_of(repo: Repo) -> RunLocks:
    if repo.datastore.engine is None:
        return DirectoryRunLocks(repo.datastore.directory / ".locks" / "runs", repo.env)
    return StoreRunLocks(repo)


def lease_key(workflow_id: str, run_id: str) -> str:
    return f"workflow-runs/{workflow_id}/{run_id}/.lock"


def _still_running(run_id: str, error: LockTimeout) -> LockTimeout:
    holder = error.details.get("holder")
    return LockTimeout(
        f"run {run_id} is still running" + (f", by {holder}" if holder else ""),
        hint=f"wait for it, or stop it with `swamp workflow cancel {run_id}`",
        details=error.details,
    )
