"""Data by model and name: what `swamp data` does and what a program uses."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.catalog.schema import Row, newest_shown, versions_shown
from swamp.data.artifacts import Renamed
from swamp.data.lifetimes import Reclaimed, parse_duration
from swamp.data.names import DataName, check_name, meant, normalise_type, suggest
from swamp.data.records import Read, note, read_so_far
from swamp.data.versions import DataVersion
from swamp.env import parse_rfc3339, rfc3339
from swamp.errors import Failed, LockTimeout, NotFound, StoreError, UsageError
from swamp.repo.put import Put, Puttable, Putting, accepted

if TYPE_CHECKING:
    from swamp.catalog.query import QueryMatches
    from swamp.commit.restore import Undeleted
    from swamp.data.records import StoredDefinition
    from swamp.repo.contents import Contents
    from swamp.repo.repository import Repo

CONTENT_LIMIT: Final = 1 << 20


Agree = Callable[[Reclaimed], None]
"""Is shown what would be deleted; raises when that is not agreed to."""


class Data:
    """The data of one repository."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo

    # -- reading: no lease; the store is asked first (`fresh`, see `Repo.freshen`), content is fetched when it is read

    def list(
        self,
        model: str | None = None,
        *,
        type: str | None = None,  # noqa: A002 - the contract's word
        workflow: str | None = None,
        run: str | None = None,
        fresh: bool | None = None,
    ) -> Sequence[Row]:
        """The latest version of every name, of one model or of all; by the names that people know."""
        self._repo.freshen(fresh)
        model_type = normalise_type(type) if type else None
        found = self._repo.catalog.latest(model_type=model_type, workflow=workflow, run_id=run)
        if workflow is None and run is None:
            found = newest_shown(found, self._repo.artifacts.elsewhere(), model_type)
        found.sort(key=lambda row: (row.model_name, row.ref.data.name, row.ref.data.type))
        if model is None:
            return found
        wanted = {(ref.type, ref.id) for ref in self._known(model)}
        return [row for row in found if (row.ref.data.type, row.ref.data.model_id) in wanted]

    def get(self, model: str, name: str, version: int | None = None, *, fresh: bool | None = None) -> DataVersion:
        """One version, or the latest, to be read. Raises NotFound, with what was probably meant."""
        found = self.find(model, name, version, fresh=fresh)
        note(found.artifact())
        return found

    def find(self, model: str, name: str, version: int | None = None, *, fresh: bool | None = None) -> DataVersion:
        """The same for who only looks at it: nobody says that it was read."""
        self._repo.freshen(fresh)
        data = self._named(model, name)
        try:
            return self._repo.artifacts.get(data, version)
        except NotFound:
            if self._repo.artifacts.numbers(data):
                raise
            raise self._no_data(model, name) from None

    def versions(self, model: str, name: str, *, fresh: bool | None = None) -> Sequence[Row]:
        """The versions of a name that hold data, newest first. Raises NotFound when there are none."""
        self._repo.freshen(fresh)
        data = self._named(model, name)
        found = versions_shown(self._repo.catalog.versions(data), self._repo.artifacts.elsewhere(), data)
        if not found:
            raise self._no_data(model, name)
        return found

    def pair(
        self, model: str, name: str, first: int | None, second: int | None, *, fresh: bool | None = None
    ) -> tuple[DataVersion, DataVersion]:
        """Two versions to compare: the last two, `first` and the latest, or `first` and `second`. Raises NotFound."""
        new = self.get(model, name, second, fresh=fresh)
        fresh = None if fresh else fresh  # asked once is asked
        if first is None:
            numbers = [row.ref.version for row in self.versions(model, name, fresh=fresh)]
            first = next((number for number in numbers if number < new.version), None)
            if first is None:
                raise NotFound(f"{name} has only one version", hint="there is nothing to compare it with")
        return self.get(model, name, first, fresh=fresh), new

    def search(
        self, tags: Iterable[tuple[str, str]] = (), since: str | None = None, *, fresh: bool | None = None
    ) -> Sequence[Row]:
        """The latest versions with all these tags, made since a time (`2026-11-15T10:00:00Z`) or span (`2d`)."""
        self._repo.freshen(fresh)
        moment = None if since is None else rfc3339(parse_since(since, self._repo.env.clock.now()))
        found = self._repo.catalog.search(tags, moment)
        names = {row.ref.data for row in found}
        elsewhere = {ref: why for ref, why in self._repo.artifacts.elsewhere().items() if ref.data in names}
        return newest_shown(found, elsewhere)

    def query(
        self, predicate: str, *, select: str | None = None, limit: int | None = None, fresh: bool | None = None
    ) -> QueryMatches:
        """Versions for which a CEL predicate is true; with `select` the values of that expression."""
        from swamp.catalog.query import query

        self._repo.freshen(fresh)
        seconds, artifacts = self._repo.settings.query_timeout, self._repo.artifacts
        elsewhere = artifacts.elsewhere()
        newer = {ref.data: ref.version for ref in sorted(elsewhere)}
        found = query(
            self._repo.catalog, artifacts, predicate, select=select, limit=limit, seconds=seconds, newer=newer
        )
        # No predicate can be asked of what is not here: it is told instead (S23).
        away = [{**ref.fields(), "reason": why} for ref, why in sorted(elsewhere.items())]
        told = [f"version {i['version']} of {i['name']} is in the datastore and not here: {i['reason']}" for i in away]
        return replace(found, not_here=away, warnings=[*found.warnings, *told])

    def text(self, version: DataVersion) -> str | None:
        """The content as text, if it is text (JSON included) of at most 1 MiB."""
        if version.meta.has_parts or version.meta.size > CONTENT_LIMIT:
            return None
        try:
            found = self._repo.artifacts.content(version, CONTENT_LIMIT).decode("utf-8")
        except UnicodeDecodeError:
            return None
        return None if "\0" in found else found

    @property
    def contents(self) -> Contents:
        """The files of versions, verified."""
        from swamp.repo.contents import Contents

        return Contents(self._repo.artifacts)

    def copy_to(self, version: DataVersion, target: Path) -> int:
        """The content as a file, or its parts as a directory; the number of bytes."""
        if target.is_dir() and not version.meta.has_parts:
            raise UsageError(f"{target} is a directory", hint="name a file to write to")
        return self._repo.artifacts.copy_to(version, target)

    # -- changing: one model at a time, pushed before it returns

    def put(
        self,
        model: str,
        name: str,
        content: Puttable,
        *,
        content_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        lifetime: str | None = None,
        keep: str | int | None = None,
        inputs: Sequence[Read] | None = None,
    ) -> Put:
        """A new version, also of equal bytes. A model that has no definition becomes one of the type `manual/data`.

        `inputs`: the versions it was made from; what the run has read so far, where this is part of one.
        With the store away before anything began, the put is kept in the outbox and Unavailable is raised: it says so.
        """
        with accepted(content) as (given, guessed):
            said = {"contentType": content_type or guessed, "tags": dict(tags or {})}
            made_from = [dict(one) for one in (read_so_far() if inputs is None else inputs)]
            kept = {"lifetime": lifetime, "keep": None if keep is None else str(keep), "inputs": made_from}
            return Putting(self._repo).put(model, name, given, {**said, **kept})

    def delete(self, model: str, name: str, version: int | None = None) -> int:
        """Removes one version, or all of a name, for everybody; how many were here. Raises NotFound, unless an earlier
        delete of it, killed before its push, still waits: that is delivered."""
        data = self._named_anywhere(model, name)
        with self._repo.changes.model("data delete", data.type, data.model_id) as change:
            count = self._repo.artifacts.delete(data, version, confirmed=True)
            path = data.path if version is None else data.at(version).path
            if not self._repo.changes.take_over(change, "delete", (path,)) and count == 0:
                if version is None:
                    raise self._no_data(model, name)
                raise NotFound(f"{model} has no version {version} of {name}", hint=_SHOWS.format(model))
        change.must_be_delivered()
        return count

    def undelete(self, model: str, name: str) -> Undeleted:
        """Brings a deleted name back with the versions it had. Raises NotFound if nothing of it was deleted."""
        self._repo.datastore.must_sync()
        self._repo.freshen(True)
        paths = [DataName.of(ref.type, ref.id, name).path for ref in self._known(model)]
        hint = "what was deleted within the undo window can come back: `swamp datastore log` shows what happened"
        try:
            done = self._repo.datastore.maintenance.undelete(paths)
        except NotFound as error:
            raise NotFound(f"nothing of {name} of {model} was deleted", hint=hint) from error
        if not done.restored and not done.gone:
            raise NotFound(f"{name} of {model} is there: nothing of it was deleted", hint=hint)
        return replace(done, gone=tuple(path for path in done.gone if path not in paths))

    def rename(self, model: str, old: str, new: str) -> Renamed:
        """The latest version under a new name; the old one points to it. Raises NotFound."""
        check_name(new)
        data = self._named_anywhere(model, old)
        with self._repo.changes.model("data rename", data.type, data.model_id) as change:
            renamed = self._repo.artifacts.rename(data, new, unshared=self._repo.changes.wait_here(data.path))
            self._repo.changes.take_over(change, "write", (data.path, renamed.new.ref.data.path))
        change.must_be_delivered()
        return renamed

    def gc(self, *, dry_run: bool = False, confirmed: bool = False, agree: Agree | None = None) -> Reclaimed:
        """Removes versions that their own retention or lifetime has given up; exactly those that `agree` was shown."""
        collect = partial(self._repo.artifacts.collect_garbage, run_over=self._repo.runs.is_over)
        return self._reclaimed("data gc", collect, dry_run, confirmed, agree)

    def collect_after_run(self, warn: Callable[[str], None] | None = None) -> Reclaimed | None:
        """`autoGc: true`: versions that their lifetime or retention has given up go after a run. It fails no run."""
        if not self._repo.settings.auto_gc or self._repo.cancel.requested:
            return None
        try:
            return self.gc()
        except (LockTimeout, Failed, StoreError) as error:
            (warn or self._repo.notify)(f"garbage was not collected: {error.message}")
            return None

    def prune(self, *, dry_run: bool = False, confirmed: bool = False, agree: Agree | None = None) -> Reclaimed:
        """Removes what nobody can see: soft-deleted names, dead forwards, abandoned writes."""
        return self._reclaimed("data prune", self._repo.artifacts.prune, dry_run, confirmed, agree)

    def _reclaimed(
        self, command: str, collect: Callable[..., Reclaimed], dry_run: bool, confirmed: bool, agree: Agree | None
    ) -> Reclaimed:
        """Looks at the store before it says anything, and asks before any lease is held (C26)."""
        from swamp.repo.leases import times_of

        only = None
        if dry_run or agree is not None:
            if self._repo.datastore.synced:
                self._repo.datastore.pull()
            planned = collect(dry_run=True, times=times_of(self._repo.datastore))
            if dry_run:
                return planned
            if planned.refs and agree is not None:
                agree(planned)
                confirmed = True
            only = frozenset(planned.refs)
        with self._repo.changes.structural(command) as change:
            found = collect(confirmed=confirmed, times=times_of(self._repo.datastore), only=only)
            self._repo.changes.take_over(change, "delete")
        change.must_be_delivered()
        return found

    # -- which data is meant

    def _no_model(self, model: str) -> NotFound:
        names = self._repo.definitions.names()
        hint = f"{meant(model, names)}`swamp data list` shows which have data"
        return NotFound(f"there is no model named {model}", hint=hint, details=_suggested(model, names))

    def _no_data(self, model: str, name: str) -> NotFound:
        refs = {(ref.type, ref.id) for ref in self._repo.definitions.named(model)}
        rows = self._repo.catalog.latest()
        names = {row.ref.data.name for row in rows if (row.ref.data.type, row.ref.data.model_id) in refs}
        hint = meant(name, names) + _SHOWS.format(model)
        return NotFound(f"{model} has no data named {name}", hint=hint, details=_suggested(name, names))

    def _known(self, model: str) -> Sequence[StoredDefinition]:
        """Models of that name, also one that has no data (any more): one that has run is known everywhere by that."""
        if found := self._repo.definitions.named(model):
            return found
        if found := list(self._repo.evaluated.search(model)):
            return found
        raise self._no_model(model)

    def _named(self, model: str, name: str) -> DataName:
        """The data that MODEL NAME means: the defined model's, else the one that some model of that name has."""
        candidates = self._repo.definitions.named(model)
        if not candidates:
            raise self._no_model(model)
        names = [DataName.of(ref.type, ref.id, name) for ref in candidates]
        holding = [data for data in names if self._repo.artifacts.numbers(data)]
        if len(holding) > 1 and holding[0] != names[0]:
            types = ", ".join(data.type for data in holding)
            raise UsageError(f"several models are called {model!r}", hint=f"use a model id; their types: {types}")
        return (holding or names)[0]

    def _named_anywhere(self, model: str, name: str) -> DataName:
        """The same for a change: what is not known here is looked for in the store before it is said not to exist."""
        with suppress(NotFound):
            data = self._named(model, name)
            if self._repo.artifacts.numbers(data):
                return data
        self._repo.freshen(True)
        return self._named(model, name)


_SHOWS: Final = "`swamp data list {}` shows what it has"


def _suggested(word: str, known: Iterable[str]) -> dict[str, Any]:
    found = suggest(word, known)
    return {"suggestions": [found]} if found is not None else {}


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


_DESCRIBED: Final = tuple(
    "name version modelName modelType modelId contentType lifetime retention createdAt tags checksum size".split()
)


def describe(version: DataVersion) -> dict[str, Any]:
    """A version as `data get` and `data put` print it."""
    meta = version.meta
    document = version.fields(*_DESCRIBED)
    if meta.has_parts:
        document["partCount"] = meta.part_count
    if meta.parts:
        document["parts"] = [{"name": p.name, "size": p.size, "checksum": p.checksum} for p in meta.parts]
    return document
