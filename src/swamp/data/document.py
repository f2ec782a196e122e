"""YAML as we store it: fast, safe, bounded against files that were made to hurt; one file per record of a tree."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from swamp.cache.files import disk_error, on_disk, place, read_at_most, remove_empty_parents, stage_file
from swamp.errors import CorruptData, UsageError
from swamp.sync.port import Tree
from swamp.values import camel

MAX_BYTES: Final = 16 << 20
MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000
"""What a document with aliases may unfold to."""
REPAIR: Final = "swamp datastore verify --repair"
_INDENTED = re.compile(rf"^[ ?:-]{{{MAX_DEPTH // 2}}}", re.MULTILINE)  # blocks nest to the right, two per column
_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


def load(raw: bytes, path: str, *, limit: int = MAX_BYTES) -> Any:
    """The value in a YAML file. Raises CorruptData that names the file and the command that repairs it."""
    if len(raw) > limit:
        raise damaged(path, f"it is larger than {limit} bytes")
    quick = read_simple(raw)
    if quick is not None:
        return quick
    import yaml

    try:
        text = raw.decode("utf-8")
        check_shape(text)
        return yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise damaged(path, (str(error).strip() or type(error).__name__).splitlines()[0]) from error


_WORDS = "true|false|yes|no|on|off|null"  # in any case, plain: not texts
_LINE = re.compile(
    rb"""(?P<inner>\ \ )?(?P<key>(?!(?i:"""
    + _WORDS.encode()
    + rb""")[:])[A-Za-z_][A-Za-z0-9_]*):(?:\ (?:
      (?P<number>0|[1-9][0-9]{0,17})
    | (?P<truth>true|false|null)
    | '(?P<quoted>[\x20-\x26\x28-\x7e]*)'
    | (?P<plain>(?!(?i:"""
    + _WORDS.encode()
    + rb""")\n)(?:[A-Za-z_/][A-Za-z0-9_/.@+-]*
        |(?=[0-9a-f]*[ac-f])[0-9a-f]{64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}))
    | (?P<empty>\{\})
    ))?\n""",
    re.VERBOSE,
)


def read_simple(raw: bytes) -> dict[str, Any] | None:
    """What YAML reads in the plain shape that we write most of the time, ten times faster; None: ask YAML."""
    found: dict[str, Any] = {}
    inner: dict[str, Any] | None = None
    position = 0
    while position < len(raw):
        match = _LINE.match(raw, position)
        if match is None:
            return None
        position = match.end()
        kind, key = match.lastgroup, match["key"].decode()
        if inner is not None and not inner and not match["inner"]:
            return None  # `key:` with nothing below it
        if match["inner"]:
            if inner is None or kind in ("key", "empty"):
                return None
            inner[key] = _scalar(kind, match)
        else:
            found[key] = inner = {} if kind == "key" else None
            if kind != "key":
                found[key] = _scalar(kind, match)
    return found if found and inner != {} else None


def _scalar(kind: str | None, match: re.Match[bytes]) -> Any:
    text = match[kind or "key"].decode()
    if kind == "number":
        return int(text)
    if kind == "truth":
        return {"true": True, "false": False, "null": None}[text]
    return {} if kind == "empty" else text


def load_mapping(raw: bytes, path: str, *, limit: int = MAX_BYTES) -> dict[str, Any]:
    """A YAML file that must be a mapping with text keys."""
    value = load(raw, path, limit=limit)
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise damaged(path, "it is not a mapping")
    return value


def damaged(path: str, why: str) -> CorruptData:
    """The error for a file whose bytes are not what they must be."""
    return CorruptData(
        f"{path} is damaged: {why}",
        hint=f"run `{REPAIR}` to fetch the stored copy, or delete that version",
        details={"path": path, "repair": REPAIR},
    )


def dump(value: Any) -> bytes:
    """Block-style YAML, keys in the given order, texts that look like something else quoted."""
    import yaml

    text: str = yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=4096)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError("a text is not valid Unicode and cannot be stored") from error


def keys_of(attributes: str) -> dict[str, str]:
    """The attributes by their keys in a document: `started_at` is `startedAt` there."""
    return {camel(attribute): attribute for attribute in attributes.split()}


def values_of(state: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """The attributes of a state by their keys in its document."""
    return {key: getattr(state, attribute) for key, attribute in keys.items()}


def told(state: object, keys: Mapping[str, str]) -> dict[str, Any]:
    """The same without those that say nothing."""
    found = values_of(state, keys)
    known = {key: dict(value) if isinstance(value, Mapping) else value for key, value in found.items()}
    return {key: value for key, value in known.items() if value is not None and value is not False and value != {}}


def attributes_of(document: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    """The attributes that a document tells: the other way of `told`."""
    return {attribute: document[key] for key, attribute in keys.items() if document.get(key) is not None}


def unknown_keys(document: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What a newer writer has added, to be kept as it is."""
    return {key: value for key, value in document.items() if key not in known}


def check_shape(text: str, *, aliases: bool = False) -> None:
    """Aliases multiply and nesting recurses in C: ValueError before anything is built from too much of either.

    With `aliases` they may be used, as people do, but not for more than they could have written out.
    """
    brackets = text.count("[") + text.count("{")
    if brackets <= MAX_DEPTH and "*" not in text and _INDENTED.search(text) is None:
        return  # it can neither nest deeply nor use aliases: only others pay for the closer look
    import yaml

    anchors: dict[str, int] = {}
    nodes: list[int] = [0]
    names: list[str | None] = [None]
    for event in yaml.parse(text, Loader=_loader()):
        if isinstance(event, yaml.AliasEvent):
            nodes[-1] += _unfolded(event.anchor, anchors, aliases)
        elif isinstance(event, yaml.CollectionStartEvent):
            nodes.append(1)
            names.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, name = nodes.pop(), names.pop()
            nodes[-1] += size
            anchors |= {name: size} if name else {}
        elif isinstance(event, yaml.ScalarEvent):
            nodes[-1] += 1
            anchors |= {event.anchor: 1} if event.anchor else {}
        if len(nodes) - 1 > MAX_DEPTH:
            raise ValueError(f"it nests deeper than {MAX_DEPTH} levels")
        if nodes[-1] > MAX_NODES:
            raise ValueError(f"its aliases unfold to more than {MAX_NODES} values")


def _unfolded(anchor: str | None, anchors: dict[str, int], allowed: bool) -> int:
    if not allowed:
        raise ValueError("it uses YAML aliases")
    if anchor is None or anchor not in anchors:
        raise ValueError(f"the alias *{anchor} stands before or inside what it names")
    return anchors[anchor]


@functools.cache
def _loader() -> Any:
    """Without implicit timestamps: a time is a text here, whoever wrote it."""
    import yaml

    parent: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(parent):  # type: ignore[misc]
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [(tag, pattern) for tag, pattern in found if tag != _TIMESTAMP]
            for first, found in parent.yaml_implicit_resolvers.items()
        }

    return Loader


@functools.cache
def _dumper() -> Any:
    import yaml

    parent: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(parent):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return Dumper


SUFFIX: Final = ".yaml"


class RecordFiles:
    """The record files below one directory of the tree. Changes are announced by path. inv[journal.first]"""

    def __init__(self, tree: Tree, directory: str) -> None:
        self._tree = tree
        self.directory = directory

    def write(self, path: str, content: bytes) -> None:
        parent = (self._tree.root / path).parent  # staged there, so that the rename stays within one file system
        with self._tree.announce([path]):
            with on_disk("create", path):
                parent.mkdir(parents=True, exist_ok=True)
            place(stage_file(parent, [content]), self._tree.root, path)

    def remove(self, paths: Sequence[str], *, confirmed: bool = False) -> int:
        """Removes those that are there, in one announcement; none there: nothing is announced."""
        present = [path for path in paths if (self._tree.root / path).is_file()]
        if not present:
            return 0
        with self._tree.announce(present, "delete", confirmed=confirmed):
            for path in present:
                with on_disk("delete", path):
                    (self._tree.root / path).unlink(missing_ok=True)
                remove_empty_parents(self._tree.root, path)
        return len(present)

    def read(self, path: str) -> dict[str, Any] | None:
        """The document at `path`, None if there is none."""
        raw = self.read_bytes(path)
        return None if raw is None else load_mapping(raw, path)

    def read_bytes(self, path: str) -> bytes | None:
        try:
            there = (self._tree.root / path).is_file()
            return read_at_most(self._tree.materialize(path), MAX_BYTES) if there else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(error, "read", path) from error

    def paths(self, under: str = "") -> Iterator[str]:
        """The record files below, newest names first, one directory in memory at a time."""
        top = self._tree.root / self.directory / under
        for directory, children, files in os.walk(top):
            children.sort()
            inside = Path(directory).relative_to(self._tree.root).as_posix()
            for name in sorted(files, reverse=True):
                if name.endswith(SUFFIX) and not name.startswith("."):
                    yield f"{inside}/{name}"

    def holding(self, needle: str) -> Iterator[str]:
        """The files whose bytes hold `needle`: cheap enough to run before any parsing."""
        wanted = needle.encode()
        for path in self.paths():
            if wanted in (self.read_bytes(path) or b""):
                yield path
