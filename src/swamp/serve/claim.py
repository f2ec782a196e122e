"""Several servers on one bucket fire each tick once: whoever creates the tick's object has it.

Where the store enforces no conditions the same is done under a lease; in a plain directory by creating a file. A claim
does not carry the promise alone: the run's id is made from the tick, and a run that has a record is never started
again. So a claim whose server died is taken over without asking whose clock is right. inv[schedule.once]
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from swamp.errors import ConditionFailed, ObjectMissing
from swamp.locks.flock import FileLock
from swamp.store.port import CREATE, Match, ObjectStore, Token

if TYPE_CHECKING:
    from pathlib import Path

    from swamp.repo.repository import Repo

PREFIX: Final = ".schedule"
KEPT: Final = 100
"""Claims that stay in the store per workflow; no server ever fires a tick that is older than the last one."""


@dataclass(frozen=True)
class Claim:
    """A tick as it stands: who has it, and the token with which it can be taken over."""

    server: str
    skipped: bool
    token: Token | None


def tick_name(tick: dt.datetime) -> str:
    return tick.strftime("%Y%m%dT%H%M%SZ")


@dataclass(frozen=True)
class Claims:
    """The claims of one repository's schedules. `server` is this server's own word, new at every start."""

    repo: Repo
    server: str

    def take(self, workflow_id: str, tick: dt.datetime) -> bool:
        """Whether the tick is ours. Raises StoreError when nobody can say."""
        with self._alone(workflow_id):
            if self._create(workflow_id, tick):
                return True
            found = self.look(workflow_id, tick)
            return found is not None and found.server == self.server

    def take_over(self, workflow_id: str, tick: dt.datetime, seen: Claim) -> bool:
        """The tick of a server that died: ours, if it still stands as it was seen."""
        with self._alone(workflow_id):
            return self._replace(workflow_id, tick, seen, self._body())

    def skip(self, workflow_id: str, tick: dt.datetime) -> None:
        """Says that nobody has to run this tick."""
        seen = self.look(workflow_id, tick)
        if seen is not None and seen.server == self.server:
            with self._alone(workflow_id):
                self._replace(workflow_id, tick, seen, self._body(skipped=True))

    def look(self, workflow_id: str, tick: dt.datetime) -> Claim | None:
        store = self._store
        try:
            if store is None:
                return _claim(self._file(workflow_id, tick).read_bytes(), None)
            found = store.get(self._key(workflow_id, tick), length=4096)
        except (ObjectMissing, FileNotFoundError):
            return None
        return _claim(found.body, found.meta.token)

    def sweep(self, workflow_id: str) -> None:
        """Forgets all but the newest claims."""
        store = self._store
        if store is None:
            for file in sorted(self._file(workflow_id, None).glob("*.json"))[:-KEPT]:
                file.unlink(missing_ok=True)
            return
        keys = [
            meta.key for page in store.list(f"{PREFIX}/{workflow_id}/") for meta in page if meta.key.endswith(".json")
        ]
        if len(keys) > KEPT * 2:
            store.delete(sorted(keys)[:-KEPT])

    # -- how

    @property
    def _store(self) -> ObjectStore | None:
        return self.repo.datastore.store if self.repo.datastore.synced else None

    @property
    def _safe(self) -> bool:
        return self.repo.datastore.capabilities.safe

    def _key(self, workflow_id: str, tick: dt.datetime) -> str:
        return f"{PREFIX}/{workflow_id}/{tick_name(tick)}.json"

    def _file(self, workflow_id: str, tick: dt.datetime | None) -> Path:
        directory = self.repo.datastore.directory / ".locks" / "ticks" / workflow_id
        return directory if tick is None else directory / f"{tick_name(tick)}.json"

    def _body(self, *, skipped: bool = False) -> bytes:
        return json.dumps({"server": self.server, "skipped": skipped}).encode()

    def _create(self, workflow_id: str, tick: dt.datetime) -> bool:
        store = self._store
        if store is None:
            return _create_file(self._file(workflow_id, tick), self._body())
        if not self._safe and self.look(workflow_id, tick) is not None:
            return False
        try:
            store.put(self._key(workflow_id, tick), self._body(), CREATE if self._safe else None)
        except ConditionFailed:
            return False
        return True

    def _replace(self, workflow_id: str, tick: dt.datetime, seen: Claim, body: bytes) -> bool:
        store = self._store
        now = self.look(workflow_id, tick)
        if now is None or now.server != seen.server or now.skipped:
            return False
        if store is None:
            self._file(workflow_id, tick).write_bytes(body)
            return True
        assert now.token is not None
        try:
            store.put(self._key(workflow_id, tick), body, Match(now.token) if self._safe else None)
        except ConditionFailed:
            return False
        return True

    @contextmanager
    def _alone(self, workflow_id: str) -> Iterator[None]:
        """Where nothing is enforced, one at a time: under a lease in the store, or a lock in the directory."""
        store = self._store
        if store is None:
            directory = self._file(workflow_id, None)
            directory.mkdir(parents=True, exist_ok=True)
            with FileLock(directory / "claims.lock", self.repo.env).exclusive():
                yield
        elif self._safe:
            yield
        else:
            with self._lease(store, f"{PREFIX}/{workflow_id}/.lock"):
                yield

    @contextmanager
    def _lease(self, store: ObjectStore, key: str) -> Iterator[None]:
        from swamp.locks.acquire import Holder, LeaseClient

        datastore = self.repo.datastore
        holder, capabilities = Holder.of_process(), datastore.capabilities
        lease = LeaseClient(store, holder, self.repo.env, capabilities=capabilities, inherited=()).acquire(key)
        try:
            yield
        finally:
            lease.release()


def _create_file(file: Path, body: bytes) -> bool:
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        made = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return False
    with contextlib.closing(os.fdopen(made, "wb")) as out:
        out.write(body)
    return True


def _claim(body: bytes, token: Token | None) -> Claim:
    """A damaged claim belongs to nobody, and is taken over in time."""
    try:
        found: Any = json.loads(body)
        return Claim(str(found["server"]), bool(found.get("skipped")), token)
    except (ValueError, KeyError, TypeError):
        return Claim("", False, token)
