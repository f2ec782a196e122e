"""What a user types after `--input`, as values: `k=v`, `k:json=…`, `k=@file`, dotted keys nest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swamp.errors import UsageError

if TYPE_CHECKING:
    from swamp.models.mask import Masker

OWN_TAGS = ("type", "specName", "modelName")
FORMS = "write key=value, key:json=[1,2], key=@file, or a.b=value for nested values"


def parse_inputs(pairs: Iterable[str], file: Path | None = None) -> dict[str, Any]:
    """The values of `--input-file` (YAML or JSON) with those of every `--input` on top."""
    values = _read_file(file) if file is not None else {}
    for pair in pairs:
        key, value = parse_pair(pair)
        _place(values, key, value)
    return values


def parse_pair(pair: str) -> tuple[str, Any]:
    """One `--input`: its key (still dotted) and its value."""
    key, equals, text = pair.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"`{pair}` is not an input", hint=FORMS)
    name, colon, kind = key.partition(":")
    if colon and kind != "json":
        raise UsageError(f"`{pair}`: `{kind}` is not a kind of value", hint=FORMS)
    if text.startswith("@"):
        hint = "to pass text that starts with @, use key:json='\"@text\"'"
        text = read_given(Path(text[1:]), f"the file for `{name}`", hint)
    return name.strip(), _parse_json(name, text) if colon else text


def tag_pairs(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """`k=v` words of `--tag`: plain text on both sides. Raises UsageError."""
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"the tag {word!r} is not of the form key=value", hint="write --tag key=value")
        yield key.strip(), text


def parse_tags(words: Iterable[str]) -> dict[str, str]:
    """The tags of a run. Raises UsageError also for one that every run sets itself."""
    tags = dict(tag_pairs(words))
    for key in OWN_TAGS:
        if key in tags:
            raise UsageError(
                f"the tag `{key}` is swamp's own: it is set from the model and the method",
                hint=f"choose another key than {', '.join(OWN_TAGS)}",
            )
    return tags


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"the value of `{name}` is not JSON: {error.msg} at character {error.pos}",
            hint=f'quote it for the shell: --input \'{name}:json=["a", "b"]\'',
        ) from error


def read_given(path: Path, called: str, hint: str | None = None) -> str:
    """The text of a file that was named on the command line. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{called} cannot be read: {error}", hint=hint) from error


def _read_file(file: Path) -> dict[str, Any]:
    from swamp.models.document import parse

    text = read_given(file, f"--input-file {file}", "name a file that holds the inputs as YAML or JSON")
    value = parse(text, str(file)).value
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{file} does not hold a mapping", hint="write one `key: value` per line")
    return value


def _place(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Put `value` at `a.b.c`, making the mappings on the way."""
    *parents, last = dotted.split(".")
    if not last or not all(parents):
        raise UsageError(f"`{dotted}` is not a key", hint=FORMS)
    here = values
    for parent in parents:
        inner = here.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise UsageError(f"`{dotted}`: `{parent}` already has the value {inner!r}", hint=FORMS)
        here = inner
    here[last] = value


def check_inputs(
    values: Mapping[str, Any], schema: Mapping[str, Any] | None, owner: str, masker: Masker | None = None
) -> dict[str, Any]:
    """`values` with the schema's defaults and types, or a UsageError that names every mistake.

    The `masker` learns those that the schema calls secret; one that is too short to be masked is a UsageError too.
    """
    if schema is None:
        return dict(values)
    from jsonschema import Draft202012Validator

    completed = _complete(values, schema)
    found = Draft202012Validator(dict(schema)).iter_errors(completed)
    ordered = sorted(found, key=lambda error: [str(part) for part in error.absolute_path])
    problems = [_explain(error) for error in ordered] + _unknown(completed, schema)
    if problems:
        raise UsageError(
            f"the inputs do not fit {owner}: " + "; ".join(problems),
            hint=FORMS,
            details={"problems": problems},
        )
    if masker is not None:
        for name, secret in secret_values(completed, schema).items():
            masker.must_learn(f"the secret input `{name}`", secret)
    return completed


def _complete(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults filled in, and text turned into the number or truth value that the schema asks for."""
    properties = schema.get("properties") or {}
    done = {key: _coerce(value, properties.get(key) or {}) for key, value in values.items()}
    for key, rule in properties.items():
        if key not in done and isinstance(rule, Mapping) and "default" in rule:
            done[key] = rule["default"]
    return done


def _coerce(value: Any, rule: Any) -> Any:
    """A command line only has text: `count=3` is meant as 3 where the schema says integer."""
    kind = rule.get("type") if isinstance(rule, Mapping) else None
    if not isinstance(value, str) or kind not in ("integer", "number", "boolean", "array", "object"):
        return value
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        return value
    fits = {"integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}[kind]
    return parsed if isinstance(parsed, fits) else value  # type: ignore[arg-type]


def _explain(error: Any) -> str:
    where = ".".join(str(part) for part in error.absolute_path)
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return f"`{'.'.join(filter(None, [where, missing[0]]))}` is missing" if missing else error.message
    return f"`{where}`: {error.message}" if where else str(error.message)


def _unknown(values: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Inputs nobody declared: most often a typo, so they are refused unless the schema allows them in words."""
    from swamp.data.names import suggest

    properties = schema.get("properties") or {}
    if "additionalProperties" in schema or not properties:
        return []
    close = {key: suggest(key, properties) for key in values if key not in properties}
    return [
        f"`{key}` is not an input" + (f"; did you mean `{meant}`?" if meant else "") for key, meant in close.items()
    ]


def secret_values(values: Mapping[str, Any], schema: Mapping[str, Any] | None) -> dict[str, str]:
    """The values that the schema calls secret (`writeOnly: true` or `format: password`), at any depth, as text."""
    found: dict[str, str] = {}
    for name, rule in ((schema or {}).get("properties") or {}).items():
        if name not in values or not isinstance(rule, Mapping):
            continue
        if rule.get("writeOnly") is True or rule.get("format") == "password":
            found |= dict(_leaves(name, values[name]))
        elif isinstance(values[name], Mapping):
            found |= {f"{name}.{key}": value for key, value in secret_values(values[name], rule).items()}
        elif isinstance(values[name], list) and isinstance(rule.get("items"), Mapping):
            wrapped = {"properties": {str(n): rule["items"] for n in range(len(values[name]))}}
            inner = {str(n): one for n, one in enumerate(values[name])}
            found |= {f"{name}.{key}": value for key, value in secret_values(inner, wrapped).items()}
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _leaves(f"{name}.{position}", inner)
    elif value is not None and not isinstance(value, bool):
        yield name, str(value)


def check_schema(schema: Any) -> str | None:
    """Why `schema` is not a JSON Schema, or None."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping):
        return "`inputs` must be a JSON Schema: {type: object, properties: {…}}"
    try:
        Draft202012Validator.check_schema(dict(schema))
    except SchemaError as error:
        return f"`inputs` is not a JSON Schema: {error.message}"
    return None
