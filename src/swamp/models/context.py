"""What all runs of one command share, and what one running method is given.

The first are the repository's parts, the mask and one Spark session; the second writes versions with their specs, has a
log that is live and kept, and a place to work.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from swamp.cache.files import place, stage_file
from swamp.data.document import told
from swamp.data.lifetimes import Lifetime, Retention
from swamp.data.metadata import OWNER_KEYS, Draft
from swamp.data.names import DataName
from swamp.data.records import note, noting
from swamp.data.versions import DataVersion
from swamp.env import SYSTEM, Env
from swamp.errors import Failed, NotFound, UsageError
from swamp.models.declare import OutputSpec, Registry, Written, load_registry
from swamp.models.define import ModelDefinitions
from swamp.models.expressions import Scope
from swamp.models.mask import Masker, MaskStream
from swamp.sync.port import Tree
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.data.artifacts import DataRepository
    from swamp.models.run import MethodRun
    from swamp.repo.repository import Repo

CHUNK = 1 << 20
RUN_LOGS = "run-logs"
TEXT_LIMIT = 1 << 20
_LOOKED_UP = tuple("id name version modelName modelType contentType size checksum createdAt lifetime tags".split())
OnLog = Callable[[str], None]


@mutable
class RunContext(AbstractContextManager["RunContext"]):
    """Opened once per command. Threads share it: whatever is made lazily is made under a lock."""

    repo: Repo
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    env: Env = SYSTEM
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _session: Any = None
    _own_session: bool = False

    def __post_init__(self) -> None:
        # Made here, in one thread: cached properties have no lock of their own.
        self.masker = Masker(self.environment)
        self.data: DataRepository = self.repo.artifacts
        self.outputs, self.evaluated = self.repo.outputs, self.repo.evaluated

    @cached_property
    def registry(self) -> Registry:
        with self._lock:
            return load_registry(self.repo.path)

    @cached_property
    def models(self) -> ModelDefinitions:
        return ModelDefinitions(self.repo.path, self.repo.tree, self.registry, self.env)

    @cached_property
    def lookup(self) -> Lookup:
        return Lookup(self.repo)

    @property
    def local(self) -> Path:
        """Beside the repository, never synced: logs being written, scratch, who runs here."""
        return self.repo.path / ".swamp"

    def log_of(self, run_id: str) -> Path:
        """Where this machine writes what a run of a method or a workflow says, while it goes."""
        return self.local / RUN_LOGS / f"{run_id}.log"

    def scope(self, run_facts: Mapping[str, Any] | None = None) -> Scope:
        return Scope(
            masker=self.masker,
            environment=self.environment,
            run=run_facts or {},
            data=self.lookup,
            models=lambda: {  # what can be said of a model without evaluating it
                found.name: {"id": found.id, "name": found.name, "type": found.type, "tags": dict(found.tags)}
                for found in self.models.all()
            },
        )

    def keep_log(self, file: Path, name: str, tree: Tree | None = None) -> str | None:
        """A log in the tree's `logs/`, so that other machines can read it; its path. `tree`: whose push takes it."""
        if not file.exists() or file.stat().st_size == 0:
            return None
        path = f"logs/{name}"
        target = self.repo.tree.root / path
        with (tree or self.repo.tree).announce([path]):
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as content:
                place(stage_file(target.parent, iter(lambda: content.read(CHUNK), b"")), self.repo.tree.root, path)
        return path

    def pull_model(self, model_type: str, model_id: str) -> None:
        """What the datastore has of this model: others' numbers, or what Spark has just committed."""
        engine = self.repo.datastore.engine
        if engine is not None:
            engine.pull((f"data/{model_type}/{model_id}",))

    def spark(self) -> Any:
        """The one SparkSession of this command; started by the first step that asks."""
        from swamp.bulk.executors import check_plugin
        from swamp.bulk.session import live_session, open_session
        from swamp.bulk.settings import resolve_settings
        from swamp.datasets.source import register
        from swamp.sync.progress import IdleTimeout

        with self._lock:
            if self._session is None:
                self._own_session = live_session() is None
                settings = resolve_settings(self.repo.settings.spark, self.environment)
                self._session = register(open_session(settings))
                idle_timeout = IdleTimeout(SYSTEM, self.repo.settings.sync_timeout, self.repo.cancel)
                check_plugin(self._session, settings, idle_timeout, self.repo.datastore.plugin)
            return self._session

    def __exit__(self, *_: object) -> None:
        if self._session is not None and self._own_session:
            from swamp.bulk.session import stop_session

            stop_session(self._session)
            self._session = None


@value
class Lookup:
    """`data.latest`, `data.version` and `data.query` of expressions."""

    repo: Repo

    def latest(self, model: str, name: str) -> Mapping[str, Any]:
        return self._row(self.find(model, name))

    def version(self, model: str, name: str, version: int) -> Mapping[str, Any]:
        return self._row(self.find(model, name, int(version)))

    def query(self, predicate: str) -> list[Any]:
        from swamp.catalog.query import query

        told = lambda row: note(row.artifact())  # noqa: E731
        return list(query(self.repo.catalog, self.repo.artifacts, predicate, told=told).results)

    def find(self, model: str, name: str, version: int | None = None) -> DataVersion:
        """The version, the newest by default. Raises NotFound that names the model."""
        for ref in self.repo.definitions.named(model):
            try:
                found = self.repo.artifacts.get(DataName.of(ref.type, ref.id, name), version)
            except NotFound:
                continue
            note(found.artifact())
            return found
        number = f" version {version}" if version is not None else ""
        raise NotFound(
            f"there is no data `{name}`{number} of model `{model}`",
            hint=f"`swamp data list {model}` shows what is there",
        )

    def _row(self, version: DataVersion) -> dict[str, Any]:
        known = version.fields(*_LOOKED_UP)
        return {**known, "modelName": version.model_name or "", **self._content(version)}

    def _content(self, version: DataVersion) -> dict[str, Any]:
        """`attributes` of JSON, `content` of small text; a dataset has neither."""
        if version.meta.has_parts or version.meta.size > TEXT_LIMIT:
            return {"attributes": {}}
        if not version.meta.is_json and not version.meta.content_type.startswith("text/"):
            return {"attributes": {}}
        text = self.repo.artifacts.content(version).decode("utf-8", "replace")
        if not version.meta.is_json:
            return {"attributes": {}, "content": text}
        try:
            return {"attributes": json.loads(text), "content": text}
        except json.JSONDecodeError as error:
            raise UsageError(f"{version.path} is not the JSON it says it is: {error.msg}") from error


# -- one method that runs


class Log:
    """The lines of a run: shown as they come, written to a file of this machine, without secrets."""

    def __init__(self, file: Path, masker: Masker, on_line: OnLog) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self.file = file
        self._masker, self._on_line = masker, on_line
        self._lock = threading.Lock()
        self._out = file.open("w", encoding="utf-8")

    def write(self, line: str) -> None:
        masked = self._masker.text(line)
        with self._lock:
            self._out.write(masked + "\n")
            self._out.flush()
        for one in masked.splitlines() or [""]:
            self._on_line(one)

    def close(self) -> None:
        self._out.close()


@mutable
class Context:
    """What a method may do: write versions, read others' data, say what it is doing, notice that it shall stop."""

    run: MethodRun
    global_arguments: Any
    scratch: Path
    """A directory of this run's own, removed when the method ends."""
    environment: Mapping[str, str]
    """What a child process is given: the user's environment and what swamp tells its children."""
    writer_log: Log
    output_id: str
    written: list[DataVersion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.definition, self.cancel, self.reads = self.run.request.definition, self.run.cancel, self.run.reads
        parts = self.run.context
        self.masker, self.data, self.lookup, self.repo_dir = parts.masker, parts.data, parts.lookup, parts.repo.path
        self.check = self.run.change.held.check

    @property
    def model_name(self) -> str:
        return self.definition.name

    @property
    def model_id(self) -> str:
        return self.definition.id

    def write_resource(self, name: str, value: Any, *, spec: str | None = None, **overrides: Any) -> Written:
        """Save a JSON value as the next version of `name`, without the secrets that this run knows."""
        text = json.dumps(self.masker.value(value), ensure_ascii=False, indent=2, default=str)
        overrides.setdefault("content_type", "application/json")
        return self._save(name, text.encode(), "resource", spec, overrides)

    def write_file(
        self, name: str, content: bytes | str | Path, *, spec: str | None = None, **overrides: Any
    ) -> Written:
        """Save bytes, text, a file or a directory of parts as the next version of `name`.

        Bytes and files are kept as they are: they are the method's own. Text goes through the mask.
        """
        if isinstance(content, str):
            overrides.setdefault("content_type", "text/plain")
            content = self.masker.text(content).encode()
        if isinstance(content, Path) and content.is_dir():
            for file in content.rglob("*"):
                self._refuse_secret_name(file.name)
        return self._save(name, content, "file", spec, overrides)

    @contextmanager
    def open_file(self, name: str, *, spec: str | None = None, **overrides: Any) -> Iterator[BinaryIO]:
        """Write a version bit by bit; it exists once the block ends without an error."""
        data, draft = self._draft(name, "file", spec, {"streaming": True, **overrides})
        claim = self.data.allocate_version(data, draft)
        with claim.raw.open("wb") as out:
            yield out
        self.written.append(self.data.finalize_version(claim, draft))

    def write_dataset(self, name: str, frame: Any, *, spec: str | None = None, **overrides: Any) -> Written:
        """Save a Spark DataFrame as the next version of `name`.

        Spark's tasks upload the parts and one commit makes the version; then this cache takes it in.
        """
        self.check()
        overrides.setdefault("content_type", "application/vnd.apache.parquet")
        data, draft = self._draft(name, "dataset", spec, overrides)
        write_id = self.run.context.env.uuid()
        options = {"repo": str(self.repo_dir), **writer_options(data, draft, self.model_name, write_id)}
        frame.write.format("swamp").mode("append").options(**options).save()
        self.run.context.pull_model(self.definition.type, self.definition.id)
        return self._wrote(next(v for v in self.data.versions(data) if v.meta.draft.write_id == write_id))

    def _save(
        self, name: str, content: bytes | Path, kind: str, spec: str | None, overrides: dict[str, Any]
    ) -> Written:
        self.check()
        data, draft = self._draft(name, kind, spec, overrides)
        return self._wrote(self.data.save(data, draft, content))

    def _wrote(self, version: DataVersion) -> Written:
        self.written.append(version)
        return Written(version.name, version.version, self.model_name, version.path)

    def _draft(self, name: str, kind: str, spec: str | None, overrides: Mapping[str, Any]) -> tuple[DataName, Draft]:
        self._refuse_secret_name(name)
        request = self.run.request
        wanted = _with(self.run.method.spec(spec or name), overrides)
        tags = {"type": kind, "specName": wanted.name, "modelName": self.model_name}
        draft = Draft(
            owner=request.owner,
            content_type=wanted.content_type,
            lifetime=Lifetime.parse(wanted.lifetime),
            retention=Retention.parse(wanted.garbage_collection),
            tags=self.masker.value({**self.definition.tags, **wanted.tags, **request.tags, **tags}),
            streaming=bool(overrides.get("streaming", False)),
            inputs=self.reads.all(),
            output_id=self.output_id,
        )
        return DataName.of(self.definition.type, self.definition.id, name), draft

    def _refuse_secret_name(self, name: str) -> None:
        """Names are keys in the bucket: they cannot be masked. inv[secrets.no-names]"""
        if self.masker.reveals(name):
            raise Failed(
                f"the name `{self.masker.text(name)}` holds a secret: names are written as they are",
                hint="name data after what it is",
            )

    def read(self, model: str, name: str, version: int | None = None) -> Path:
        """The content of a version (the newest by default) as a local file or directory."""
        return self.locate(model, name, version)[0]

    def locate(self, model: str, name: str, version: int | None = None) -> tuple[Path, str]:
        """The same, with its content type."""
        with noting(self.reads):  # also in a thread that the method has started
            found = self.lookup.find(model, name, version)
        return self.data.raw(found), found.meta.content_type

    def note(self, model: str, name: str, version: int | None = None) -> int:
        """Say that this version (the newest by default) is read by other means; its number."""
        with noting(self.reads):
            return self.lookup.find(model, name, version).version

    def log(self, line: str) -> None:
        """Show a line now and keep it in the run's log."""
        self.writer_log.write(line)

    def mask(self, text: str) -> str:
        """`text` without the secrets that this run knows. Mask before you shorten: half a secret is not found."""
        return self.masker.text(text)

    def mask_stream(self) -> MaskStream:
        """The same for a text that comes in pieces."""
        return self.masker.stream()

    def spark(self) -> Any:
        """The one SparkSession of this run."""
        return self.run.context.spark()


def _with(spec: OutputSpec, overrides: Mapping[str, Any]) -> OutputSpec:
    """A spec with what one write says otherwise; an option nobody knows is the method's mistake."""
    known = {"content_type", "lifetime", "garbage_collection", "tags"}
    unknown = set(overrides) - known - {"streaming"}
    if unknown:
        raise Failed(f"a write has no option `{sorted(unknown)[0]}`", hint=f"it has: {', '.join(sorted(known))}")
    return replace(spec, **{key: value for key, value in overrides.items() if key in known})


def writer_options(data: DataName, draft: Draft, model_name: str, write_id: str) -> dict[str, str]:
    """A draft as options of `df.write.format("swamp")`."""
    options = {
        **told(draft.owner, OWNER_KEYS),
        "model": model_name,
        "type": data.type,
        "name": data.name,
        "lifetime": str(draft.lifetime),
        "garbageCollection": str(draft.retention.value),
        "tags": json.dumps(dict(draft.tags)),
        "specName": draft.tags.get("specName"),
        "writeId": write_id,
        "outputId": draft.output_id,
        "inputs": json.dumps([dict(one) for one in draft.inputs]) if draft.inputs else None,
    }
    return {key: value for key, value in options.items() if value is not None}
