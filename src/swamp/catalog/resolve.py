"""Finds the model that a name means: a definition, else what the data itself says. A reader needs no definitions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swamp.cache.files import read_at_most
from swamp.catalog.catalog import Catalog
from swamp.data.definitions import DefinitionRepository
from swamp.data.document import MAX_BYTES, load_mapping
from swamp.data.names import normalise_type
from swamp.errors import CorruptData, NotFound, UsageError


@dataclass(frozen=True, slots=True)
class Model:
    """A model that data belongs to."""

    id: str
    name: str
    type: str
    source: Literal["definition", "auto-definition", "data"]


def defined_models(models_dir: Path) -> Iterator[Model]:
    """The definitions `models/<type>/<name>.yaml` of a repository; files that do not parse are left out."""
    for path in sorted(models_dir.rglob("*.yaml")):
        relative = path.relative_to(models_dir)
        try:
            document = load_mapping(read_at_most(path, MAX_BYTES), str(relative))
        except CorruptData:
            continue  # validation is the models' business: one broken file must not hide the others
        if isinstance(document.get("id"), str) and len(relative.parts) > 1:
            kind = str(document.get("type") or "/".join(relative.parts[:-1]))
            yield Model(document["id"], str(document.get("name") or path.stem), normalise_type(kind), "definition")


def known_models(
    models_dir: Path | None, autos: DefinitionRepository | None, catalog: Catalog | None
) -> Iterator[Model]:
    """Every model by every source, definitions first."""
    if models_dir is not None:
        yield from defined_models(models_dir)
    for auto in autos.list() if autos is not None else ():
        yield Model(auto.id, auto.name, auto.type, "auto-definition")
    for kind, model_id, name in catalog.models() if catalog is not None else ():
        yield Model(model_id, name or model_id, kind, "data")


def resolve_model(
    wanted: str,
    *,
    models_dir: Path | None = None,
    autos: DefinitionRepository | None = None,
    catalog: Catalog | None = None,
    model_type: str | None = None,
) -> Model:
    """The model with this name or id. Raises NotFound with near misses, UsageError if two types share the name."""
    kind = normalise_type(model_type) if model_type else None
    everything = list(known_models(models_dir, autos, catalog))
    found = [m for m in everything if wanted in (m.name, m.id) and kind in (None, m.type)]
    for source in ("definition", "auto-definition", "data"):
        chosen = {m.id: m for m in found if m.source == source}
        if len(chosen) > 1:
            raise _ambiguous(wanted, chosen.values())
        if chosen:
            return next(iter(chosen.values()))
    raise not_found(wanted, (m.name for m in everything))


def not_found(wanted: str, names: Iterable[str]) -> NotFound:
    close = difflib.get_close_matches(wanted, sorted(set(names)), n=3)
    meant = f"did you mean {' or '.join(f'`{name}`' for name in close)}? " if close else ""
    return NotFound(
        f"there is no model {wanted}",
        hint=f"{meant}`swamp model list` and `swamp data list` show what is there",
        details={"suggestions": close},
    )


def _ambiguous(wanted: str, models: Iterable[Model]) -> UsageError:
    listed = ", ".join(sorted(f"{m.type} ({m.id})" for m in models))
    return UsageError(f"several models are called {wanted}: {listed}", hint="use the id instead of the name")
