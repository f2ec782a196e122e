"""Checks the data that a workflow's expressions ask for by name: whether anything can ever make it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

from swamp.catalog.expression import OPEN, Expression, compile_expression, parse_template
from swamp.catalog.syntax import Call, Constant, Name, walk
from swamp.data.names import suggest
from swamp.errors import NotFound, UsageError
from swamp.models.define import ModelDefinitions
from swamp.models.document import Path
from swamp.models.shell import SHELL
from swamp.values import value
from swamp.workflows.schema import ModelTask, WorkflowFile

BARE = ("guard", "expression")
"""Keys whose text is an expression also without `${{ }}`."""


def asked_for(value: Any, path: Path = ()) -> Iterator[tuple[Path, str, str | None]]:
    """Every `data.latest` and `data.version` below `value` with a literal model: where, the model, the name."""
    if isinstance(value, str):
        for expression in _expressions(value, path):
            yield from ((path, model, name) for model, name in _calls(expression))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from asked_for(inner, (*path, str(key)))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from asked_for(inner, (*path, position))


def _expressions(text: str, path: Path) -> Iterable[Expression]:
    try:
        if OPEN in text:
            return parse_template(text).expressions
        return [compile_expression(text)] if path and path[-1] in BARE else []
    except UsageError:
        return []  # it does not parse, and that is told elsewhere


def _calls(expression: Expression) -> Iterator[tuple[str, str | None]]:
    for node in walk(expression.tree) if expression.tree is not None else ():
        if not isinstance(node, Call) or node.function not in ("latest", "version"):
            continue
        if isinstance(node.target, Name) and node.target.name == "data" and len(node.arguments) >= 2:
            model, name = node.arguments[:2]
            if isinstance(model, Constant) and isinstance(model.value, str):
                literal = isinstance(name, Constant) and isinstance(name.value, str)
                yield model.value, str(name.value) if literal and isinstance(name, Constant) else None


@value
class Makers:
    """Who makes data: models that are defined, steps that make models on the spot, and whoever made what is there."""

    models: ModelDefinitions
    known: Mapping[str, set[str]]
    made: Mapping[str, str] = field(default_factory=dict)
    """Model name -> type, of steps that name their model plainly."""
    patterns: tuple[re.Pattern[str], ...] = ()
    """What the names of other such models look like."""

    @classmethod
    def of(cls, workflows: Iterable[WorkflowFile], models: ModelDefinitions, known: Mapping[str, set[str]]) -> Makers:
        made: dict[str, str] = {}
        patterns: list[re.Pattern[str]] = []
        for task in (step.task for one in workflows for job in one.jobs for step in job.steps):
            if isinstance(task, ModelTask) and task.model_name and task.model_type:
                if OPEN in task.model_name:
                    patterns.append(_pattern(task.model_name))
                else:
                    made[task.model_name] = task.model_type
        return cls(models, known, made, tuple(patterns))

    def problems(self, model: str, name: str | None) -> Iterator[tuple[str, str | None]]:
        """What is wrong with asking for this data, and what was probably meant."""
        if any(pattern.fullmatch(model) for pattern in self.patterns):
            return
        kind = self._type_of(model)
        if kind is None and model not in self.known:
            names = {*self.made, *self.known, *(found.name for found in self.models.all())}
            yield f"there is no model `{model}`, and no step makes one", suggest(model, names)
            return
        if name is None or kind != SHELL.name:
            return
        writes = {spec.name for method in SHELL.methods for spec in method.writes} | self.known.get(model, set())
        if name not in writes:
            yield (
                f"`{model}` ({kind}) writes no data `{name}`: it writes {', '.join(sorted(writes))}",
                suggest(name, writes),
            )

    def _type_of(self, model: str) -> str | None:
        if model in self.made:
            return self.made[model]
        try:
            return self.models.find(model).type
        except NotFound:
            return None
        except UsageError:
            return ""  # several are called so: there is one


def _pattern(template: str) -> re.Pattern[str]:
    """`check-${{ self.host }}` as an expression that fits every name it can become."""
    pieces = re.split(r"\$\{\{.*?\}\}", template)
    return re.compile(".*".join(re.escape(piece) for piece in pieces), re.DOTALL)
