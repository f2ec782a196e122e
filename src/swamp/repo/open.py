"""Reads what a `datastore` block describes: a store by URL, type or plug-in, its namespace, what stays out of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.paths import TIER_DIRECTORIES
from swamp.env import Env, user_name
from swamp.errors import UsageError
from swamp.repo.config import DatastoreConfig, check_namespace, check_store_settings
from swamp.store.port import ObjectStore
from swamp.values import value

if TYPE_CHECKING:
    from swamp.index.root import Writer

TYPE_OF_SCHEME: Final = {
    "s3": "@swamp/s3-datastore",
    "s3a": "@swamp/s3-datastore",
    "gs": "@swamp/gcs-datastore",
    "az": "@swamp/azure-datastore",
    "azure": "@swamp/azure-datastore",
    "file": "@swamp/file-datastore",
    "memory": "@swamp/memory-datastore",
}
COMMAND: Final[ContextVar[str]] = ContextVar("swamp_command", default="")
"""What this process was asked to do, such as `data put`: commits say so."""
BUILT_IN: Final = ("filesystem", *dict.fromkeys(TYPE_OF_SCHEME.values()))


def read_target(
    target: str,
    *,
    path: str | None = None,
    config: Mapping[str, Any] | None = None,
    namespace: str | None = None,
) -> DatastoreConfig:
    """What `datastore setup URL|TYPE` asks for. Raises UsageError that lists what is allowed."""
    from swamp.extras import find

    wanted = DatastoreConfig(type=target, config=dict(config or {}), namespace=check_namespace(namespace))
    if "://" in target:
        return _by_url(wanted, target, path)
    check_store_settings(target, wanted.config)
    if target == "filesystem":
        return _filesystem(wanted, path)
    if path is not None:
        raise UsageError(f"--path belongs to the type filesystem, not to {target}", hint="put it into --config")
    if target not in BUILT_IN:
        if find("datastores", target) is None:
            raise UsageError(f"{target!r} is neither a URL nor a type", hint=f"allowed: {_allowed()}")
        from swamp.store.plugged import check_plugin_config

        check_plugin_config(target, wanted.config)
    elif not wanted.config:
        raise UsageError(f"{target} needs --config", hint='such as --config \'{"bucket": "…", "prefix": "…"}\'')
    return wanted


def _by_url(wanted: DatastoreConfig, url: str, path: str | None) -> DatastoreConfig:
    scheme = url.partition("://")[0].lower()
    if scheme not in TYPE_OF_SCHEME:
        raise UsageError(f"{scheme}:// is not supported", hint=f"allowed: {_allowed()}")
    if path is not None:
        raise UsageError("--path belongs to the type filesystem", hint="a URL says where the bucket is by itself")
    check_store_settings(TYPE_OF_SCHEME[scheme], wanted.config)
    return replace(wanted, type=TYPE_OF_SCHEME[scheme], url=url)


def _filesystem(wanted: DatastoreConfig, path: str | None) -> DatastoreConfig:
    if wanted.namespace or wanted.config:
        raise UsageError("a filesystem datastore has no namespace and no config", hint="use file:///… for a bucket")
    if path is None:
        return DatastoreConfig()
    return DatastoreConfig(path=str(Path(path).expanduser().absolute()))


def _allowed() -> str:
    from swamp.extras import names

    forms = "s3://bucket/prefix, gs://…, az://…, file:///dir, " + ", ".join(BUILT_IN[:4])
    return ", ".join([forms, *names("datastores")])


def client_settings(config: DatastoreConfig, idle_timeout: float, request_ms: float | None = None) -> dict[str, Any]:
    """How to talk to the store of the `datastore` block; the store knows its own defaults.

    A request is waited for as long as `request_ms`, the environment or the block says. None is waited for or repeated
    for longer than a command waits for progress (`idle_timeout`, in seconds).
    """
    from swamp.store.open import TIMEOUT_MS

    asked = config.config.get("requestTimeoutMs", TIMEOUT_MS)
    asked = request_ms or os.environ.get("SWAMP_REQUEST_TIMEOUT_MS") or asked
    return {**config.config, "requestTimeoutMs": min(float(asked), idle_timeout * 1000)}


def open_bucket(config: DatastoreConfig, env: Env, settings: Mapping[str, Any]) -> ObjectStore:
    """The store of the `datastore` block, without its namespace."""
    from swamp.store.open import open_store

    return open_store(config.url or config.type, settings, env)


def in_namespace(bucket: ObjectStore, namespace: str | None) -> ObjectStore:
    from swamp.store.layers import PrefixStore

    return PrefixStore(bucket, namespace) if namespace else bucket


def writer_of(repo_id: str) -> Writer:
    import socket

    from swamp import __version__
    from swamp.index.root import Writer

    return Writer(repo_id, socket.gethostname(), user_name(), os.getpid(), __version__, COMMAND.get())


def directory_of_bucket(config: DatastoreConfig) -> Path | None:
    """The directory that is its bucket; None for every other kind of store."""
    if not config.synced or not (config.url or "").startswith("file:"):
        return None
    from swamp.store.open import parse_target

    return Path(parse_target(config.url or "", config.config).bucket)


@value
class Exclude:
    """Gitignore-like patterns: the last one that matches decides, `!` takes a path back in."""

    patterns: tuple[str, ...] = ()
    directories: tuple[str, ...] = TIER_DIRECTORIES

    def __call__(self, path: str, is_directory: bool = False) -> bool:
        """Whether this path of the tree, or everything below this directory, stays on this machine."""
        if path.split("/", 1)[0] not in self.directories:
            return True
        excluded = False
        for pattern in self.patterns:
            wanted = pattern.removeprefix("!")
            if _compiled(wanted).match(f"{path}/" if is_directory and wanted.endswith("/") else path):
                excluded = not pattern.startswith("!")
        return excluded


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern with a slash inside is anchored at the tree's root; a trailing slash means a directory."""
    directory_only = pattern.endswith("/")
    body = pattern.strip("/")
    anchored = pattern.startswith("/") or "/" in body
    head = "" if anchored else "(?:.*/)?"
    tokens = re.findall(r"\*\*/|/\*\*|\*\*|\*|\?|\[[^\]]+\]|.", body, re.DOTALL)
    inner = "".join(_TOKENS.get(t) or (_char_class(t) if t.startswith("[") else re.escape(t)) for t in tokens)
    return re.compile(f"^{head}{inner}{'/.*' if directory_only else '(?:/.*)?'}$", re.DOTALL)


_TOKENS: Final = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _char_class(token: str) -> str:
    if len(token) < 3:
        return re.escape(token)
    inner = token[1:-1]
    negated = inner[0] in "!^"
    return f"[{'^/' if negated else ''}{(inner[1:] if negated else inner).replace(chr(92), chr(92) * 2)}]"


def excluder(patterns: Iterable[str], directories: Iterable[str]) -> Exclude:
    """Raises UsageError for a pattern that cannot be read."""
    made = Exclude(tuple(patterns), tuple(directories))
    for pattern in made.patterns:
        try:
            _compiled(pattern.removeprefix("!"))
        except re.error as error:
            raise UsageError(f"datastore.exclude: {pattern!r} is not a pattern", hint=str(error)) from error
    return made
