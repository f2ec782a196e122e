"""Runs a workflow's steps in their order: in parallel, within limits, until all is done, suspended or stopped."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from swamp.data.records import Read
from swamp.data.run_record import JobState, StepState
from swamp.env import Env
from swamp.errors import Interrupted, NotFound, StoreError, SwampError, UsageError
from swamp.sync.progress import Cancel
from swamp.values import mutable, value
from swamp.workflows.schema import ApprovalTask, GraphNode, Job, Step, build, holds
from swamp.workflows.state import job_outcome, overall, run_outcome

if TYPE_CHECKING:
    from swamp.workflows.perform import TaskRunner

DEFAULT_CONCURRENCY = 8
LOOK_AGAIN_SECONDS = 0.1


@value
class Instance:
    """One step to do: the file's step, and for a `forEach` the item it is for."""

    job: Job
    step: Step
    name: str
    item: Any = None
    read: tuple[Read, ...] = ()
    """The data that the item comes from."""


@mutable
class _Group:
    """All expansions of one step: the graph sees them as one."""

    node: GraphNode
    step: Step
    states: list[StepState]
    running: int = 0
    left: int = 0
    """Steps admitted and not yet ended, their pushes included: only then may others build on them."""


class Execution:
    """One pass over a run. Steps that are done stay done, so a later pass continues where this one stopped."""

    def __init__(self, runner: TaskRunner, *, launch: bool = True, retry: bool) -> None:
        self._workflow, self._recorder, self._runner = runner.workflow, runner.recorder, runner
        self._launching, self._retry = launch, retry
        self._cancel = Cancel()
        self._waiting: list[tuple[_Group, Instance, JobState, StepState]] = []
        self._running = 0
        self._ended: queue.Queue[tuple[_Group, BaseException | None]] = queue.Queue()
        self._fatal: BaseException | None = None
        self._sorter = build(self._workflow)
        self._limit = self._workflow.concurrency or DEFAULT_CONCURRENCY

    def run(self) -> None:
        """Leaves the recorder's run in its new state; raises what made it impossible to go on."""
        with ThreadPoolExecutor(self._limit, thread_name_prefix="step") as pool:
            try:
                self._go(pool)
            except BaseException:
                self._cancel.request()
                raise
        self._conclude()
        if self._fatal is not None:
            raise self._fatal

    @property
    def left_waiting(self) -> bool:
        """Whether steps could run that this pass was told not to start."""
        return bool(self._waiting)

    def _go(self, pool: ThreadPoolExecutor) -> None:
        while True:
            while ready := self._sorter.get_ready() if not self._halted else ():
                for node in ready:
                    self._arrive(node)
            self._start_waiting(pool)
            if not self._running:
                return
            self._await_one()

    @property
    def _halted(self) -> bool:
        return self._fatal is not None or self._cancel.requested

    def _await_one(self) -> None:
        while True:
            if self._runner.asked_to_stop():
                self._cancel.request()
            try:
                group, error = self._ended.get(timeout=LOOK_AGAIN_SECONDS)
            except queue.Empty:
                continue
            self._running -= 1
            group.running -= 1
            group.left -= 1
            if error is not None:
                self._fatal = self._fatal or error  # nothing new starts; what runs may finish and is kept
            self._settle(group)
            return

    # -- arriving at nodes

    def _arrive(self, node: GraphNode) -> None:
        if node.kind == "step":
            self._begin_step(node)
            return
        job, state = self._workflow.job(node.job), self._recorder.run.job(node.job)
        with self._recorder.change():
            if node.kind == "start":
                met = all(holds(d.condition, self._recorder.run.job(d.job).status) for d in job.depends_on)
                state.status = "running" if met else "skipped"
            elif state.status != "skipped":
                state.status = job_outcome(state)
        self._sorter.done(node)

    def _begin_step(self, node: GraphNode) -> None:
        job, state = self._workflow.job(node.job), self._recorder.run.job(node.job)
        step = job.step(node.step)
        met = all(holds(d.condition, overall(state.of_template(d.step))) for d in step.depends_on)
        if state.status == "skipped" or not met:
            with self._recorder.change():
                for before in state.of_template(step.name):
                    if before.status != "succeeded":
                        before.reset()
                        before.status = "skipped"
            self._sorter.done(node)
            return
        group = _Group(node, step, [])
        try:
            instances = self._runner.expand(job, step)
        except SwampError as error:
            with self._recorder.change():
                for first in state.of_template(step.name)[:1]:
                    first.status, first.error, first.allowed_failure = "failed", error.message, step.allow_failure
            self._sorter.done(node)
            return
        pairs = self._place(state, step, instances)
        group.states = [found for _, found in pairs]
        for instance, found in pairs:
            self._admit(group, instance, state, found)
        self._settle(group)

    def _place(self, job: JobState, step: Step, instances: list[Instance]) -> list[tuple[Instance, StepState]]:
        """One state per instance in the place of the step's placeholder; what an earlier pass did is kept."""
        known = {state.name: state for state in job.of_template(step.name)}
        pairs = [(i, known.get(i.name) or StepState(i.name, step.name)) for i in instances]
        fresh = [state for _, state in pairs]
        with self._recorder.change():
            position = next((n for n, state in enumerate(job.steps) if state.template == step.name), len(job.steps))
            others = [state for state in job.steps if state.template != step.name]
            job.steps[:] = [*others[:position], *fresh, *others[position:]]
        return pairs

    def _admit(self, group: _Group, instance: Instance, job: JobState, state: StepState) -> None:
        """Done already, not wanted, a question to a person, or work to do."""
        failed = state.status == "failed"
        if state.status == "succeeded" or (failed and (state.allowed_failure or not self._retry)):
            return
        decision = state.extra.get("approval", {}).get("decision")
        if isinstance(instance.step.task, ApprovalTask):
            self._approval(instance, state, decision)
            return
        state.reset()
        try:
            wanted = self._runner.wanted(instance)
        except SwampError as error:
            self._recorder.ended(state, "failed", error=error.message)
            state.allowed_failure = instance.step.allow_failure
            return
        if wanted:
            group.left += 1
            self._waiting.append((group, instance, job, state))
        else:
            self._recorder.ended(state, "skipped")

    def _approval(self, instance: Instance, state: StepState, decision: str | None) -> None:
        if decision == "approved":
            self._recorder.ended(state, "succeeded")
        elif decision == "rejected":
            reason = state.extra["approval"].get("reason")
            self._recorder.ended(state, "failed", error=f"rejected: {reason}" if reason else "rejected")
        elif state.status != "suspended":
            if self._runner.wanted(instance):
                self._recorder.started(state)
                self._recorder.ended(state, "suspended", approval={"prompt": self._runner.prompt(instance)})
            else:
                self._recorder.ended(state, "skipped")

    def _settle(self, group: _Group) -> None:
        if not group.left and all(state.over for state in group.states) and not self._halted:
            self._sorter.done(group.node)

    # -- doing the work

    def _start_waiting(self, pool: ThreadPoolExecutor) -> None:
        if self._launching and self._runner.asked_to_stop():
            self._cancel.request()
        if not self._launching or self._halted:
            return
        for entry in list(self._waiting):
            if self._running >= self._limit:
                return
            group, instance, job, state = entry
            if group.running >= (group.step.concurrency or self._limit):
                continue
            self._waiting.remove(entry)
            self._running += 1
            group.running += 1
            work = pool.submit(self._runner.perform, instance, job, state, self._cancel)
            work.add_done_callback(lambda done, group=group: self._ended.put((group, done.exception())))  # type: ignore[misc]

    # -- the end of a pass

    def _conclude(self) -> None:
        """The run's own status, from its jobs. Whoever calls writes the time of the end and pushes."""
        run = self._recorder.run
        with self._recorder.change():
            for _, state in run.steps:
                if self._cancel.requested and self._fatal is None and not state.over:
                    state.status = "cancelled"
            for job in run.jobs:
                job.status = job.status if job.status == "skipped" else job_outcome(job)
            run.status = self._status()

    def _status(self) -> Any:
        run = self._recorder.run
        # A store that is lost when every step has ended has stopped nothing: what they did waits here to be shared.
        lost_late = isinstance(self._fatal, StoreError) and all(state.over for _, state in run.steps)
        if self._fatal is not None and not lost_late:
            return "failed"
        if self._cancel.requested:
            return "cancelled"
        if any(state.status == "suspended" for _, state in run.steps) or self._waiting:
            return "suspended"
        return run_outcome(run)


LONGEST_PAUSE: Final = 300.0
_LOOK_AGAIN: Final = 0.2
POINTLESS: Final = (UsageError, NotFound, Interrupted, StoreError)
"""What another attempt would meet again, or must not be tried: wrong input, a stop, a store that is away."""


class Limit(Cancel):
    """Asks the work of one attempt to stop when its run is cancelled, or when its time is up."""

    def __init__(self, outer: Cancel, seconds: float | None, env: Env) -> None:
        super().__init__()
        self._outer, self._seconds, self._env = outer, seconds, env
        self._since = env.clock.monotonic()

    @property
    def requested(self) -> bool:
        return self._outer.requested or self.timed_out

    @property
    def timed_out(self) -> bool:
        return self._seconds is not None and self._env.clock.monotonic() - self._since >= self._seconds

    def request(self) -> None:
        self._outer.request()


def attempts_left(step: Step, state: StepState, error: SwampError) -> bool:
    """Whether a step that failed like this is tried again."""
    return not isinstance(error, POINTLESS) and len(attempts_of(state)) < step.retries


def attempts_of(state: StepState) -> list[dict[str, Any]]:
    """The attempts that failed before the one that counts."""
    return list(state.extra.get("attempts") or ())


def pause(step: Step, failed: int, cancel: Cancel, env: Env) -> None:
    """Waits before the next attempt: `backoff`, doubled with each, jittered, five minutes at most; ends with a stop."""
    left = env.jitter(min(step.backoff * 2 ** (failed - 1), LONGEST_PAUSE))
    until = env.clock.monotonic() + left
    while not cancel.requested and (left := until - env.clock.monotonic()) > 0:
        env.clock.sleep(min(left, _LOOK_AGAIN))
