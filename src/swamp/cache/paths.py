"""Which paths may be synced at all: every path from an index, a listing, a user or a disk passes here first."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Final

from swamp.env import ULID_LENGTH
from swamp.errors import UsageError
from swamp.index.entry import is_payload_key

TIER_DIRECTORIES: Final = (
    "data",
    "outputs",
    "workflow-runs",
    "definitions-evaluated",
    "workflows-evaluated",
    "auto-definitions",
    "audit",
    "logs",
    "files",
)
_OURS: Final = ("_index", "_packs")
TEMP_PREFIX: Final = ".swamp-tmp-"
LOCK: Final = ".lock"
CATALOG: Final = "_catalog.db"
RAW: Final = "raw"
_NAME_DEPTH: Final = 4  # data / type / model id / name / latest
_PART = re.compile(r"data(?:/[^/]+){3,}/[0-9]+/raw/.")
_FOREIGN_TEMP = re.compile(r"(?:^|/)\.[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\.tmp$")
MAX_COMPONENT_BYTES: Final = 255
_PLAIN = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)*", re.ASCII)
"""Paths of nothing but letters, digits, `_`, `.` and `-`, no component of which begins with one of the last two."""
MAX_PATH_BYTES: Final = 1024 - (ULID_LENGTH + 1)  # a key is the path, `~` and a ULID; stores stop at 1,024


def safe_path(path: str) -> str:
    """The same path, if it can only ever name a file below the tree, on every machine. Raises UsageError."""
    fault = fault_of(path)
    if fault is not None:
        raise UsageError(fault)
    return path


def fault_of(path: str) -> str | None:
    """What `safe_path` would say of it; None if it would let it through."""
    fault = _fault_of(path)
    return None if fault is None else f"{shown(path)} cannot be a path in a datastore: {fault}"


def is_safe(path: str) -> bool:
    """Whether `safe_path` would let it through."""
    return _fault_of(path) is None


def _fault_of(path: str) -> str | None:
    if len(path) <= MAX_COMPONENT_BYTES and _PLAIN.fullmatch(path):
        return None  # as nearly all are: none of what is looked for below can be in it
    if not path:
        return "it is empty"
    if len(path) > MAX_PATH_BYTES:  # before any other work: a hostile index may hold megabytes here
        return f"it is longer than {MAX_PATH_BYTES} bytes"
    directory, slash, name = path.rpartition("/")
    return _fault_of_text(path) or (_fault_of_directory(directory) if slash else None) or _fault_of_component(name)


@lru_cache(maxsize=1024)  # neighbours share it, and an index is read in path order
def _fault_of_directory(directory: str) -> str | None:
    return next(filter(None, map(_fault_of_component, directory.split("/"))), None)


def _fault_of_text(path: str) -> str | None:
    if not path.isascii():
        try:
            size = len(path.encode("utf-8"))
        except UnicodeEncodeError:
            return "it is not valid Unicode"
        if size > MAX_PATH_BYTES:
            return f"it is longer than {MAX_PATH_BYTES} bytes"
    if not path.isprintable() and any(unicodedata.category(c) == "Cc" for c in path):
        return "it holds a control character"
    if "\\" in path:
        return "it holds a backslash, which is a separator on some machines"
    if path[0] == "/":
        return "it is absolute"
    if len(path) > 1 and path[1] == ":" and path[0].isascii() and path[0].isalpha():
        return "it starts with a drive letter"
    return None


def _fault_of_component(name: str) -> str | None:
    if not name:
        return "it has an empty component"
    if name in (".", ".."):
        return f"it has a component '{name}'"
    if len(name) * 4 > MAX_COMPONENT_BYTES and len(name.encode("utf-8")) > MAX_COMPONENT_BYTES:
        return f"it has a component longer than {MAX_COMPONENT_BYTES} bytes"
    if is_payload_key(name):
        return "names ending in '~' and a ULID are reserved for payload keys"
    return None


def shown(path: str) -> str:
    """A path, also a hostile one, as short and printable text."""
    short = path if len(path) <= 120 else path[:120] + "…"
    return short if short.isprintable() and short == short.strip() and short else ascii(short)


def is_internal(path: str) -> bool:
    """Whether swamp put a file of this name at this place: never in an index, never taken for garbage.

    By place and not by name: inside a version's `raw` every safe name is payload. inv[names.by-place]
    """
    if is_internal_directory(path):
        return True
    if not path.startswith("data/"):
        return False
    name = path.rpartition("/")[2]
    if name.startswith(CATALOG):
        return path.count("/") == 1
    if name == LOCK:
        return not is_part(path)
    return name == "latest" and path.count("/") >= _NAME_DEPTH and not is_part(path)


def is_internal_object(key: str) -> bool:
    """The same of a plain key that something else wrote: there other clients' locks lie at any depth (L22), but not
    inside a version's `raw`. inv[names.by-place]"""
    return is_internal(key) or (key.endswith(f"/{LOCK}") and not is_part(key)) or is_foreign_temp(key)


def is_internal_directory(path: str) -> bool:
    """Directories below which nothing is synced: at the top `_index`, `_packs` and names starting with `.`, and temp
    names."""
    first = path.partition("/")[0]
    if first.startswith(".") or first in _OURS:
        return True
    at = path.find(f"/{TEMP_PREFIX}")
    return at >= 0 and not is_part(path[: at + 2])


def is_part(path: str) -> bool:
    """Whether the path lies below the `raw` directory of a version."""
    return f"/{RAW}/" in path and _PART.match(path) is not None


def is_temp(path: str) -> bool:
    """A file that is still being written by one of us."""
    return path.startswith(TEMP_PREFIX) or f"/{TEMP_PREFIX}" in path


def is_foreign_temp(path: str) -> bool:
    """A file that a reference client is still writing, `.<uuid>.tmp` beside the file that it becomes.

    Nobody takes it up; one that an index already names is a file like any other, because somebody shared it.
    """
    return path.endswith(".tmp") and _FOREIGN_TEMP.search(path) is not None and not is_part(path)


def in_tier(path: str) -> bool:
    """Whether the path lies below a directory that is shared at all."""
    first, slash, _ = path.partition("/")
    return bool(slash) and first in TIER_DIRECTORIES


def fold(path: str) -> str:
    """Equal for two paths that some file system cannot tell apart: canonical Unicode form and case."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def is_below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or something inside it; everything is inside the empty one."""
    return not directory or path == directory or path.startswith(directory + "/")


def ancestors(path: str) -> tuple[str, ...]:
    """The directories above `path`: `a/b/c` -> `a`, `a/b`."""
    return _down_to(path.rpartition("/")[0])


@lru_cache(maxsize=1024)  # neighbours share it
def _down_to(directory: str) -> tuple[str, ...]:
    """A directory and those above it, the highest first."""
    parts = directory.split("/") if directory else []
    return tuple("/".join(parts[:i]) for i in range(1, len(parts) + 1))


def resolve_inside(root: Path, path: str) -> Path:
    """Where `path` lies on disk; raises UsageError if that would be outside of `root`, also through links."""
    check_inside(str(root), path)
    return root / path


def check_inside(root: str, path: str) -> None:
    """The same for who only needs to know."""
    current = root
    for name in safe_path(path).split("/")[:-1]:
        current = f"{current}/{name}"
        if _is_link(current):
            raise UsageError(
                f"{shown(path)} leads through the symbolic link {shown(current)}",
                hint="replace the link by a directory: links are not followed",
            )
    found = f"{root}/{path}"
    if _is_link(found) and not leads_inside(root, found):
        raise UsageError(f"{shown(path)} is a symbolic link that leaves the tree", hint="replace it by a file")


def leads_inside(root: str | Path, link: str | Path) -> bool:
    """Whether a link ends below `root`, whatever it passes on its way."""
    real_root = os.path.realpath(root)
    return os.path.realpath(link).startswith(real_root.rstrip("/") + "/")


def _is_link(path: str) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False  # not there or not reachable: whoever uses the path gets the error with its reason
