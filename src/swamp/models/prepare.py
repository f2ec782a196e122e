"""Makes the arguments of one method run from a definition and inputs, with every expression resolved."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from swamp.data.names import suggest
from swamp.data.records import StoredDefinition
from swamp.errors import UsageError
from swamp.models.declare import Method, ModelType, argument_names, check_arguments
from swamp.models.define import Definition
from swamp.models.expressions import evaluate
from swamp.models.inputs import check_inputs, secret_values
from swamp.values import value

if TYPE_CHECKING:
    from swamp.models.run import Request
    from swamp.models.run_context import RunContext


@value
class PreparedRun:
    """Arguments that fit their schemas, and the definition as a record may show it."""

    global_arguments: Any
    arguments: Any
    shown: Definition
    hash: str

    def shown_definition(self) -> StoredDefinition:
        document = self.shown.to_document()
        rest = {key: value for key, value in document.items() if key not in ("id", "name", "type")}
        return StoredDefinition(self.shown.id, self.shown.name, self.shown.type, rest)


def prepare(
    context: RunContext, definition: Definition, kind: ModelType, method: Method, request: Request
) -> PreparedRun:
    """Raises UsageError that says which argument is wrong, missing or unknown."""
    inputs, overrides = split_inputs(definition, method, request.inputs)
    context.masker.learn_inputs(secret_values(inputs, definition.inputs))
    shown_overrides = overrides if request.shown_inputs is None else _same_keys(request.shown_inputs, overrides)
    about = _about(definition)
    scope = replace(context.scope(request.run_facts), inputs=inputs)
    globals_ = evaluate(definition.global_arguments, scope.with_self(about), ("globalArguments",))
    scope = scope.with_self({**about, "globalArguments": globals_.value}, {**about, "globalArguments": globals_.shown})
    own = evaluate(definition.arguments(method.name), scope, ("methods", method.name, "arguments"))
    owner = f"{definition.name}.{method.name}"
    arguments = check_arguments(method.arguments, {**own.value, **overrides}, owner)
    shown = replace(
        definition,
        global_arguments=context.masker.value(globals_.shown),
        methods={
            **{name: {} for name in definition.methods},
            method.name: {"arguments": context.masker.value({**own.shown, **shown_overrides})},
        },
    )
    return PreparedRun(
        global_arguments=check_arguments(kind.global_arguments, globals_.value, definition.name),
        arguments=arguments,
        shown=shown,
        hash=definition.hash,
    )


def _about(definition: Definition) -> dict[str, Any]:
    return {
        "id": definition.id,
        "name": definition.name,
        "type": definition.type,
        "version": definition.version,
        "tags": dict(definition.tags),
    }


def _same_keys(shown: Mapping[str, Any], real: Mapping[str, Any]) -> dict[str, Any]:
    return {key: shown.get(key) for key in real}


def split_inputs(
    definition: Definition, method: Method, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the definition's expressions see as `inputs`, and what goes straight to the method as arguments.

    A name that the definition declares (or mentions) is an input; a name of a method's argument is that argument.
    """
    arguments = argument_names(method.arguments)
    declared = list((definition.inputs or {}).get("properties") or {})
    mentioned = mentioned_inputs(definition)
    for name in given:
        if name not in arguments and name not in declared and name not in mentioned:
            meant = suggest(name, [*arguments, *declared])
            raise UsageError(
                f"`{name}` is neither an argument of {method.name} nor an input of {definition.name}",
                hint=(f"did you mean `{meant}`? " if meant else "")
                + f"arguments: {', '.join(arguments) or 'none'}; inputs: {', '.join(declared) or 'none'}",
            )
    for_expressions = {k: v for k, v in given.items() if k in declared or k in mentioned}
    inputs = check_inputs(for_expressions, definition.inputs, definition.name)
    straight = {k: v for k, v in given.items() if k in arguments and k not in declared}
    return inputs, straight


def mentioned_inputs(definition: Definition) -> set[str]:
    """Inputs that the definition's expressions use without declaring them."""
    text = json.dumps([dict(definition.global_arguments), dict(definition.methods)], default=str)
    return set(re.findall(r"""\binputs\.([A-Za-z_]\w*)""", text))
