"""Starts, continues and ends runs: the record is saved first, at every change and last, and the last is pushed."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from swamp.data.document import dump
from swamp.data.records import RecordFiles
from swamp.data.runs import RUNS, RunRepository, path_of
from swamp.env import rfc3339
from swamp.errors import Interrupted, NotFound, SwampError, UsageError
from swamp.models.context import Log
from swamp.models.inputs import check_inputs, secret_values
from swamp.models.mask import MASK
from swamp.models.workshop import Workshop
from swamp.sync.progress import Cancel
from swamp.workflows.book import Book, Nobody, Watcher
from swamp.workflows.encode import RunEncoder
from swamp.workflows.execute import Execution
from swamp.workflows.files import Workflows
from swamp.workflows.graph import after
from swamp.workflows.perform import StepHands
from swamp.workflows.presence import Hold, Presence, presence_of
from swamp.workflows.schema import Workflow
from swamp.workflows.state import JobState, RunState, StepState, run_of

DEEPEST_NESTING = 10


@dataclass
class Driver:
    """Runs workflows of one repository. A child run gets a driver of its own that knows its ancestors."""

    shop: Workshop
    watcher: Watcher = field(default_factory=Nobody)
    cancel: Cancel = field(default_factory=Cancel)
    ancestors: tuple[str, ...] = ()
    _sharing: bool = False

    @cached_property
    def files(self) -> Workflows:
        return Workflows(self.shop.repo.path, self.shop.models, self.shop.env)

    @cached_property
    def runs(self) -> RunRepository:
        return RunRepository(self.shop.repo.tree)

    @cached_property
    def presence(self) -> Presence:
        return presence_of(self.shop.repo)

    # -- beginning

    def start(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        tags: Mapping[str, str] | None = None,
        trigger: str = "cli",
        run_id: str | None = None,
    ) -> RunState:
        """A new run to its end, or to where it waits for a person."""
        workflow = self.files.find(name).workflow
        if workflow.id in self.ancestors or len(self.ancestors) >= DEEPEST_NESTING:
            raise UsageError(f"workflow {workflow.name} would run inside itself", hint="untangle the nesting")
        values = check_inputs(inputs, workflow.inputs, f"workflow {workflow.name}")
        self.shop.masker.learn(secret_values(values, workflow.inputs))
        run = self._new(workflow, values, {**workflow.tags, **(tags or {})}, trigger, run_id)
        with self.presence.hold(run.workflow_id, run.id) as hold:
            book = self.book(run)
            with self._not_left_running(book):
                with self.shared_record(path_of(run.workflow_id, run.id), "workflow run"), book.change():
                    pass
                self._go(workflow, book, hold, "workflow run")
        return run

    @contextmanager
    def _not_left_running(self, book: Book) -> Iterator[None]:
        """Whatever stops this process short of killing it: the record says so, here and with the next push."""
        try:
            yield
        except BaseException as error:
            if book.run.status == "running":
                with book.change() as run:
                    run.status = "failed"
                    run.error = self.shop.masker.text(str(error) or type(error).__name__)
            raise

    def _new(
        self, workflow: Workflow, inputs: dict[str, Any], tags: dict[str, str], trigger: str, run_id: str | None
    ) -> RunState:
        jobs = [JobState(job.name, "pending", [StepState(s.name, s.name) for s in job.steps]) for job in workflow.jobs]
        return RunState(
            id=run_id or self.shop.env.uuid(),
            workflow_id=workflow.id,
            workflow_name=workflow.name,
            status="running",
            started_at=rfc3339(self.shop.env.clock.now()),
            jobs=jobs,
            inputs=inputs,
            tags=tags,
            pid=os.getpid(),
            host=socket.gethostname(),
            trigger_source=trigger,
        )

    # -- going on

    def resume(self, run_id: str, *, from_step: str | None = None, inputs: Mapping[str, Any] | None = None) -> RunState:
        """Continue at the first step that is not done, or do `from_step` and all that follows it again."""
        known = self.find_anywhere(run_id)
        workflow_id = known.workflow_id
        if known.status == "running":
            self.shop.repo.notify(f"Making sure that the process of run {run_id} on {known.host} is gone")
        with self.presence.hold(workflow_id, run_id) as hold:
            path = path_of(workflow_id, run_id)
            with self.shared_record("", "workflow resume"):  # only pulls: what was done elsewhere is built on here
                run = run_of(self.runs.get(run_id, workflow_id))
            workflow = self.workflow_of(run)
            self._must_be_resumable(run, from_step)
            run.inputs = self._inputs_again(workflow, run, inputs or {})
            if from_step is not None:
                self._again(workflow, run, from_step)
            retry = run.status != "suspended"
            book = self.book(run)
            with self._not_left_running(book):
                with self.shared_record(path, "workflow resume"), book.change():
                    self._reopen(run)
                    self._withdraw_request(run)
                self._go(workflow, book, hold, "workflow resume", retry=retry)
        return run

    def _inputs_again(self, workflow: Workflow, run: RunState, given: Mapping[str, Any]) -> dict[str, Any]:
        """A record holds no secrets, so an input that was one has to be given again."""
        values = check_inputs({**run.inputs, **given}, workflow.inputs, f"workflow {workflow.name}")
        self.shop.masker.learn(value for value in secret_values(values, workflow.inputs) if value != MASK)
        lost = [name for name, value in values.items() if MASK in json.dumps(value, default=str)]
        if lost:
            raise UsageError(
                f"the input `{lost[0]}` was a secret and is not in the record", hint=f"add --input {lost[0]}=…"
            )
        return values

    def find(self, run_id: str) -> RunState:
        """The run as this machine knows it. Raises NotFound."""
        return run_of(self.runs.get(run_id))

    def find_anywhere(self, run_id: str) -> RunState:
        """The same; a run of another machine that is not known here yet is looked for in the datastore."""
        try:
            return self.find(run_id)
        except NotFound:
            engine = self.shop.repo.datastore.engine
            if engine is None:
                raise
            engine.pull((RUNS,))
            return self.find(run_id)

    def workflow_of(self, run: RunState) -> Workflow:
        try:
            return self.files.find(run.workflow_id).workflow
        except NotFound as error:
            raise NotFound(
                f"the workflow {run.workflow_name} of this run is not in this repository",
                hint=f"get its file (workflows/workflow-{run.workflow_name}.yaml) and run the command again",
            ) from error

    def _must_be_resumable(self, run: RunState, from_step: str | None) -> None:
        if run.status == "succeeded" and from_step is None:
            raise UsageError(f"run {run.id} has succeeded", hint="do a part again with `resume --from STEP`")

    def _again(self, workflow: Workflow, run: RunState, wanted: str) -> None:
        """Forget what `wanted` (job.step, or step) and all that depends on it did; their data stays as it is."""
        targets = {(job.name, step.template) for job, step in run.steps if wanted in _names(job, step)}
        if not targets:
            names = sorted({step.template for _, step in run.steps})
            raise UsageError(f"there is no step `{wanted}` in this run", hint=f"its steps: {', '.join(names)}")
        again = after(workflow, targets)
        for job, step in run.steps:
            if (job.name, step.template) in again:
                step.extra = {}
                step.reset()

    def _reopen(self, run: RunState) -> None:
        run.status, run.completed_at, run.error = "running", None, None
        run.pid, run.host = os.getpid(), socket.gethostname()
        run.extra.pop("interrupted", None)
        run.extra["resumedAt"] = rfc3339(self.shop.env.clock.now())
        for job in run.jobs:
            job.status = "pending"
            for step in job.steps:
                if step.status in ("running", "cancelled"):
                    step.status, step.error = "pending", None

    # -- the run itself

    def _go(self, workflow: Workflow, book: Book, hold: Hold, command: str, *, retry: bool = True) -> None:
        """One pass, then the final record and its push. The error that stopped a run is raised after that."""
        run, stopped = book.run, None
        began = self.shop.env.clock.monotonic()
        hands = self._hands(workflow, book, hold)
        execution = Execution(
            workflow, book, hands, env=self.shop.env, stop=lambda: self._asked_to_stop(run), retry=retry
        )
        try:
            execution.run()
        except SwampError as error:
            stopped = error
        except BaseException as error:
            self._end(workflow, book, hands, began, command, f"{type(error).__name__}: {error}")
            raise
        self._end(workflow, book, hands, began, command, stopped.message if stopped is not None else None)
        if stopped is not None:
            raise stopped

    def _end(
        self, workflow: Workflow, book: Book, hands: StepHands, began: float, command: str, error: str | None
    ) -> None:
        """The final record, its log and its evaluated workflow, in one push; after a signal they stay for the next."""
        path = path_of(book.run.workflow_id, book.run.id)
        shared = nullcontext() if self.shop.repo.cancel.requested else self.shared_record(path, command)
        with shared, book.change() as run:
            if error is not None:
                run.status, run.error = "failed", self.shop.masker.text(error)
            if run.over:
                run.completed_at = rfc3339(self.shop.env.clock.now())
            run.duration_ms = (run.duration_ms or 0) + round((self.shop.env.clock.monotonic() - began) * 1000)
            self._keep_evaluated(workflow, run, hands)
            self._close_log(run)
            self._withdraw_request(run)
        if self.shop.repo.cancel.requested:
            raise Interrupted(
                f"interrupted: run {book.run.id} is {book.run.status}",
                hint=f"`swamp workflow resume {book.run.id}` goes on; `swamp datastore sync` tells the others",
            )

    def _hands(self, workflow: Workflow, book: Book, hold: Hold) -> StepHands:
        stop_file = stop_path(book.run.workflow_id, book.run.id)
        return StepHands(self.shop, workflow, book, self, hold, scope_paths=(stop_file,))

    def _asked_to_stop(self, run: RunState) -> bool:
        """By a signal to this process, or by `workflow cancel` from anywhere: its request is a file of the tree."""
        request = self.shop.repo.tree.root / stop_path(run.workflow_id, run.id)
        return self.cancel.requested or self.shop.repo.cancel.requested or request.exists()

    @contextmanager
    def shared_record(self, path: str, command: str) -> Iterator[None]:
        """Pull the record, change it, push it. What stays behind is an error: success is said only after this. C08

        Without a path everything is pulled: another machine's run goes on with the data and logs of its steps.
        """
        with self.shop.repo.changes.records(command, (path,) if path else ()) as change:
            self._sharing = True
            try:
                yield
            finally:
                self._sharing = False
        change.must_be_delivered()

    def book(self, run: RunState) -> Book:
        # While steps run in parallel the record changes under everyone's push: no step answers for its arrival.
        # The pushes at the start and at the end do.
        aside, own = (RecordFiles(tree, RUNS) for tree in (self.shop.repo.datastore.tree, self.shop.repo.tree))
        encoder, path = RunEncoder(self.shop.masker), path_of(run.workflow_id, run.id)

        def save(run: RunState) -> None:
            (own if self._sharing else aside).write(path, encoder.encode(run))

        listener = _Listener(self.watcher, lambda: self._log_of(run))
        return Book(run, save, self.shop.env, watcher=listener)

    @cached_property
    def _logs(self) -> dict[str, Log]:
        return {}

    def _log_of(self, run: RunState) -> Log:
        """The run's log on this machine, from the first line on; a resumed run goes on in it."""
        if run.id not in self._logs:
            text = self._kept_log(run)
            log = Log(self.shop.local / "run-logs" / f"{run.id}.log", self.shop.masker, lambda line: None)
            if text:
                log.write(text.rstrip("\n"))
            self._logs[run.id] = log
        return self._logs[run.id]

    def log_text(self, run: RunState) -> str:
        """What the steps of a run said: from the tree when it is over, from this machine while it runs."""
        live = self.shop.local / "run-logs" / f"{run.id}.log"
        return live.read_text(encoding="utf-8") if live.exists() else self._kept_log(run)

    def _kept_log(self, run: RunState) -> str:
        """The log that an earlier attempt has left in the tree, here or on another machine."""
        try:
            return self.shop.repo.tree.materialize(f"logs/workflow-runs/{run.id}.log").read_text(encoding="utf-8")
        except NotFound:
            return ""

    def _close_log(self, run: RunState) -> None:
        log = self._logs.pop(run.id, None)
        if log is None:
            return
        log.close()
        self.shop.keep_log(log.file, f"workflow-runs/{run.id}.log")
        log.file.unlink(missing_ok=True)

    def _keep_evaluated(self, workflow: Workflow, run: RunState, hands: StepHands) -> None:
        """The workflow as this run saw it: expanded steps with their tasks, without secrets."""
        path = f"workflows-evaluated/{run.workflow_id}/{run.id}.yaml"
        files = RecordFiles(self.shop.repo.tree, "workflows-evaluated")
        earlier = {
            (job["name"], step["name"]): step.get("task")
            for job in (files.read(path) or {}).get("jobs") or ()
            for step in job.get("steps") or ()
        }
        document = {
            "id": workflow.id,
            "name": workflow.name,
            "version": workflow.version,
            "runId": run.id,
            "inputs": run.inputs,
            "jobs": [
                {
                    "name": job.name,
                    "steps": [
                        {
                            "name": s.name,
                            "task": hands.shown_tasks.get((job.name, s.name)) or earlier.get((job.name, s.name)),
                        }
                        for s in job.steps
                    ],
                }
                for job in run.jobs
            ],
        }
        files.write(path, dump(self.shop.masker.value(document)))

    def _withdraw_request(self, run: RunState) -> None:
        """A request to cancel is answered once: a later resume must not be stopped by it."""
        RecordFiles(self.shop.repo.tree, RUNS).remove([stop_path(run.workflow_id, run.id)], confirmed=True)

    # -- nesting

    def reserve_child(self) -> str:
        return self.shop.env.uuid()

    def run_child(
        self, name: str, inputs: Mapping[str, Any], parent: RunState, child_run_id: str | None, cancel: Cancel
    ) -> RunState:
        """A nested workflow: a run of its own, continued if an earlier attempt of the step began it."""
        inner = Driver(self.shop, cancel=cancel, ancestors=(*self.ancestors, parent.workflow_id))
        if child_run_id is not None:
            try:
                known = inner.find(child_run_id)
            except NotFound:
                return inner.start(name, inputs, trigger=f"workflow:{parent.id}", run_id=child_run_id)
            if known.status == "succeeded":
                return known
            return inner.resume(known.id, inputs=inputs)
        return inner.start(name, inputs, trigger=f"workflow:{parent.id}")

    # -- passes without work: after a decision

    def settle(self, book: Book, workflow: Workflow, hold: Hold) -> bool:
        """Let a decision take effect as far as nothing has to run for it; whether steps are left to run."""
        hands = self._hands(workflow, book, hold)
        execution = Execution(workflow, book, hands, env=self.shop.env, launch=False, retry=False)
        execution.run()
        if book.run.over:
            with book.change():
                book.run.completed_at = rfc3339(self.shop.env.clock.now())
        return execution.left_waiting


def _names(job: JobState, step: StepState) -> tuple[str, ...]:
    return step.name, step.template, f"{job.name}.{step.name}", f"{job.name}.{step.template}"


def stop_path(workflow_id: str, run_id: str) -> str:
    """The request to cancel a run: a file of the tree, so that it reaches the run wherever it is."""
    return f"{RUNS}/{workflow_id}/cancel-{run_id}.request"


@dataclass
class _Listener:
    """Passes on what happens in a run and keeps what its steps said."""

    watcher: Watcher
    log: Callable[[], Log]

    def changed(self, run: RunState) -> None:
        self.watcher.changed(run)

    def said(self, job: str, step: str, line: str) -> None:
        self.log().write(f"{job}/{step} | {line}")
        self.watcher.said(job, step, line)
