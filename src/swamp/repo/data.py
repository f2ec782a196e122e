"""Data by model and name: what `swamp data` does and what a program uses."""

from __future__ import annotations

import datetime as dt
import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from swamp.data.artifacts import Renamed
from swamp.data.collect import Reclaimed
from swamp.data.definitions import MANUAL_TYPE
from swamp.data.lifetimes import FOREVER, Lifetime, parse_duration
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName, auto_id, check_model_name, check_name, normalise_type
from swamp.data.versions import DataVersion
from swamp.env import parse_rfc3339, rfc3339
from swamp.errors import NotFound, UsageError
from swamp.repo.definitions import ModelRef
from swamp.sync.result import Conflict, SyncResult

if TYPE_CHECKING:
    from swamp.catalog.query import QueryResult
    from swamp.catalog.schema import Row
    from swamp.repo.repository import Repo

CONTENT_LIMIT: Final = 1 << 20
_SNIFFED: Final = 1 << 16


@dataclass(frozen=True)
class Put:
    """What `put` made, and how it reached the datastore (None: a plain directory)."""

    version: DataVersion
    sync: SyncResult | None


class Data:
    """The data of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo

    # -- reading: no lease, no sync; hydrates one file if the cache is lazy

    def list(
        self,
        model: str | None = None,
        *,
        type: str | None = None,  # noqa: A002 - the contract's word
        workflow: str | None = None,
        run: str | None = None,
    ) -> Sequence[Row]:
        """The latest version of every name, of one model or of all; by the names that people know."""
        model_type = normalise_type(type) if type else None
        found = self._repo.catalog.latest(model_type=model_type, workflow=workflow, run_id=run)
        found.sort(key=lambda row: (row.model_name, row.ref.data.name, row.ref.data.type))
        if model is None:
            return found
        wanted = {(ref.type, ref.id) for ref in self._known(model)}
        return [row for row in found if (row.ref.data.type, row.ref.data.model_id) in wanted]

    def get(self, model: str, name: str, version: int | None = None) -> DataVersion:
        """One version, or the latest. Raises NotFound."""
        return self._repo.artifacts.get(self._named(model, name), version)

    def versions(self, model: str, name: str) -> Sequence[Row]:
        """The versions of a name that hold data, newest first. Raises NotFound when there are none."""
        found = self._repo.catalog.versions(self._named(model, name))
        if not found:
            raise NotFound(f"{model} has no data named {name}", hint=f"`swamp data list {model}` shows what it has")
        return found

    def search(self, tags: Iterable[tuple[str, str]] = (), since: str | None = None) -> Sequence[Row]:
        """The latest versions with all these tags, made since a time (`2026-11-15T10:00:00Z`) or span (`2d`)."""
        moment = None if since is None else rfc3339(parse_since(since, self._repo.env.clock.now()))
        return self._repo.catalog.search(tags, moment)

    def query(self, predicate: str, *, select: str | None = None, limit: int | None = None) -> QueryResult:
        """Versions for which a CEL predicate is true; with `select` the values of that expression."""
        from swamp.catalog.query import query

        return query(self._repo.catalog, self._repo.artifacts, predicate, select=select, limit=limit)

    def text(self, version: DataVersion) -> str | None:
        """The content as text, if it is text (JSON included) of at most 1 MiB."""
        if version.meta.parts or version.meta.size > CONTENT_LIMIT:
            return None
        try:
            found = self._repo.artifacts.content(version, CONTENT_LIMIT).decode("utf-8")
        except UnicodeDecodeError:
            return None
        return None if "\0" in found else found

    def copy_to(self, version: DataVersion, target: Path) -> int:
        """The content as a file, or its parts as a directory; the number of bytes."""
        if target.is_dir() and not version.meta.parts:
            raise UsageError(f"{target} is a directory", hint="name a file to write to")
        return self._repo.artifacts.copy_to(version, target)

    # -- changing: one model at a time, pushed before it returns

    def put(
        self,
        model: str,
        name: str,
        content: Path | bytes | BinaryIO,
        *,
        content_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        lifetime: str | None = None,
    ) -> Put:
        """A new version, also of equal bytes. A model that has no definition becomes one of the type `manual/data`."""
        known = self._repo.definitions.find(model)
        ref = known or ModelRef(MANUAL_TYPE, auto_id(MANUAL_TYPE, model), check_model_name(model))
        data = DataName.of(ref.type, ref.id, name)
        if (tags or {}).get("modelName", ref.name) != ref.name:
            raise UsageError(
                "the tag `modelName` is swamp's own: it says which model the data belongs to",
                hint=f"choose another key; the model is `{ref.name}`",
            )
        draft = Draft(
            owner=Owner.manual(ref.id),
            content_type=content_type or guess_type(content),
            lifetime=Lifetime.parse(lifetime) if lifetime else FOREVER,
            tags={**(tags or {}), "modelName": ref.name},
        )
        auto_path = self._repo.definitions.auto_path(ref.type, ref.name)
        with self._repo.changes.model("data put", ref.type, ref.id, (auto_path,)) as change:
            if known is None:
                self._repo.definitions.auto(ref.type, ref.name)
            saved = [self._repo.artifacts.save(data, draft, content)]
            change.save_again = lambda conflicts: saved.append(self._saved_again(saved[-1], conflicts))
        change.must_be_delivered()
        return Put(saved[-1], change.sync)

    def _saved_again(self, lost: DataVersion, conflicts: Sequence[Conflict]) -> DataVersion:
        """The same bytes as the next version, if another machine was first with this one; any other clash stays."""
        kept = next((c.kept for c in conflicts if c.path.startswith(f"{lost.path}/")), None)
        if kept is None or not self._is_taken(lost):
            return lost
        directory, _, _ = str(self._repo.datastore.cache.base / kept).partition(f"{lost.path}/")
        return self._repo.artifacts.save_again(lost, Path(directory) / lost.path)

    def _is_taken(self, lost: DataVersion) -> bool:
        """Whether that very version is there now, from somewhere else: not merely a name that looks like it (S14)."""
        try:
            return self._repo.artifacts.read(lost.ref).meta.id != lost.meta.id
        except NotFound:
            return False

    def delete(self, model: str, name: str, version: int | None = None) -> int:
        """Removes one version, or all of a name, for everybody; how many there were. Raises NotFound."""
        data = self._named(model, name)
        with self._changing("data delete", data) as change:
            count = self._repo.artifacts.delete(data, version, confirmed=True)
            if count == 0:
                what = f"version {version} of {name}" if version is not None else f"data named {name}"
                raise NotFound(f"{model} has no {what}", hint=f"`swamp data list {model}` shows what it has")
        change.must_be_delivered()
        return count

    def rename(self, model: str, old: str, new: str) -> Renamed:
        """The latest version under a new name; the old one points to it. Raises NotFound."""
        check_name(new)
        data = self._named(model, old)
        with self._changing("data rename", data) as change:
            renamed = self._repo.artifacts.rename(data, new)
        change.must_be_delivered()
        return renamed

    def gc(self, *, dry_run: bool = False, confirmed: bool = False) -> Reclaimed:
        """Removes versions that their own retention or lifetime has given up."""
        collect = self._repo.artifacts.collect_garbage
        if dry_run:
            return collect(dry_run=True, run_over=self._repo.runs.is_over)
        with self._repo.changes.structural("data gc") as change:
            found = collect(run_over=self._repo.runs.is_over, confirmed=confirmed)
        change.must_be_delivered()
        return found

    def prune(self, *, dry_run: bool = False, confirmed: bool = False) -> Reclaimed:
        """Removes what nobody can see: soft-deleted names, dead forwards, abandoned writes."""
        if dry_run:
            return self._repo.artifacts.prune(dry_run=True)
        with self._repo.changes.structural("data prune") as change:
            found = self._repo.artifacts.prune(confirmed=confirmed)
        change.must_be_delivered()
        return found

    def _changing(self, command: str, data: DataName) -> Any:
        return self._repo.changes.model(command, data.type, data.model_id)

    # -- which model is meant

    def models(self, name: str) -> Sequence[ModelRef]:
        """Models of that name or id: by definition, and by what the data itself says. A reader needs no definitions."""
        found = [ref] if (ref := self._repo.definitions.find(name)) else []
        said = [ModelRef(t, i, n or i) for t, i, n in self._repo.catalog.models() if name in (n, i)]
        return [*found, *(ref for ref in said if (ref.type, ref.id) not in _keys(found))]

    def _known(self, model: str) -> Sequence[ModelRef]:
        """The same, of a model that may have no data (any more): one that has run is known everywhere by that."""
        found = self.models(model) or [ModelRef(d.type, d.id, d.name) for d in self._repo.evaluated.search(model)]
        if not found:
            raise NotFound(f"there is no model named {model}", hint="`swamp data list` shows which have data")
        return found

    def _named(self, model: str, name: str) -> DataName:
        """The data that MODEL NAME means: the defined model's, else the one that some model of that name has."""
        candidates = self.models(model)
        if not candidates:
            raise NotFound(f"there is no model named {model}", hint="`swamp data list` shows which have data")
        names = [DataName.of(ref.type, ref.id, name) for ref in candidates]
        holding = [data for data in names if self._repo.artifacts.numbers(data)]
        if len(holding) > 1 and holding[0] != names[0]:
            types = ", ".join(data.type for data in holding)
            raise UsageError(f"several models are called {model!r}", hint=f"use a model id; their types: {types}")
        return (holding or names)[0]


def _keys(refs: Iterable[ModelRef]) -> set[tuple[str, str]]:
    return {(ref.type, ref.id) for ref in refs}


def guess_type(content: Path | bytes | BinaryIO) -> str:
    """By the file's name, else by its first bytes: text or not."""
    if isinstance(content, Path):
        known = mimetypes.guess_type(content.name)[0]
        if known or not content.is_file():
            return known or "application/octet-stream"
        with content.open("rb") as file:
            return _sniff(file.read(_SNIFFED))
    if isinstance(content, bytes):
        return _sniff(content[:_SNIFFED])
    peek = getattr(content, "peek", None)  # standard input: its first bytes, without taking them
    return _sniff(peek(_SNIFFED)[:_SNIFFED]) if peek else "application/octet-stream"


def _sniff(head: bytes) -> str:
    if b"\0" in head:
        return "application/octet-stream"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return "text/plain" if error.start > len(head) - 4 and len(head) == _SNIFFED else "application/octet-stream"
    return "text/plain"


def parse_since(text: str, now: dt.datetime) -> dt.datetime:
    """An ISO time, or a span before now such as `1h` or `2d`. Raises UsageError."""
    span = parse_duration(text)
    try:
        if span is not None:
            return now - span
        found = parse_rfc3339(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is not a time", hint="allowed: 2026-11-15T10:00:00Z, or 1h, 2d, 3w") from error
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def describe(version: DataVersion) -> dict[str, Any]:
    """A version as `data get` and `data put` print it."""
    meta = version.meta
    document: dict[str, Any] = {
        "name": version.name,
        "version": version.version,
        "modelName": version.model_name or version.ref.data.model_id,
        "modelType": version.ref.data.type,
        "modelId": version.ref.data.model_id,
        "contentType": meta.content_type,
        "lifetime": meta.draft.lifetime.text,
        "createdAt": meta.created_at,
        "tags": dict(meta.tags),
        "checksum": meta.checksum,
        "size": meta.size,
    }
    if meta.parts:
        document["parts"] = [{"name": p.name, "size": p.size, "checksum": p.checksum} for p in meta.parts]
    return document
