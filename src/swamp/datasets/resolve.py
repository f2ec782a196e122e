"""Which model a name means to Spark: by definitions first, which need no walk through the index."""

from __future__ import annotations

from collections.abc import Mapping

from swamp.data.document import load_mapping
from swamp.data.names import DataName, normalise_type
from swamp.data.records import AUTO, EVALUATED, MANUAL_TYPE, auto_definition, decode_definition
from swamp.datasets.content import find_artifact
from swamp.datasets.place import Bucket, FileRef, Folder, repo_path
from swamp.errors import CorruptData, NotFound, ObjectMissing


def known_places(place: Bucket | Folder, options: Mapping[str, str], model: str) -> list[DataName]:
    """Where definitions put the model's data: a definition in git, else auto-definitions of that name."""
    asked = _asked_type(options)
    defined = _defined_in_git(options, model, asked)
    if defined is not None:
        return [defined]
    types = _auto_types(place, model)
    made = [auto_definition(kind, model) for kind in types if asked in (None, kind)]
    return [DataName.of(found.type, found.id, "x") for found in made] or _evaluated(place, model, asked)


def resolve_model(place: Bucket | Folder, options: Mapping[str, str], model: str, name: str) -> tuple[DataName, bool]:
    """The model's place: a definition in git, an auto-definition, data that already carries its name, or a new one.

    The second value says whether the auto-definition has to exist afterwards.
    """
    asked = _asked_type(options)
    defined = _defined_in_git(options, model, asked)
    if defined is not None:
        return defined.sibling(name), False
    types = _auto_types(place, model)
    if asked in types or (asked is None and len(types) == 1):
        found = auto_definition(asked or types[0], model)
        return DataName.of(found.type, found.id, name), False
    if asked is None:
        try:
            known = _evaluated(place, model, None)
            return find_artifact(place, model, name, known=known).ref.data, False
        except NotFound:
            pass
    made = auto_definition(asked or MANUAL_TYPE, model)
    return DataName.of(made.type, made.id, name), True


def _defined_in_git(options: Mapping[str, str], model: str, asked: str | None) -> DataName | None:
    if not options.get("repo"):
        return None
    from swamp.repo.definitions import Definitions
    from swamp.sync.port import PlainTree

    repo = repo_path(options)
    found = Definitions(repo, PlainTree(repo / ".swamp-none")).find(model)
    if found is None or (asked is not None and found.type != asked):
        return None
    return DataName.of(found.type, found.id, "x")


def _evaluated(place: Bucket | Folder, model: str, asked: str | None) -> list[DataName]:
    """Where the runs of a model of this name, defined in a checkout that may be elsewhere, have put its data."""
    found = []
    for file in _called(place, EVALUATED, model):
        try:
            found.append(decode_definition(load_mapping(place.read(file), file.path), file.path))
        except (CorruptData, ObjectMissing):
            continue  # only a shorter way to data that is found without it, too
    return [DataName.of(one.type, one.id, "x") for one in found if asked in (None, one.type)]


def _asked_type(options: Mapping[str, str]) -> str | None:
    return normalise_type(options["type"]) if options.get("type") else None


def _auto_types(place: Bucket | Folder, model: str) -> list[str]:
    """The types under which an auto-definition of this name exists."""
    return [file.path.split("/", 1)[1].rsplit("/", 1)[0] for file in _called(place, AUTO, model)]


def _called(place: Bucket | Folder, under: str, model: str) -> list[FileRef]:
    """The definitions of this name. Rows are read only where a path has it: a name that nobody defines costs no more
    than the paths."""
    name = f"/{model}.yaml"
    if not any(path.endswith(name) for paths in place.mentions(under) for path in paths):
        return []
    return [file for file in place.files(under) if file.path.endswith(name)]
