"""`.swamp.yaml`: made by `repo init`, read with exact complaints, unknown keys and comments kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.files import on_disk, read_at_most, write_atomic
from swamp.cache.paths import TIER_DIRECTORIES
from swamp.env import SYSTEM, Env, rfc3339
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.settings import HYDRATE
from swamp.values import value

if TYPE_CHECKING:
    from swamp.cache.layout import CacheDir

FILE_NAME: Final = ".swamp.yaml"
LOCAL_DIRECTORY: Final = ".swamp"
MAX_CONFIG: Final = 1 << 20
_UUID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", re.IGNORECASE)
_TOP_LEVEL_KEY = re.compile(r"^([A-Za-z_][\w-]*)\s*:")


@value
class DatastoreConfig:
    """Where the datastore tier lives. `filesystem` without a path is the repository's own `.swamp/`."""

    type: str = "filesystem"
    url: str | None = None
    path: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    namespace: str | None = None
    hydrate: str | None = None
    """What machines do that have not chosen for themselves (`chosen`); None: full."""
    directories: tuple[str, ...] = TIER_DIRECTORIES
    exclude: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def synced(self) -> bool:
        return self.type != "filesystem"

    def to_document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"type": self.type}
        optional = {"url": self.url, "path": self.path, "config": dict(self.config), "namespace": self.namespace}
        document |= {key: value for key, value in optional.items() if value}
        if self.synced and self.hydrate is not None:
            document["hydrate"] = self.hydrate
        if self.directories != TIER_DIRECTORIES:
            document["directories"] = list(self.directories)
        if self.exclude:
            document["exclude"] = list(self.exclude)
        return {**document, **self.extra}


@value
class RepoConfig:
    """A repository's `.swamp.yaml`; `document` is all of it as it was read."""

    repo_id: str
    datastore: DatastoreConfig
    document: Mapping[str, Any]


def locate(start: Path | None, environ: Mapping[str, str]) -> Path:
    """The repository: `start` if given, else SWAMP_REPO_DIR, else the nearest directory upwards with `.swamp.yaml`."""
    named = start or (Path(environ["SWAMP_REPO_DIR"]) if environ.get("SWAMP_REPO_DIR") else None)
    if named is not None:
        path = named.expanduser().absolute()
        if not (path / FILE_NAME).is_file():
            raise UsageError(f"{path} is not a swamp repository", hint=f"run `swamp repo init {path}`")
        return path
    here = Path.cwd()
    for directory in (here, *here.parents):
        if (directory / FILE_NAME).is_file():
            return directory
    raise UsageError(
        f"no swamp repository in {here} or above", hint="run `swamp repo init`, or name one with --repo-dir"
    )


def read_config(repo: Path) -> RepoConfig:
    """Raises NotFound when there is none, UsageError when a value is not allowed, CorruptData when it is no YAML."""
    path = repo / FILE_NAME
    try:
        raw = read_at_most(path, MAX_CONFIG)
        if len(raw) > MAX_CONFIG:
            raise CorruptData(f"{path} is larger than {MAX_CONFIG} bytes", hint="restore it from git, or correct it")
        text = raw.decode("utf-8")
    except FileNotFoundError as error:
        raise NotFound(f"{repo} is not a swamp repository", hint="run `swamp repo init`") from error
    except UnicodeDecodeError as error:
        raise CorruptData(f"{path} is not UTF-8 text", hint="restore it from git, or correct it") from error
    return parse_config(_loaded(text, path))


def _loaded(text: str, path: Path) -> Any:
    """The document, from a copy that is kept as JSON while the text is the same: reading YAML costs more than a sync
    that has nothing to do."""
    mark = hashlib.sha256(text.encode()).hexdigest()
    copy = path.parent / ".swamp" / "_config.json"
    try:
        kept = json.loads(copy.read_bytes())
        if kept["sha256"] == mark:
            return kept["document"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no copy, or not of this text: it is made again
    document = _load_yaml(text, path)
    _keep(copy, {"sha256": mark, "document": document})
    return document


def _keep(copy: Path, value: dict[str, Any]) -> None:
    temp = copy.with_name(f"{copy.name}.{os.getpid()}")
    try:
        body = json.dumps(value)
        if json.loads(body) == value:
            temp.write_text(body, encoding="utf-8")
            temp.replace(copy)
    except (OSError, TypeError, ValueError):
        return  # a read-only checkout, or YAML that JSON cannot hold (dates): then without a copy


def _load_yaml(text: str, path: Path) -> Any:
    import yaml

    from swamp.data.document import check_shape

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        check_shape(text, aliases=True)
        return yaml.load(text, Loader=loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that cannot be, or a bomb
        place = getattr(error, "problem_mark", None)
        where = f", line {place.line + 1}" if place else ""
        raise CorruptData(f"{path} is not valid YAML{where}", hint="correct it, or restore it from git") from error


def parse_config(document: Any) -> RepoConfig:
    if not isinstance(document, Mapping):
        raise _bad("the whole file", document, "a mapping that `swamp repo init` writes")
    repo_id = _take(document, "repoId", None, lambda v: isinstance(v, str) and bool(_UUID.match(v)), "a UUID")
    if repo_id is None:
        raise _bad("repoId", None, "the UUID that `swamp repo init` wrote")
    return RepoConfig(repo_id, _datastore_from(document.get("datastore")), document)


def _datastore_from(block: Any) -> DatastoreConfig:
    """The `datastore` block as a value; every bad value is named with what is allowed."""
    if block is None:
        return DatastoreConfig()
    if not isinstance(block, Mapping):
        raise _bad("datastore", block, "a mapping with type and url, path or config")
    kind = _take(block, "type", "filesystem", _is_text, "filesystem, @swamp/s3-datastore, … or a plug-in's name")
    found = DatastoreConfig(
        type=kind,
        url=_take(block, "url", None, _is_text, "s3://…, gs://…, az://… or file:///…"),
        path=_take(block, "path", None, _is_text, "a directory"),
        config=_take(block, "config", {}, lambda v: isinstance(v, Mapping), "a mapping"),
        namespace=check_namespace(block.get("namespace")),
        hydrate=_take(block, "hydrate", None, lambda v: v in ("full", "lazy"), "full or lazy"),
        directories=tuple(_take(block, "directories", TIER_DIRECTORIES, _are_tiers, ", ".join(TIER_DIRECTORIES))),
        exclude=tuple(_take(block, "exclude", (), _are_texts, "a list of gitignore-like patterns")),
        extra={key: value for key, value in block.items() if key not in _KNOWN},
    )
    check_store_settings(found.type, found.config)
    if found.synced and not found.url and not found.config and found.type.startswith("@swamp/"):
        raise UsageError(".swamp.yaml names a datastore and not where it is", hint="run `swamp datastore setup URL`")
    return found


_KNOWN: Final = frozenset({"type", "url", "path", "config", "namespace", "hydrate", "directories", "exclude"})


TEXTS: Final = ("bucket", "container", "prefix", "region", "endpoint", "account")
NUMBERS: Final = {"pushConcurrency": 256, "pullConcurrency": 256, "requestTimeoutMs": 86_400_000}


def check_store_settings(kind: str, config: Mapping[str, Any]) -> None:
    """Before anything is tried or written: a number that is no bucket would only be a host that nobody knows."""
    if not kind.startswith("@swamp/"):
        return  # a plug-in's settings are its own
    for key, given in config.items():
        whole, highest = isinstance(given, int) and not isinstance(given, bool), NUMBERS.get(key)
        if key in TEXTS and not isinstance(given, str):
            allowed = "a text"
        elif key == "forcePathStyle" and not isinstance(given, bool):
            allowed = "true or false"
        elif highest and not (whole and 1 <= given <= highest):
            allowed = f"a whole number, 1 to {highest}"
        else:
            continue
        raise UsageError(f"{key} of the datastore is {given!r}", hint=f"allowed: {allowed}", details={"key": key})


def check_namespace(name: Any) -> str | None:
    """None, or a name that a namespace may have. S13"""
    if name is None or name == "":
        return None
    if not isinstance(name, str):
        raise _bad("datastore.namespace", name, "a name")
    from swamp.commit.namespace import validate_name

    return validate_name(name)


def _take(block: Mapping[str, Any], key: str, default: Any, accept: Callable[[Any], bool], allowed: str) -> Any:
    value = block.get(key)
    if value is None:
        return default
    if not accept(value):
        raise _bad(key if key == "repoId" else f"datastore.{key}", value, allowed)
    return value


def _bad(key: str, value: Any, allowed: str) -> UsageError:
    return UsageError(f".swamp.yaml: {key} is {value!r}", hint=f"allowed: {allowed}", details={"key": key})


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) and item for item in value)


def _are_tiers(value: Any) -> bool:
    return _are_texts(value) and bool(value) and all(item in TIER_DIRECTORIES for item in value)


def write_config(repo: Path, blocks: Mapping[str, Any]) -> None:
    """Sets top-level keys (None removes one) and leaves every other line as it is; atomic and durable."""
    path = repo / FILE_NAME
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for key, block in blocks.items():
        text = _replace_block(text, key, block)
    write_atomic(path, text.encode("utf-8"))


def _replace_block(text: str, key: str, value: Any) -> str:
    import yaml

    block = "" if value is None else yaml.safe_dump({key: value}, sort_keys=False, allow_unicode=True)
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if (at := _TOP_LEVEL_KEY.match(line)) and at[1] == key), None)
    if start is None:
        return text + ("" if not text or text.endswith("\n") else "\n") + block
    # A top-level key or comment ends the block; indented lines, list items and blank lines belong to it.
    others = (i for i in range(start + 1, len(lines)) if lines[i].strip() and not lines[i].startswith((" ", "\t", "-")))
    end = next(others, len(lines))
    return "".join(lines[:start]) + block + "".join(lines[end:])


@value
class Initialized:
    path: Path
    repo_id: str
    initialized_at: str

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.path), "repoId": self.repo_id, "initializedAt": self.initialized_at}


def init_repo(path: Path, *, env: Env = SYSTEM) -> Initialized:
    """Makes `path` a repository. Raises UsageError when it is one already."""
    from swamp import __version__

    path = path.expanduser().absolute()
    if (path / FILE_NAME).exists():
        raise UsageError(f"{path} is a swamp repository already", hint=f"remove {FILE_NAME} to start anew")
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is not a directory")
    for name in ("models", "workflows", ".swamp"):
        (path / name).mkdir(parents=True, exist_ok=True)
    made = Initialized(path, env.uuid(), rfc3339(env.clock.now()))
    ignore = path / ".gitignore"
    text = ignore.read_text(encoding="utf-8") if ignore.exists() else ""
    if ".swamp/" not in text.splitlines():
        ignore.write_text(text + ("" if not text or text.endswith("\n") else "\n") + ".swamp/\n", encoding="utf-8")
    # Last: a repository exists from the moment this file does, and a crash before it leaves nothing to undo.
    identity = {"swampVersion": __version__, "initializedAt": made.initialized_at, "repoId": made.repo_id}
    write_config(path, {**identity, "datastore": {"type": "filesystem"}})
    return made


_FILE: Final = "hydrate"


def chosen(cache: CacheDir) -> str | None:
    """What this machine has chosen for the cache; None if it has not, or if that cannot be read any more."""
    try:
        said = (cache.base / _FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return said if said in HYDRATE else None


def choose(cache: CacheDir, mode: str) -> None:
    """Remembers the choice for as long as there is this cache. The shared `.swamp.yaml` says nothing of it."""
    file = cache.ensure().base / _FILE
    with on_disk("write", str(file)):
        write_atomic(file, mode.encode())
