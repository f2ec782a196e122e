"""Finds the model that a name or an id means: in git, among the auto-definitions, and by what the data itself says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

from swamp.cache.files import read_at_most
from swamp.data.document import MAX_BYTES, load_mapping
from swamp.data.names import by_prefix, check_model_name, normalise_type
from swamp.data.records import AUTO, DefinitionRepository, StoredDefinition, auto_definition, decode_definition
from swamp.errors import CorruptData, UsageError
from swamp.sync.port import Tree
from swamp.values import value

FOLDER: Final = "models"


class Named(Protocol):
    """What has a name, an id and a type: a definition, as it is stored or as its type understands it."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> str: ...


Found = TypeVar("Found", bound=Named)
Source = tuple[Path, Callable[[Path], Found | None]]
"""A folder of definitions, and what reads one of its files; None leaves the file out."""


def definition_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in (".yaml", ".yml") and file.is_file())


def find_defined(wanted: str, sources: Sequence[Source[Found]]) -> Found | None:
    """The definition of that name or id, of the first source that has one. Raises UsageError for several of one name.

    Files that are called otherwise are opened only when none is called so, and one of them that is wrong hides nothing.
    """
    if found := _only(wanted, in_files_called(wanted, sources)):
        return found
    for folder, load in sources:
        if found := _only(wanted, (one for one in _readable(folder, load) if wanted in (one.name, one.id))):
            return found
    return None


def in_files_called(name: str, sources: Sequence[Source[Found]]) -> list[Found]:
    """By file name, which is the model's name: only the files that can hold it are opened."""
    for folder, load in sources:
        loaded = [load(file) for file in definition_files(folder) if file.stem == name]
        if found := [one for one in loaded if one is not None]:
            return found
    return []


def _readable(folder: Path, load: Callable[[Path], Found | None]) -> Iterator[Found]:
    for file in definition_files(folder):
        with suppress(UsageError):
            if (found := load(file)) is not None:
                yield found


def _only(wanted: str, found: Iterable[Found]) -> Found | None:
    different = {one.id: one for one in found}
    if len(different) > 1:
        listed = ", ".join(sorted(f"{one.type} ({one.id})" for one in different.values()))
        raise UsageError(f"several models are called {wanted}: {listed}", hint="use the id instead of the name")
    return next(iter(different.values()), None)


@value
class Definitions:
    """Which models there are: by definitions in `models/` of the checkout, then auto-definitions, then data."""

    repo: Path
    tree: Tree
    with_data: Callable[[], Iterable[tuple[str, str, str | None]]] = tuple
    """Type, id and name of every model that has data."""

    def find(self, name: str) -> StoredDefinition | None:
        """The model defined under that name or id. Raises UsageError when several are called so."""
        sources = ((self.repo / FOLDER, self._in_git), (self.tree.root / AUTO, self._made))
        return find_defined(check_model_name(name), sources)

    def named(self, name: str) -> list[StoredDefinition]:
        """The defined model first, then those that have data under that name or id, or an id that begins so.

        A reader needs no definitions.
        """
        found = [ref] if (ref := self.find(name)) else []
        known = [StoredDefinition(identity, called or identity, kind) for kind, identity, called in self.with_data()]
        said = [ref for ref in known if name in (ref.name, ref.id)]
        if not found and not said:
            begun = by_prefix(name, (ref.id for ref in known), "model id")
            said = [ref for ref in known if ref.id == begun]
        keys = {(ref.type, ref.id) for ref in found}
        return [*found, *(ref for ref in said if (ref.type, ref.id) not in keys)]

    def names(self) -> set[str]:
        """What is defined in git or has data, by name."""
        defined = {ref.name for ref in _readable(self.repo / FOLDER, self._in_git)}
        return defined | {name or identity for _, identity, name in self.with_data()}

    def auto(self, model_type: str, name: str) -> None:
        """Makes the auto-definition of that type and name if it is missing: two machines make the same bytes."""
        made = auto_definition(model_type, name)
        if not (self.tree.root / self.autos.path_of(made.type, made.name)).exists():
            self.autos.save(made)

    @property
    def autos(self) -> DefinitionRepository:
        return DefinitionRepository(self.tree, AUTO)

    def _in_git(self, file: Path) -> StoredDefinition | None:
        """None for a file that is no definition: saying what is wrong with it is the models' business."""
        try:
            found = _stored(file, self.repo)
        except CorruptData:
            return None
        in_place = file.parent != self.repo / FOLDER
        return replace(found, type=normalise_type(found.type)) if in_place else None

    def _made(self, file: Path) -> StoredDefinition:
        return _stored(file, self.tree.root)


def _stored(file: Path, top: Path) -> StoredDefinition:
    path = file.relative_to(top).as_posix()
    return decode_definition(load_mapping(read_at_most(file, MAX_BYTES), path), path)
