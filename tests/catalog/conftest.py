from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "data"))  # for the trees that data's tests use

from swamp.catalog.catalog import Catalog
from swamp.data.artifacts import DataRepository
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName
from swamp.sync.port import PlainTree, Tree


@dataclass
class Shelf:
    """A tree, its catalog, a repository that writes through, and every SQL statement that was run."""

    tree: Tree
    path: Path
    statements: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.catalog = self.open()
        self.repo = DataRepository(self.tree, self.catalog)

    def open(self) -> Catalog:
        return Catalog(self.path, self.tree, trace=self.statements.append)

    def save(self, name: str, content: bytes = b"x", *, model: str = "box", **tags: str):
        draft = Draft(Owner.manual(model), "application/json", tags={"modelName": model, **tags})
        return self.repo.save(DataName.of("manual/data", model, name), draft, content)

    def listed(self, catalog: Catalog | None = None) -> list[tuple[str, int]]:
        return [(row.ref.data.name, row.ref.version) for row in (catalog or self.catalog).latest()]

    def reads_of_data(self) -> list[str]:
        return [s for s in self.statements if s.startswith("SELECT") and " FROM data" in s]


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(PlainTree(tmp_path / ".swamp"), tmp_path / ".swamp" / "_catalog.db")


@pytest.fixture
def lazy_shelf(tmp_path: Path) -> Shelf:
    from trees import LazyTree

    return Shelf(LazyTree(tmp_path / "tree"), tmp_path / ".swamp" / "_catalog.db")
