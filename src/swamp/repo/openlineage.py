"""Runs and versions as OpenLineage events: https://openlineage.io, specification 2-0-2.

The event is a small JSON document, written here by hand: the client library would bring ten packages for it (decision
0001).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp import __version__
from swamp.data.outputs import Output
from swamp.repo.lineage import Lineage, LineageNode

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

PRODUCER: Final = f"urn:swamp:{__version__}"
EVENT: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
_VERSION: Final = f"{_FACETS}/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
_PARENT: Final = f"{_FACETS}/1-0-1/ParentRunFacet.json#/$defs/ParentRunFacet"
_FAILED: Final = f"{_FACETS}/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
_ENDS: Final = {"succeeded": "COMPLETE", "failed": "FAIL", "cancelled": "ABORT"}
SECONDS: Final = 5.0
"""How long a run that has ended waits for whoever collects events."""

Event = dict[str, Any]


def events_of_run(repo: Repo, output: Output, model: str, workflow: str | None) -> list[Event]:
    """The start and the end of a method run, with what it read and wrote."""
    namespace, proof = _namespace(repo), output.provenance
    facets: dict[str, Any] = {}
    name = f"{model}.{output.method_name}"
    if proof.workflow_run_id is not None:
        name = f"{workflow}.{proof.step_name}"
        parent = {"run": {"runId": proof.workflow_run_id}, "job": {"namespace": namespace, "name": workflow}}
        facets["parent"] = {"_producer": PRODUCER, "_schemaURL": _PARENT, **parent}
    if output.error is not None:
        said = {"message": output.error, "programmingLanguage": "python"}
        facets["errorMessage"] = {"_producer": PRODUCER, "_schemaURL": _FAILED, **said}
    made_of = [_dataset(namespace, one) for one in output.inputs]
    made = [_dataset(namespace, one) for one in output.artifacts]
    common = (output.id, facets, namespace, name)
    return [
        _event("START", output.started_at, *common, made_of, []),
        _event(_ENDS.get(output.status, "OTHER"), output.completed_at or output.started_at, *common, made_of, made),
    ]


def events_of_lineage(repo: Repo, lineage: Lineage) -> list[Event]:
    """One event for each version of which it is known what it was made from."""
    namespace = _namespace(repo)
    events = []
    for node in lineage.nodes:
        before = lineage.before(node.path)
        if node.here and before:
            made_of = [_dataset(namespace, _read(one)) for one in before]
            made = [_dataset(namespace, _read(node))]
            at = node.created_at or ""
            events.append(_event("COMPLETE", at, _run_id(node), {}, namespace, _job(node), made_of, made))
    return events


def tell(repo: Repo, output: Output, model: str, workflow: str | None) -> None:
    """Sends the events of a run to where the setting `lineage.to` says. What goes wrong there fails no run."""
    to = repo.settings.lineage_to
    if not to:
        return
    try:
        for event in events_of_run(repo, output, model, workflow):
            _send(to, event) if to.startswith(("http://", "https://")) else _append(repo.path / to, event)
    except OSError as error:  # urllib's errors are, too
        repo.notify(f"the run's lineage was not sent to {to}: {error}")


def _send(url: str, event: Event) -> None:
    from urllib.request import Request, urlopen

    body = json.dumps(event).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=SECONDS) as answer:
        answer.read()


def _append(file: Path, event: Event) -> None:
    with file.expanduser().open("a", encoding="utf-8") as out:
        out.write(json.dumps(event) + "\n")


def _event(
    kind: str,
    at: str,
    run_id: str,
    facets: Mapping[str, Any],
    namespace: str,
    job: str,
    inputs: Sequence[Event],
    outputs: Sequence[Event],
) -> Event:
    return {
        "eventType": kind,
        "eventTime": at,
        "run": {"runId": run_id, "facets": dict(facets)},
        "job": {"namespace": namespace, "name": job},
        "inputs": list(inputs),
        "outputs": list(outputs),
        "producer": PRODUCER,
        "schemaURL": EVENT,
    }


def _dataset(namespace: str, read: Mapping[str, Any]) -> Event:
    version = {"_producer": PRODUCER, "_schemaURL": _VERSION, "datasetVersion": str(read["version"])}
    return {"namespace": namespace, "name": f"{read['modelName']}/{read['name']}", "facets": {"version": version}}


def _read(node: LineageNode) -> dict[str, Any]:
    return {"modelName": node.model, "name": node.name, "version": node.version}


def _namespace(repo: Repo) -> str:
    return repo.datastore.url if repo.datastore.synced else repo.path.as_uri()


def _run_id(node: LineageNode) -> str:
    """The record of the run, else an id that is always the same for that version."""
    made = node.made_by or {}
    return made.get("outputId") or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{node.path}@{node.created_at}"))


def _job(node: LineageNode) -> str:
    made = node.made_by or {}
    if "workflowName" in made:
        return f"{made['workflowName']}.{made.get('stepName', '')}"
    return f"{node.model}.{'run' if 'outputId' in made else 'put'}"
