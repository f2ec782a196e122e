"""What all runs of one command share: the repository's parts, the mask, one Spark session."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.data.names import DataName
from swamp.data.records import note
from swamp.data.versions import DataVersion
from swamp.env import SYSTEM, Env
from swamp.errors import NotFound, UsageError
from swamp.models.declare import Registry, load_registry
from swamp.models.define import ModelDefinitions
from swamp.models.expressions import Scope
from swamp.models.mask import Masker
from swamp.sync.port import Tree
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.data.artifacts import DataRepository
    from swamp.repo.repository import Repo

CHUNK = 1 << 20


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
        return Lookup(self.repo, self.models)

    @property
    def local(self) -> Path:
        """Beside the repository, never synced: logs being written, scratch, who runs here."""
        return self.repo.path / ".swamp"

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
        from swamp.cache.files import place, stage_file

        if not file.exists() or file.stat().st_size == 0:
            return None
        path = f"logs/{name}"
        target = self.repo.tree.root / path
        with (tree or self.repo.tree).announce([path]):
            target.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as content:
                place(stage_file(target.parent, iter(lambda: content.read(CHUNK), b"")), self.repo.tree.root, path)
        return path

    # -- after a conflict

    def pull_model(self, model_type: str, model_id: str) -> None:
        """What the datastore has of this model: others' numbers, or what Spark has just committed."""
        engine = self.repo.datastore.engine
        if engine is not None:
            engine.pull((f"data/{model_type}/{model_id}",))

    # -- Spark

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
        self.close()

    def close(self) -> None:
        if self._session is not None and self._own_session:
            from swamp.bulk.session import stop_session

            stop_session(self._session)
            self._session = None


TEXT_LIMIT = 1 << 20
_LOOKED_UP = tuple("id name version modelName modelType contentType size checksum createdAt lifetime tags".split())


@value
class Lookup:
    """`data.latest`, `data.version`, `data.query`, and the path of a version's content."""

    repo: Repo
    models: ModelDefinitions

    def latest(self, model: str, name: str) -> Mapping[str, Any]:
        return self._row(self.find(model, name))

    def version(self, model: str, name: str, version: int) -> Mapping[str, Any]:
        return self._row(self.find(model, name, int(version)))

    def query(self, predicate: str) -> list[Any]:
        from swamp.catalog.query import query

        told = lambda row: note(row.artifact())  # noqa: E731
        return list(query(self.repo.catalog, self.repo.artifacts, predicate, told=told).results)

    def path(self, model: str, name: str, version: int | None = None) -> Path:
        return self.repo.artifacts.raw(self.find(model, name, version))

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
