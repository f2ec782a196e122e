"""What a model type is (a name, argument schemas, methods that write data through a context), and which there are:
built in, installed as packages, and in the repository's own `extensions/models/`.

A plug-in is a Python file with one or more of these:

    from swamp.models import Arguments, Context, Method, ModelType

    class Greet(Arguments):
        who: str

    def greet(args: Greet, context: Context) -> None:
        context.write_resource("greeting", {"text": f"hello {args.who}"})

    greeter = ModelType("@me/greeter", "2026.11.15", methods=(Method("greet", Greet, greet),))
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from swamp.data.document import keys_of, values_of
from swamp.data.names import meant, normalise_type, suggest
from swamp.errors import NotFound, UsageError
from swamp.values import value

if TYPE_CHECKING:
    from swamp.models.context import Context

EXTENSIONS = Path("extensions") / "models"


class Arguments(BaseModel):
    """The schema of a type's or a method's arguments. Keys are camelCase in YAML; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)


class NoArguments(Arguments):
    """A type or a method that takes none."""


@value
class OutputSpec:
    """How what a method writes under one name lives: how long, how many versions, with which tags."""

    name: str
    lifetime: str = "infinite"
    garbage_collection: int | str = 10
    content_type: str = "application/json"
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""


@value
class Written:
    """A data version that a method wrote."""

    name: str
    version: int
    model_name: str
    path: str


@value
class Method:
    """A named action of a type. `run` writes through the context and returns nothing."""

    name: str
    arguments: type[BaseModel]
    run: Callable[[Any, Context], None]
    description: str = ""
    writes: tuple[OutputSpec, ...] = ()
    engine: str = "python"

    def spec(self, name: str) -> OutputSpec:
        """The spec called `name`; a method may write under names it did not declare."""
        return next((spec for spec in self.writes if spec.name == name), OutputSpec(name))


@dataclass(frozen=True, slots=True)
class ModelType:
    """A kind of model: `command/shell`, `@org/thing`, …"""

    name: str
    version: str
    methods: tuple[Method, ...]
    global_arguments: type[BaseModel] = NoArguments
    description: str = ""
    source: str = "built in"

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", normalise_type(self.name))

    def method(self, name: str) -> Method:
        """The method called `name`; NotFound says which there are."""
        for method in self.methods:
            if method.name == name:
                return method
        names = sorted(method.name for method in self.methods)
        hint = f"{meant(name, names)}its methods are: {', '.join(names) or 'none'}"
        raise NotFound(f"{self.name} has no method `{name}`", hint=hint)

    def describe(self) -> dict[str, Any]:
        """The whole type as plain values: what `model type describe` prints."""
        return {
            "type": self.name,
            "version": self.version,
            "description": self.description,
            "source": self.source,
            "globalArguments": schema_of(self.global_arguments),
            "methods": [
                {
                    "name": method.name,
                    "description": method.description,
                    "arguments": schema_of(method.arguments),
                    "writes": [values_of(spec, _SPEC) for spec in method.writes],
                }
                for method in self.methods
            ],
        }


_SPEC: Final = keys_of("name content_type lifetime garbage_collection description")


def schema_of(arguments: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of an argument class, without pydantic's titles."""
    schema = arguments.model_json_schema(by_alias=True)
    schema.setdefault("properties", {})
    return {key: value for key, value in _untitled(schema).items() if key != "description"}


def _untitled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _untitled(inner) for key, inner in value.items() if key != "title" or not isinstance(inner, str)}
    return [_untitled(inner) for inner in value] if isinstance(value, list) else value


def argument_names(arguments: type[BaseModel]) -> list[str]:
    """The keys a user may write, as they are written in YAML."""
    return [field.alias or name for name, field in arguments.model_fields.items()]


def check_arguments(arguments: type[BaseModel], values: Mapping[str, Any], owner: str) -> Any:
    """`values` as an instance of the schema; every mistake in one UsageError, with what was probably meant."""
    from pydantic import ValidationError

    try:
        return arguments.model_validate(dict(values))
    except ValidationError as error:
        known = argument_names(arguments)
        problems = [explain(detail, known) for detail in error.errors()]
        raise UsageError(
            f"{owner}: {'; '.join(problems)}",
            hint=f"its arguments are: {', '.join(known) or 'none'}; `swamp model type describe` shows them in full",
            details={"problems": problems},
        ) from None


def explain(detail: Any, known: list[str]) -> str:
    """One pydantic complaint in the user's words. The value itself is not repeated: it may be a secret."""
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        close = suggest(str(detail["loc"][-1]), known)
        return f"`{where}` is not an argument" + (f"; did you mean `{close}`?" if close else "")
    if detail["type"] == "missing":
        return f"`{where}` is missing"
    message = str(detail["msg"])
    return f"`{where}`: {message[:1].lower()}{message[1:]}" if where else message


# -- which types there are


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
        broken = "; ".join(f"{plugin.name} ({plugin.error})" for plugin in self.broken)
        unloaded = f"not loaded: {broken} " if broken else ""
        hint = f"{meant(wanted, self.types)}{unloaded}`swamp model type list` shows all types"
        raise NotFound(f"there is no model type `{name}`", hint=hint)

    def __iter__(self) -> Iterator[ModelType]:
        return iter(sorted(self.types.values(), key=lambda kind: kind.name))


def load_registry(repo_dir: Path | None = None) -> Registry:
    """Built-ins first; a plug-in may not take the place of a type that is already there."""
    from swamp.models.builtin import BUILTIN

    types = {kind.name: kind for kind in BUILTIN}
    broken: list[BrokenPlugin] = []
    for source, load in _plugins(repo_dir):
        try:
            found = list(_types_in(load()))
            if taken := [kind.name for kind in found if kind.name in types]:  # all of its types or none of them
                raise ValueError(f"the type {taken[0]} already exists ({types[taken[0]].source})")
            types |= {kind.name: replace(kind, source=source) for kind in found}
        except Exception as error:  # noqa: BLE001 - someone else's code may fail in any way; the rest must work
            broken.append(BrokenPlugin(source, f"{type(error).__name__}: {error}"))
    return Registry(types, tuple(broken))


def _plugins(repo_dir: Path | None) -> Iterator[tuple[str, Any]]:
    """Every plug-in as its name and a function that loads it."""
    from swamp.extras import plugins

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
