"""The tables of a repository as rows: data, versions, outputs, runs, commits. No Spark in here.

`versions` has a row per version that holds data, `data` only the latest of each name. Columns are the query fields
without content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from swamp.data import records as output_records
from swamp.data import run_record as run_records
from swamp.data.document import keys_of, load_mapping, values_of
from swamp.data.metadata import Metadata, decode, version_fields
from swamp.data.names import VersionRef, described_by
from swamp.datasets.place import Bucket, FileRef, Folder
from swamp.errors import CorruptData, ObjectMissing
from swamp.index.root import EVERYTHING, Span
from swamp.sync.inline import pooled

READERS: Final = 8
PAGE: Final = 1_000
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: where its files lie, and its columns as SQL declares them."""

    name: str
    prefix: str
    declared: str

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Names and types."""
        return [(name, kind) for name, kind in (column.split(" ") for column in self.declared.split(", "))]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns)


_VERSION_COLUMNS: Final = (
    "id string, name string, version bigint, isLatest boolean, createdAt string, tags map<string,string>, "
    "modelName string, modelType string, modelId string, specName string, dataType string, contentType string, "
    "lifetime string, ownerType string, ownerRef string, streaming boolean, size bigint, checksum string, "
    "workflowRunId string, workflowName string, jobName string, stepName string, source string, ns string, path string"
)
VERSIONS: Final = Table("versions", "data", _VERSION_COLUMNS)
DATA: Final = Table("data", "data", _VERSION_COLUMNS)
OUTPUTS: Final = Table(
    "outputs",
    "outputs",
    "id string, definitionId string, modelType string, methodName string, status string, startedAt string, "
    "completedAt string, durationMs bigint, definitionHash string, triggeredBy string, initiatedBy string, "
    "workflowRunId string, stepName string, dataArtifacts string, logFile string, error string, path string",
)
RUNS: Final = Table(
    "runs",
    "workflow-runs",
    "id string, workflowId string, workflowName string, status string, startedAt string, completedAt string, "
    "failedStep string, stepsDone bigint, stepsTotal bigint, inputs string, tags map<string,string>, pid bigint, "
    "host string, triggerSource string, path string",
)
COMMITS: Final = Table(
    "commits",
    "",
    "seq bigint, op string, prevOp string, committedAt string, repoId string, host string, user string, pid bigint, "
    "swamp string, added bigint, changed bigint, deleted bigint, segments bigint",
)
TABLES: Final = {table.name: table for table in (DATA, VERSIONS, OUTPUTS, RUNS, COMMITS)}


def rows(table: Table, place: Bucket | Folder, span: Span = EVERYTHING, ns: str = "") -> Iterator[Row]:
    """All rows of one part of a table. Spark filters them: a row is never left out here. inv[source.whole]"""
    match table.name:
        case "data" | "versions":
            return _versions(place, table.prefix, span, ns, latest_only=table.name == "data")
        case "outputs":
            return _documents(table, place, span, output_row)
        case "runs":
            return _documents(table, place, span, run_row)
        case _:
            return _commits(place)


def _versions(place: Bucket | Folder, prefix: str, span: Span, ns: str, *, latest_only: bool) -> Iterator[Row]:
    """Latest needs no reading: it is the highest number with metadata, which the paths say."""
    wanted: list[tuple[VersionRef, FileRef, bool]] = []
    for group in _by_name(place, prefix, span):
        newest = max(ref.version for ref, _ in group)
        wanted += [
            (ref, file, ref.version == newest) for ref, file in group if ref.version == newest or not latest_only
        ]
        if len(wanted) >= PAGE:
            yield from _read_versions(place, wanted, ns)
            wanted = []
    yield from _read_versions(place, wanted, ns)


def _by_name(place: Bucket | Folder, prefix: str, span: Span) -> Iterator[list[tuple[VersionRef, FileRef]]]:
    """The metadata files of each data name, together: paths come in order, so one name is in memory at a time."""
    found = ((described_by(file.path), file) for file in place.files(prefix, span))
    known = ((ref, file) for ref, file in found if ref is not None)
    for _, group in groupby(known, key=lambda pair: pair[0].data):
        yield list(group)


def _read_versions(place: Bucket | Folder, wanted: list[tuple[VersionRef, FileRef, bool]], ns: str) -> Iterator[Row]:
    def read(item: tuple[VersionRef, FileRef, bool]) -> Row | None:
        ref, file, latest = item
        meta = read_metadata(place, file)
        return None if meta is None or not meta.active else version_row(ref, meta, latest, ns)

    return (row for row in pooled(wanted, read, READERS) if row is not None)


def read_metadata(place: Bucket | Folder, file: FileRef) -> Metadata | None:
    """None for damaged metadata: that is the catalog's warning and an error only for who reads that artifact."""
    try:
        return decode(place.read(file), file.path)
    except (CorruptData, ObjectMissing, FileNotFoundError):
        return None


def version_row(ref: VersionRef, meta: Metadata, latest: bool, ns: str) -> Row:
    return {**version_fields(ref, meta), "isLatest": latest, "ns": ns}


def _documents(
    table: Table, place: Bucket | Folder, span: Span, make: Callable[[dict[str, Any], str], Row]
) -> Iterator[Row]:
    files = (file for file in place.files(table.prefix, span) if file.path.endswith(".yaml"))

    def read(file: FileRef) -> Row | None:
        try:
            return make(load_mapping(place.read(file), file.path), file.path)
        except (CorruptData, ObjectMissing, FileNotFoundError):
            return None

    return (row for row in pooled(files, read, READERS) if row is not None)


_OUTPUT: Final = keys_of(
    "id definition_id model_type method_name status started_at completed_at duration_ms log_file error"
)
_RUN: Final = keys_of("id workflow_id workflow_name status started_at completed_at pid host trigger_source")
_BRIEF: Final = keys_of("failed_step steps_done steps_total")
_ROOT: Final = keys_of("seq op prev_op committed_at")


def output_row(document: dict[str, Any], path: str) -> Row:
    found = output_records.decode_output(document, path)
    artifacts = json.dumps([dict(artifact) for artifact in found.artifacts])
    proof = values_of(found.provenance, output_records.PROOF)
    return {**values_of(found, _OUTPUT), **proof, "dataArtifacts": artifacts, "path": path}


def run_row(document: dict[str, Any], path: str) -> Row:
    found = run_records.decode(document, path)
    inputs = json.dumps(dict(found.inputs), default=str)
    tags = {str(key): str(value) for key, value in found.tags.items()}
    brief = values_of(found.summary, _BRIEF)
    return {**values_of(found, _RUN), **brief, "inputs": inputs, "tags": tags, "path": path}


def _commits(place: Bucket | Folder) -> Iterator[Row]:
    """Log records; `segments` counts those that the commit wrote."""
    if isinstance(place, Folder):
        return
    from swamp.commit.log import names
    from swamp.index.lookup import commit_stats
    from swamp.index.root import decode as decode_root

    store = place.store
    for name in names(store):
        try:
            root = decode_root(store.get(name.key).body)
        except (CorruptData, ObjectMissing):
            continue
        if root.seq > place.root.seq:
            return
        written = sum(ref.added_seq == root.seq for ref in root.segments)
        did = values_of(commit_stats(root, place.fetch), keys_of("added changed deleted"))
        yield {**root.writer, **values_of(root, _ROOT), **did, "segments": written}
