"""What things are called: types, data names, versions, and the paths that spell them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from swamp.cache.paths import CATALOG, LOCK, is_temp, safe_path
from swamp.errors import UsageError

DATA: Final = "data"
METADATA: Final = "metadata.yaml"
RAW: Final = "raw"
LATEST: Final = "latest"
MANIFEST: Final = "parts.parquet"
AUTO_NAMESPACE: Final = uuid.UUID("5b0f6d0e-2c53-5e0b-9d9a-7c7b0d1f6a11")
_SEPARATORS = re.compile(r"::|[\s./]+")
_VERSION = re.compile(r"[1-9][0-9]{0,15}\Z")


def normalise_type(text: str) -> str:
    """`AWS::EC2::VPC` -> `aws/ec2/vpc`: one spelling per type, safe as a path. Raises UsageError."""
    parts = [part for part in _SEPARATORS.sub("/", text.strip().lower()).split("/") if part]
    if not parts:
        raise UsageError(f"{text!r} is not a type", hint="a type looks like `command/shell` or `@org/thing`")
    return "/".join(_segment(part, "type") for part in parts)


def check_name(text: str, what: str = "data name") -> str:
    """The same name, if it can be one. Raises UsageError that says what it was to name, and what is allowed."""
    if text == LATEST or ".." in text:
        raise _refused(text, what)
    return _segment(text, what)


def check_model_name(text: str) -> str:
    """The same model name, if it can be one: it is a file's name, like a data name is a directory's."""
    return check_name(text, "model name")


def check_id(text: str) -> str:
    """The same model, workflow or run id, if it can be one path segment."""
    return _segment(text, "id")


def _segment(text: str, what: str) -> str:
    if not text or text == "." or "/" in text or ".." in text or is_temp(text) or text.startswith((LOCK, CATALOG)):
        raise _refused(text, what)
    return safe_path(text)


def _refused(text: str, what: str) -> UsageError:
    return UsageError(
        f"{text!r} cannot be a {what}",
        hint="allowed: a non-empty text without `/`, `\\`, `..` and control characters, not `latest` or `.lock`",
    )


def auto_id(model_type: str, name: str) -> str:
    """The id of an auto-definition: the same on every machine, so that two of them agree."""
    return str(uuid.uuid5(AUTO_NAMESPACE, f"{normalise_type(model_type)}\n{name}"))


def parse_version(text: str) -> int | None:
    """The number that a version directory's name stands for, None if it is not one."""
    return int(text) if _VERSION.match(text) else None


@dataclass(frozen=True, slots=True, order=True)
class DataName:
    """One named artifact of one model, over all its versions."""

    type: str
    model_id: str
    name: str

    @classmethod
    def of(cls, model_type: str, model_id: str, name: str) -> DataName:
        """From what a user typed: normalised and checked."""
        return cls(normalise_type(model_type), check_id(model_id), check_name(name))

    @property
    def path(self) -> str:
        return f"{DATA}/{self.type}/{self.model_id}/{self.name}"

    @property
    def model_path(self) -> str:
        return f"{DATA}/{self.type}/{self.model_id}"

    def at(self, version: int) -> VersionRef:
        return VersionRef(self, version)

    def sibling(self, name: str) -> DataName:
        return DataName(self.type, self.model_id, check_name(name))


@dataclass(frozen=True, slots=True, order=True)
class VersionRef:
    """One version of one artifact; `path` is its directory in the tree."""

    data: DataName
    version: int

    @property
    def path(self) -> str:
        return f"{self.data.path}/{self.version}"

    def fields(self) -> dict[str, Any]:
        """What it is called, as `--json` says it."""
        data = self.data
        return {"name": data.name, "version": self.version, "modelType": data.type, "modelId": data.model_id}

    @property
    def metadata_path(self) -> str:
        return f"{self.path}/{METADATA}"

    @property
    def manifest_path(self) -> str:
        return f"{self.path}/{MANIFEST}"

    @property
    def raw_path(self) -> str:
        return f"{self.path}/{RAW}"


def version_of(path: str) -> VersionRef | None:
    """The version that a file of the tree belongs to: its metadata, or something at or below its `raw`."""
    parts = path.split("/")
    if parts[0] != DATA:
        return None
    for i in range(4, len(parts) - 1):
        number = parse_version(parts[i])
        if number is not None and (parts[i + 1] == RAW or parts[i + 1 :] in ([METADATA], [MANIFEST])):
            return VersionRef(DataName("/".join(parts[1 : i - 2]), parts[i - 2], parts[i - 1]), number)
    return None


def described_by(path: str) -> VersionRef | None:
    """The version whose metadata this file is; a part called `metadata.yaml` is nobody's. inv[names.by-place]"""
    ref = version_of(path) if path.endswith(f"/{METADATA}") else None
    return ref if ref is not None and ref.metadata_path == path else None


def version_of_directory(path: str) -> VersionRef | None:
    """The version whose directory `path` is."""
    return version_of(f"{path}/{METADATA}")


def name_of_directory(path: str) -> DataName | None:
    """The data name whose directory `path` is, if it is deep enough to be one."""
    found = version_of(f"{path}/1/{METADATA}")
    return found.data if found and found.path == f"{path}/1" else None


SHORTEST_PREFIX: Final = 2


def suggest(word: str, known: Iterable[str]) -> str | None:
    """The known word closest to `word`, if one is close: a typo, another case, or another separator."""
    flat = {_flatten(name): name for name in known}
    if not flat or _flatten(word) in flat:
        return flat.get(_flatten(word))
    import difflib

    close = difflib.get_close_matches(_flatten(word), list(flat), n=1, cutoff=0.6)
    return flat[close[0]] if close else None


def _flatten(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def meant(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint: "did you mean `x`? ", or nothing."""
    found = suggest(word, known)
    return f"did you mean `{found}`? " if found is not None else ""


def by_prefix(word: str, ids: Iterable[str], what: str) -> str | None:
    """The one id that is `word` or begins with it; None if there is none. Raises UsageError if there are several."""
    known = set(ids)
    if word in known:
        return word
    if len(word) < SHORTEST_PREFIX:
        return None
    found = sorted(one for one in known if one.startswith(word))
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} {what}s begin with {word}: {', '.join(found[:3])}{', …' if len(found) > 3 else ''}",
            hint="type more of the id",
            details={"candidates": found[:20]},
        )
    return found[0] if found else None
