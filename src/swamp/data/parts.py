"""The parts of a version: made from a directory, checked before anything is saved; their list is kept and read again.

A few parts stand in the version's metadata, many in a manifest beside it: a file of the index's own kind (FORMAT.md),
columns sorted by name, written and read as a stream, and what it claims is checked before it is believed. So what can
be written can be read, however much it is (L75).
"""

from __future__ import annotations

import hashlib
import marshal
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NamedTuple

from swamp.cache.files import CHUNK, disk_error, hash_file, on_disk, sync_directory
from swamp.cache.paths import TEMP_PREFIX, fold, safe_path, shown
from swamp.cache.places import FLUSH_TOGETHER, can_flush_together, flush_together
from swamp.data.document import damaged
from swamp.data.names import VersionRef
from swamp.errors import CorruptData, UsageError
from swamp.sync.progress import Progress
from swamp.values import value

INLINE_PARTS: Final = 1000
"""So many parts stand in `metadata.yaml`; more would make every reader of metadata read them too."""
GROUP: Final = 16_384


@value
class Part:
    """One file of a multi-part artifact; `name` is its path below `raw`."""

    name: str
    size: int
    checksum: str


@value
class Manifest:
    """What metadata says of a manifest: how many parts, and the very bytes that list them."""

    parts: int
    size: int
    sha256: str


@value
class Content:
    """What a version holds, as its metadata will say it: one file, or parts that are listed here or in a manifest."""

    size: int
    checksum: str
    parts: tuple[Part, ...] = ()
    manifest: Manifest | None = None


class PartsWriter:
    """Takes parts in the order of their names; more than a few of them go to `file` as they come."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._held: list[Part] = []
        self._spilled: IO[bytes] | None = None
        self._count = self._size = 0
        self._last = ""

    def __enter__(self) -> PartsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._spilled is not None:
            self._spilled.close()

    def add(self, part: Part) -> None:
        if part.name <= self._last:
            raise AssertionError(f"{part.name!r} came after {self._last!r}: parts are out of order")
        self._last = part.name
        self._digest.update(f"{part.name}\0{part.checksum}\n".encode())
        self._count += 1
        self._size += part.size
        self._held.append(part)
        if len(self._held) > (INLINE_PARTS if self._spilled is None else GROUP):
            self._spill()

    def _spill(self) -> None:
        """Sets the parts aside in a nameless file: who writes Parquet asks for rows, and here they are handed in."""
        if self._spilled is None:
            self._spilled = tempfile.TemporaryFile(dir=self._file.parent, prefix=TEMP_PREFIX)  # noqa: SIM115
        marshal.dump([(part.name, part.size, part.checksum) for part in self._held], self._spilled)
        self._held.clear()

    def done(self) -> Content:
        """All of it, durable."""
        checksum = self._digest.hexdigest()
        if self._spilled is None:
            return Content(self._size, checksum, tuple(self._held))
        with on_disk("write", str(self._file)):
            self._spill()
            _write_manifest(self._spilled, self._file)
        listed_in = measured(self._file, "")
        with on_disk("flush", str(self._file)):
            sync_directory(self._file.parent)
        return Content(self._size, checksum, manifest=Manifest(self._count, listed_in.size, listed_in.checksum))


def _write_manifest(spilled: IO[bytes], file: Path) -> None:
    from swamp.index.entry import Entry
    from swamp.index.segment import batch_of, write_file

    def batches() -> Iterator[Any]:
        end = spilled.seek(0, os.SEEK_END)
        spilled.seek(0)
        while spilled.tell() < end:
            yield batch_of([Entry(name, "", size, checksum, "") for name, size, checksum in marshal.load(spilled)])

    write_file(batches(), file)


def read_manifest(file: Path, manifest: Manifest, path: str) -> Iterator[Part]:
    """The parts that a manifest lists, in name order, a batch at a time. Raises CorruptData if it is not the one that
    the metadata names; `path` is what an error calls it."""
    from swamp.index.entry import Entry
    from swamp.index.root import SegmentRef
    from swamp.index.segment import listed_rows

    last = "\U0010ffff"
    ref = SegmentRef(path, manifest.parts, manifest.size, manifest.sha256, "", last, 1)
    try:
        for row in listed_rows(ref, file, dropped=False):
            if isinstance(row, Entry):
                yield Part(row.path, row.size, row.sha256 or "")
    except CorruptData as error:
        raise damaged(path, error.message) from error


Pace = Callable[[], None]
"""Called between files; raises when the user has had enough."""


class FoundFile(NamedTuple):
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


def listed(source: Path, below: str) -> Iterator[FoundFile]:
    """Every file of a directory in the order of their whole names, the order that a combined checksum takes."""
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
            yield FoundFile(prefix + entry.name, entry.path, _size(entry))


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


@value
class Filler:
    """Copies a directory into a version that does not exist yet, and measures one that somebody else has filled."""

    root: Path
    progress: Progress = field(default_factory=Progress)
    pace: Pace = lambda: None

    def fill(self, ref: VersionRef, source: Path, expected: Survey) -> Content:
        """Every file below `source` as a part."""
        raw = self.root / ref.raw_path
        raw.mkdir()

        def copy(found: FoundFile, made: set[str], durable: bool) -> Part:
            return _copied(found, f"{raw}/{found.name}", made, durable=durable)

        return self._gather(ref, source, "saving", expected, copy)

    def measure(self, ref: VersionRef) -> Content:
        """The same for a `raw` directory that was filled in its place."""
        raw = self.root / ref.raw_path

        def look(found: FoundFile, made: set[str], durable: bool) -> Part:
            made.add(found.file.rpartition("/")[0])
            return measured(Path(found.file), found.name, durable=durable)

        return self._gather(ref, raw, "measuring", survey(raw, ref.raw_path), look)

    def _gather(
        self,
        ref: VersionRef,
        source: Path,
        stage: str,
        expected: Survey,
        take: Callable[[FoundFile, set[str], bool], Part],
    ) -> Content:
        """The parts that `take` makes of all files. Nothing of it is a version before its metadata is written, so all
        of it is flushed at once (docs/decisions/0008-one-flush.md)."""
        raw = self.root / ref.raw_path
        together = expected.files >= FLUSH_TOGETHER and can_flush_together(raw)
        made = {str(raw)}
        self.progress.begin(stage, expected.files, expected.size)
        try:
            with PartsWriter(self.root / ref.manifest_path) as parts:
                for found in listed(source, ref.raw_path):
                    self.pace()
                    part = take(found, made, not together)
                    self.progress.advance(1, part.size)
                    parts.add(part)
                with on_disk("flush", str(raw)):
                    if together:
                        flush_together(raw)
                    else:
                        for directory in sorted(made):
                            sync_directory(Path(directory))
                return parts.done()
        finally:
            self.progress.end()


def _copied(found: FoundFile, target: str, made: set[str], *, durable: bool) -> Part:
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


def copy_part(path: str, source: Path, target: Path, part: Part) -> None:
    """Copies one part to a place that is free. Raises CorruptData where it is not what was saved."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with source.open("rb") as file, target.open("xb") as out:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise damaged(path, "this part of it is missing") from error
    if digest.hexdigest() != part.checksum:
        raise damaged(path, "its bytes do not have the checksum in the metadata of its version")
