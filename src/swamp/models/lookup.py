"""Data by model and name, as expressions and methods read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.data.names import DataName
from swamp.data.reads import note
from swamp.data.versions import DataVersion
from swamp.errors import NotFound, UsageError

if TYPE_CHECKING:
    from swamp.models.define import Models
    from swamp.repo.repository import Repo

TEXT_LIMIT = 1 << 20


@dataclass(frozen=True)
class Lookup:
    """`data.latest`, `data.version`, `data.query`, and the path of a version's content."""

    repo: Repo
    models: Models

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
        for model_type, model_id in self._candidates(model):
            try:
                found = self.repo.artifacts.get(DataName.of(model_type, model_id, name), version)
            except NotFound:
                continue
            note(found.artifact())
            return found
        number = f" version {version}" if version is not None else ""
        raise NotFound(
            f"there is no data `{name}`{number} of model `{model}`",
            hint=f"`swamp data list {model}` shows what is there",
        )

    def _candidates(self, model: str) -> list[tuple[str, str]]:
        """By definition, else by what the data itself says: a reader needs no definitions."""
        try:
            found = self.models.find(model)
            return [(found.type, found.id)]
        except NotFound:
            rows = self.repo.catalog.models()
            return [(kind, id_) for kind, id_, name in rows if model in (name, id_)]

    def _row(self, version: DataVersion) -> dict[str, Any]:
        meta = version.meta
        return {
            "id": meta.id,
            "name": version.name,
            "version": version.version,
            "modelName": version.model_name or "",
            "modelType": version.ref.data.type,
            "contentType": meta.content_type,
            "size": meta.size,
            "checksum": meta.checksum,
            "createdAt": meta.created_at,
            "lifetime": str(meta.draft.lifetime),
            "tags": dict(meta.tags),
            **self._content(version),
        }

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
