"""Reads versions from the tree: which there are, which one is meant, and its bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Protocol

from swamp.cache.files import CHUNK, disk_error, on_disk, read_at_most, remove_empty_parents, stage_file
from swamp.cache.paths import TEMP_PREFIX, is_safe
from swamp.data.document import damaged
from swamp.data.metadata import MAX_METADATA, Metadata, artifact_document, decode, version_fields
from swamp.data.names import (
    DATA,
    LATEST,
    METADATA,
    RAW,
    DataName,
    VersionRef,
    name_of_directory,
    parse_version,
    version_of,
)
from swamp.data.parts import Part, copy_part, read_manifest
from swamp.errors import CorruptData, Failed, NotFound, UsageError
from swamp.sync.bulk import Work
from swamp.sync.port import Tree
from swamp.values import value

if TYPE_CHECKING:
    from swamp.bulk.choose import Chooser
    from swamp.bulk.jobs import Jobs
    from swamp.bulk.spread import Address
    from swamp.sync.progress import IdleTimeout

MAX_HOPS: Final = 16


@value
class DataVersion:
    """A version that exists: where it is and what it is. Holds all that is needed to save the same again."""

    ref: VersionRef
    meta: Metadata

    @property
    def name(self) -> str:
        return self.ref.data.name

    @property
    def version(self) -> int:
        return self.ref.version

    @property
    def path(self) -> str:
        return self.ref.path

    @property
    def model_name(self) -> str | None:
        return self.meta.tags.get("modelName")

    @property
    def called(self) -> str:
        """The model's name, or its id where data carries none."""
        return self.model_name or self.ref.data.model_id

    def fields(self, *names: str) -> dict[str, Any]:
        """These fields of its row, in this order; `modelName` is never empty."""
        row = {**version_fields(self.ref, self.meta), "modelName": self.called}
        return {name: row[name] for name in names}

    def artifact(self) -> dict[str, Any]:
        return artifact_document(self.ref, self.called)


class Recorder(Protocol):
    """What a repository tells after each change; the catalog is one."""

    def record(self, version: DataVersion) -> None: ...

    def forget(self, refs: list[VersionRef]) -> None: ...


class VersionReader:
    """The versions in a tree. Reads only, trusts no `latest`: the newest is the highest with metadata."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def numbers(self, data: DataName) -> list[int]:
        """The versions that exist, newest first, tombstones included."""
        self._tree.bring_back(data.path)
        directory = self._tree.root / data.path
        found = [n for n in numbers_in(directory) if (directory / str(n) / METADATA).is_file()]
        return sorted(found, reverse=True)

    def highest_taken(self, data: DataName) -> int:
        """The highest number that anyone is known to use, also of a version that is not or not wholly here."""
        known = (version_of(file.path) for file in self._tree.remote_only(data.path))
        owed = (ref for ref, _ in self._owed(data.path))
        taken = [ref.version for ref in (*known, *owed) if ref is not None and ref.data == data]
        return max((*taken, *numbers_in(self._tree.root / data.path)), default=0)

    def read(self, ref: VersionRef) -> DataVersion:
        """Exactly this version, whatever its lifecycle. Raises NotFound or CorruptData."""
        try:
            raw = read_at_most(self._tree.root / ref.metadata_path, MAX_METADATA)
        except (FileNotFoundError, NotADirectoryError):
            hint = f"`swamp data versions MODEL {ref.data.name}` shows which there are"
            raise NotFound(f"{ref.data.name} has no version {ref.version}", hint=hint) from None
        except OSError as error:
            raise disk_error(error, "read", ref.metadata_path) from error
        return DataVersion(ref, decode(raw, ref.metadata_path))

    def newest(self, data: DataName, *, readable: bool = False) -> DataVersion | None:
        """The highest version, tombstone or not; None if there is none.

        `readable`: whose metadata can be read; one that is damaged stops no new version, the catalog warns of it, and
        `data get` says what is wrong (L75).
        """
        for number in self.numbers(data):
            try:
                return self.read(data.at(number))
            except NotFound:
                continue  # deleted between the listing and now
            except CorruptData:
                if not readable:
                    raise
        return None

    def elsewhere(self, under: str = DATA) -> dict[VersionRef, str]:
        """Versions that the store has and that could not be brought here, each with the reason (S23)."""
        found = dict(self._owed(under))
        return {ref: why for ref, why in found.items() if not (self._tree.root / ref.metadata_path).exists()}

    def incomplete(self) -> frozenset[DataName]:
        """Names of which a version could not be brought: what is newest, nobody here can say."""
        return frozenset(ref.data for ref, _ in self._owed(DATA))

    def _owed(self, under: str) -> Iterator[tuple[VersionRef, str]]:
        """What the last pull could not bring: the version of each file, and why."""
        for file in self._tree.deferred(under):
            if (ref := version_of(file.path)) is not None:
                yield ref, file.why

    def refuse_absent(self, data: DataName, here: int, asked: int | None = None) -> None:
        """Raises Failed if the version that is asked for, or one above `here`, could not be brought: an older one is
        never taken for the latest."""
        absent = {ref.version: why for ref, why in self._owed(data.path) if ref.data == data}
        version = asked or max(absent, default=0)
        if (why := absent.get(version)) is not None and version > here:
            instead = f"; version {here} is here, and `--version {here}` reads it" if here else ""
            raise Failed(
                f"version {version} of {data.name} is in the datastore and could not be brought here: {why}",
                hint=f"`swamp datastore sync` tries again, `swamp datastore verify` says what is lost{instead}",
            )

    def get(self, data: DataName, version: int | None = None) -> DataVersion:
        """This version, or the latest one, following renames. Raises NotFound."""
        if version is not None:
            if not (self._tree.root / data.at(version).metadata_path).exists():
                self.refuse_absent(data, 0, version)
            found = self.read(data.at(version))
            if found.meta.active:
                return found
            raise NotFound(f"version {version} of {data.name} only says that it was {found.meta.lifecycle}")
        here = data
        for _ in range(MAX_HOPS):
            newest = self.newest(here)
            self.refuse_absent(here, newest.version if newest else 0)
            if newest is None:
                raise NotFound(f"there is no data named {here.name}", hint="`swamp data list` shows what is there")
            if newest.meta.active:
                return newest
            if newest.meta.renamed_to is None:
                raise NotFound(
                    f"{here.name} was deleted",
                    hint=f"its history is still there: `swamp data versions MODEL {here.name}`",
                )
            here = here.sibling(newest.meta.renamed_to)
        raise NotFound(f"{data.name} was renamed in a circle", hint="`swamp data rename` one of them to a new name")

    def versions(self, data: DataName) -> list[DataVersion]:
        """The versions that hold data, newest first."""
        found = (self.read(data.at(number)) for number in self.numbers(data))
        return [version for version in found if version.meta.active]

    def names(self, under: str = DATA) -> Iterator[DataName]:
        """Every data name below a directory of the tree, also one that has only unfinished versions."""
        for directory, children, _ in os.walk(self._tree.root / under):
            if not any(parse_version(child) for child in children):
                children.sort()
                continue
            path = Path(directory).relative_to(self._tree.root).as_posix()
            data = name_of_directory(path)
            if data is not None and (holds_version(Path(directory), children) or Path(directory, LATEST).exists()):
                children.clear()
                yield data

    def raw(self, version: DataVersion) -> Path:
        """The local file or directory of parts, fetched first where the cache is lazy."""
        return self._tree.materialize(version.ref.raw_path)

    def open(self, version: DataVersion) -> BinaryIO:
        """The bytes of a single-file artifact, to be read and closed by the caller."""
        path = self.raw(version)
        if path.is_dir():
            raise UsageError(f"{version.name} has several parts", hint="use `--output DIR` to get them as files")
        with on_disk("read", version.ref.raw_path):
            return path.open("rb")

    def content(self, version: DataVersion, limit: int | None = None) -> bytes:
        """All bytes, verified. Raises UsageError if there are more than `limit`."""
        if limit is not None and version.meta.size > limit:
            raise UsageError(f"{version.name} has {version.meta.size} bytes", hint="use `--output FILE`")
        with closing(self.open(version)) as file:
            data = file.read()
        _verify(version, hashlib.sha256(data).hexdigest())
        return data

    def copy_to(self, version: DataVersion, target: Path) -> int:
        """Copies the content to a file, or its parts to a directory, verified; the number of bytes."""
        source = self.raw(version)
        if not version.meta.has_parts and not source.is_dir():
            return _copy_file(version, source, target)
        with on_disk("write", str(target)):
            target.parent.mkdir(parents=True, exist_ok=True)
            there = [file.relative_to(target) for file in target.rglob("*") if not file.is_dir()]
            with tempfile.TemporaryDirectory(prefix=TEMP_PREFIX, dir=target.parent) as folder:
                return self._copy_parts(version, source, Path(folder) / "parts", target, there)

    def _copy_parts(self, version: DataVersion, source: Path, beside: Path, target: Path, there: Iterable[Path]) -> int:
        """All parts, each of them verified, or none of them (L63). inv[parts.all-or-nothing]"""
        beside.mkdir()
        if not version.meta.has_parts:  # another client's: it says nothing of what is in the directory
            shutil.copytree(source, beside, dirs_exist_ok=True)
        for part in self.parts(version):
            copy_part(f"{version.ref.raw_path}/{part.name}", source / part.name, beside / part.name, part)
        if not target.exists():
            beside.rename(target)
            return version.meta.size
        strange = next((file for file in there if not (beside / file).exists()), None)
        if strange is not None:  # two versions in one directory are neither of them
            raise UsageError(
                f"{target} holds {strange}, which is no part of version {version.version}",
                hint="name a directory that is empty or not there yet",
            )
        for file in (p for p in beside.rglob("*") if p.is_file()):
            place = target / file.relative_to(beside)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.replace(place)
        return version.meta.size

    def parts(self, version: DataVersion) -> Iterator[Part]:
        """The parts of a version in name order, a batch at a time; none for one file. Raises CorruptData."""
        path, manifest, found = version.ref.manifest_path, version.meta.manifest, iter(version.meta.parts)
        if manifest is not None:
            try:
                found = read_manifest(self._tree.materialize(path), manifest, path)
            except NotFound as error:
                raise damaged(path, "it is missing, and it lists the parts") from error
        for part in found:
            if not is_safe(f"{version.ref.raw_path}/{part.name}"):
                raise damaged(path if manifest else version.ref.metadata_path, "a part has a name that cannot be")
            yield part


def numbers_in(directory: Path) -> list[int]:
    """The version numbers that a data name's directory holds directories of, whatever is in them."""
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only, no stat
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise disk_error(error, "read", str(directory)) from error
    return [number for number in map(parse_version, names) if number is not None]


def holds_version(directory: Path, children: Iterable[str]) -> bool:
    """A number as a directory name is a version if it holds one: types and ids may be numbers too."""
    inside = (directory / child for child in children if parse_version(child))
    return any((version / METADATA).exists() or (version / RAW).exists() for version in inside)


def _copy_file(version: DataVersion, source: Path, target: Path) -> int:
    with on_disk("read", version.ref.raw_path), source.open("rb") as file:
        staged = stage_file(target.parent, iter(lambda: file.read(CHUNK), b""))
    try:
        _verify(version, staged.sha256)
        with on_disk("write", str(target)):
            staged.path.replace(target)
    except BaseException:
        staged.discard()
        raise
    return staged.size


def _verify(version: DataVersion, sha256: str) -> None:
    """Bytes that are not what was saved are never handed out as if they were."""
    if version.meta.checksum and sha256 != version.meta.checksum:
        raise torn(version)


def torn(version: DataVersion) -> CorruptData:
    return damaged(version.ref.raw_path, "its bytes do not have the checksum in its metadata")


# -- metadata in bulk, for a catalog that is rebuilt: a million small YAML files are work for every core

AT_ONCE: Final = 50_000


@value
class ParseMetadata:
    """Paths of metadata files -> what they say."""

    tree: str
    beacon: Address | None = None

    def __call__(self, paths: Iterable[str]) -> Iterator[tuple[str, Metadata | CorruptData]]:
        from swamp.bulk.spread import Beat

        with Beat(self.beacon) as beat:
            for path in paths:
                beat.add(1)
                try:
                    yield path, decode((Path(self.tree) / path).read_bytes(), path)
                except CorruptData as error:
                    yield path, CorruptData(error.message)
                except OSError:
                    continue  # gone meanwhile: it is no version any more


Parsed = Iterator[tuple[VersionRef, "DataVersion | CorruptData"]]


def read_many(chooser: Chooser, tree: Tree, idle_timeout: IdleTimeout, refs: list[VersionRef]) -> Parsed:
    """The metadata of many versions, by the engine that so many files are worth; what is gone meanwhile is left out."""
    executor, reader = chooser.on_spark(Work("hash", len(refs), 0)), VersionReader(tree)
    if executor is not None:
        yield from parse_on_spark(executor.jobs, tree.root, idle_timeout, refs)
        return
    for ref in refs:
        idle_timeout.cancel.check()
        try:
            yield ref, reader.read(ref)
        except NotFound:
            continue
        except CorruptData as error:
            yield ref, error


def parse_on_spark(jobs: Jobs, tree: Path, idle_timeout: IdleTimeout, refs: list[VersionRef]) -> Parsed:
    """The same on Spark, for a tree that the executors see."""
    from swamp.bulk.shares import by_count

    kernel, by_path = ParseMetadata(str(tree), jobs.beacon), {ref.metadata_path: ref for ref in refs}
    for start in range(0, len(refs), AT_ONCE):
        chunk = [ref.metadata_path for ref in refs[start : start + AT_ONCE]]
        shares = by_count(chunk, jobs.parallelism * 4)
        for path, found in jobs.run("catalog", partial(jobs.spread, shares, kernel), idle_timeout, files=len(chunk)):
            yield by_path[path], found if isinstance(found, CorruptData) else DataVersion(by_path[path], found)


# -- `latest` markers: for people and scripts. They are never synced and nothing in swamp reads them. S01, S02


def derive_latest(root: Path, names: Iterable[str]) -> None:
    """Writes the marker of every name whose versions a pull touched: its highest version with metadata."""
    for data in filter(None, map(name_of_directory, names)):
        numbers = sorted(numbers_in(root / data.path), reverse=True)
        mark_latest(root, data, next((n for n in numbers if (root / data.at(n).metadata_path).is_file()), None))


def mark_latest(root: Path, data: DataName, newest: int | None) -> None:
    """Makes the `latest` marker of a name say its newest version; without one the marker and empty directories go."""
    marker = root / data.path / LATEST
    if newest is None:
        marker.unlink(missing_ok=True)
        remove_empty_parents(root, f"{data.path}/{LATEST}")
        return
    text = f"{newest}\n"
    try:
        if marker.read_text(encoding="ascii") == text:
            return
    except (OSError, ValueError):
        pass  # none yet, or not readable: written anew
    with on_disk("write", f"{data.path}/{LATEST}"):
        stage_file(marker.parent, [text.encode()], durable=False).path.replace(marker)
