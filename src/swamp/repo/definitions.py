"""Finds the model that a name means: a definition in git, or an auto-definition that travels with the data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swamp.catalog.resolve import resolve_model
from swamp.data.definitions import AUTO, DefinitionRepository, auto_definition
from swamp.data.names import check_model_name
from swamp.errors import NotFound
from swamp.sync.port import Tree


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model's identity: where its data lies, and what people call it."""

    type: str
    id: str
    name: str

    @property
    def path(self) -> str:
        return f"data/{self.type}/{self.id}"


@dataclass(frozen=True)
class Definitions:
    """Looks names up in `models/` of the checkout, then in the auto-definitions of the tree."""

    repo: Path
    tree: Tree

    def find(self, name: str) -> ModelRef | None:
        """The model of that name or id. Raises UsageError when several are called so."""
        try:
            found = resolve_model(check_model_name(name), models_dir=self.repo / "models", autos=self._autos)
        except NotFound:
            return None
        return ModelRef(found.type, found.id, found.name)

    def auto_path(self, model_type: str, name: str) -> str:
        return self._autos.path_of(model_type, name)

    def auto(self, model_type: str, name: str) -> ModelRef:
        """The auto-definition of that type and name, made if it is missing: two machines make the same bytes."""
        made = auto_definition(model_type, name)
        if not (self.tree.root / self.auto_path(made.type, made.name)).exists():
            self._autos.save(made)
        return ModelRef(made.type, made.id, made.name)

    @property
    def _autos(self) -> DefinitionRepository:
        return DefinitionRepository(self.tree, AUTO)
