"""Runs a method: under the model's lease, with an output record from the first moment to the last, pushed once.

Its arguments come from a definition and inputs, with every expression resolved, before anything is written.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.data.document import RecordFiles
from swamp.data.metadata import Owner
from swamp.data.names import meant, version_of_directory
from swamp.data.records import (
    READS,
    Output,
    Provenance,
    Read,
    Reads,
    StoredDefinition,
    decode_definition,
    decode_output,
    noting,
)
from swamp.data.versions import DataVersion
from swamp.env import rfc3339, user_name
from swamp.errors import Failed, Interrupted, SwampError, UsageError
from swamp.models.context import RUN_LOGS, Context, Log, OnLog, RunContext
from swamp.models.declare import Method, ModelType, argument_names, check_arguments
from swamp.models.define import Definition, model_item
from swamp.models.expressions import evaluate
from swamp.models.inputs import check_inputs
from swamp.models.mask import Masker, too_short_to_pass_on
from swamp.repo.conflicts import kept_version, save_again
from swamp.sync.progress import Cancel
from swamp.sync.result import Conflict
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.repo.transaction import Change


@value
class Request:
    """One method run, asked for by a person or by a workflow step."""

    definition: Definition
    method: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    shown_inputs: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    step: Owner | None = None
    """The workflow step that it is for."""
    run_facts: Mapping[str, Any] = field(default_factory=dict)
    scope: tuple[str, ...] = ()
    read_before: tuple[Read, ...] = ()
    """What was read to find out that this is to be run, such as the items of a `forEach`."""
    waiting: Callable[[], None] = lambda: None
    """Called before it waits for its lease."""
    resolved: Callable[[Request], Request] = lambda request: request
    """The same request with its expressions resolved again: called under the lease, with what the store holds now."""

    @property
    def owner(self) -> Owner:
        """The model owns its data, whoever runs it: by hand today, in a workflow tomorrow."""
        return self.step or Owner("model-method", self.definition.id)


@mutable
class Result:
    """How a run ended. `sync` is filled in when its push has happened."""

    output: Output
    output_path: str
    error: SwampError | None = None
    sync: dict[str, Any] | None = None
    made: dict[str, str] = field(default_factory=dict)
    """The id of every version it wrote, by its path: they are looked for after the push. inv[put.proven]"""

    @property
    def artifacts(self) -> list[dict[str, Any]]:
        return [dict(artifact) for artifact in self.output.artifacts]


@value
class Hooks:
    """Where a caller looks in: before the work, at each line, at the end inside the lease, and when data moved."""

    begin: Callable[[Output, str], None] = lambda output, path: None
    line: OnLog = lambda line: None
    end: Callable[[Result], None] = lambda result: None
    instead: Callable[[], Output | None] = lambda: None
    """An output that makes the run unnecessary: an earlier attempt had done the work."""


def run_method(context: RunContext, request: Request, cancel: Cancel, hooks: Hooks = Hooks()) -> Result:  # noqa: B008
    """Lease, pull, run, record, push, release. Raises when nothing ran or the push did not deliver.

    A run that a signal ended has a result too: its record stays here, and the next push takes it.
    """
    kind = context.registry.get(request.definition.type)
    method = kind.method(request.method)
    definition = request.definition
    scope = (f"definitions-evaluated/{definition.type}/{definition.name}.yaml", *request.scope)
    result: Result | None = None
    try:
        with context.repo.changes.model(
            "model method run",
            definition.type,
            definition.id,
            scope,
            reads_all=True,
            cancel=cancel,
            waiting=request.waiting,
        ) as change:
            done = hooks.instead()  # first: what it finds out about a killed attempt is in that attempt's record
            _note_killed(context, definition)
            if done is not None:
                result = Result(done, done.path)
            else:
                with noting(Reads(request.read_before)) as reads:
                    resolved = request.resolved(request)
                    result = MethodRun(context, resolved, kind, method, cancel, hooks, change, reads).go()
            hooks.end(result)
            change.made = partial(dict.copy, result.made)
            change.save_again = partial(_save_again, context, result, hooks)
    except Interrupted:
        if result is None or result.output.status != "cancelled":
            raise
        return result
    change.must_be_delivered()
    result.sync = change.sync.to_json() if change.sync is not None else None
    _tell(context, request, result.output)
    return result


def _tell(context: RunContext, request: Request, output: Output) -> None:
    """Its lineage, to whoever collects that; nobody by default."""
    if context.repo.settings.lineage_to:
        from swamp.repo.lineage import tell

        tell(context.repo, output, request.definition.name, request.owner.workflow_name)


@mutable
class MethodRun:
    """One method that runs, under its model's lease."""

    context: RunContext
    request: Request
    kind: ModelType
    method: Method
    cancel: Cancel
    hooks: Hooks
    change: Change
    reads: Reads

    def go(self) -> Result:
        """Nothing is written before the arguments are known to be right."""
        context, request = self.context, self.request
        arguments, global_arguments, shown = self._prepared()
        if request.definition.file is None:
            context.repo.definitions.auto(request.definition.type, request.definition.name)
        context.evaluated.save(shown)
        output = self._first_record()
        path = context.outputs.save(output)
        self.hooks.begin(output, path)
        log = Log(context.log_of(output.id), context.masker, self.hooks.line)
        log.file.with_suffix(".path").write_text(path, encoding="utf-8")
        try:
            parent = context.local / "scratch"
            parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=parent))
            try:
                method_context = self._method_context(global_arguments, output, scratch, log)
                started = context.env.clock.monotonic()
                error = self._call(arguments, method_context)
                took = round((context.env.clock.monotonic() - started) * 1000)
                output = replace(output, inputs=self.reads.all())
            finally:
                # Whatever a method leaves that is not ours to remove: TemporaryDirectory raises for some of it.
                shutil.rmtree(scratch, ignore_errors=True)
        finally:
            log.close()
        return self._last_record(output, method_context.written, error, took, log)

    def _prepared(self) -> tuple[Any, Any, StoredDefinition]:
        """The method's arguments and the type's, which fit their schemas, and the definition as a record may show it.

        Raises UsageError that says which argument is wrong, missing or unknown.
        """
        context, request, definition, method = self.context, self.request, self.request.definition, self.method
        inputs, overrides = split_inputs(definition, method, request.inputs, context.masker)
        given = overrides if request.shown_inputs is None else request.shown_inputs
        shown_overrides = {name: given.get(name) for name in overrides}
        about = {key: value for key, value in model_item(definition).items() if key != "file"}
        scope = replace(context.scope(request.run_facts), inputs=inputs)
        found = evaluate(definition.global_arguments, scope.with_self(about), ("globalArguments",))
        scope = scope.with_self({**about, "globalArguments": found.value}, {**about, "globalArguments": found.shown})
        own = evaluate(definition.arguments(method.name), scope, ("methods", method.name, "arguments"))
        owner = f"{definition.name}.{method.name}"
        arguments = check_arguments(method.arguments, {**own.value, **overrides}, owner)
        shown_arguments = {"arguments": context.masker.value({**own.shown, **shown_overrides})}
        shown = replace(
            definition,
            global_arguments=context.masker.value(found.shown),
            methods={**{name: {} for name in definition.methods}, method.name: shown_arguments},
        )
        global_arguments = check_arguments(self.kind.global_arguments, found.value, definition.name)
        return arguments, global_arguments, decode_definition(shown.to_document(), definition.name)

    def _first_record(self) -> Output:
        owner = self.request.owner
        return Output(
            id=self.context.env.uuid(),
            definition_id=self.request.definition.id,
            model_type=self.kind.name,
            method_name=self.method.name,
            status="running",
            started_at=rfc3339(self.context.env.clock.now()),
            provenance=Provenance(
                definition_hash=self.request.definition.hash,
                triggered_by="workflow" if self.request.step else "cli",
                initiated_by=user_name(),
                workflow_run_id=owner.workflow_run_id,
                step_name=owner.step_name,
            ),
            extra={"modelName": self.request.definition.name, "typeVersion": self.kind.version},
        )

    def _method_context(self, global_arguments: Any, output: Output, scratch: Path, log: Log) -> Context:
        context, request = self.context, self.request
        withheld = too_short_to_pass_on(context.environment)
        for name in withheld:
            log.write(f"{name} is not passed on: its value is too short to be masked")
        given = {name: value for name, value in context.environment.items() if name not in withheld}
        told = {"SWAMP_REPO_DIR": str(context.repo.path), "SWAMP_MODEL_NAME": request.definition.name}
        self.reads.file = scratch / "reads.jsonl"
        told[READS] = str(self.reads.file)
        if request.step is not None:
            told |= {"SWAMP_WORKFLOW_RUN_ID": str(request.step.workflow_run_id)}
            told |= {"SWAMP_STEP_NAME": str(request.step.step_name)}
        environment = self.change.held.child_environment({**given, **told})
        return Context(self, global_arguments, scratch, environment, log, output.id)

    def _call(self, arguments: Any, given: Context) -> SwampError | None:
        """The method's own failure, as one of our errors. What it wrote stays. inv[model.failure-keeps]"""
        try:
            self.method.run(arguments, given)
        except SwampError as error:
            return self.context.masker.error(error)
        except Exception as error:  # noqa: BLE001 - someone else's method: whatever it raises is the run's outcome
            import traceback

            given.log("".join(traceback.format_exception(error)).rstrip())
            said = self.context.masker.text(f"{type(error).__name__}: {error}")
            return Failed(said[:4000], hint="`swamp model output logs` shows the traceback")
        return None

    def _last_record(
        self, output: Output, written: list[DataVersion], error: SwampError | None, took: int, log: Log
    ) -> Result:
        context = self.context
        artifacts = tuple(version.artifact() for version in written)
        try:
            log_file = context.keep_log(log.file, f"outputs/{output.id}.log")
        except SwampError as lost:  # a full disk fails the run, and its record still says how the run ended
            log_file, error = None, error or lost
        kept = f" ({len(written)} data versions were kept)" if error and written else ""
        final = replace(
            output,
            status="succeeded" if error is None else "cancelled" if isinstance(error, Interrupted) else "failed",
            completed_at=rfc3339(context.env.clock.now()),
            duration_ms=took,
            artifacts=artifacts,
            log_file=log_file,
            error=None if error is None else error.message + kept,
        )
        path = context.outputs.save(final)
        log.file.with_suffix(".path").unlink(missing_ok=True)
        log.file.unlink(missing_ok=True)
        return Result(final, path, error, made={version.path: version.meta.id for version in written})


def _note_killed(context: RunContext, definition: Definition) -> None:
    """Runs of this model that began here and never ended: with the lease in hand, their process is gone."""
    for marker in sorted((context.local / RUN_LOGS).glob("*.path")):
        try:
            path = marker.read_text(encoding="utf-8")
        except FileNotFoundError:  # of a step of another model, which has just ended
            continue
        if not path.startswith(f"outputs/{definition.type}/") or f"/{definition.id}-" not in path:
            continue
        document = RecordFiles(context.repo.tree, "outputs").read(path)
        if document is not None and document.get("status") == "running":
            log = context.keep_log(marker.with_suffix(".log"), f"outputs/{document['id']}.log")
            said = "interrupted: the process that ran it was killed"
            context.outputs.save(replace(decode_output(document, path), status="failed", error=said, log_file=log))
        marker.with_suffix(".log").unlink(missing_ok=True)
        marker.unlink()


def _save_again(context: RunContext, result: Result, hooks: Hooks, conflicts: Sequence[Conflict]) -> None:
    """Another machine published this number first: the same data becomes the next version, records follow."""
    context.pull_model(result.output.model_type, result.output.definition_id)
    renumbered: list[dict[str, Any]] = []
    for artifact in result.artifacts:
        ref = version_of_directory(artifact["path"])
        kept = kept_version(context.repo.datastore.cache, ref, conflicts) if ref is not None else None
        if ref is None or kept is None:
            renumbered.append(artifact)
            continue
        again = save_again(context.repo, ref, kept)
        result.made.pop(artifact["path"], None)
        result.made[again.path] = again.meta.id
        renumbered.append(again.artifact())
    result.output = replace(result.output, artifacts=tuple(renumbered))
    context.outputs.save(result.output)
    hooks.end(result)


# -- the arguments of a run


def split_inputs(
    definition: Definition, method: Method, given: Mapping[str, Any], masker: Masker
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the definition's expressions see as `inputs`, and what goes straight to the method as arguments.

    A name that the definition declares (or mentions) is an input; a name of a method's argument is that argument.
    """
    arguments = argument_names(method.arguments)
    declared = list((definition.inputs or {}).get("properties") or {})
    mentioned = mentioned_inputs(definition)
    for name in given:
        if name not in arguments and name not in declared and name not in mentioned:
            known = f"arguments: {', '.join(arguments) or 'none'}; inputs: {', '.join(declared) or 'none'}"
            raise UsageError(
                f"`{name}` is neither an argument of {method.name} nor an input of {definition.name}",
                hint=meant(name, [*arguments, *declared]) + known,
            )
    for_expressions = {k: v for k, v in given.items() if k in declared or k in mentioned}
    inputs = check_inputs(for_expressions, definition.inputs, definition.name, masker)
    straight = {k: v for k, v in given.items() if k in arguments and k not in declared}
    return inputs, straight


def mentioned_inputs(definition: Definition) -> set[str]:
    """Inputs that the definition's expressions use without declaring them."""
    text = json.dumps([dict(definition.global_arguments), dict(definition.methods)], default=str)
    return set(re.findall(r"""\binputs\.([A-Za-z_]\w*)""", text))
