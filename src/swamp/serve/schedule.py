"""Starts workflows at their ticks: claims each, decides about overlap, and puts it into the queue.

Several servers on one bucket fire each tick once: whoever creates the tick's object has it. Where the store enforces no
conditions the same is done under a lease. A claim does not carry the promise alone: the run's id is made from the tick,
and a run that has a record is never started again. So a claim whose server died is taken over without asking whose
clock is right. inv[schedule.once]
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from swamp.data.run_record import path_of
from swamp.env import UTC, parse_rfc3339, rfc3339
from swamp.errors import ConditionFailed, NotFound, ObjectMissing, SwampError
from swamp.serve.dispatch import driving
from swamp.serve.queue import Queue, run_id_of
from swamp.store.port import CREATE, Condition, Match, ObjectStore, Token
from swamp.workflows.decide import cancel_run, seen_summary
from swamp.workflows.schema import WorkflowFile

if TYPE_CHECKING:
    from swamp.repo.repository import Repo
    from swamp.serve.dispatch import Dispatcher
    from swamp.serve.follow import RunIndex
    from swamp.serve.queue import QueuedDelivery

LOOK_SECONDS: Final = 0.2
FILES_EVERY: Final = 5.0
LATE_SECONDS: Final = 60.0
"""A tick that is older than this was missed: `catchup` decides about it."""
PREFIX: Final = ".schedule"
KEPT: Final = 100
"""Claims that stay in the store per workflow; no server ever fires a tick that is older than the last one."""
_TICKS: Final = str(uuid.NAMESPACE_OID)
_log = logging.getLogger("swamp.serve")


@dataclass(frozen=True)
class Claim:
    """A tick as it stands: who has it, and the token with which it can be taken over."""

    server: str
    skipped: bool
    token: Token


@dataclass(frozen=True)
class Claims:
    """The claims of one repository's schedules. `server` is this server's own word, new at every start."""

    repo: Repo
    server: str

    def take(self, workflow_id: str, tick: dt.datetime) -> bool:
        """Whether the tick is ours. Raises StoreError when nobody can say."""
        with self._alone(workflow_id):
            free = self._safe or self.look(workflow_id, tick) is None
            if free and self._put(workflow_id, tick, CREATE):
                return True
            found = self.look(workflow_id, tick)
            return found is not None and found.server == self.server

    def take_over(self, workflow_id: str, tick: dt.datetime, seen: Claim, *, skipped: bool = False) -> bool:
        """The tick of a server that died: ours, if it still stands as it was seen."""
        with self._alone(workflow_id):
            now = self.look(workflow_id, tick)
            if now is None or now.server != seen.server or now.skipped:
                return False
            return self._put(workflow_id, tick, Match(now.token), skipped=skipped)

    def skip(self, workflow_id: str, tick: dt.datetime) -> None:
        """Says that nobody has to run this tick."""
        seen = self.look(workflow_id, tick)
        if seen is not None and seen.server == self.server:
            self.take_over(workflow_id, tick, seen, skipped=True)

    def look(self, workflow_id: str, tick: dt.datetime) -> Claim | None:
        """The claim of a tick. A damaged one belongs to nobody, and is taken over in time."""
        try:
            found = self._store.get(_key(workflow_id, tick), length=4096)
        except ObjectMissing:
            return None
        try:
            said: Any = json.loads(found.body)
            return Claim(str(said["server"]), bool(said.get("skipped")), found.meta.token)
        except (ValueError, KeyError, TypeError):
            return Claim("", False, found.meta.token)

    def sweep(self, workflow_id: str) -> None:
        """Forgets all but the newest claims."""
        pages = self._store.list(f"{PREFIX}/{workflow_id}/")
        keys = sorted(meta.key for page in pages for meta in page if meta.key.endswith(".json"))
        if len(keys) > KEPT * 2:
            self._store.delete(keys[:-KEPT])

    @cached_property
    def _store(self) -> ObjectStore:
        from swamp.store.directory import DirectoryStore

        datastore = self.repo.datastore
        return datastore.store if datastore.synced else DirectoryStore(datastore.directory / ".locks", self.repo.env)

    @property
    def _safe(self) -> bool:
        return not self.repo.datastore.synced or self.repo.datastore.capabilities.safe

    def _put(self, workflow_id: str, tick: dt.datetime, condition: Condition, *, skipped: bool = False) -> bool:
        body = json.dumps({"server": self.server, "skipped": skipped}).encode()
        try:
            self._store.put(_key(workflow_id, tick), body, condition if self._safe else None)
        except ConditionFailed:
            return False
        return True

    @contextmanager
    def _alone(self, workflow_id: str) -> Iterator[None]:
        """Where the store enforces nothing, one at a time: under a lease."""
        from swamp.locks.decide import Holder
        from swamp.locks.leases import StoreLeases

        if self._safe:
            yield
            return
        holder, capabilities = Holder.of_process(), self.repo.datastore.capabilities
        client = StoreLeases(self._store, holder, self.repo.env, capabilities=capabilities, inherited=())
        lease = client.acquire(f"{PREFIX}/{workflow_id}/.lock")
        try:
            yield
        finally:
            lease.release()


def _key(workflow_id: str, tick: dt.datetime) -> str:
    return f"{PREFIX}/{workflow_id}/{tick:%Y%m%dT%H%M%SZ}.json"


@dataclass
class _Lost:
    """A tick that another server has claimed, until its run has begun."""

    workflow: WorkflowFile
    tick: dt.datetime
    seen: Claim
    until: float


@dataclass
class Scheduler:
    """The schedules of one server."""

    repo: Repo
    queue: Queue
    dispatcher: Dispatcher
    index: RunIndex
    tell: Callable[[QueuedDelivery], None]
    claim_seconds: float
    _due: dict[str, tuple[str, dt.datetime]] = field(default_factory=dict)
    _workflows: dict[str, WorkflowFile] = field(default_factory=dict)
    _lost: list[_Lost] = field(default_factory=list)
    _read_at: float = float("-inf")
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.claims = Claims(self.repo, self.repo.env.uuid())
        self._thread = threading.Thread(target=self._loop, name="scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Fires nothing more."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - told, and tried again: the tick is still due
                _log.warning("schedules wait: %s", error)
                self._stop.wait(2.0)

    def look(self) -> None:
        """Fires what is due, and takes over what died elsewhere."""
        now = self.repo.env.clock.now()
        self._read_files(now)
        for workflow_id, workflow in list(self._workflows.items()):
            while (due := self._due[workflow_id][1]) <= now:
                following = self._next(workflow, due)
                missed = (now - due).total_seconds() > LATE_SECONDS
                if not missed or (
                    workflow.catchup == "last" and following > now
                ):  # of those that were missed, the last
                    self._fire(workflow, due)
                self._due[workflow_id] = (_spelled(workflow), following)
                self._remember(workflow_id, due)
        self._look_after_lost()

    # -- what is scheduled

    def _read_files(self, now: dt.datetime) -> None:
        clock = self.repo.env.clock.monotonic()
        if clock - self._read_at < FILES_EVERY:
            return
        self._read_at = clock
        with driving(self.repo) as driver:
            found = {one.workflow.id: one.workflow for one in driver.files.all() if one.workflow.schedule}
        self._workflows = found
        for workflow_id, workflow in found.items():
            known = self._due.get(workflow_id)
            if known is None or known[0] != _spelled(workflow):
                self._due[workflow_id] = (_spelled(workflow), self._first(workflow, now, new=known is None))

    def _first(self, workflow: WorkflowFile, now: dt.datetime, *, new: bool) -> dt.datetime:
        """The first tick to look at: the last one that was missed, if the workflow wants that, else the next."""
        following = self._next(workflow, now)
        if not new or workflow.catchup != "last":
            return following
        missed = tick_before(str(workflow.schedule), workflow.timezone, now)
        seen = self._last_seen(workflow.id)
        if missed is None or seen is None or missed <= seen:
            if seen is None:
                self._remember(workflow.id, now)
            return following
        return missed

    def _next(self, workflow: WorkflowFile, after: dt.datetime) -> dt.datetime:
        return tick_after(str(workflow.schedule), workflow.timezone, after)

    def _last_seen(self, workflow_id: str) -> dt.datetime | None:
        row = self.queue.db.one("SELECT value FROM meta WHERE name = ?", (f"tick:{workflow_id}",))
        return parse_rfc3339(row[0]) if row else None

    def _remember(self, workflow_id: str, tick: dt.datetime) -> None:
        sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
        self.queue.db.execute(sql, (f"tick:{workflow_id}", rfc3339(tick)))

    # -- firing

    def _fire(self, workflow: WorkflowFile, tick: dt.datetime) -> None:
        if self.claims.take(workflow.id, tick):
            self._run(workflow, tick)
            self.claims.sweep(workflow.id)
            return
        seen = self.claims.look(workflow.id, tick)
        if seen is not None and not seen.skipped:
            until = self.repo.env.clock.monotonic() + self.claim_seconds
            self._lost.append(_Lost(workflow, tick, seen, until))

    def _run(self, workflow: WorkflowFile, tick: dt.datetime) -> None:
        identity = f"{workflow.name}@{rfc3339(tick)}"
        event: dict[str, Any] = {"tick": rfc3339(tick), "inputs": {}, "serial": workflow.overlap != "skip"}
        others = self._running(workflow)
        made, new = self.queue.accept(
            "schedule", workflow.id, identity, workflow.name, self.run_id(workflow, tick), event
        )
        if not new:
            return
        if others and workflow.overlap == "skip":
            self.queue.finish(made, "skipped", f"run {others[0]} was still running")
            self.claims.skip(workflow.id, tick)
        elif others and workflow.overlap == "cancel-running":
            self._cancel(others)
        self.tell(self.queue.by_number(made.n))
        self.dispatcher.wake()

    def run_id(self, workflow: WorkflowFile, tick: dt.datetime) -> str:
        """The same on every server of the bucket, as the claim is; their checkouts may have ids of their own."""
        return run_id_of(_TICKS, "schedule", workflow.id, rfc3339(tick))

    def _running(self, workflow: WorkflowFile) -> list[str]:
        """The runs of this workflow that are under way anywhere, or wait in this server's queue."""
        waiting = [d.run_id for d in self.queue.list(status="queued") if d.workflow == workflow.name]
        waiting += [d.run_id for d in self.queue.under_way() if d.workflow == workflow.name]
        with driving(self.repo) as driver:
            found = [s for s in self.index.all() if s.workflow_id == workflow.id and s.status == "running"]
            alive = [s.run_id for s in found if seen_summary(driver, s)[0].status == "running"]
        return list(dict.fromkeys([*alive, *waiting]))

    def _cancel(self, runs: list[str]) -> None:
        for run_id in runs:
            if self.queue.cancel_waiting(run_id) or self.dispatcher.spawner.signal(run_id):
                continue
            try:
                with driving(self.repo) as driver:
                    cancel_run(driver, run_id)
            except SwampError as error:
                _log.warning("run %s was not cancelled: %s", run_id, error.message)

    # -- claims of servers that died

    def _look_after_lost(self) -> None:
        now = self.repo.env.clock.monotonic()
        for lost in [one for one in self._lost if one.until <= now]:
            self._lost.remove(lost)
            if self._has_begun(lost):
                continue
            if self.claims.take_over(lost.workflow.id, lost.tick, lost.seen):
                self._run(lost.workflow, lost.tick)

    def _has_begun(self, lost: _Lost) -> bool:
        run_id = self.run_id(lost.workflow, lost.tick)
        if self.repo.datastore.synced:
            self.repo.datastore.pull((path_of(lost.workflow.id, run_id),))
        try:
            self.repo.runs.get(run_id, lost.workflow.id)
        except NotFound:
            return False
        return True

    # -- telling

    def items(self) -> list[dict[str, Any]]:
        """Every schedule with its last and its next tick."""
        now = self.repo.env.clock.now()
        with driving(self.repo) as driver:
            found = sorted((one.workflow for one in driver.files.all() if one.workflow.schedule), key=lambda w: w.name)
        return [
            {
                "workflow": workflow.name,
                **workflow.model_dump(include={"schedule", "timezone", "overlap", "catchup"}),
                "next": rfc3339(self._next(workflow, now)),
                "last": None if (seen := self._last_seen(workflow.id)) is None else rfc3339(seen),
            }
            for workflow in found
        ]


def _spelled(workflow: WorkflowFile) -> str:
    return f"{workflow.schedule} {workflow.timezone}"


def tick_after(schedule: str, timezone: str, moment: dt.datetime) -> dt.datetime:
    """The first tick behind `moment`, in UTC."""
    from cronsim import CronSim

    return next(CronSim(schedule, moment.astimezone(ZoneInfo(timezone)))).astimezone(UTC)


def tick_before(schedule: str, timezone: str, moment: dt.datetime) -> dt.datetime | None:
    """The last tick at or before `moment`, in UTC; None if there was none for years."""
    from cronsim import CronSim

    later = moment.astimezone(ZoneInfo(timezone)) + dt.timedelta(seconds=1)
    try:
        return next(CronSim(schedule, later.replace(microsecond=0), reverse=True)).astimezone(UTC)
    except StopIteration:
        return None
