"""What a version was made from and what was made from it: read from the metadata of the versions that are here.

Each version names the versions that its writer had read (`inputs` in `metadata.yaml`), so every machine of a bucket
gives the same answer. `lineage_of(repo, version, depth=1)` has the direct `inputs` and `outputs` of one version.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp import __version__
from swamp.cache.files import read_at_most
from swamp.data.document import keys_of
from swamp.data.metadata import MAX_METADATA
from swamp.data.names import DATA, METADATA, version_of_directory
from swamp.data.records import Output, Read
from swamp.data.versions import DataVersion, VersionReader
from swamp.errors import CorruptData, NotFound
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.repo.repository import Repo

_MARK: Final = b"\ninputs:"
_MADE_BY: Final = keys_of("workflow_name workflow_run_id job_name step_name")


@value
class LineageNode:
    """One version in a lineage. `here` is False for one that was deleted since, or never came to this machine."""

    path: str
    model: str
    name: str
    version: int
    here: bool = True
    created_at: str | None = None
    made_by: Mapping[str, str] | None = None
    """The workflow, job, step and record of the run that wrote it; empty for what was put by hand."""

    @property
    def title(self) -> str:
        return f"{self.model}/{self.name} version {self.version}"

    @property
    def maker(self) -> str:
        """Who wrote it, in a few words."""
        made = self.made_by or {}
        if "workflowName" in made:
            return f"{made['workflowName']}: {made.get('stepName', '')}"
        return "run by hand" if "outputId" in made else ""

    def to_json(self) -> dict[str, Any]:
        document = {"modelName": self.model, "name": self.name, "version": self.version, "path": self.path}
        known = {"createdAt": self.created_at, "madeBy": dict(self.made_by or {})} if self.here else {}
        return {**document, "here": self.here, **known}


@dataclass(frozen=True, repr=False)
class Lineage:
    """Versions and what was made from what: an edge leads from an input to what was made from it, by their paths."""

    of: str
    nodes: tuple[LineageNode, ...]
    edges: tuple[tuple[str, str], ...]

    @cached_property
    def by_path(self) -> dict[str, LineageNode]:
        return {node.path: node for node in self.nodes}

    @property
    def inputs(self) -> tuple[LineageNode, ...]:
        """What the version itself was made from."""
        return self.before(self.of)

    @property
    def outputs(self) -> tuple[LineageNode, ...]:
        """What was made from the version itself."""
        return self.after(self.of)

    def before(self, path: str) -> tuple[LineageNode, ...]:
        return tuple(self.by_path[first] for first, second in self.edges if second == path)

    def after(self, path: str) -> tuple[LineageNode, ...]:
        return tuple(self.by_path[second] for first, second in self.edges if first == path)

    def __repr__(self) -> str:
        made = f"made from {len(self.inputs)}, used by {len(self.outputs)}"
        return f"<lineage of {self.by_path[self.of].title}: {made}>"

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> dict[str, Any]:
        return {
            "of": self.by_path[self.of].to_json(),
            "nodes": [node.to_json() for node in self.nodes],
            "edges": [{"from": self._short(first), "to": self._short(second)} for first, second in self.edges],
        }

    def _short(self, path: str) -> dict[str, Any]:
        node = self.by_path[path]
        return {"modelName": node.model, "name": node.name, "version": node.version, "path": path}


def lineage_of(
    repo: Repo, found: DataVersion, *, up: bool = True, down: bool = True, depth: int | None = None
) -> Lineage:
    """The versions that led to this one (`up`) and those that came of it (`down`), at most `depth` steps away."""
    walk = _Walk(repo.artifacts, {found.path: _node(found)})
    edges: dict[tuple[str, str], None] = {}
    if up:
        edges |= dict.fromkeys((path, near) for near, path in _steps(found.path, walk.inputs, depth))
    if down:
        users = _users(repo)
        edges |= dict.fromkeys(_steps(found.path, lambda path: walk.known(users.get(path, ())), depth))
    return Lineage(found.path, tuple(walk.nodes.values()), tuple(edges))


def _steps(start: str, near: Callable[[str], Sequence[str]], depth: int | None) -> Iterator[tuple[str, str]]:
    """Every (path, neighbour) that can be reached, nearest first; circles end where they were entered."""
    seen, ring, distance = {start}, [start], 0
    while ring and (depth is None or distance < depth):
        following: list[str] = []
        for path in ring:
            for other in near(path):
                yield path, other
                if other not in seen:
                    seen.add(other)
                    following.append(other)
        ring, distance = following, distance + 1


@mutable
class _Walk:
    """Collects nodes from the metadata of versions."""

    reader: VersionReader
    nodes: dict[str, LineageNode]

    def inputs(self, path: str) -> list[str]:
        """What the version at `path` was made from."""
        reads = _inputs(_read(self.reader, path))
        for read in reads:
            self._add(str(read["path"]), str(read.get("modelName") or ""))
        return [str(read["path"]) for read in reads]

    def known(self, paths: Sequence[str]) -> Sequence[str]:
        for path in paths:
            self._add(path, "")
        return paths

    def _add(self, path: str, model: str) -> None:
        if path in self.nodes:
            return
        found, ref = _read(self.reader, path), version_of_directory(path)
        assert ref is not None  # `is_read` let it through
        gone = LineageNode(path, model or ref.data.model_id, ref.data.name, ref.version, here=False)
        self.nodes[path] = gone if found is None else _node(found)


def _node(found: DataVersion) -> LineageNode:
    owner, draft = found.meta.owner, found.meta.draft
    made = {key: value for key, attribute in _MADE_BY.items() if (value := getattr(owner, attribute)) is not None}
    if draft.output_id is not None:
        made["outputId"] = draft.output_id
    return LineageNode(found.path, found.called, found.name, found.version, True, found.meta.created_at, made)


def _read(reader: VersionReader, path: str) -> DataVersion | None:
    """The version at `path`; None if it is gone or its metadata is damaged, which `data get` tells."""
    ref = version_of_directory(path)
    try:
        return None if ref is None else reader.read(ref)
    except (NotFound, CorruptData):
        return None


def _inputs(found: DataVersion | None) -> tuple[Read, ...]:
    return found.meta.draft.inputs if found is not None else ()


def _users(repo: Repo) -> dict[str, list[str]]:
    """By input, the versions that were made from it: one look at every metadata file, few of which are parsed."""
    users: dict[str, list[str]] = {}
    for directory, children, files in os.walk(repo.tree.root / DATA):
        children.sort(key=lambda name: (len(name), name))
        try:
            raw = read_at_most(Path(directory) / METADATA, MAX_METADATA) if METADATA in files else b""
        except FileNotFoundError:
            continue  # gone since it was listed
        if _MARK in raw:
            path = Path(directory).relative_to(repo.tree.root).as_posix()
            for read in _inputs(_read(repo.artifacts, path)):
                users.setdefault(str(read["path"]), []).append(path)
    return users


_Near = Callable[[str], Sequence[LineageNode]]


def as_text(lineage: Lineage) -> str:
    """The version, below it what it was made from, and what was made from it."""
    lines = [_line(lineage.by_path[lineage.of])]
    for title, near in (("made from", lineage.before), ("used by", lineage.after)):
        if near(lineage.of):
            lines += [f"  {title}:", *_branches(lineage.of, near, 4, frozenset({lineage.of}))]
    return "\n".join(lines if len(lines) > 1 else [*lines, "  made from nothing that is known, used by nothing"])


def _branches(path: str, near: _Near, indent: int, above: frozenset[str]) -> Iterator[str]:
    for node in near(path):
        yield f"{' ' * indent}{_line(node)}"
        if node.path not in above:
            yield from _branches(node.path, near, indent + 2, above | {node.path})


def _line(node: LineageNode) -> str:
    notes = [node.maker] if node.maker else []
    notes += [] if node.here else ["not here any more"]
    return f"{node.title}  ({', '.join(notes)})" if notes else node.title


def as_mermaid(lineage: Lineage) -> str:
    """A flow chart from left to right; the version that was asked for stands out."""
    ids = {node.path: f"n{number}" for number, node in enumerate(lineage.nodes)}
    lines = ["flowchart LR"]
    for node in lineage.nodes:
        label = f"{node.model}/{node.name}<br/>version {node.version}".replace('"', "#quot;")
        lines.append(f'  {ids[node.path]}["{label}"]')
    lines += [f"  {ids[first]} --> {ids[second]}" for first, second in lineage.edges]
    lines.append(f"  style {ids[lineage.of]} stroke-width:3px")
    return "\n".join(lines)


# -- OpenLineage events: https://openlineage.io, specification 2-0-2. A small JSON document, written here by hand: the
# client library would bring ten packages for it (decision 0001).

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
            made_of = [_dataset(namespace, one.to_json()) for one in before]
            made = [_dataset(namespace, node.to_json())]
            at, by = node.created_at or "", node.made_by or {}
            # The record of the run, else an id that is always the same for that version.
            run = by.get("outputId") or str(uuid.uuid5(uuid.NAMESPACE_URL, f"{node.path}@{node.created_at}"))
            job = f"{node.model}.{'run' if 'outputId' in by else 'put'}"
            if "workflowName" in by:
                job = f"{by['workflowName']}.{by.get('stepName', '')}"
            events.append(_event("COMPLETE", at, run, {}, namespace, job, made_of, made))
    return events


def tell(repo: Repo, output: Output, model: str, workflow: str | None) -> None:
    """Sends the events of a run to where the setting `lineage.to` says. What goes wrong there fails no run."""
    to = repo.settings.lineage_to
    if not to:
        return
    from urllib.request import Request, urlopen

    try:
        for event in events_of_run(repo, output, model, workflow):
            if to.startswith(("http://", "https://")):
                request = Request(to, json.dumps(event).encode(), {"Content-Type": "application/json"})
                with urlopen(request, timeout=SECONDS) as answer:
                    answer.read()
                continue
            with (repo.path / to).expanduser().open("a", encoding="utf-8") as out:
                out.write(json.dumps(event) + "\n")
    except OSError as error:  # urllib's errors are, too
        repo.notify(f"the run's lineage was not sent to {to}: {error}")


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


def _namespace(repo: Repo) -> str:
    return repo.datastore.url if repo.datastore.synced else repo.path.as_uri()
