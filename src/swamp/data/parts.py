"""A directory becomes the parts of a version: checked before anything is saved, copied, flushed once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from swamp.cache.files import CHUNK, disk_error, hash_file, on_disk, sync_directory
from swamp.cache.paths import fold, safe_path, shown
from swamp.cache.places import FLUSH_TOGETHER, can_flush_together, flush_together
from swamp.data.manifest import Content, Part, PartsWriter
from swamp.data.names import VersionRef
from swamp.errors import UsageError
from swamp.sync.progress import Progress, Silent

Pace = Callable[[], None]
"""Called between files; raises when the user has had enough."""


def keep_going() -> None: ...


class Found(NamedTuple):
    """One file of a directory: its name below it, where it is, its size."""

    name: str
    file: str
    size: int


class Survey(NamedTuple):
    files: int
    size: int


def survey(source: Path, below: str) -> Survey:
    """How much a directory holds. Raises UsageError for what could not travel as a part of `below`: before anything is
    saved, because a part that is left out silently is lost (L62, L68). inv[parts.all-or-nothing]"""
    files = size = 0
    for found in listed(source, below):
        files, size = files + 1, size + found.size
    if not files:
        raise UsageError(f"{source} holds no files", hint="an artifact of several parts needs at least one")
    return Survey(files, size)


def listed(source: Path, below: str) -> Iterator[Found]:
    """Every file of a directory in the order of their whole names, as `combined_checksum` takes them."""
    stack: list[tuple[str, Iterator[os.DirEntry[str]]]] = [("", _entries(source, "", below))]
    while stack:
        prefix, rest = stack[-1]
        entry = next(rest, None)
        if entry is None:
            stack.pop()
        elif entry.is_dir(follow_symlinks=False):
            inside = f"{prefix}{entry.name}/"
            stack.append((inside, _entries(Path(entry.path), inside, below)))
        else:
            yield Found(prefix + entry.name, entry.path, _size(entry))


def _size(entry: os.DirEntry[str]) -> int:
    with on_disk("read", entry.path):
        return entry.stat().st_size


def _entries(directory: Path, prefix: str, below: str) -> Iterator[os.DirEntry[str]]:
    """A directory's entries in path order: a directory counts as `name/`, so that `a-b` comes before `a/b`."""
    with on_disk("read", str(directory)), os.scandir(directory) as scanned:
        found = {e.name + "/" * e.is_dir(follow_symlinks=False): e for e in scanned}
    folded: dict[str, str] = {}
    for entry in found.values():
        _check(entry, f"{below}/{prefix}{entry.name}")
        other = folded.setdefault(fold(entry.name), entry.name)
        if other != entry.name:
            raise UsageError(
                f"{shown(prefix + other)} and {shown(prefix + entry.name)} are the same name on some machines",
                hint="rename one of them: nothing was saved",
            )
    return iter([found[name] for name in sorted(found)])


def _check(entry: os.DirEntry[str], path: str) -> None:
    """Raises UsageError for a name that cannot travel, and for what is no file and no directory."""
    try:
        safe_path(path)
    except UsageError as error:
        error.hint = f"rename {shown(entry.path)}: nothing was saved"
        raise
    if entry.is_file() or entry.is_dir(follow_symlinks=False):
        return
    kind = "a link to a directory" if entry.is_dir() else "a link that leads nowhere"
    what = kind if entry.is_symlink() else "neither a file nor a directory"
    raise UsageError(f"{shown(entry.path)} is {what}", hint="put what it means in its place: nothing was saved")


@dataclass(frozen=True)
class Filler:
    """Copies a directory into a version that does not exist yet, and measures one that somebody else has filled."""

    root: Path
    progress: Progress = field(default_factory=Silent)
    pace: Pace = keep_going

    def fill(self, ref: VersionRef, source: Path, expected: Survey) -> Content:
        """Every file below `source` as a part. Nothing of it is a version before its metadata is written, so all of
        it is flushed at once (docs/decisions/0008-one-flush.md)."""
        raw = self.root / ref.raw_path
        raw.mkdir()
        together = expected.files >= FLUSH_TOGETHER and can_flush_together(raw)
        made = {str(raw)}
        self.progress.begin("saving", expected.files, expected.size)
        try:
            with PartsWriter(self.root / ref.manifest_path) as parts:
                for found in listed(source, ref.raw_path):
                    self.pace()
                    part = _copied(found, f"{raw}/{found.name}", made, durable=not together)
                    self.progress.advance(1, part.size)
                    parts.add(part)
                return self._flushed(raw, made, parts, together)
        finally:
            self.progress.end()

    def _flushed(self, raw: Path, made: set[str], parts: PartsWriter, together: bool) -> Content:
        with on_disk("flush", str(raw)):
            if together:
                flush_together(raw)
            else:
                for directory in sorted(made):
                    sync_directory(Path(directory))
        return parts.done()

    def measure(self, ref: VersionRef) -> Content:
        """The same for a `raw` directory that was filled in its place."""
        raw = self.root / ref.raw_path
        expected = survey(raw, ref.raw_path)
        together = expected.files >= FLUSH_TOGETHER and can_flush_together(raw)
        made = {str(raw)}
        self.progress.begin("measuring", expected.files, expected.size)
        try:
            with PartsWriter(self.root / ref.manifest_path) as parts:
                for found in listed(raw, ref.raw_path):
                    self.pace()
                    made.add(found.file.rpartition("/")[0])
                    parts.add(measured(Path(found.file), found.name, durable=not together))
                    self.progress.advance(1, found.size)
                return self._flushed(raw, made, parts, together)
        finally:
            self.progress.end()


def _copied(found: Found, target: str, made: set[str], *, durable: bool) -> Part:
    """One file, hashed on its way; its directories are made where there are none."""
    _make_directories(target.rpartition("/")[0], made)
    digest, size = hashlib.sha256(), 0
    try:
        with open(found.file, "rb") as source, open(target, "xb") as out:  # noqa: PTH123  (one of a million)
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                size += out.write(chunk)
            if durable:
                out.flush()
                os.fsync(out.fileno())
    except OSError as error:
        raise disk_error(error, "copy", found.file) from error
    return Part(found.name, size, digest.hexdigest())


def _make_directories(directory: str, made: set[str]) -> None:
    if directory in made:
        return
    above = directory.rpartition("/")[0]
    _make_directories(above, made)
    with on_disk("create", directory):
        os.mkdir(directory)  # noqa: PTH102
    made.add(directory)


def measured(file: Path, name: str, *, durable: bool = True) -> Part:
    """Size and checksum of a file, and with `durable` its bytes on disk for good."""
    hashed = hash_file(file)
    if durable:
        with on_disk("flush", str(file)), file.open("rb") as opened:
            os.fsync(opened.fileno())
    return Part(name, hashed.size, hashed.sha256)
