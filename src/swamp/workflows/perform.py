"""Does the steps of a run: methods of models, nested workflows, assertions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from swamp.data.document import RecordFiles, keys_of, values_of
from swamp.data.metadata import Owner
from swamp.data.records import Output, Reads, decode_output, noting
from swamp.data.run_record import JobState, RunState, StepState
from swamp.data.versions import DataVersion
from swamp.errors import Failed, Interrupted, NotFound, StoreError, SwampError, UsageError
from swamp.models.context import RunContext
from swamp.models.define import Definition
from swamp.models.expressions import Evaluated, Scope, evaluate, has_expression, truth
from swamp.models.run import Hooks, Request, Result, run_method
from swamp.sync.progress import Cancel
from swamp.trace import traced
from swamp.values import mutable
from swamp.workflows.execute import Instance, Limit, attempts_left, attempts_of, pause
from swamp.workflows.recorder import RunRecorder
from swamp.workflows.schema import ApprovalTask, AssertTask, Job, ModelTask, Step, WorkflowTask
from swamp.workflows.state import stop_path

if TYPE_CHECKING:
    from swamp.workflows.locks import StillOurs
    from swamp.workflows.run import Driver
    from swamp.workflows.schema import WorkflowFile


@mutable
class TaskRunner:
    """Does the tasks of one run's steps: methods of models, assertions, nested workflows."""

    driver: Driver
    workflow: WorkflowFile
    recorder: RunRecorder
    hold: StillOurs
    shown_tasks: dict[tuple[str, str], Any] = field(default_factory=dict)
    """The evaluated task of each step, as a record may show it."""

    @property
    def context(self) -> RunContext:
        return self.driver.context

    def asked_to_stop(self) -> bool:
        """By a signal to this process, or by `workflow cancel` from anywhere: its request is a file of the tree."""
        told = self.driver.cancel.requested or self.context.repo.cancel.requested
        return told or self.driver.requested(self.recorder.run) is not None

    # -- what there is to do

    def expand(self, job: Job, step: Step) -> list[Instance]:
        """One instance, or one per item of `forEach`. Names are unique, or it is an error."""
        if step.for_each is None:
            return [Instance(job, step, _open_name(evaluate(step.name, self._scope(job), ("name",)), "a step's name"))]
        with noting(Reads()) as reads:
            items = self._items(job, step)
        names = [self._name(job, step, item, n) for n, item in enumerate(items)]
        pairs = zip(names, items, strict=True)
        instances = [Instance(job, step, name, item, reads.all()) for name, item in pairs]
        twice = {i.name for i in instances if [other.name for other in instances].count(i.name) > 1}
        if twice:
            raise UsageError(
                f"forEach makes several steps called `{sorted(twice)[0]}`", hint="use the item in the step's name"
            )
        return instances

    def _items(self, job: Job, step: Step) -> list[Any]:
        assert step.for_each is not None
        self._take_in()
        found = evaluate(step.for_each.in_, self._scope(job), ("forEach", "in")).value
        if isinstance(found, Mapping):
            return [{"key": key, "value": value} for key, value in found.items()]
        if not isinstance(found, list):
            raise UsageError(f"`forEach.in` of {step.name} is {type(found).__name__}, not a list or a mapping")
        return found

    def _name(self, job: Job, step: Step, item: Any, position: int) -> str:
        if not has_expression(step.name):
            return f"{step.name}-{position}"
        return _open_name(evaluate(step.name, self._scope(job, step, item), ("name",)), "a step's name")

    def wanted(self, instance: Instance) -> bool:
        """Whether the step's guard lets it run."""
        if instance.step.guard is None:
            return True
        self._take_in()
        return truth(instance.step.guard, self.scope_of(instance), ("guard",))

    def prompt(self, instance: Instance) -> str:
        task = instance.step.task
        assert isinstance(task, ApprovalTask)
        return str(evaluate(task.prompt, self.scope_of(instance), ("prompt",)).shown)

    # -- what an expression sees

    def _take_in(self) -> None:
        """Before something is decided by data without a lease: what the store holds is known here. inv[run.fresh]"""
        if self.context.repo.datastore.synced:
            self.context.repo.datastore.pull_to_commit(lazy=True)

    def scope_of(self, instance: Instance) -> Scope:
        return self._scope(instance.job, instance.step, instance.item, instance.name)

    def _scope(self, job: Job, step: Step | None = None, item: Any = None, name: str | None = None) -> Scope:
        scope = replace(self.context.scope(self._facts(job, name)), inputs=self.recorder.run.inputs)
        if step is None or step.for_each is None:
            return scope
        return scope.with_self({step.for_each.item: item}, {step.for_each.item: self.context.masker.value(item)})

    def _facts(self, job: Job, step: str | None) -> dict[str, Any]:
        facts = values_of(self.recorder.run, keys_of("id workflow_id workflow_name started_at"))
        known = {**facts, "tags": dict(self.recorder.run.tags), "jobName": job.name}
        return {**known, "stepName": step} if step is not None else known

    # -- doing it

    @traced(lambda runner, instance, job, *_: ("step", {"job": job.name, "step": instance.name}))
    def perform(self, instance: Instance, job: JobState, state: StepState, cancel: Cancel) -> None:
        """The step's end is in the record when this returns. Only a lost store or a lost run is raised."""
        while True:
            self._attempt(instance, job, state, cancel)
            if state.over or state.status == "suspended":
                break
            failed = len(attempts_of(state))
            self.recorder.said(job, state, f"attempt {failed} failed: {attempts_of(state)[-1]['error']}")
            pause(instance.step, failed, cancel, self.context.env)
            if cancel.requested:
                self.recorder.ended(state, "cancelled", error="cancelled while it waited for its next attempt")
        if state.status == "cancelled":
            cancel.request()  # what has not begun is cancelled too, whether this step or the next one heard of it first

    def _attempt(self, instance: Instance, job: JobState, state: StepState, cancel: Cancel) -> None:
        limit = Limit(cancel, instance.step.timeout, self.context.env)
        try:
            self.hold()
            self.recorder.started(state)
            self._do(instance, job, state, limit)
        except Interrupted as error:
            if not state.over and not self._timed_out(instance, state, limit):
                self.recorder.ended(state, "cancelled", error=error.message)
        except SwampError as error:
            done = state.over  # its work is recorded and kept here; what failed is bringing it to the datastore
            if not done:
                self._failed(instance, state, error)
            if done or isinstance(error, StoreError) or self._taken_over():
                raise

    def _timed_out(self, instance: Instance, state: StepState, limit: Limit, **extra: Any) -> bool:
        """Whether the attempt was stopped because its time was up: then it failed, and was not cancelled."""
        if not limit.timed_out:
            return False
        said = f"it took longer than {instance.step.timeout:g} s and was stopped"
        self._failed(instance, state, Failed(said, hint="raise the step's `timeout`"), **extra)
        return True

    def _taken_over(self) -> bool:
        try:
            self.hold()
        except SwampError:
            return True
        return False

    def _do(self, instance: Instance, job: JobState, state: StepState, cancel: Limit) -> None:
        task = instance.step.task
        if isinstance(task, ModelTask):
            self._run_model(instance, task, job, state, cancel)
        elif isinstance(task, AssertTask):
            self._check(instance, task, state)
        elif isinstance(task, WorkflowTask):
            self._run_nested(instance, task, state, cancel)

    def _failed(self, instance: Instance, state: StepState, error: SwampError, **extra: Any) -> None:
        """The step has failed, or this attempt of it has. inv[run.retries]"""
        said = self.context.masker.text(error.message)
        with self.recorder.change():
            known = [one["outputId"] for one in attempts_of(state) if one["outputId"]]
            if extra.get("outputId") in known:
                return  # told again, because its records were renumbered
            if attempts_left(instance.step, state, error):
                state.extra["attempts"] = [*attempts_of(state), {"error": said, "outputId": extra.get("outputId")}]
                return
            state.allowed_failure = instance.step.allow_failure
            self.recorder.ended(state, "failed", error=said, **extra)

    def _evaluated(self, instance: Instance, task: Any, *, inputs: bool = True) -> Evaluated:
        document = task.model_dump(mode="json", by_alias=True, exclude_none=True)
        if not inputs:
            document.pop("inputs", None)
            if any(has_expression(text) for text in document.values()):
                self._take_in()
        found = evaluate(document, self.scope_of(instance), ("task",))
        self.shown_tasks[instance.job.name, instance.name] = found.shown
        return found

    # -- a method of a model

    def _run_model(self, instance: Instance, task: ModelTask, job: JobState, state: StepState, cancel: Limit) -> None:
        found = self._evaluated(instance, task, inputs=False)  # they may be made of data that only the store knows yet
        for key in ("modelIdOrName", "modelName"):
            _open_name(Evaluated(found.value.get(key), found.shown.get(key)), f"`{key}`")
        definition = self._definition(found.value)
        run = self.recorder.run
        request = Request(
            definition=definition,
            method=found.value["methodName"],
            tags=run.tags,
            step=Owner(
                "model-method", definition.id, run.workflow_id, run.id, run.workflow_name, job.name, instance.name
            ),
            run_facts=self._facts(instance.job, instance.name),
            # A request to cancel, and what an earlier attempt has recorded: both come with the step's pull.
            scope=(stop_path(run), *([last] if (last := state.extra.get("outputFile")) else [])),
            read_before=instance.read,
            waiting=self._known_while_it_waits,
            resolved=lambda asked: self._resolved(instance, task, asked),
        )
        run_method(self.context, request, cancel, self._hooks(instance, definition, job, state, cancel))

    def _resolved(self, instance: Instance, task: ModelTask, asked: Request) -> Request:
        """With its inputs, as the data says that the store holds now, with the lease in hand. inv[run.fresh]"""
        found = self._evaluated(instance, task)
        if self._definition(found.value).id != asked.definition.id or found.value["methodName"] != asked.method:
            raise Failed(
                f"step {instance.name} means another model or method than when it began to wait for its lease",
                hint="run it again: what it reads has changed meanwhile",
            )
        inputs, shown = found.value.get("inputs") or {}, found.shown.get("inputs") or {}
        return replace(asked, inputs=inputs, shown_inputs=shown)

    def _definition(self, task: Mapping[str, Any]) -> Definition:
        if task.get("modelIdOrName"):
            return self.context.models.find(str(task["modelIdOrName"]))
        return self.context.models.auto(str(task["modelType"]), str(task["modelName"]))

    def _hooks(
        self, instance: Instance, definition: Definition, job: JobState, state: StepState, limit: Limit
    ) -> Hooks:
        last = state.extra.get("outputFile")

        def begin(output: Output, path: str) -> None:
            with self.recorder.change():
                state.extra |= {"outputId": output.id, "outputFile": path, "modelName": definition.name}

        def end(result: Result) -> None:
            extra = {"outputId": result.output.id, "outputFile": result.output_path, "modelName": definition.name}
            if result.error is None:
                self.recorder.ended(state, "succeeded", artifacts=result.artifacts, **extra)
            elif isinstance(result.error, Interrupted):
                if not self._timed_out(instance, state, limit, artifacts=result.artifacts, **extra):
                    self.recorder.ended(
                        state, "cancelled", error=result.error.message, artifacts=result.artifacts, **extra
                    )
            else:
                self._failed(instance, state, result.error, artifacts=result.artifacts, **extra)
            self.driver.logs.share(self.recorder.run)  # what the run has said so far travels with the step's push

        return Hooks(
            begin=begin,
            line=lambda line: self.recorder.said(job, state, line),
            end=end,
            instead=lambda: self._before_it_runs(last, definition, instance),
        )

    def _known_while_it_waits(self) -> None:
        with suppress(StoreError):  # it is said again, and has to be heard, when the wait is over
            self.driver.make_known()

    def _before_it_runs(self, last: str | None, definition: Definition, instance: Instance) -> Output | None:
        """A request to cancel that the step's own pull has brought is heard; work that was done is taken over."""
        if self.driver.requested(self.recorder.run) is not None:
            raise Interrupted("cancelled before it ran")
        self.driver.make_known()
        return self._left_by_last(last, definition, instance)

    def _left_by_last(self, path: str | None, definition: Definition, instance: Instance) -> Output | None:
        """What a killed attempt has left: finished work is taken over, half of it goes. inv[run.not-doubled]"""
        if path is None:
            return None
        files = RecordFiles(self.context.repo.tree, "outputs")
        document = files.read(path)
        if document is None:
            return None
        output = decode_output(document, path)
        if output.provenance.workflow_run_id != self.recorder.run.id or output.definition_id != definition.id:
            return None
        if output.status == "succeeded":
            return output
        if output.status == "running":
            self._discard(output, definition, instance)
        return None

    def _discard(self, output: Output, definition: Definition, instance: Instance) -> None:
        data = self.context.data
        for name in list(data.names(f"data/{definition.type}/{definition.id}")):
            known: list[DataVersion] = []
            with suppress(NotFound):  # the name is there, and no version of it was finished
                known = data.versions(name)
            for version in known:
                owner = version.meta.owner
                mine = (owner.workflow_run_id, owner.job_name, owner.step_name)
                if mine == (self.recorder.run.id, instance.job.name, instance.name) and (
                    version.meta.created_at >= output.started_at
                ):
                    data.delete(name, version.version, confirmed=True)
        self.context.outputs.save(
            replace(output, status="failed", error="interrupted: the process was killed; the step ran again")
        )

    # -- assertions and nested workflows

    def _check(self, instance: Instance, task: AssertTask, state: StepState) -> None:
        self._take_in()
        scope = self.scope_of(instance)
        self.shown_tasks[instance.job.name, instance.name] = {"type": "assert", "expression": task.expression}
        if truth(task.expression, scope, ("expression",)):
            self.recorder.ended(state, "succeeded")
            return
        said = evaluate(task.message, scope, ("message",)).shown if task.message else f"not true: {task.expression}"
        self._failed(instance, state, Failed(str(said)))

    def _run_nested(self, instance: Instance, task: WorkflowTask, state: StepState, cancel: Limit) -> None:
        found = self._evaluated(instance, task)
        self.driver.make_known()
        child_id = state.extra.get("childRunId") or self.context.env.uuid()
        with self.recorder.change():  # known to this run's record before the child begins
            state.extra["childRunId"] = child_id
        name, inputs = str(found.value["workflowIdOrName"]), found.value.get("inputs") or {}
        try:
            child = self.driver.run_child(name, inputs, self.recorder.run, child_id, cancel)
        except StoreError:
            with suppress(NotFound):  # else nothing of it began
                if (done := self.driver.runs.get(child_id)).status == "succeeded":  # and could not be shared
                    self._nested_ended(instance, done, state, cancel)
            raise
        self._nested_ended(instance, child, state, cancel)

    def _nested_ended(self, instance: Instance, child: RunState, state: StepState, cancel: Limit) -> None:
        artifacts = [artifact for _, step in child.steps for artifact in step.artifacts]
        with self.recorder.change():
            if child.status == "succeeded":
                self.recorder.ended(state, "succeeded", artifacts=artifacts)
            elif child.status == "cancelled" and self._timed_out(instance, state, cancel, artifacts=artifacts):
                return
            elif child.status in ("suspended", "cancelled"):
                self.recorder.ended(state, child.status, artifacts=artifacts)
            else:
                failed = next((s.name for _, s in child.steps if s.status == "failed"), "")
                said = f"workflow {child.workflow_name} failed" + (f" at {failed}" if failed else "")
                self._failed(instance, state, Failed(said), artifacts=artifacts)


def _open_name(name: Evaluated, what: str) -> str:
    """A name as it will be written. Raises UsageError if a record would have to hide it. inv[secrets.no-names]"""
    if name.value != name.shown:
        raise UsageError(
            f"{what} comes from a secret: names are written into records and keys as they are",
            hint="name it after something that everybody may see, such as an input that is not `writeOnly`",
        )
    return str(name.value)
