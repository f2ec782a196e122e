"""Starts, continues and ends runs: the record is saved first, at every change and last, and the last is pushed."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import field
from functools import cached_property
from typing import Any, TypeVar

from swamp.data.document import RecordFiles
from swamp.data.run_record import RUNS, JobState, RunRepository, RunState, StepState
from swamp.env import rfc3339
from swamp.errors import Interrupted, NotFound, OutcomeUnknown, StoreError, SwampError, UsageError
from swamp.models.context import RunContext
from swamp.models.inputs import check_inputs
from swamp.sync.progress import Cancel
from swamp.trace import traced
from swamp.values import mutable
from swamp.workflows.execute import Execution
from swamp.workflows.files import WorkflowFiles
from swamp.workflows.locks import RunLocks, run_locks_of
from swamp.workflows.perform import TaskRunner
from swamp.workflows.recorder import NullWatcher, Once, RunEncoder, RunLogs, RunRecorder, Watcher, keep_evaluated
from swamp.workflows.schema import WorkflowFile
from swamp.workflows.state import (
    do_again,
    inputs_again,
    mark_resumed,
    must_be_resumable,
    must_not_be_cancelled_since,
    stop_all,
    stop_path,
)

DEEPEST_NESTING = 10
T = TypeVar("T")


@mutable
class Driver:
    """Runs workflows of one repository. A child run gets a driver of its own that knows its ancestors."""

    context: RunContext
    watcher: Watcher = field(default_factory=NullWatcher)
    cancel: Cancel = field(default_factory=Cancel)
    ancestors: tuple[str, ...] = ()
    _sharing: int | None = None
    """The thread that makes a record known to others: only its own saves are its push's to answer for."""
    make_known: Callable[[], None] = lambda: None
    """Called before anything happens because of a run: its record is in the store then. inv[run.known]"""

    @cached_property
    def files(self) -> WorkflowFiles:
        return WorkflowFiles(self.context.repo.path, self.context.models, self.context.env, self._known_data)

    def _known_data(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for row in self.context.repo.catalog.latest():
            for model in (row.model_name, row.ref.data.model_id):
                found.setdefault(model, set()).add(row.ref.data.name)
        return found

    @cached_property
    def runs(self) -> RunRepository:
        return self.context.repo.runs

    @cached_property
    def logs(self) -> RunLogs:
        return RunLogs(self.context)

    @cached_property
    def locks(self) -> RunLocks:
        return run_locks_of(self.context.repo)

    # -- beginning

    def start(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        tags: Mapping[str, str] | None = None,
        trigger: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> RunState:
        """A new run to its end, or to where it waits for a person.

        With a `run_id` that has a record already the run is returned as it is: whoever derives the id from an event
        can ask again after a crash and never starts it twice. inv[run.once]
        """
        workflow = self.files.find(name).workflow
        if workflow.id in self.ancestors or len(self.ancestors) >= DEEPEST_NESTING:
            raise UsageError(f"workflow {workflow.name} would run inside itself", hint="untangle the nesting")
        values = check_inputs(inputs, workflow.inputs, f"workflow {workflow.name}", self.context.masker)
        run = self.new_run(workflow, values, {**workflow.tags, **(tags or {})}, trigger or {"kind": "cli"}, run_id)
        with self.locks.hold(run.workflow_id, run.id, new=run_id is None) as hold:
            recorder = self.recorder(run)
            with self._not_left_running(recorder):
                if run_id is None and (store := self.context.repo.datastore).synced and store.capabilities.safe:
                    self._begin_here(TaskRunner(self, workflow, recorder, hold))
                    return run
                with self.shared_record("workflow run", run):
                    known = None
                    if run_id is not None:
                        with suppress(NotFound):  # asked just now, while nobody else can be its process
                            known = self.runs.get(run.id, run.workflow_id)
                    if known is None:
                        recorder.save()
                if known is None:
                    self._go(TaskRunner(self, workflow, recorder, hold), "workflow run")
        return known or run

    def _begin_here(self, runner: TaskRunner) -> None:
        """Of a new run nobody else can have a record: others hear of it before its first step begins, or waits for its
        lease, with the answer that this step gets from the store under its lease. inv[run.known]"""
        recorder = runner.recorder

        def share() -> None:
            # A parallel step that says that it begins would change the record under the push that answers for it.
            with recorder.lock, self.shared_record("workflow run", recorder.run):
                recorder.save()

        recorder.save()
        self.make_known = Once(share)
        self._go(runner, "workflow run")

    @contextmanager
    def _not_left_running(self, recorder: RunRecorder) -> Iterator[None]:
        """Whatever stops this process short of killing it: the record says so, here and with the next push."""
        try:
            yield
        except BaseException as error:
            if recorder.run.status == "running":
                with recorder.change() as run:
                    run.status = "failed"
                    run.error = self.context.masker.text(str(error) or type(error).__name__)
            raise

    def new_run(
        self,
        workflow: WorkflowFile,
        inputs: dict[str, Any],
        tags: dict[str, str],
        trigger: Mapping[str, Any],
        run_id: str | None,
    ) -> RunState:
        """A run that has not begun and is written nowhere."""
        jobs = [JobState(job.name, "pending", [StepState(s.name, s.name) for s in job.steps]) for job in workflow.jobs]
        return RunState(
            id=run_id or self.context.env.uuid(),
            workflow_id=workflow.id,
            workflow_name=workflow.name,
            status="running",
            started_at=rfc3339(self.context.env.clock.now()),
            jobs=jobs,
            inputs=inputs,
            tags=tags,
            pid=os.getpid(),
            host=socket.gethostname(),
            # The trigger in one word, as records of earlier versions have it.
            trigger_source=f"workflow:{trigger['runId']}" if trigger["kind"] == "workflow" else str(trigger["kind"]),
            trigger=trigger,
        )

    # -- going on

    def resume(self, run_id: str, *, from_step: str | None = None, inputs: Mapping[str, Any] | None = None) -> RunState:
        """Continue at the first step that is not done, or do `from_step` and all that follows it again."""
        known = self.find_anywhere(run_id)
        workflow_id = known.workflow_id
        if known.status == "running":
            self.context.repo.notify(f"Making sure that the process of run {run_id} on {known.host} is gone")
        with self.locks.hold(workflow_id, run_id) as hold:
            with self.shared_record("workflow resume"):  # only pulls: what was done elsewhere is built on here
                run = self.runs.get(run_id, workflow_id)
            if self.requested(run) and not run.over:
                return self._cancelled_instead(run)
            must_not_be_cancelled_since(known, run)
            workflow = self.workflow_of(run)
            must_be_resumable(run, from_step)
            run.inputs = inputs_again(self.context.masker, workflow, run, inputs or {})
            if from_step is not None:
                do_again(workflow, run, from_step)
            retry = run.status != "suspended"
            recorder = self.recorder(run)
            with self._not_left_running(recorder):
                with self.shared_record("workflow resume", run), recorder.change():
                    mark_resumed(run, rfc3339(self.context.env.clock.now()))
                    self.withdraw_request(run)
                self._go(TaskRunner(self, workflow, recorder, hold), "workflow resume", retry=retry)
        return run

    def _cancelled_instead(self, run: RunState) -> RunState:
        """Somebody was told that this run would be cancelled, and the process that should have heard of it is gone: the
        decision comes first. It can be resumed once more, by who wants that in spite of it. inv[run.decided]"""
        self.context.repo.notify(f"run {run.id} was asked to stop: it is cancelled now, and `resume` again goes on")
        with self.shared_record("workflow resume", run, and_request=True), self.recorder(run).change():
            self._answer_request(run)
        return run

    def find_anywhere(self, run_id: str) -> RunState:
        """The run; one of another machine that is not known here yet is looked for in the datastore."""
        return self._anywhere(lambda: self.runs.get(run_id))

    def resolve(self, wanted: str) -> str:
        """The id of the run that `wanted` means: an id, the beginning of one, `latest`; looked for like a run."""
        return self._anywhere(lambda: self.runs.resolve(wanted))

    def _anywhere(self, look: Callable[[], T]) -> T:
        try:
            return look()
        except NotFound:
            engine = self.context.repo.datastore.engine
            if engine is None:
                raise
            engine.pull((RUNS,))
            return look()

    def workflow_of(self, run: RunState) -> WorkflowFile:
        try:
            return self.files.find(run.workflow_id).workflow
        except NotFound as error:
            raise NotFound(
                f"the workflow {run.workflow_name} of this run is not in this repository",
                hint=f"get its file (workflows/workflow-{run.workflow_name}.yaml) and run the command again",
            ) from error

    # -- the run itself

    @traced(lambda driver, runner, *_, **__: ("run", {"workflow": runner.workflow.name, "run": runner.recorder.run.id}))
    def _go(self, runner: TaskRunner, command: str, *, retry: bool = True) -> None:
        """One pass, then the final record and its push. The error that stopped a run is raised after that."""
        run, stopped = runner.recorder.run, None
        began = self.context.env.clock.monotonic()
        try:
            Execution(runner, retry=retry).run()
        except SwampError as error:
            stopped = error
        except BaseException as error:
            self._end(runner, began, command, f"{type(error).__name__}: {error}")
            raise
        done = run.status == "succeeded" and isinstance(stopped, StoreError)  # only lost when all was done
        self._end(runner, began, command, stopped.message if stopped and not done else None)
        if stopped is not None and (not done or self.context.repo.changes.wait_here()):
            raise stopped

    def _end(self, runner: TaskRunner, began: float, command: str, error: str | None) -> None:
        """The final record, its log and its evaluated workflow, in one push; after a signal, or with the store away,
        they stay for the next."""
        run = runner.recorder.run
        offline = self.context.repo.cancel.requested
        close = Once(lambda: self._close(runner, began, error))
        try:
            with nullcontext() if offline else self.shared_record(command, run, and_request=True):
                close()
        except SwampError as lost:
            close()
            if isinstance(lost, StoreError) and run.status == "succeeded":
                unknown = "whether it is shared is not known" if isinstance(lost, OutcomeUnknown) else "not shared yet"
                lost.message = f"run {run.id} succeeded here, {unknown}: {lost.message}"
                lost.args = (lost.message,)
            raise
        if not offline:
            self._answer_latecomer(runner.recorder, command)
        if self.context.repo.cancel.requested:
            hint = f"`swamp workflow resume {run.id}` goes on; `swamp datastore sync` tells the others"
            raise Interrupted(f"interrupted: run {run.id} is {run.status}", hint=hint)

    def _close(self, runner: TaskRunner, began: float, error: str | None) -> None:
        """Writes down how the run ended. It is true whether or not it can be shared now. C18"""
        with runner.recorder.change() as run:
            if error is not None:
                run.status, run.error = "failed", self.context.masker.text(error)
            if run.over:
                run.completed_at = rfc3339(self.context.env.clock.now())
            run.duration_ms = (run.duration_ms or 0) + round((self.context.env.clock.monotonic() - began) * 1000)
            keep_evaluated(self.context, runner.workflow, run, runner.shown_tasks)
            self.logs.close(run)
            self._answer_request(run)

    @contextmanager
    def shared_record(self, command: str, run: RunState | None = None, *, and_request: bool = False) -> Iterator[None]:
        """Pull the record, change it, push it. What stays behind is an error: success is said only after this. C08

        Without a run everything is pulled: another machine's run goes on with the data and logs of its steps.
        `and_request`: a request to cancel the run comes along.
        """
        scope = () if run is None else (run.path, stop_path(run)) if and_request else (run.path,)
        with self.context.repo.changes.records(command, scope) as change:
            self._sharing = threading.get_ident()
            try:
                yield
            finally:
                self._sharing = None
        change.must_be_delivered()

    def recorder(self, run: RunState) -> RunRecorder:
        # While steps run in parallel the record changes under everyone's push: no step answers for its arrival.
        # The pushes at the start and at the end do.
        aside, own = (RecordFiles(tree, RUNS) for tree in (self.context.repo.datastore.tree, self.context.repo.tree))
        encoder = RunEncoder(self.context.masker)

        def save(run: RunState) -> None:
            (own if self._sharing == threading.get_ident() else aside).write(run.path, encoder.encode(run))

        return RunRecorder(run, save, self.context.env, self.watcher, lambda line: self.logs.of(run).write(line))

    def requested(self, run: RunState) -> str | None:
        """When somebody asked this run to stop, as far as this machine knows; None if nobody did."""
        try:
            said = (self.context.repo.tree.root / stop_path(run)).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return said.strip() or "at some time"

    def _answer_request(self, run: RunState) -> None:
        """A request to cancel is answered in the record, and only then withdrawn. inv[run.decided]"""
        said = self.requested(run)
        if said is None:
            return
        if not run.over:
            stop_all(run, "cancelled", "cancelled before it ran")
        if not run.over or run.status == "succeeded":  # who asked was told so; its steps say what they did
            run.status, run.completed_at = "cancelled", rfc3339(self.context.env.clock.now())
        run.extra["cancelRequested"] = {"at": said, "answer": run.status}
        self.withdraw_request(run)

    def _answer_latecomer(self, recorder: RunRecorder, command: str) -> None:
        """A request that was committed between the last look and the last push: who made it may have seen the run still
        running. One more look, which sees it if it came before that push; who comes later sees the record."""
        run, engine = recorder.run, self.context.repo.datastore.engine
        if engine is None:
            return
        if not engine.knows_all():
            engine.pull((stop_path(run),))
        if self.requested(run):
            with self.shared_record(command, run, and_request=True), recorder.change():
                self._answer_request(run)

    def withdraw_request(self, run: RunState) -> None:
        """A request to cancel is answered once: a later resume must not be stopped by it."""
        RecordFiles(self.context.repo.tree, RUNS).remove([stop_path(run)], confirmed=True)

    # -- nesting

    def run_child(
        self, name: str, inputs: Mapping[str, Any], parent: RunState, child_run_id: str, cancel: Cancel
    ) -> RunState:
        """A nested workflow: a run of its own, continued if an earlier attempt of the step began it."""
        inner = Driver(self.context, cancel=cancel, ancestors=(*self.ancestors, parent.workflow_id))
        trigger = {"kind": "workflow", "runId": parent.id}  # not the parent's own: a delivery belongs to one run
        try:
            known = inner.runs.get(child_run_id)
        except NotFound:
            return inner.start(name, inputs, trigger=trigger, run_id=child_run_id)
        return known if known.status == "succeeded" else inner.resume(known.id, inputs=inputs)

    # -- passes without work: after a decision

    def settle(self, runner: TaskRunner) -> bool:
        """Let a decision take effect as far as nothing has to run for it; whether steps are left to run."""
        execution, run = Execution(runner, launch=False, retry=False), runner.recorder.run
        execution.run()
        if run.over:
            with runner.recorder.change():
                run.completed_at = rfc3339(self.context.env.clock.now())
        return execution.left_waiting
