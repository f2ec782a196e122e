"""The documents of the API as the generated OpenAPI describes them: those of `--json`, lists with `next`.

They are built elsewhere, by the functions that the command line prints; a test compares each with a real answer.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Document(BaseModel):
    """More keys may follow in a later version."""

    model_config = ConfigDict(extra="allow")


class Error(Document):
    error: str
    code: str
    hint: str | None = None
    details: dict[str, Any] | None = None


class Page(Document, Generic[T]):
    """A part of a list; `next` is where the following page begins."""

    items: list[T]
    next: str | None = None


class CountedPage(Page[T], Generic[T]):
    total: int


class DataItem(Document):
    name: str
    version: int
    modelName: str | None
    modelType: str
    contentType: str
    size: int
    createdAt: str
    tags: dict[str, Any]


class Version(DataItem):
    modelName: str
    checksum: str
    content: str | None = None


class VersionItem(Document):
    version: int
    createdAt: str
    size: int
    checksum: str
    isLatest: bool


class VersionPreview(Document):
    kind: str
    format: str
    truncated: bool


class Difference(Document):
    equal: bool
    kind: str
    summary: dict[str, Any]
    changes: list[Any]


class QueryResult(Document):
    results: list[Any]
    total: int
    limited: bool


class Deleted(Document):
    versionsDeleted: int


class Lock(Document):
    held: bool | None


class Status(Document):
    type: str
    url: str
    namespace: str | None
    healthy: bool
    message: str
    latencyMs: int
    capabilities: dict[str, Any] | None
    seq: int | None
    lastSyncAt: str | None
    pending: dict[str, Any] | None
    cache: dict[str, Any] | None
    lock: Lock


class SyncDone(Document):
    mode: str
    filesPushed: int
    filesPulled: int
    filesDeleted: int
    conflicts: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    fastPath: bool
    engine: str
    requests: int
    seq: int
    durationMs: int


class Commit(Document):
    seq: int
    op: str
    at: str
    writer: dict[str, Any]
    added: int
    changed: int
    deleted: int


class CommitPaths(Commit):
    paths: list[dict[str, str]]
    truncated: bool


class Locks(Lock):
    models: list[dict[str, Any]]


class Released(Document):
    released: bool
    previousHolder: str | None = None


class ConflictItem(Document):
    id: str
    path: str
    size: int
    keptAt: str


class LineageVersion(Document):
    modelName: str
    name: str
    version: int
    path: str
    here: bool


class LineageGraph(Document):
    of: LineageVersion
    nodes: list[LineageVersion]
    edges: list[dict[str, Any]]


class ComparedFile(Document):
    name: str
    mineSize: int | None
    theirsSize: int | None
    text: bool
    rows: list[dict[str, str | None]]


class ComparedConflict(ConflictItem):
    files: list[ComparedFile]


class Resolved(Document):
    id: str
    path: str
    keep: str


class Check(Document):
    name: str
    ok: bool
    detail: str
    fix: str | None = None


class Examined(Document):
    checks: list[Check]
    ok: bool


class Restored(Document):
    restored: list[str]
    gone: list[str]


class WorkflowItem(Document):
    id: str
    name: str
    version: int | str
    description: str | None
    tags: dict[str, str]
    jobs: list[str]
    file: str


class Workflow(Document):
    id: str
    name: str
    jobs: list[dict[str, Any]]
    file: str


class Trigger(Document):
    kind: Literal["webhook", "schedule", "api", "cli", "workflow"] | str
    deliveryId: str | None = None


class Queued(Document):
    id: str
    workflow: str
    status: str
    trigger: Trigger


class RunItem(Queued):
    startedAt: str
    completedAt: str | None
    stepProgress: str


class Run(Document):
    id: str
    workflowName: str
    status: str
    trigger: Trigger
    jobs: list[dict[str, Any]] = Field(default_factory=list)


class Logs(Document):
    id: str
    lines: list[str]


class Decided(Document):
    id: str
    workflowName: str
    step: str
    decision: str
    status: str
    resumable: bool
    resumed: bool


class Stopped(Document):
    id: str
    status: Literal["cancelled", "cancelling"]


class Delivery(Document):
    deliveryId: str
    kind: str
    route: str
    workflow: str
    runId: str
    status: str
    attempts: int
    receivedAt: str
    finishedAt: str | None
    error: str | None = None


class Received(Document):
    status: Literal["queued", "duplicate"]
    deliveryId: str
    runId: str | None = None


class TypeItem(Document):
    type: str
    version: str
    description: str
    methods: list[str]


class Type(Document):
    type: str
    methods: list[dict[str, Any]]


class Model(Document):
    name: str
    type: str
    id: str
    file: str | None


class ModelItem(Model):
    tags: dict[str, str]


class MethodRun(Document):
    modelName: str
    modelType: str
    methodName: str
    status: str
    outputId: str
    durationMs: int | None
    dataArtifacts: list[dict[str, Any]]


class ScheduleItem(Document):
    workflow: str
    schedule: str
    timezone: str
    overlap: str
    catchup: str
    next: str | None
    last: str | None


class Session(Document):
    role: str
    kind: str
    csrf: str
    name: str | None = None


_REFUSALS: dict[int | str, dict[str, Any]] = {
    401: {"model": Error, "description": "No valid token."},
    403: {"model": Error, "description": "Another role is needed, or the request comes from another site."},
    "default": {"model": Error, "description": "The error document of `--json`."},
}


def ok(model: type[BaseModel], status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers, for the generated description."""
    return {status: {"model": model}, **_REFUSALS}
