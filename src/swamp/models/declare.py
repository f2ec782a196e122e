"""What a model type is: a name, argument schemas, and methods that write data through a context.

A plug-in is a Python file with one or more of these:

    from swamp.models import Arguments, Context, Method, ModelType

    class Greet(Arguments):
        who: str

    def greet(args: Greet, context: Context) -> None:
        context.write_resource("greeting", {"text": f"hello {args.who}"})

    greeter = ModelType("@me/greeter", "2026.11.15", methods=(Method("greet", Greet, greet),))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from swamp.data.names import normalise_type, suggest
from swamp.errors import NotFound, UsageError
from swamp.values import value

if TYPE_CHECKING:
    from swamp.models.process import TextFilter
    from swamp.sync.progress import Cancel


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


class Context(Protocol):
    """What a method may do: write versions, read others' data, say what it is doing, notice that it shall stop."""

    @property
    def model_name(self) -> str: ...

    @property
    def model_id(self) -> str: ...

    @property
    def global_arguments(self) -> Any: ...

    @property
    def repo_dir(self) -> Path: ...

    @property
    def scratch(self) -> Path:
        """A directory of this run's own, removed when the method ends."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """What a child process is given: the user's environment and what swamp tells its children."""
        ...

    @property
    def cancel(self) -> Cancel: ...

    def write_resource(self, name: str, value: Any, *, spec: str | None = None, **overrides: Any) -> Written:
        """Save a JSON value as the next version of `name`."""
        ...

    def write_file(
        self, name: str, content: bytes | str | Path, *, spec: str | None = None, **overrides: Any
    ) -> Written:
        """Save bytes, text, a file or a directory of parts as the next version of `name`."""
        ...

    def open_file(self, name: str, *, spec: str | None = None, **overrides: Any) -> AbstractContextManager[BinaryIO]:
        """Write a version bit by bit; it exists once the block ends without an error."""
        ...

    def write_dataset(self, name: str, frame: Any, *, spec: str | None = None, **overrides: Any) -> Written:
        """Save a Spark DataFrame as the next version of `name`, written by Spark's own tasks."""
        ...

    def read(self, model: str, name: str, version: int | None = None) -> Path:
        """The content of a version (the newest by default) as a local file or directory."""
        ...

    def locate(self, model: str, name: str, version: int | None = None) -> tuple[Path, str]:
        """The same, with its content type."""
        ...

    def note(self, model: str, name: str, version: int | None = None) -> int:
        """Say that this version (the newest by default) is read by other means; its number."""
        ...

    def log(self, line: str) -> None:
        """Show a line now and keep it in the run's log."""
        ...

    def mask(self, text: str) -> str:
        """`text` without the secrets that this run knows. Mask before you shorten: half a secret is not found."""
        ...

    def mask_stream(self) -> TextFilter:
        """The same for a text that comes in pieces."""
        ...

    def spark(self) -> Any:
        """The one SparkSession of this run."""
        ...


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
        names = [method.name for method in self.methods]
        raise NotFound(f"{self.name} has no method `{name}`", hint=_choices(name, names, "its methods are"))

    def describe(self) -> dict[str, Any]:
        """The whole type as plain values: what `model type describe` prints."""
        return {
            "type": self.name,
            "version": self.version,
            "description": self.description,
            "source": self.source,
            "globalArguments": schema_of(self.global_arguments),
            "methods": [_describe(method) for method in self.methods],
        }


def _describe(method: Method) -> dict[str, Any]:
    return {
        "name": method.name,
        "description": method.description,
        "arguments": schema_of(method.arguments),
        "writes": [
            {
                "name": spec.name,
                "contentType": spec.content_type,
                "lifetime": spec.lifetime,
                "garbageCollection": spec.garbage_collection,
                "description": spec.description,
            }
            for spec in method.writes
        ],
    }


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
        problems = [explain(detail, argument_names(arguments)) for detail in error.errors()]
        listed = "; ".join(problems)
        known = ", ".join(argument_names(arguments)) or "none"
        raise UsageError(
            f"{owner}: {listed}",
            hint=f"its arguments are: {known}; `swamp model type describe` shows them in full",
            details={"problems": problems},
        ) from None


def explain(detail: Any, known: list[str]) -> str:
    """One pydantic complaint in the user's words. The value itself is not repeated: it may be a secret."""
    where = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        meant = suggest(str(detail["loc"][-1]), known)
        return f"`{where}` is not an argument" + (f"; did you mean `{meant}`?" if meant else "")
    if detail["type"] == "missing":
        return f"`{where}` is missing"
    message = str(detail["msg"])
    return f"`{where}`: {message[:1].lower()}{message[1:]}" if where else message


def _choices(word: str, names: list[str], lead: str) -> str:
    meant = suggest(word, names)
    return (f"did you mean `{meant}`? " if meant else "") + f"{lead}: {', '.join(sorted(names)) or 'none'}"
