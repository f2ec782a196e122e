"""The files of one version as they were saved: verified before anything is made of them."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from swamp.cache.files import hash_file, on_disk
from swamp.data.document import damaged
from swamp.data.suggest import meant
from swamp.data.versions import DataVersion
from swamp.errors import NotFound, UsageError

if TYPE_CHECKING:
    from swamp.data.artifacts import DataRepository


@dataclass(frozen=True)
class File:
    """One file of a version; `name` is empty where the version is a single file."""

    name: str
    path: Path
    size: int
    checksum: str


@dataclass(frozen=True)
class Contents:
    """Reads versions of one repository."""

    artifacts: DataRepository

    def files(self, version: DataVersion) -> Iterator[File]:
        """All files, in the order of their names, as the metadata tells of them."""
        if not version.meta.has_parts:
            yield File("", self.artifacts.raw(version), version.meta.size, version.meta.checksum)
            return
        raw = self.artifacts.raw(version)
        for part in self.artifacts.parts(version):
            yield File(part.name, raw / part.name, part.size, part.checksum)

    def file(self, version: DataVersion, part: str | None = None) -> File:
        """The one file, or the named part, verified. Raises UsageError, NotFound or CorruptData."""
        if not version.meta.has_parts:
            if part is not None:
                raise UsageError(f"{version.name} is a single file: it has no part `{part}`", hint="leave out --part")
            return self.verified(version, next(self.files(version)))
        if part is None:
            first = next(self.files(version)).name
            raise UsageError(
                f"{version.name} has {version.meta.part_count} parts and is no single file",
                hint=f"name one with --part, such as `{first}`, or get all of them with `data get --output DIR`",
            )
        found = next((one for one in self.files(version) if one.name == part), None)
        if found is None:
            names = [one.name for one in itertools.islice(self.files(version), 10_000)]
            raise NotFound(
                f"{version.name} has no part `{part}`", hint=f"{meant(part, names)}`swamp data show` lists its parts"
            )
        return self.verified(version, found)

    def verified(self, version: DataVersion, file: File) -> File:
        """The same file, after its bytes were compared with its checksum. Raises CorruptData."""
        where = f"{version.ref.raw_path}/{file.name}".rstrip("/")
        with on_disk("read", where):
            if not file.path.is_file():
                raise damaged(where, "it is in the metadata and not on disk")
            sha256 = hash_file(file.path).sha256
        if file.checksum and sha256 != file.checksum:
            raise damaged(where, "its bytes do not have the checksum in its metadata")
        return file

    def write_to(self, version: DataVersion, out: BinaryIO, part: str | None = None) -> int:
        """The bytes and nothing else, after they were compared with their checksum; how many. inv[cli.bytes-alone]"""
        found = self.file(version, part)
        with on_disk("read", version.ref.raw_path), found.path.open("rb") as source:
            shutil.copyfileobj(source, out, 1 << 20)
        return found.size
