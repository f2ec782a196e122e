"""Output records: what one method run did, from its start to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final, Literal

from swamp.data.document import SUFFIX, RecordFiles, attributes_of, damaged, dump, told, unknown_keys
from swamp.data.names import by_prefix, check_id, normalise_type
from swamp.data.reads import is_read
from swamp.errors import NotFound
from swamp.sync.port import Tree
from swamp.values import value

OUTPUTS: Final = "outputs"
OutputStatus = Literal["pending", "running", "succeeded", "failed", "cancelled"]


@value
class Provenance:
    definition_hash: str = ""
    triggered_by: str = ""
    initiated_by: str = ""
    workflow_run_id: str | None = None
    step_name: str | None = None


@value
class Output:
    """One run of one method. `artifacts` come from `DataVersion.artifact()`."""

    id: str
    definition_id: str
    model_type: str
    method_name: str
    status: OutputStatus
    started_at: str
    provenance: Provenance
    completed_at: str | None = None
    duration_ms: int | None = None
    artifacts: tuple[Mapping[str, Any], ...] = ()
    log_file: str | None = None
    error: str | None = None
    inputs: tuple[Mapping[str, Any], ...] = ()
    """The versions it read, named as `artifacts` are."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        folder = f"{OUTPUTS}/{normalise_type(self.model_type)}/{check_id(self.method_name)}"
        return f"{folder}/{check_id(self.definition_id)}-{self.started_at}{SUFFIX}"


class OutputRepository:
    """The output records of a tree."""

    def __init__(self, tree: Tree) -> None:
        self._files = RecordFiles(tree, OUTPUTS)

    def save(self, output: Output) -> str:
        """Writes the record, over an earlier state of the same run; its path."""
        path, found = output.path, self._files.read(output.path)
        if found is not None and found.get("id") != output.id:  # two runs of one definition in one millisecond
            path = f"{path.removesuffix(SUFFIX)}-{check_id(output.id)}{SUFFIX}"
        self._files.write(path, encode(output))
        return path

    def get(self, output_id: str) -> Output:
        """The record with this id. Raises NotFound."""
        return self._find(output_id)[1]

    def list(self, model_type: str | None = None, method: str | None = None) -> Iterator[Output]:
        """Records, newest first within a method, one in memory at a time."""
        under = normalise_type(model_type) if model_type else ""
        for path in self._files.paths(f"{under}/{method}" if under and method else under):
            output = self._read(path)
            if output is not None and (method is None or output.method_name == method):
                yield output

    def search(
        self,
        *,
        definition_id: str | None = None,
        status: str | None = None,
        workflow_run_id: str | None = None,
        since: str | None = None,
    ) -> Iterator[Output]:
        """Records that fit everything given; `since` is an RFC 3339 time."""
        for output in self.list():
            wanted = (
                (definition_id, output.definition_id),
                (status, output.status),
                (workflow_run_id, output.provenance.workflow_run_id),
            )
            if all(want is None or want == has for want, has in wanted) and (not since or output.started_at >= since):
                yield output

    def delete(self, output_id: str, *, confirmed: bool = False) -> bool:
        """Removes the record; False if there is none."""
        try:
            path, found = self._find(output_id)
        except NotFound:
            return False
        return found.id == output_id and self._files.remove([path], confirmed=confirmed) > 0

    def _find(self, output_id: str) -> tuple[str, Output]:
        """By its id or the beginning of it. Raises NotFound, or UsageError if several begin so."""
        found = {}
        for path in self._files.holding(output_id):
            output = self._read(path)
            if output is not None and output.id.startswith(output_id):
                found[output.id] = (path, output)
        chosen = by_prefix(output_id, found, "output")
        if chosen is not None:
            return found[chosen]
        raise NotFound(f"there is no output {output_id}", hint="`swamp model output list` shows what is there")

    def _read(self, path: str) -> Output | None:
        document = self._files.read(path)
        return None if document is None else decode(document, path)


_KEYS: Final = {
    "id": "id",
    "definitionId": "definition_id",
    "methodName": "method_name",
    "status": "status",
    "startedAt": "started_at",
    "completedAt": "completed_at",
    "durationMs": "duration_ms",
    "logFile": "log_file",
    "error": "error",
}
_PROOF: Final = {
    "definitionHash": "definition_hash",
    "triggeredBy": "triggered_by",
    "workflowRunId": "workflow_run_id",
    "stepName": "step_name",
    "initiatedBy": "initiated_by",
}


def encode(output: Output) -> bytes:
    document = {**told(output, _KEYS), "provenance": told(output.provenance, _PROOF)}
    document["artifacts"] = {"dataArtifacts": [dict(artifact) for artifact in output.artifacts]}
    if output.inputs:
        document["inputs"] = [dict(one) for one in output.inputs]
    return dump({**document, **output.extra})


def decode(document: Mapping[str, Any], path: str) -> Output:
    """The record in a document. Raises CorruptData naming the file."""
    try:
        return Output(
            **attributes_of(document, _KEYS),
            model_type="/".join(path.split("/")[1:-2]),
            provenance=Provenance(**attributes_of(document.get("provenance") or {}, _PROOF)),
            artifacts=tuple((document.get("artifacts") or {}).get("dataArtifacts") or ()),
            inputs=tuple(one for one in document.get("inputs") or () if is_read(one)),
            extra=unknown_keys(document, (*_KEYS, "provenance", "artifacts", "inputs")),
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise damaged(path, f"it is not an output record ({error})") from error
