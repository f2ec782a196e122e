"""A plug-in's datastore: found by its type, its configuration checked, its errors made ours, the same layers around it.

The entry point is a factory, `factory(config, env) -> ObjectStore`; docs/guides/plugin-datastores.md is its contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from swamp.env import Env
from swamp.errors import Misconfigured, OutcomeUnknown, StoreError, SwampError, Unavailable
from swamp.extras import Plugin, find, names
from swamp.store.port import (
    Body,
    Condition,
    ConditionalDeletes,
    ConditionalFiles,
    Layer,
    ObjectMeta,
    ObjectStore,
    StreamedBody,
    Token,
    Uploaded,
)

T = TypeVar("T")
OURS: Final = frozenset({"pushConcurrency", "pullConcurrency", "requestTimeoutMs"})
"""Settings that every datastore has: the limits that swamp keeps around it. They need not be in a plug-in's schema."""
_CALLS: Final = ("head", "get", "get_if_changed", "open", "put", "put_file", "delete", "list", "level")
_WORDS: Final = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


def open_plugin(kind: str, config: Mapping[str, Any], env: Env) -> ObjectStore:
    """The plug-in's store, without retries and limits: `store.open` puts those around every store alike."""
    plugin = _find(kind)
    factory = plugin.load()
    check_config(plugin, factory, config)
    try:
        store: Any = factory(dict(config), env)
    except SwampError:
        raise
    except Exception as error:
        raise Misconfigured(
            f"the plug-in {plugin.name} cannot open its datastore: {type(error).__name__}: {error}",
            hint=f"correct its configuration, or ask the makers of {plugin.package}",
        ) from error
    missing = [name for name in _CALLS if not callable(getattr(store, name, None))]
    if missing or not isinstance(getattr(store, "url", None), str):
        raise Misconfigured(
            f"what the plug-in {kind} of {plugin.package} returns is no datastore: it lacks "
            f"{', '.join(missing or ['url'])}",
            hint="its factory must return a swamp.store.port.ObjectStore",
        )
    return PluginStore(store, kind)


def check_plugin_config(kind: str, config: Mapping[str, Any]) -> None:
    """Before anything is tried or written. Raises Misconfigured (exit 2) that names the key and what is allowed."""
    plugin = _find(kind)
    check_config(plugin, plugin.load(), config)


def check_config(plugin: Plugin, factory: Any, config: Mapping[str, Any]) -> None:
    """`factory.config_schema` is a JSON Schema of the plug-in's own keys; without one everything is allowed."""
    schema = getattr(factory, "config_schema", None)
    if schema is None:
        return
    import jsonschema

    own = {key: value for key, value in config.items() if key not in OURS or key in schema.get("properties", {})}
    try:
        found = next(iter(sorted(jsonschema.Draft202012Validator(schema).iter_errors(own), key=_order)), None)
    except (jsonschema.SchemaError, AttributeError, TypeError) as error:
        raise Misconfigured(
            f"the plug-in {plugin.name} has a config_schema that is none: {error}",
            hint=f"repair or remove the package {plugin.package}",
        ) from error
    if found is not None:
        raise _bad_key(plugin, schema, found)


def _order(error: Any) -> tuple[int, list[str]]:
    """What is unknown first, then what is missing: a name that was mistyped is both."""
    first = {"additionalProperties": 0, "required": 1}
    return first.get(error.validator, 2), [str(part) for part in error.absolute_path]


def _bad_key(plugin: Plugin, schema: Mapping[str, Any], error: Any) -> Misconfigured:
    known = ", ".join(sorted(schema.get("properties", {})))
    if error.validator == "additionalProperties":
        key = ", ".join(sorted(set(error.instance) - set(error.schema.get("properties", {}))))
        what, allowed = f"{plugin.name} does not know the setting {key}", f"allowed: {known}"
    elif error.validator == "required":
        key = ", ".join(sorted(set(error.validator_value) - set(error.instance)))
        what, allowed = f"{plugin.name} needs the setting {key}", f"give it in --config; settings: {known}"
    else:
        key = ".".join(str(part) for part in error.absolute_path)
        what, allowed = f"{key} of {plugin.name} is {error.instance!r}", f"allowed: {_allowed(error)}"
    return Misconfigured(what, hint=allowed, details={"key": key})


def _allowed(error: Any) -> str:
    values = error.schema.get("enum")
    if values is not None:
        return ", ".join(str(value) for value in values)
    if error.validator == "type":
        kinds = [error.validator_value] if isinstance(error.validator_value, str) else error.validator_value
        return " or ".join(_WORDS.get(kind, kind) for kind in kinds)
    return f"{error.validator} {error.validator_value}"


def _find(kind: str) -> Plugin:
    plugin = find("datastores", kind)
    if plugin is None:
        here = ", ".join(names("datastores")) or "none"
        raise Misconfigured(
            f"no plug-in that is installed here brings the datastore type {kind!r}",
            hint=f"install the package that brings it, here and where Spark's executors run (installed: {here})",
        )
    return plugin


class PluginStore(Layer):
    """A plug-in's store whose foreign errors are ours, as inv[store.errors-mapped] wants it of every adapter.

    An OSError (a timeout, a lost connection) is Unavailable, and of a write OutcomeUnknown: it may have happened.
    Anything else is a defect of the plug-in: a StoreError that names it, which no retry hides.
    """

    is_adapter = True

    def __init__(self, plugin: ObjectStore, kind: str) -> None:
        super().__init__(plugin)
        self.plugin, self.kind = plugin, kind

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[Body]:
        with ExitStack() as stack:
            body = self._through("get", key, lambda: stack.enter_context(self.plugin.open(key, start=start)))
            # What its reader raises is the reader's own.
            yield StreamedBody(body.meta, self._each("get", key, lambda: iter(body)))

    def put_file(self, key: str, path: Path) -> Uploaded:
        path.stat()  # a local file that is gone must not look like a store that does not answer
        return super().put_file(key, path)

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        return self._each("list", prefix, lambda: iter(self.plugin.list(prefix, start_after=start_after)))

    def _each(self, verb: str, key: str, stream: Callable[[], Iterator[T]]) -> Iterator[T]:
        found = self._through(verb, key, stream)
        while (one := self._through(verb, key, lambda: next(found, None))) is not None:
            yield one

    # -- what a plug-in may have beyond the port: where it does not, these do not exist either (`hasattr`)

    @property
    def delete_if(self) -> Callable[[str, Token], None]:
        call = cast(ConditionalDeletes, self.plugin).delete_if
        return lambda key, token: self._through("delete", key, lambda: call(key, token))

    @property
    def put_file_if(self) -> Callable[[str, Path, Condition], Uploaded]:
        call = cast(ConditionalFiles, self.plugin).put_file_if
        return lambda key, path, condition: self._through("put", key, lambda: call(key, path, condition))

    def _through(self, verb: str, key: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except SwampError:
            raise
        except OSError as error:
            kind = OutcomeUnknown if verb == "put" else Unavailable
            raise kind(self._text(verb, key, error), hint="try again later", details={"key": key}) from error
        except Exception as error:
            hint = f"this is a defect of the plug-in {self.kind}: tell its makers (-v shows where)"
            raise StoreError(self._text(verb, key, error), hint=hint, details={"key": key}) from error

    def _text(self, verb: str, key: str, error: Exception) -> str:
        return f"{self.kind} failed to {verb} {key}: {type(error).__name__}: {error}"
