"""`swamp model output`: what method runs did and said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from swamp.cli import command
from swamp.cli.command import CommandSession, Limit, Since, SomeModel, group, reading, session
from swamp.cli.render import short, when
from swamp.errors import NotFound, UsageError

if TYPE_CHECKING:
    from swamp.data.records import Output
    from swamp.models.context import RunContext

app = group("What method runs did.")

STATUSES = ("pending", "running", "succeeded", "failed", "cancelled")


def _described(output: Output) -> dict[str, Any]:
    from swamp.data.document import keys_of, values_of

    keys = keys_of("model_type definition_id method_name status started_at completed_at duration_ms")
    known = values_of(output, keys)
    named = {"id": output.id, "modelName": output.extra.get("modelName")}
    return {**named, **known, **({"error": output.error} if output.error else {})}


@reading(app, "list")
def list_outputs(
    model: SomeModel = None,
    status: Annotated[str | None, typer.Option(metavar="S", help="running, succeeded, failed, cancelled.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only those of this workflow run.")] = None,
    since: Since = None,
    limit: Limit = 100,
) -> None:
    """List method runs, newest first."""
    import heapq

    from swamp.env import rfc3339
    from swamp.repo.data import parse_since
    from swamp.repo.leases import with_interrupted

    if status is not None and status not in STATUSES:
        raise UsageError(f"`{status}` is not a status", hint=f"there is {', '.join(STATUSES)}")
    with session(reading=True) as s:
        context = s.run_context()
        definition_id = _definition_id(context, model) if model else None
        moment = None if since is None else rfc3339(parse_since(since, s.repo.env.clock.now()))
        found = context.outputs.search(definition_id=definition_id, workflow_run_id=known_run(s, run), since=moment)
        told = with_interrupted(s.repo.datastore, context.outputs, found)
        fitting = (output for output in told if status in (None, output.status))
        newest = heapq.nlargest(limit, fitting, key=lambda output: (output.started_at, output.id))
        ids = [output.id for output in newest]
        rows = [
            (short(o.id, ids), o.extra.get("modelName") or o.definition_id, o.method_name, o.status, when(o.started_at))
            for o in newest
        ]
        s.items([_described(o) for o in newest], ("OUTPUT", "MODEL", "METHOD", "STATUS", "STARTED"), rows)


def known_run(s: CommandSession, run: str | None) -> str | None:
    """The id of the run that was typed; one that nobody here knows is taken as it is."""
    if run is None:
        return None
    try:
        return s.repo.runs.resolve(run)
    except NotFound:
        return run


def _definition_id(context: RunContext, model: str) -> str:
    """By definition, else by what the records themselves say."""
    try:
        return context.models.find(model).id
    except NotFound:
        for output in context.outputs.list():
            if model in (output.extra.get("modelName"), output.definition_id):
                return output.definition_id
        raise


OutputId = Annotated[
    str,
    typer.Argument(
        metavar="OUTPUT",
        help="An output's id, a beginning of it, or a model for its newest.",
        autocompletion=command.models,
    ),
]


def _find_output(context: RunContext, wanted: str) -> Output:
    try:
        return context.outputs.get(wanted)
    except NotFound as error:
        try:
            definition_id = _definition_id(context, wanted)
        except NotFound:
            raise error from None
        found = list(context.outputs.search(definition_id=definition_id))
        if not found:
            raise NotFound(f"`{wanted}` has not run yet", hint="`swamp model method run` runs it") from error
        return max(found, key=lambda output: output.started_at)


@reading(app, "get")
def get_output(output: OutputId) -> None:
    """Show an output record: status, provenance, what it wrote."""
    from swamp.data.records import PROOF
    from swamp.repo.leases import with_interrupted

    with session(reading=True) as s:
        context = s.run_context()
        found = next(with_interrupted(s.repo.datastore, context.outputs, [_find_output(context, output)]))
        document = {
            **_described(found),
            "provenance": {key: getattr(found.provenance, attribute) for key, attribute in PROOF.items()},
            "artifacts": {"dataArtifacts": [dict(artifact) for artifact in found.artifacts]},
            "inputs": [dict(read) for read in found.inputs],
            "logFile": found.log_file,
        }
        shown = {key: value for key, value in document.items() if key not in ("provenance", "artifacts", "inputs")}

        def text() -> None:
            s.out.fields({**shown, **document["provenance"]})
            for read in found.inputs:
                s.out.line(f"read {read['modelName']}/{read['name']} version {read['version']}")
            for artifact in found.artifacts:
                s.out.line(f"wrote {artifact['name']} version {artifact['version']}")

        s.answer(document, text)


@reading(app, "logs")
def output_logs(output: OutputId) -> None:
    """Show what a method run said."""
    with session(reading=True) as s:
        context = s.run_context()
        found = _find_output(context, output)
        if found.log_file is not None:  # from the tree when it is finished, from this machine while it runs
            text = s.repo.tree.materialize(found.log_file).read_text(encoding="utf-8")
        else:
            live = context.log_of(found.id)
            text = live.read_text(encoding="utf-8") if live.exists() else ""
        document = {"id": found.id, "logFile": found.log_file, "lines": text.splitlines()}
        s.answer(document, lambda: s.out.line(text.rstrip("\n")) if text else None)
