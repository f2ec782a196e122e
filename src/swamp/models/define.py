"""Definitions: `models/<type>/<name>.yaml` in git, and the ones made on the spot, which travel with the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from swamp.cache.files import write_atomic
from swamp.data.document import attributes_of, keys_of, load_mapping, values_of
from swamp.data.names import auto_id, check_model_name, meant, normalise_type, suggest
from swamp.data.records import AUTO
from swamp.env import Env
from swamp.errors import NotFound, UsageError
from swamp.models.declare import ModelType, Registry, argument_names, explain
from swamp.models.document import ParsedFile, Problem, dump, parse, read_text, refuse
from swamp.models.expressions import check_expressions, has_expression
from swamp.models.inputs import check_schema
from swamp.repo.definitions import FOLDER, Source, definition_files, find_defined, in_files_called
from swamp.sync.port import Tree
from swamp.values import value

_KEYS = keys_of("id name type version description tags global_arguments methods inputs")
KEYS = tuple(_KEYS)


@value
class Definition:
    """A model: a type with a name, an identity and (possibly unevaluated) arguments."""

    id: str
    name: str
    type: str
    version: int | str = 1
    tags: Mapping[str, str] = field(default_factory=dict)
    global_arguments: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inputs: Mapping[str, Any] | None = None
    description: str | None = None
    file: str | None = None

    def arguments(self, method: str) -> Mapping[str, Any]:
        return (self.methods.get(method) or {}).get("arguments") or {}

    def to_document(self) -> dict[str, Any]:
        return {key: value for key, value in values_of(self, _KEYS).items() if value is not None}

    @property
    def hash(self) -> str:
        """The fingerprint that an output keeps of the definition it was made from."""
        canonical = json.dumps(self.to_document(), sort_keys=True, default=str)
        return hashlib.sha256(canonical.encode()).hexdigest()


def definition_from(document: Mapping[str, Any], file: str | None = None) -> Definition:
    """From a document that was checked; missing optional parts get their defaults."""
    known = attributes_of(document, _KEYS)
    known["type"] = normalise_type(known["type"])
    known |= {key: known.get(key) or {} for key in ("tags", "global_arguments", "methods")}
    known["tags"] = {str(key): str(value) for key, value in known["tags"].items()}
    known["methods"] = {name: method or {} for name, method in known["methods"].items()}
    return Definition(**known, file=file)


@value
class ModelDefinitions:
    """The definitions of one repository."""

    repo: Path
    tree: Tree
    registry: Registry
    env: Env

    # -- reading

    def find(self, name_or_id: str) -> Definition:
        """The model with this name or id: from git, else made on the spot earlier. Raises NotFound."""
        found = find_defined(name_or_id, self._sources)
        if found is not None:
            return found
        close = meant(name_or_id, [definition.name for definition in self.all()])
        unread = f"; {len(broken)} cannot be read: `swamp model validate`" if (broken := list(self.broken())) else ""
        hint = f"{close}`swamp model list` shows all models{unread}"
        raise NotFound(f"there is no model `{name_or_id}`", hint=hint)

    def all(self) -> Iterator[Definition]:
        """All definitions in git, then the ones made on the spot. A wrong file in git does not hide the others."""
        for file in definition_files(self.repo / FOLDER):
            with suppress(UsageError):  # `broken` names it, and so does whoever asks for it by name
                yield self._load(file)
        for file in definition_files(self.tree.root / AUTO):
            yield self._load_auto(file)

    def broken(self) -> Iterator[dict[str, str]]:
        """The definition files that cannot be read, and why."""
        for file in definition_files(self.repo / FOLDER):
            try:
                self._load(file)
            except UsageError as error:
                yield {"file": file.relative_to(self.repo).as_posix(), "error": error.message}

    @property
    def _sources(self) -> Sequence[Source[Definition]]:
        return (self.repo / FOLDER, self._load), (self.tree.root / AUTO, self._load_auto)

    def _load(self, file: Path) -> Definition:
        source = file.relative_to(self.repo).as_posix()
        document = parse(read_text(file, source), source)
        refuse(source, self._shape(document))
        return definition_from(document.value, source)

    def _load_auto(self, file: Path) -> Definition:
        return definition_from(load_mapping(file.read_bytes(), str(file)))

    # -- writing

    def path_of(self, model_type: str, name: str) -> Path:
        return self.repo / FOLDER / normalise_type(model_type) / f"{check_model_name(name)}.yaml"

    def create(
        self,
        model_type: str,
        name: str,
        *,
        global_arguments: Mapping[str, Any] | None = None,
        methods: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Definition:
        """A new definition in git's part of the repository. A name is taken once, whatever the type."""
        kind = self.registry.get(model_type)
        if taken := in_files_called(check_model_name(name), self._sources):
            raise UsageError(f"there is a model `{name}` already ({taken[0].type})", hint="choose another name")
        definition = Definition(
            id=self.env.uuid(),
            name=name,
            type=kind.name,
            tags=tags or {},
            global_arguments=global_arguments or {},
            methods=methods or {},
            file=self.path_of(kind.name, name).relative_to(self.repo).as_posix(),
        )
        text, called = dump(definition.to_document()), f"the new model `{name}`"
        # What is wrong is on the command line: there is no file yet, and its lines mean nothing to anybody.
        found = [replace(problem, line=None) for problem in self.inspect(parse(text, called))]
        hint = f"correct --global-arg or --arg: `swamp model type describe {kind.name}` shows what there is"
        refuse(called, found, hint=hint, in_file=False)
        self.save_text(text, definition.file or name)
        return definition

    def save_text(self, text: str, source: str) -> Definition:
        """Write a definition file after looking at all of it: a wrong one changes nothing."""
        document = parse(text, source)
        refuse(source, self.inspect(document))
        definition = definition_from(document.value, source)
        expected = self.path_of(definition.type, definition.name)
        if expected != self.repo / source:
            raise UsageError(
                f"{source} holds the model {definition.name} of type {definition.type}",
                hint=f"its place is {expected.relative_to(self.repo)}; create a new model and delete this one",
            )
        write_atomic(self.repo / source, text.encode())
        return definition

    def delete(self, name: str) -> Definition:
        """Removes the definition. Its data stays: it is deleted with `swamp data delete`."""
        definition = self.find(name)
        if definition.file is None:
            raise UsageError(f"`{name}` is not defined in a file", hint="it was made by a workflow or by `data put`")
        (self.repo / definition.file).unlink()
        return definition

    def auto(self, model_type: str, name: str) -> Definition:
        """The model of a step that names a type and a name; git's definition of that name and type wins."""
        kind = self.registry.get(model_type)
        for definition in in_files_called(name, self._sources):
            if definition.type == kind.name:
                return definition
        return Definition(auto_id(kind.name, name), check_model_name(name), kind.name)

    # -- checking

    def inspect(self, document: ParsedFile) -> list[Problem]:
        """Everything that is wrong with a definition, without running it."""
        problems = list(self._shape(document))
        if problems:
            return problems
        return sorted(self._meaning(document), key=lambda problem: problem.line or 0)

    def _shape(self, document: ParsedFile) -> Iterator[Problem]:
        value = document.value
        if not isinstance(value, dict):
            yield document.problem((), "a definition is a mapping with id, name and type")
            return
        for key in value:
            if key not in KEYS:
                yield document.problem((key,), f"unknown key `{key}`", suggest(str(key), KEYS))
        for key in ("id", "name", "type"):
            if not isinstance(value.get(key), str) or not value[key]:
                yield document.problem((key,), f"`{key}` is missing or not a text")
        for key in ("tags", "globalArguments", "methods", "inputs"):
            if not isinstance(value.get(key) or {}, dict):
                yield document.problem((key,), f"`{key}` is not a mapping")

    def _meaning(self, document: ParsedFile) -> Iterator[Problem]:
        value = document.value
        try:
            kind = self.registry.get(value["type"])
        except NotFound as error:
            yield document.problem(("type",), error.message, suggest(value["type"], self.registry.types))
            return
        yield from self._arguments(document, ("globalArguments",), kind.global_arguments)
        for name in value.get("methods") or {}:
            yield from self._method(document, kind, name)
        if value.get("inputs") is not None and (wrong := check_schema(value["inputs"])):
            yield document.problem(("inputs",), wrong)
        for where, message in check_expressions(value, ()):
            yield document.problem(where, message)

    def _method(self, document: ParsedFile, kind: ModelType, name: str) -> Iterator[Problem]:
        known = [method.name for method in kind.methods]
        if name not in known:
            message = f"{kind.name} has no method `{name}` (it has {', '.join(known) or 'none'})"
            yield document.problem(("methods", name), message, suggest(name, known))
            return
        block = document.value["methods"][name] or {}
        for key in block:
            if key != "arguments":
                yield document.problem(("methods", name, key), f"unknown key `{key}`", suggest(key, ["arguments"]))
        yield from self._arguments(document, ("methods", name, "arguments"), kind.method(name).arguments)

    def _arguments(self, document: ParsedFile, path: tuple[str, ...], schema: Any) -> Iterator[Problem]:
        """Unknown names and wrong literal values. What an input may still supply is not missing yet."""
        from pydantic import ValidationError

        values: Any = document.value
        for part in path:
            values = (values or {}).get(part)
        if not values:
            return
        try:
            schema.model_validate(values)
        except ValidationError as error:
            for detail in error.errors():
                unknown = detail["type"] == "extra_forbidden"
                if detail["type"] == "missing" or (not unknown and _is_open(values, detail["loc"])):
                    continue
                yield document.problem((*path, *detail["loc"]), explain(detail, argument_names(schema)))


def _is_open(values: Any, loc: tuple[Any, ...]) -> bool:
    """Whether the value at `loc` is decided by an expression, at run time."""
    for part in loc:
        if isinstance(values, str):
            break
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return False
    return has_expression(values)


def type_item(kind: ModelType) -> dict[str, Any]:
    """A type as a line of a list."""
    known = values_of(kind, keys_of("version description source"))
    return {"type": kind.name, **known, "methods": [method.name for method in kind.methods]}


def model_item(found: Definition) -> dict[str, Any]:
    """A definition as a line of a list."""
    return {**values_of(found, keys_of("name type id version tags file")), "tags": dict(found.tags)}
