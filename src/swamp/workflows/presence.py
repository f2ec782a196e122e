"""Whether the process behind a run is alive: by a lock that dies with it, or by its lease, never by a pid (K08).

A run holds its lock from before its first record to after its last. So a record that says `running` without anybody
holding the lock is a run whose process is gone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from swamp.cache.locks import FileLock, pids_holding
from swamp.env import SYSTEM, Env
from swamp.errors import LockTimeout, ObjectMissing, StoreError

if TYPE_CHECKING:
    from swamp.commit.lease_hold import HeldLease
    from swamp.repo.repository import Repo
    from swamp.store.port import ObjectStore

Verdict = Literal["alive", "dead", "unknown"]
STALE_TTLS = 3
TAKEOVER_SECONDS = 45.0
LOOK_SECONDS = 5.0
ECHO_SECONDS = 2.0


class Hold(Protocol):
    def check(self) -> None:
        """Raises when another process has taken the run over."""
        ...


class _Certain:
    def check(self) -> None: ...


class Presence(Protocol):
    def hold(self, workflow_id: str, run_id: str) -> AbstractContextManager[Hold]:
        """Be the process of this run. Raises LockTimeout while another one is."""
        ...

    def verdict(self, workflow_id: str, run_id: str, *, fresh: bool) -> Verdict:
        """`fresh`: the record was pulled just now, so that a missing lease cannot mean a newer record elsewhere."""
        ...

    def here(self) -> list[str]:
        """Ids of runs that began on this machine and whose lock is still there: alive, or dead and not yet noticed."""
        ...


def presence_of(repo: Repo) -> Presence:
    if repo.datastore.engine is None:
        return DirectoryPresence(repo.datastore.directory / ".locks" / "runs", repo.env)
    return BucketPresence(repo)


@dataclass(frozen=True)
class DirectoryPresence:
    """Runs of a datastore that is a plain directory: file locks beside it."""

    directory: Path
    env: Env

    @contextmanager
    def hold(self, workflow_id: str, run_id: str) -> Iterator[Hold]:
        del workflow_id
        file, stack = self._file(run_id), ExitStack()
        try:
            stack.enter_context(FileLock(file, self.env).exclusive(timeout=1.0))
        except LockTimeout as error:
            raise _still_running(run_id, error) from error
        with stack:
            try:
                yield _Certain()
            finally:
                _unlink(file)

    def verdict(self, workflow_id: str, run_id: str, *, fresh: bool) -> Verdict:
        del workflow_id, fresh
        return locally(self._file(run_id)) or "dead"

    def here(self) -> list[str]:
        return [file.stem for file in sorted(self.directory.glob("*.lock"))]

    def _file(self, run_id: str) -> Path:
        return self.directory / f"{run_id}.lock"


@dataclass(frozen=True)
class BucketPresence:
    """Runs of a shared datastore: a lease beside the run's record, shadowed by a file lock on this machine."""

    repo: Repo

    @contextmanager
    def hold(self, workflow_id: str, run_id: str) -> Iterator[Hold]:
        from swamp.commit.lease import read_lease

        key = lease_key(workflow_id, run_id)
        read_lease(self._store, key)  # an unreachable store is told at once, as what it is
        local = self._local(run_id)
        try:
            lease = self._acquire(key, local)
        except LockTimeout as error:
            raise _still_running(run_id, error) from error
        try:
            yield lease
        finally:
            lease.release()
            shutil.rmtree(local, ignore_errors=True)
        self._forget(key)

    def _acquire(self, key: str, local: Path) -> HeldLease:
        from swamp.commit.lease import Holder, acquire

        datastore = self.repo.datastore
        return acquire(
            self._store,
            key,
            holder=Holder.of_process(),
            env=self.repo.env,
            timeout_s=max(TAKEOVER_SECONDS, self.repo.settings.lock_timeout),
            capabilities=datastore.capabilities,
            local_lock_dir=local,
            inherited=(),
        )

    def _forget(self, key: str) -> None:
        """The run is over and its id is never used again: its lease need not stay in the bucket."""
        try:
            self._store.delete([key])
        except StoreError as error:
            self.repo.notify(f"the finished run's lease {key} stays in the datastore: {error.message}")

    def verdict(self, workflow_id: str, run_id: str, *, fresh: bool) -> Verdict:
        local = self._local(run_id)
        for file in local.glob("*.lock") if local.is_dir() else ():
            found = locally(file)
            if found is not None:
                return found
        return within(LOOK_SECONDS, lambda: self._by_lease(lease_key(workflow_id, run_id), fresh)) or "unknown"

    def _by_lease(self, key: str, fresh: bool) -> Verdict:
        """By what stands in the store and the store's own clock. inv[lease.no-clock]"""
        from swamp.commit.lease import read_lease, store_now

        try:
            seen = read_lease(self._store, key)
            if seen is None:
                # A run that is over takes its lease away after its last record is in the bucket.
                return "dead" if fresh or self._nothing_newer() else "unknown"
            if not seen.held:
                return "dead"
            age = store_now(self._store) - seen.last_modified
        except (StoreError, ObjectMissing):
            return "unknown"
        return "dead" if age.total_seconds() > STALE_TTLS * seen.ttl_s else "alive"

    def _nothing_newer(self) -> bool:
        """Whether this cache has seen all that the bucket has: then its record of the run is the last one there is."""
        engine = self.repo.datastore.must_sync()
        root = engine.committer.read().root
        seen = engine.state.meta("pulledOp")
        return root is not None and seen == root.op and engine.state.deferred_empty()

    def here(self) -> list[str]:
        return [directory.name for directory in sorted(self._runs.glob("*")) if directory.is_dir()]

    @property
    def _store(self) -> ObjectStore:
        return self.repo.datastore.store

    @property
    def _runs(self) -> Path:
        return self.repo.datastore.cache.base / "runs"

    def _local(self, run_id: str) -> Path:
        return self._runs / run_id


def lease_key(workflow_id: str, run_id: str) -> str:
    return f"workflow-runs/{workflow_id}/{run_id}/.lock"


def locally(file: Path) -> Verdict | None:
    """What the kernel knows: a lock that somebody holds, one that nobody holds any more, or none at all.

    A child that its killed parent had just forked holds the lock too, until it executes its program: a lock that no
    living process has taken is looked at again.
    """
    deadline = SYSTEM.clock.monotonic() + ECHO_SECONDS
    while True:
        try:
            free = _is_free(file)
        except FileNotFoundError:
            return None
        if free:
            return "dead"
        if _taken_by_the_living(file) or SYSTEM.clock.monotonic() > deadline:
            return "alive"
        SYSTEM.clock.sleep(0.02)


def _is_free(file: Path) -> bool:
    """Asked with a shared lock: two who ask at once do not take each other for the run."""
    descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _taken_by_the_living(file: Path) -> bool:
    """Decides about patience only, never about a run (K08): a pid may be somebody else's by now."""
    return any(Path(f"/proc/{pid}").exists() for pid in pids_holding(file) if pid)


def within(seconds: float, look: Callable[[], Verdict]) -> Verdict | None:
    """The answer, if it comes in time: a read must not hang because a store does."""
    import threading

    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(look()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0] if found else None


def _unlink(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.with_name(file.name + ".queue").unlink(missing_ok=True)


def _still_running(run_id: str, error: LockTimeout) -> LockTimeout:
    holder = error.details.get("holder")
    return LockTimeout(
        f"run {run_id} is still running" + (f", by {holder}" if holder else ""),
        hint=f"wait for it, or stop it with `swamp workflow cancel {run_id}`",
        details=error.details,
    )
