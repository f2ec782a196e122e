"""Works the queue off: every delivery becomes a process, and every end of a process is judged by the run's record."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from swamp.catalog.expression import CelScope, render
from swamp.data.run_record import RunState
from swamp.errors import NotFound, SwampError, UsageError
from swamp.serve.queue import Queue, QueuedDelivery
from swamp.serve.spawn import Spawner, WorkerJob, events_file
from swamp.workflows.decide import note_interrupted, seen_summary

if TYPE_CHECKING:
    from swamp.repo.repository import Repo
    from swamp.serve.config import ServeConfig
    from swamp.workflows.run import Driver

LOOK_SECONDS: Final = 1.0
LONGEST_PAUSE: Final = 60.0
TRY_AGAIN: Final = (69, 75, 130)
"""Exit codes after which the same run may still begin: the store was away, a lease was held, it was stopped."""
ATTEMPTS: Final = 3
_log = logging.getLogger("swamp.serve")


@contextmanager
def driving(repo: Repo) -> Iterator[Driver]:
    """A driver for one question or decision about runs."""
    from swamp.models.context import RunContext
    from swamp.workflows.run import Driver

    repo.changes.next_command()
    with RunContext(repo) as context:
        yield Driver(context)


@dataclass
class Dispatcher:
    """Starts at most `concurrency` runs at a time, oldest first."""

    repo: Repo
    config: ServeConfig
    queue: Queue
    tell: Callable[[QueuedDelivery], None]
    """Hears of every delivery whose state has changed."""
    over: Callable[[str, RunState | None], None]
    """Hears of every run whose process has ended, with its record if it has one."""
    killed: Callable[[RunState], None] = lambda run: None
    """Hears of every run that died with an earlier server."""
    _recovered: bool = False
    _active: dict[str, QueuedDelivery] = field(default_factory=dict)
    _exits: dict[str, int] = field(default_factory=dict)
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopping: bool = False

    def __post_init__(self) -> None:
        # The variables that hold secrets of webhooks: a run has no use for them.
        secrets = [h.secret.removeprefix("@env=") for h in self.config.webhooks if h.secret.startswith("@env=")]
        self.spawner = Spawner(self.repo.path, self._ended, withheld=secrets)
        self._thread = threading.Thread(target=self._loop, name="dispatcher", daemon=True)

    # -- beginning and ending

    def recover(self) -> None:
        """Runs that died with an earlier server are marked; what was under way is found again or goes back.

        With the store away nobody can tell: Unavailable, and the loop asks again before it starts anything."""
        with driving(self.repo) as driver:
            for run in note_interrupted(driver):
                self.killed(run)
        self._active |= {delivery.run_id: delivery for delivery in self.queue.under_way()}
        self._recovered = True
        for delivery in list(self._active.values()):
            self._settle(delivery, None)

    def start(self) -> None:
        self.spawner.warm()
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    @property
    def active(self) -> set[str]:
        """The runs that are under way."""
        return set(self._active)

    def stop(self) -> None:
        """Starts nothing more."""
        self._stopping = True
        self.wake()

    def drained(self, seconds: float) -> bool:
        """Waits for the runs to end, at most so long."""
        clock = self.repo.env.clock
        deadline = clock.monotonic() + seconds
        while self._active and clock.monotonic() < deadline:
            self._wake.set()
            clock.sleep(0.1)
        return not self._active

    def close(self) -> None:
        self.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.spawner.close()

    # -- the loop

    def _ended(self, run_id: str, code: int) -> None:
        self._exits[run_id] = code
        self.wake()

    def _loop(self) -> None:
        while True:
            self._wake.wait(LOOK_SECONDS if self._active or not self._stopping else None)
            self._wake.clear()
            try:
                if not self._recovered:
                    self.recover()
                known = self.spawner.running()
                for run_id, delivery in list(self._active.items()):
                    code = self._exits.pop(run_id, None)
                    if code is not None or run_id not in known:
                        self._settle(delivery, code)
                if self._stopping and not self._active:
                    return
                self._start_waiting()
            except SwampError as error:
                _log.warning("the queue waits: %s", error.message)
                self.repo.env.clock.sleep(LOOK_SECONDS)
            except Exception:  # noqa: BLE001 - without this thread nothing would ever run again, and nobody would know
                _log.exception("the queue stumbled")
                self.repo.env.clock.sleep(LOOK_SECONDS)

    def _start_waiting(self) -> None:
        free = self.config.concurrency - len(self._active)
        if self._stopping or free <= 0:
            return
        for delivery in self.queue.waiting(self.config.concurrency * 4, self._busy()):
            if free <= 0:
                return
            if delivery.run_id not in self._active and self._may_start(delivery):
                free -= self._begin(delivery)

    def _busy(self) -> set[str]:
        """Workflows with as many runs as events may start: more would only wait for each other's leases."""
        count = Counter(delivery.workflow for delivery in self._active.values())
        return {workflow for workflow, runs in count.items() if runs >= self.config.per_workflow}

    def _may_start(self, delivery: QueuedDelivery) -> bool:
        """In turn; a schedule that queues its ticks waits for runs on other servers too."""
        if delivery.kind != "api" and delivery.workflow in self._busy():
            return False
        if not delivery.event.get("serial"):
            return True
        if any(d.workflow == delivery.workflow for d in self._active.values()):
            return False
        with driving(self.repo) as driver:
            running = driver.runs.search(status="running", workflow_id=self._workflow_id(driver, delivery)).results
            return not any(seen_summary(driver, one)[0].status == "running" for one in running)

    def _begin(self, delivery: QueuedDelivery) -> bool:
        try:
            job = self._job(delivery)
        except SwampError as error:
            self._finish(delivery, "failed", error.message)
            return False
        if not self.queue.begin(delivery):  # inv[serve.once]: the intent is on disk before the process exists
            return False
        self._active[delivery.run_id] = delivery
        try:
            self.spawner.start(job)
        except OSError as error:
            self._again(delivery, f"no process could be started: {error.strerror}")
            return False
        self.tell(self.queue.by_number(delivery.n))
        return True

    def _job(self, delivery: QueuedDelivery) -> WorkerJob:
        return WorkerJob(
            repo=str(self.repo.path),
            run_id=delivery.run_id,
            workflow=delivery.workflow,
            action=delivery.action,
            inputs=self._inputs(delivery),
            trigger=trigger_of(delivery),
            from_step=delivery.event.get("fromStep"),
        )

    def _inputs(self, delivery: QueuedDelivery) -> Mapping[str, Any]:
        if delivery.kind != "webhook":
            return dict(delivery.event.get("inputs") or {})
        hook = self.config.hooks.get(delivery.route)
        if hook is None:
            raise UsageError(f"the route {delivery.route} is not configured any more", hint="add it, then replay")
        inputs: Mapping[str, Any] = render(dict(hook.inputs), CelScope({"event": dict(delivery.event)}))
        return inputs

    # -- what became of it

    def _settle(self, delivery: QueuedDelivery, code: int | None) -> None:
        """The record decides. Without one, the run has not begun: it is tried again, or its error is told."""
        run = self._record(delivery)
        if run is None and code is None and self._is_alive(delivery):
            return
        if run is not None and run.status == "running" and delivery.action == "run":
            if self._is_alive(delivery):
                return
            with driving(self.repo) as driver:
                note_interrupted(driver)
            run = self._record(delivery) or run
        if run is None:
            self._not_begun(delivery, code)
        elif delivery.action != "run" and code not in (None, 0) and code in TRY_AGAIN:
            self._again(delivery, f"exit {code}")
        else:
            self._finish(delivery, "done", run.error if run.status == "failed" else None, run)

    def _record(self, delivery: QueuedDelivery) -> RunState | None:
        with driving(self.repo) as driver:
            try:
                return driver.runs.get(delivery.run_id, self._workflow_id(driver, delivery))
            except NotFound:
                return None

    def _is_alive(self, delivery: QueuedDelivery) -> bool:
        with driving(self.repo) as driver:
            workflow_id = self._workflow_id(driver, delivery)
            if workflow_id is None:
                return False
            return driver.locks.verdict(workflow_id, delivery.run_id, fresh=True) == "alive"

    def _workflow_id(self, driver: Driver, delivery: QueuedDelivery) -> str | None:
        try:
            return driver.files.find(delivery.workflow).workflow.id
        except (NotFound, UsageError):
            return None  # its file is gone or broken now: the record is looked for among all

    def _not_begun(self, delivery: QueuedDelivery, code: int | None) -> None:
        again = code is None or code < 0 or code in TRY_AGAIN
        if again or (code == 1 and delivery.attempts < ATTEMPTS):
            self._again(delivery, None if code is None else f"its process ended with {code} before the run began")
            return
        self._finish(delivery, "failed", self._reason(delivery) or f"its process ended with {code}")

    def _reason(self, delivery: QueuedDelivery) -> str | None:
        """What the process itself said last."""
        try:
            lines = events_file(self.repo.path, delivery.run_id).read_text("utf-8").splitlines()
            said = json.loads(lines[-1])
        except (OSError, ValueError, IndexError):
            return None
        return str(said["error"]) if said.get("event") == "failed" else None

    def _again(self, delivery: QueuedDelivery, why: str | None) -> None:
        self._active.pop(delivery.run_id, None)
        pause = 0.0 if why is None else min(LONGEST_PAUSE, 0.5 * 2 ** min(delivery.attempts, 10))
        self.queue.put_back(delivery, why, pause)
        self.tell(self.queue.by_number(delivery.n))

    def _finish(self, delivery: QueuedDelivery, status: Any, error: str | None, run: RunState | None = None) -> None:
        self.queue.finish(delivery, status, error)
        self._active.pop(delivery.run_id, None)
        self.over(delivery.run_id, run)
        self.tell(self.queue.by_number(delivery.n))


def trigger_of(delivery: QueuedDelivery) -> dict[str, Any]:
    """What the run's record says about why it ran."""
    found: dict[str, Any] = {"kind": delivery.kind, "deliveryId": delivery.id}
    if delivery.kind == "webhook":
        found["route"] = delivery.route
    if delivery.kind == "schedule":
        found["scheduledAt"] = delivery.event.get("tick")
    return found
