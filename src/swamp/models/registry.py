"""Which model types there are: built in, installed as packages, and in the repository's own `extensions/models/`."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any

from swamp.data.names import normalise_type, suggest
from swamp.errors import NotFound
from swamp.models.declare import ModelType
from swamp.values import value

EXTENSIONS = Path("extensions") / "models"


@value
class BrokenPlugin:
    """A plug-in that could not be loaded: its name and why. The others work."""

    name: str
    error: str


@value
class Registry:
    types: dict[str, ModelType] = field(default_factory=dict)
    broken: tuple[BrokenPlugin, ...] = ()

    def get(self, name: str) -> ModelType:
        """The type called `name`; NotFound says what was probably meant and which plug-ins are broken."""
        wanted = normalise_type(name)
        if wanted in self.types:
            return self.types[wanted]
        raise NotFound(f"there is no model type `{name}`", hint=self._hint(wanted))

    def _hint(self, wanted: str) -> str:
        meant = suggest(wanted, self.types)
        parts = [f"did you mean `{meant}`?"] if meant else []
        if self.broken:
            parts.append("not loaded: " + "; ".join(f"{plugin.name} ({plugin.error})" for plugin in self.broken))
        parts.append("`swamp model type list` shows all types")
        return " ".join(parts)

    def __iter__(self) -> Iterator[ModelType]:
        return iter(sorted(self.types.values(), key=lambda kind: kind.name))


def load_registry(repo_dir: Path | None = None) -> Registry:
    """Built-ins first; a plug-in may not take the place of a type that is already there."""
    types = {kind.name: kind for kind in builtin_types()}
    broken: list[BrokenPlugin] = []
    for source, load in _plugins(repo_dir):
        try:
            found = list(_types_in(load()))
            _adopt(found, source, types)
        except Exception as error:  # noqa: BLE001 - someone else's code may fail in any way; the rest must work
            broken.append(BrokenPlugin(source, f"{type(error).__name__}: {error}"))
    return Registry(types, tuple(broken))


def builtin_types() -> tuple[ModelType, ...]:
    from swamp.models.shell import SCRIPT, SHELL
    from swamp.models.spark import SPARK_PYTHON, SPARK_SQL

    return SHELL, SCRIPT, SPARK_SQL, SPARK_PYTHON, MANUAL


def _plugins(repo_dir: Path | None) -> Iterator[tuple[str, Any]]:
    """Every plug-in as its name and a function that loads it."""
    from swamp.plugins import plugins

    for plugin in plugins("models"):
        yield f"{plugin.name} of {plugin.package}", plugin.load
    if repo_dir is not None:
        for file in sorted((repo_dir / EXTENSIONS).glob("*.py")):
            if not file.name.startswith("_"):
                yield f"{EXTENSIONS.as_posix()}/{file.name}", lambda file=file: import_file(file)


def import_file(file: Path) -> ModuleType:
    """Run a Python file as a module of its own, whatever else is called the same."""
    name = f"swamp_extension_{abs(hash(str(file.resolve()))):x}_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _types_in(loaded: Any) -> Iterable[ModelType]:
    """What a plug-in offers: a type, several, a function that makes them, or a module that holds them."""
    if isinstance(loaded, ModelType):
        return [loaded]
    if isinstance(loaded, ModuleType):
        own = [value for value in vars(loaded).values() if isinstance(value, ModelType)]
        listed = [kind for value in vars(loaded).values() if isinstance(value, list | tuple) for kind in value]
        found = own + [kind for kind in listed if isinstance(kind, ModelType)]
        if not found:
            raise TypeError("it defines no ModelType")
        return {id(kind): kind for kind in found}.values()
    if callable(loaded):
        return _types_in(loaded())
    found = list(loaded)
    wrong = [kind for kind in found if not isinstance(kind, ModelType)]
    if wrong or not found:
        raise TypeError(f"expected ModelType, got {type(wrong[0]).__name__ if wrong else 'nothing'}")
    return found


def _adopt(found: list[ModelType], source: str, types: dict[str, ModelType]) -> None:
    """All of a plug-in's types or none of them."""
    from dataclasses import replace

    taken = [kind.name for kind in found if kind.name in types]
    if taken:
        raise ValueError(f"the type {taken[0]} already exists ({types[taken[0]].source})")
    types.update({kind.name: replace(kind, source=source) for kind in found})


MANUAL = ModelType("manual/data", "2026.11.15", methods=(), description="Data put there by hand.")
