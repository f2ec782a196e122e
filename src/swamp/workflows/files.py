"""Workflow files: `workflows/workflow-<name>.yaml`, found, checked against the models they use, written whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from swamp.cache.files import write_atomic
from swamp.catalog.expression import OPEN, Expression, compile_expression, parse_template
from swamp.catalog.syntax import Node, walk
from swamp.data.document import keys_of, values_of
from swamp.data.names import check_name, meant, suggest
from swamp.env import Env
from swamp.errors import NotFound, SwampError, UsageError
from swamp.models.builtin import SHELL
from swamp.models.declare import Method, argument_names
from swamp.models.define import Definition, ModelDefinitions
from swamp.models.document import ParsedFile, Problem, parse, read_text, refuse
from swamp.models.document import Path as Place
from swamp.models.expressions import has_expression, texts_in
from swamp.values import value
from swamp.workflows.schema import RESERVED_NAMES, ModelTask, Task, WorkflowFile, WorkflowTask, inspect, parse_workflow

FOLDER = "workflows"
PREFIX = "workflow-"
BARE = ("guard", "expression")
"""Keys whose text is an expression also without `${{ }}`."""

TaskProblem = tuple[tuple[str, ...], str, str | None]
"""Where in a step's task, what is wrong, what was probably meant."""

SKELETON = """\
id: {id}
name: {name}
version: 1
# inputs: {{type: object, properties: {{who: {{type: string, default: world}}}}}}
jobs:
  - name: main
    steps:
      - name: hello
        task:
          type: model_method
          modelType: command/shell
          modelName: {name}-hello
          methodName: execute
          inputs: {{run: "echo hello"}}
"""


@value
class FoundWorkflow:
    """A workflow and the file it stands in."""

    workflow: WorkflowFile
    file: str

    def to_json(self) -> dict[str, Any]:
        """As a line of a list."""
        known = values_of(self.workflow, keys_of("id name version description tags"))
        return {**known, "jobs": [job.name for job in self.workflow.jobs], "file": self.file}


@value
class WorkflowFiles:
    """The workflow files of one repository."""

    repo: Path
    models: ModelDefinitions
    env: Env
    known_data: Callable[[], Mapping[str, set[str]]] = dict
    """Model name -> the names of its data, as far as this machine knows."""

    # -- reading

    def find(self, name_or_id: str) -> FoundWorkflow:
        """By name (its file), else by id. Raises NotFound with what was probably meant."""
        file = self.repo / FOLDER / f"{PREFIX}{name_or_id}.yaml"
        if "/" not in name_or_id and file.is_file():
            return self._load(file)
        names: list[str] = []
        for other in self.paths():
            try:
                document = parse(read_text(other, self._source(other)), self._source(other))
            except UsageError:
                continue  # it says neither name nor id; `broken` names it
            value = document.value if isinstance(document.value, Mapping) else {}
            if name_or_id in (value.get("id"), value.get("name")):
                return self._load(other)
            names.append(str(value.get("name") or other.stem.removeprefix(PREFIX)))
        hint = f"{meant(name_or_id, names)}`swamp workflow list` shows all workflows"
        raise NotFound(f"there is no workflow `{name_or_id}`", hint=hint)

    def all(self) -> Iterator[FoundWorkflow]:
        """Every workflow that can be read: a wrong file does not hide the others."""
        for file in self.paths():
            with suppress(UsageError):
                yield self._load(file)

    def broken(self) -> Iterator[dict[str, str]]:
        """The files that cannot be read as a workflow, and why."""
        for file in self.paths():
            try:
                self._load(file)
            except UsageError as error:
                yield {"file": self._source(file), "error": error.message}

    def paths(self) -> list[Path]:
        return sorted(file for file in (self.repo / FOLDER).glob("*.y*ml") if file.suffix in (".yaml", ".yml"))

    def _source(self, file: Path) -> str:
        return file.relative_to(self.repo).as_posix()

    def _load(self, file: Path) -> FoundWorkflow:
        source = self._source(file)
        return FoundWorkflow(parse_workflow(read_text(file, source), source), source)

    # -- writing

    def create(self, name: str, text: str | None = None, given: str = "the text") -> FoundWorkflow:
        """A new file: the given text, or a skeleton that runs. `given`: where the text is from, for errors."""
        if check_name(name, "workflow name") in RESERVED_NAMES:
            raise UsageError(f"no workflow may be called `{name}`: it is a command", hint="choose another name")
        file = self.repo / FOLDER / f"{PREFIX}{name}.yaml"
        if file.exists():
            raise UsageError(f"there is a workflow `{name}` already", hint=f"edit {self._source(file)}")
        if text is None:
            return self.save_text(SKELETON.format(id=self.env.uuid(), name=name), self._source(file))
        found = self._checked(text, given)
        if found.name != name:
            raise UsageError(
                f"{given} holds the workflow `{found.name}`, not `{name}`",
                hint=f"correct its name, or use `swamp workflow create {found.name}`",
            )
        return self.save_text(text, self._source(file))

    def _checked(self, text: str, source: str) -> WorkflowFile:
        workflow, problems = self._inspected(text, source)
        refuse(source, problems)
        assert workflow is not None
        return workflow

    def save_text(self, text: str, source: str) -> FoundWorkflow:
        """Write a file after looking at all of it: a wrong one changes nothing."""
        workflow = self._checked(text, source)
        expected = f"{FOLDER}/{PREFIX}{workflow.name}.yaml"
        if Path(source).name.startswith(PREFIX) and source != expected:
            raise UsageError(f"{source} holds the workflow `{workflow.name}`", hint=f"its place is {expected}")
        write_atomic(self.repo / source, text.encode())
        return FoundWorkflow(workflow, source)

    def delete(self, found: FoundWorkflow) -> None:
        (self.repo / found.file).unlink()

    # -- checking

    def validate(self, name: str) -> tuple[str, list[Problem]]:
        """The file and everything that is wrong with it, without running it."""
        source = self.file_of(name)
        _, problems = self._inspected(read_text(self.repo / source, source), source)
        return source, sorted(problems, key=lambda problem: problem.line or 0)

    def file_of(self, name: str) -> str:
        """Also of a file that does not parse: that is what one validates."""
        root = self.repo.resolve()
        for candidate in (self.repo / FOLDER / f"{PREFIX}{name}.yaml", self.repo / name, Path(name)):
            if candidate.is_file() and candidate.resolve().is_relative_to(root):
                return candidate.resolve().relative_to(root).as_posix()
        return self.find(name).file

    def _inspected(self, text: str, source: str) -> tuple[WorkflowFile | None, list[Problem]]:
        document, workflow, problems = inspect(text, source)
        return workflow, problems + (self._against_models(workflow, document) if workflow is not None else [])

    def _against_models(self, workflow: WorkflowFile, document: ParsedFile) -> list[Problem]:
        found = [
            document.problem(("jobs", i, "steps", j, "task", *inner), message, meant)
            for i, job in enumerate(workflow.jobs)
            for j, step in enumerate(job.steps)
            for inner, message, meant in self._task_problems(step.task, workflow)
        ]
        return found + self._data_problems(workflow, document)

    def _data_problems(self, workflow: WorkflowFile, document: ParsedFile) -> list[Problem]:
        """Data that an expression asks for by name and that nothing makes, and nobody has."""
        asked = list(asked_for(document.value))
        if not asked:
            return []
        made, patterns = made_on_the_spot([workflow, *(found.workflow for found in self.all())])
        known = self.known_data()
        found: list[Problem] = []
        for path, model, name in asked:
            if any(pattern.fullmatch(model) for pattern in patterns):
                continue
            kind = made.get(model) or self._type_of(model)
            if kind is None and model not in known:
                names = {*made, *known, *(one.name for one in self.models.all())}
                message = f"there is no model `{model}`, and no step makes one"
                found.append(document.problem(path, message, suggest(model, names)))
            elif name is not None and kind == SHELL.name:
                writes = {spec.name for method in SHELL.methods for spec in method.writes} | known.get(model, set())
                message = f"`{model}` ({kind}) writes no data `{name}`: it writes {', '.join(sorted(writes))}"
                found += [] if name in writes else [document.problem(path, message, suggest(name, writes))]
        return found

    def _type_of(self, model: str) -> str | None:
        try:
            return self.models.find(model).type
        except NotFound:
            return None
        except UsageError:
            return ""  # several are called so: there is one

    def _task_problems(self, task: Task, workflow: WorkflowFile) -> Iterator[TaskProblem]:
        if isinstance(task, WorkflowTask) and not has_expression(task.workflow_id_or_name):
            yield from self._nested_problems(task, workflow)
        if isinstance(task, ModelTask):
            yield from self._model_problems(task)

    def _nested_problems(self, task: WorkflowTask, workflow: WorkflowFile) -> Iterator[TaskProblem]:
        if task.workflow_id_or_name in (workflow.name, workflow.id):
            yield ("workflowIdOrName",), "a workflow cannot run itself", None
            return
        try:
            self.find(task.workflow_id_or_name)
        except SwampError as error:
            names = [file.stem.removeprefix(PREFIX) for file in self.paths()]
            yield (
                ("workflowIdOrName",),
                error.message.splitlines()[0],
                suggest(task.workflow_id_or_name, names) if isinstance(error, NotFound) else None,
            )

    def _model_problems(self, task: ModelTask) -> Iterator[TaskProblem]:
        """As much as can be known while names may still hold expressions."""
        key = "modelIdOrName" if task.model_id_or_name else "modelType"
        wanted = task.model_id_or_name or task.model_type or ""
        if has_expression(wanted):
            return
        try:
            definition = self.models.find(wanted) if task.model_id_or_name else None
            kind = self.models.registry.get(definition.type if definition else wanted)
        except NotFound as error:
            known = [found.name for found in self.models.all()] if task.model_id_or_name else self.models.registry.types
            yield (key,), error.message, suggest(wanted, known)
            return
        if has_expression(task.method_name):
            return
        names = [method.name for method in kind.methods]
        if task.method_name not in names:
            message = f"{kind.name} has no method `{task.method_name}`"
            yield ("methodName",), message, suggest(task.method_name, names)
            return
        yield from _unknown_inputs(task, kind.method(task.method_name), definition)


def _unknown_inputs(task: ModelTask, method: Method, definition: Definition | None) -> Iterator[TaskProblem]:
    from swamp.models.run import mentioned_inputs

    known = argument_names(method.arguments)
    if definition is not None:
        known += [*((definition.inputs or {}).get("properties") or {}), *mentioned_inputs(definition)]
    for name in task.inputs:
        if name not in known:
            message = f"`{name}` is neither an argument of {method.name} nor an input of the model"
            yield ("inputs", str(name)), message, suggest(str(name), known)


# -- the data that expressions ask for by name: whether anything can ever make it


def asked_for(document: Any) -> Iterator[tuple[Place, str, str | None]]:
    """Every `data.latest` and `data.version` in a document with a literal model: where, the model, the name."""
    for path, text in texts_in(document):
        for expression in _expressions(text, path):
            yield from ((path, model, name) for model, name in _calls(expression))


def _expressions(text: str, path: Place) -> Iterable[Expression]:
    try:
        if OPEN in text:
            return parse_template(text).expressions
        return [compile_expression(text)] if path and path[-1] in BARE else []
    except UsageError:
        return []  # it does not parse, and that is told elsewhere


def _calls(expression: Expression) -> Iterator[tuple[str, str | None]]:
    for node in walk(expression.tree) if expression.tree is not None else ():
        match node:
            case Node("method", "latest" | "version", (Node("name", "data"), Node("string", model), name, *_)):
                yield model, name.word if name.kind == "string" else None


def pattern_of(name: str) -> re.Pattern[str]:
    """`check-${{ self.host }}` as an expression that fits every name it can become."""
    return re.compile(".*".join(map(re.escape, re.split(r"\$\{\{.*?\}\}", name))), re.DOTALL)


def made_on_the_spot(workflows: Iterable[WorkflowFile]) -> tuple[dict[str, str], list[re.Pattern[str]]]:
    """The types of models that steps make, by name; and what the names look like that only a run knows."""
    made: dict[str, str] = {}
    patterns: list[re.Pattern[str]] = []
    for task in (step.task for one in workflows for job in one.jobs for step in job.steps):
        if isinstance(task, ModelTask) and task.model_name and task.model_type:
            if OPEN in task.model_name:
                patterns.append(pattern_of(task.model_name))
            else:
                made[task.model_name] = task.model_type
    return made, patterns
