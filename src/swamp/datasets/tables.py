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
from swamp.data.document import load_mapping
from swamp.data.metadata import Metadata, decode, version_fields
from swamp.data.names import VersionRef, described_by
from swamp.datasets.place import Bucket, FileRef, Folder, Span
from swamp.errors import CorruptData, ObjectMissing
from swamp.sync.pool import pooled

READERS: Final = 8
PAGE: Final = 1_000
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table's columns, where its files lie, and how a file becomes a row."""

    name: str
    prefix: str
    columns: tuple[tuple[str, str], ...]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, kind in self.columns)


_VERSION_COLUMNS: Final = (
    ("id", "string"),
    ("name", "string"),
    ("version", "bigint"),
    ("isLatest", "boolean"),
    ("createdAt", "string"),
    ("tags", "map<string,string>"),
    ("modelName", "string"),
    ("modelType", "string"),
    ("modelId", "string"),
    ("specName", "string"),
    ("dataType", "string"),
    ("contentType", "string"),
    ("lifetime", "string"),
    ("ownerType", "string"),
    ("ownerRef", "string"),
    ("streaming", "boolean"),
    ("size", "bigint"),
    ("checksum", "string"),
    ("workflowRunId", "string"),
    ("workflowName", "string"),
    ("jobName", "string"),
    ("stepName", "string"),
    ("source", "string"),
    ("ns", "string"),
    ("path", "string"),
)
VERSIONS: Final = Table("versions", "data", _VERSION_COLUMNS)
DATA: Final = Table("data", "data", _VERSION_COLUMNS)
OUTPUTS: Final = Table(
    "outputs",
    "outputs",
    (
        ("id", "string"),
        ("definitionId", "string"),
        ("modelType", "string"),
        ("methodName", "string"),
        ("status", "string"),
        ("startedAt", "string"),
        ("completedAt", "string"),
        ("durationMs", "bigint"),
        ("definitionHash", "string"),
        ("triggeredBy", "string"),
        ("initiatedBy", "string"),
        ("workflowRunId", "string"),
        ("stepName", "string"),
        ("dataArtifacts", "string"),
        ("logFile", "string"),
        ("error", "string"),
        ("path", "string"),
    ),
)
RUNS: Final = Table(
    "runs",
    "workflow-runs",
    (
        ("id", "string"),
        ("workflowId", "string"),
        ("workflowName", "string"),
        ("status", "string"),
        ("startedAt", "string"),
        ("completedAt", "string"),
        ("failedStep", "string"),
        ("stepsDone", "bigint"),
        ("stepsTotal", "bigint"),
        ("inputs", "string"),
        ("tags", "map<string,string>"),
        ("pid", "bigint"),
        ("host", "string"),
        ("triggerSource", "string"),
        ("path", "string"),
    ),
)
COMMITS: Final = Table(
    "commits",
    "",
    (
        ("seq", "bigint"),
        ("op", "string"),
        ("prevOp", "string"),
        ("committedAt", "string"),
        ("repoId", "string"),
        ("host", "string"),
        ("user", "string"),
        ("pid", "bigint"),
        ("swamp", "string"),
        ("added", "bigint"),
        ("changed", "bigint"),
        ("deleted", "bigint"),
        ("segments", "bigint"),
    ),
)
TABLES: Final = {table.name: table for table in (DATA, VERSIONS, OUTPUTS, RUNS, COMMITS)}


def rows(table: Table, place: Bucket | Folder, span: Span, ns: str = "") -> Iterator[Row]:
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


def output_row(document: dict[str, Any], path: str) -> Row:
    found = output_records.decode_output(document, path)
    proof = found.provenance
    return {
        "id": found.id,
        "definitionId": found.definition_id,
        "modelType": found.model_type,
        "methodName": found.method_name,
        "status": found.status,
        "startedAt": found.started_at,
        "completedAt": found.completed_at,
        "durationMs": found.duration_ms,
        "definitionHash": proof.definition_hash,
        "triggeredBy": proof.triggered_by,
        "initiatedBy": proof.initiated_by,
        "workflowRunId": proof.workflow_run_id,
        "stepName": proof.step_name,
        "dataArtifacts": json.dumps([dict(a) for a in found.artifacts]),
        "logFile": found.log_file,
        "error": found.error,
        "path": path,
    }


def run_row(document: dict[str, Any], path: str) -> Row:
    found = run_records.decode(document, path)
    brief = found.summary
    return {
        "id": found.id,
        "workflowId": found.workflow_id,
        "workflowName": found.workflow_name,
        "status": found.status,
        "startedAt": found.started_at,
        "completedAt": found.completed_at,
        "failedStep": brief.failed_step,
        "stepsDone": brief.steps_done,
        "stepsTotal": brief.steps_total,
        "inputs": json.dumps(dict(found.inputs), default=str),
        "tags": {str(k): str(v) for k, v in found.tags.items()},
        "pid": found.pid,
        "host": found.host,
        "triggerSource": found.trigger_source,
        "path": path,
    }


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
        writer, did = root.writer, commit_stats(root, place.fetch)
        yield {
            "seq": root.seq,
            "op": root.op,
            "prevOp": root.prev_op,
            "committedAt": root.committed_at,
            "repoId": writer.get("repoId"),
            "host": writer.get("host"),
            "user": writer.get("user"),
            "pid": writer.get("pid"),
            "swamp": writer.get("swamp"),
            "added": did.added,
            "changed": did.changed,
            "deleted": did.deleted,
            "segments": sum(s.added_seq == root.seq for s in root.segments),
        }
