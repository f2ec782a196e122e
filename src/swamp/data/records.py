"""Records of the datastore tier, one file each: what a method run read and made, and definitions, evaluated or made for
models that nobody defined."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Literal

from swamp.data.document import SUFFIX, RecordFiles, attributes_of, damaged, dump, keys_of, told, unknown_keys
from swamp.data.names import auto_id, by_prefix, check_id, check_model_name, normalise_type, version_of_directory
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
        self._files.write(path, _encode_output(output))
        return path

    def get(self, output_id: str) -> Output:
        """The record with this id. Raises NotFound."""
        return self._find(output_id)[1]

    def list(self) -> Iterator[Output]:
        """Records, newest first within a method, one in memory at a time."""
        return filter(None, map(self._read, self._files.paths()))

    def search(
        self, *, definition_id: str | None = None, workflow_run_id: str | None = None, since: str | None = None
    ) -> Iterator[Output]:
        """Records that fit everything given; `since` is an RFC 3339 time."""
        for output in self.list():
            run_id = output.provenance.workflow_run_id
            fits = definition_id in (None, output.definition_id) and workflow_run_id in (None, run_id)
            if fits and (not since or output.started_at >= since):
                yield output

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
        return None if document is None else decode_output(document, path)


_KEYS: Final = keys_of("id definition_id method_name status started_at completed_at duration_ms log_file error")
PROOF: Final = keys_of("definition_hash triggered_by workflow_run_id step_name initiated_by")


def _encode_output(output: Output) -> bytes:
    document = {**told(output, _KEYS), "provenance": told(output.provenance, PROOF)}
    document["artifacts"] = {"dataArtifacts": [dict(artifact) for artifact in output.artifacts]}
    if output.inputs:
        document["inputs"] = [dict(one) for one in output.inputs]
    return dump({**document, **output.extra})


def decode_output(document: Mapping[str, Any], path: str) -> Output:
    """The record in a document. Raises CorruptData naming the file."""
    try:
        return Output(
            **attributes_of(document, _KEYS),
            model_type="/".join(path.split("/")[1:-2]),
            provenance=Provenance(**attributes_of(document.get("provenance") or {}, PROOF)),
            artifacts=tuple((document.get("artifacts") or {}).get("dataArtifacts") or ()),
            inputs=tuple(one for one in document.get("inputs") or () if is_read(one)),
            extra=unknown_keys(document, (*_KEYS, "provenance", "artifacts", "inputs")),
        )
    except (KeyError, AttributeError, TypeError) as error:
        raise damaged(path, f"it is not an output record ({error})") from error


# -- which versions a run or a program has read: what it writes afterwards was made from them
#
# A method's thread notes in its run (`noting`); its child processes append lines to the file that SWAMP_READS names. A
# program that is part of no run notes nothing here: its `Repository` does.

READS: Final = "SWAMP_READS"
MOST_READS: Final = 1000
"""A run that reads more names the first ones: its record stays a record."""

Read = Mapping[str, Any]
"""A version as `DataVersion.artifact` names it."""


class Reads:
    """Versions in the order in which they were first read, each once. Threads share it.

    `file`: where other processes of the same run note what they read.
    """

    def __init__(self, known: Iterable[Read] = (), file: Path | None = None) -> None:
        self.file = file
        self._found: dict[str, Read] = {}
        self._lock = threading.Lock()
        for read in known:
            self.add(read)

    def add(self, read: Read) -> None:
        with self._lock:
            if len(self._found) < MOST_READS:
                self._found.setdefault(str(read["path"]), dict(read))

    def all(self) -> tuple[Read, ...]:
        for read in lines_of(self.file) if self.file is not None else ():
            self.add(read)
        with self._lock:
            return tuple(self._found.values())


_reading: Final[ContextVar[Reads | None]] = ContextVar("swamp_reads", default=None)


@contextmanager
def noting(reads: Reads) -> Iterator[Reads]:
    """What is read inside, in this thread, is noted there."""
    outer = _reading.set(reads)
    try:
        yield reads
    finally:
        _reading.reset(outer)


def file_of_run() -> str | None:
    """Where a process that works for the run of this thread notes what it reads; None outside of runs."""
    reads = _reading.get()
    return str(reads.file) if reads is not None and reads.file is not None else None


def note(read: Read, file: str | None = None) -> None:
    """This was read: by the run of this thread, or by a child process of one (`file`, else SWAMP_READS)."""
    reads, told = _reading.get(), file or os.environ.get(READS)
    if reads is not None:
        reads.add(read)
    elif told and read not in (known := list(lines_of(Path(told)))) and len(known) < MOST_READS:
        with Path(told).open("a", encoding="utf-8") as out:
            out.write(json.dumps(dict(read)) + "\n")


def read_so_far() -> tuple[Read, ...]:
    """What the run that this thread or process belongs to has read; nothing outside of runs."""
    reads, told = _reading.get(), os.environ.get(READS)
    if reads is not None:
        return reads.all()
    return Reads(lines_of(Path(told))).all() if told else ()


def lines_of(file: Path) -> Iterator[Read]:
    """What was noted in a file. Anything else in it is somebody's own doing and stands for nothing."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if is_read(found):
            yield found


def is_read(found: Any) -> bool:
    """Whether it names a version as `DataVersion.artifact` does."""
    return isinstance(found, dict) and version_of_directory(str(found.get("path"))) is not None


# -- definitions

EVALUATED: Final = "definitions-evaluated"
AUTO: Final = "auto-definitions"
MANUAL_TYPE: Final = "manual/data"


@value
class StoredDefinition:
    """A model's identity, and the rest of its definition as a document; `type` and `name` say where that lies."""

    id: str
    name: str
    type: str
    document: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "type": self.type, **self.document}


class DefinitionRepository:
    """The definitions below one tier directory: `<directory>/<type>/<name>.yaml`."""

    def __init__(self, tree: Tree, directory: str = EVALUATED) -> None:
        self._files = RecordFiles(tree, directory)

    def path_of(self, model_type: str, name: str) -> str:
        return f"{self._files.directory}/{normalise_type(model_type)}/{check_model_name(name)}{SUFFIX}"

    def save(self, definition: StoredDefinition) -> str:
        """Writes the definition, over an earlier one of the same type and name; its path."""
        path = self.path_of(definition.type, definition.name)
        self._files.write(path, dump(definition.to_document()))
        return path

    def search(self, name_or_id: str) -> Iterator[StoredDefinition]:
        """The definitions that have this name or id, one in memory at a time."""
        for path in self._files.paths():
            document = self._files.read(path)
            if document is not None and name_or_id in ((found := decode_definition(document, path)).name, found.id):
                yield found


def auto_definition(model_type: str, name: str) -> StoredDefinition:
    """The definition that `data put`, a workflow step or `df.write` makes for a name that has none."""
    normal = normalise_type(model_type)
    return StoredDefinition(auto_id(normal, name), check_model_name(name), normal)


def decode_definition(document: Mapping[str, Any], path: str) -> StoredDefinition:
    """The definition in a document; type and name default to what the path says."""
    parts = path.split("/")
    name = str(document.get("name") or parts[-1].rpartition(".")[0])
    kind = str(document.get("type") or "/".join(parts[1:-1]))
    if not isinstance(document.get("id"), str):
        raise damaged(path, "a definition needs an `id`")
    rest = {key: value for key, value in document.items() if key not in ("id", "name", "type")}
    return StoredDefinition(document["id"], name, kind, rest)
