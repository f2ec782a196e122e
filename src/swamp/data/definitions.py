"""Definitions in the datastore tier: evaluated ones, and those made for models that nobody defined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final, Literal

from swamp.data.document import SUFFIX, RecordFiles, damaged, dump
from swamp.data.names import auto_id, check_model_name, normalise_type
from swamp.errors import NotFound
from swamp.sync.port import Tree
from swamp.values import value

EVALUATED: Final = "definitions-evaluated"
AUTO: Final = "auto-definitions"
MANUAL_TYPE: Final = "manual/data"
Tier = Literal["definitions-evaluated", "auto-definitions", "workflows-evaluated"]


@value
class StoredDefinition:
    """A definition as a document; `type` and `name` say where it lies."""

    id: str
    name: str
    type: str
    document: Mapping[str, Any] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        return {"id": self.id, "name": self.name, "type": self.type, **self.document}


class DefinitionRepository:
    """The definitions below one tier directory: `<directory>/<type>/<name>.yaml`."""

    def __init__(self, tree: Tree, directory: Tier = EVALUATED) -> None:
        self._files = RecordFiles(tree, directory)

    def path_of(self, model_type: str, name: str) -> str:
        return f"{self._files.directory}/{normalise_type(model_type)}/{check_model_name(name)}{SUFFIX}"

    def save(self, definition: StoredDefinition) -> str:
        """Writes the definition, over an earlier one of the same type and name; its path."""
        path = self.path_of(definition.type, definition.name)
        self._files.write(path, dump(definition.to_document()))
        return path

    def get(self, model_type: str, name: str) -> StoredDefinition:
        """The definition of this type and name. Raises NotFound."""
        path = self.path_of(model_type, name)
        document = self._files.read(path)
        if document is None:
            raise NotFound(f"there is no definition {name} of type {model_type}")
        return decode(document, path)

    def list(self, model_type: str | None = None) -> Iterator[StoredDefinition]:
        """All definitions, or those of a type, one in memory at a time."""
        for path in self._files.paths(normalise_type(model_type) if model_type else ""):
            document = self._files.read(path)
            if document is not None:
                yield decode(document, path)

    def search(self, name_or_id: str) -> Iterator[StoredDefinition]:
        """The definitions that have this name or id."""
        return (found for found in self.list() if name_or_id in (found.name, found.id))

    def delete(self, model_type: str, name: str, *, confirmed: bool = False) -> bool:
        """Removes one definition; False if there is none."""
        return self._files.remove([self.path_of(model_type, name)], confirmed=confirmed) > 0


def auto_definition(model_type: str, name: str) -> StoredDefinition:
    """The definition that `data put`, a workflow step or `df.write` makes for a name that has none."""
    normal = normalise_type(model_type)
    return StoredDefinition(auto_id(normal, name), check_model_name(name), normal)


def decode(document: Mapping[str, Any], path: str) -> StoredDefinition:
    """The definition in a document; type and name default to what the path says."""
    parts = path.split("/")
    name = str(document.get("name") or parts[-1].removesuffix(SUFFIX))
    kind = str(document.get("type") or "/".join(parts[1:-1]))
    if not isinstance(document.get("id"), str):
        raise damaged(path, "a definition needs an `id`")
    rest = {key: value for key, value in document.items() if key not in ("id", "name", "type")}
    return StoredDefinition(document["id"], name, kind, rest)
