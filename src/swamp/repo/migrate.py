"""Copies a directory of data into another: announced first, verified after, cleaned up only when all is safe."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swamp.cache.files import CHUNK, Staged, StatFingerprint, fingerprint_of, hash_file, place, stage_file
from swamp.cache.paths import TIER_DIRECTORIES, is_internal, is_safe
from swamp.cache.scan import is_left_out
from swamp.data.names import LATEST, parse_version
from swamp.errors import Failed, SwampError
from swamp.sync.port import Tree
from swamp.sync.result import Conflict
from swamp.values import mutable, value

if TYPE_CHECKING:
    from swamp.repo.datastore import DatastoreContext

BATCH: Final = 200


@mutable
class Copied:
    """What was taken from a tree: each file with the stat it had then, and what the target held otherwise."""

    source: Path
    is_local: bool
    """Whether it is a plain directory, to be emptied when everything has arrived."""
    seen: dict[str, tuple[StatFingerprint, str]] = field(default_factory=dict)
    """Per path the stat that the file had, and the hash of the bytes that were copied."""
    size: int = 0
    conflicts: list[Conflict] = field(default_factory=list)


def has_tiers(source: Path) -> bool:
    """Whether there is something to copy or, after a clean-up that was killed, something left to remove."""
    return any((source / name).exists() for name in TIER_DIRECTORIES)


def tier_files(source: Path) -> Iterator[str]:
    """The synced files below a directory, in path order. Raises Failed for what cannot be read: nothing is left out."""
    for tier in filter(lambda name: (source / name).exists(), TIER_DIRECTORIES):
        for directory, children, names in os.walk(source / tier, onerror=_unreadable):
            inside = Path(directory).relative_to(source).as_posix()
            children[:] = sorted(name for name in children if not is_left_out(f"{inside}/{name}", True))
            for child in (Path(directory) / name for name in children):
                if child.is_symlink():  # not entered by a walk: what lies below it would stay behind without a word
                    raise Failed(f"{child} is a link to a directory", hint="put what it points to in its place")
            for name in sorted(names):
                path = f"{inside}/{name}"
                if not is_left_out(path, False):  # ours by its place: nothing that anybody wants to keep
                    yield path


def _unreadable(error: OSError) -> None:
    raise Failed(
        f"{error.filename} cannot be read: {error.strerror}", hint="correct its permissions and run the setup again"
    ) from error


@value
class TierCopier:
    """Copies tier files into `target`. `conflicts` is where bytes go whose place is taken; None: that is an error."""

    target: Tree
    conflicts: Path | None
    context: DatastoreContext

    def copy(self, source: Path, *, is_local: bool) -> Copied:
        """Every file, announced before its first byte arrives and durable before it has its name."""
        done = Copied(source, is_local)
        files = tier_files(source)
        self.context.progress.begin("copying")
        try:
            while batch := list(islice(files, BATCH)):
                self.context.cancel.check()
                # inv[journal.first]: found, not edited: an old file must not rise from the dead.
                with self.target.announce(batch, "found"):
                    for path in batch:
                        self._copy_file(path, done)
        finally:
            self.context.progress.end()
        return done

    def _copy_file(self, path: str, done: Copied) -> None:
        file = done.source / path
        hint = fingerprint_of(_regular(file, path))
        parent = (self.target.root / path).parent
        parent.mkdir(parents=True, exist_ok=True)
        with file.open("rb") as opened:
            staged = stage_file(parent, iter(lambda: opened.read(CHUNK), b""))
        done.seen[path] = hint, staged.sha256
        existing = self.target.root / path
        if not existing.exists():
            place(staged, self.target.root, path)
            done.size += staged.size
        elif hash_file(existing).sha256 == staged.sha256:
            staged.discard()
        else:
            done.conflicts.append(self._set_aside(staged, path))
        self.context.progress.advance(1, staged.size)

    def _set_aside(self, staged: Staged, path: str) -> Conflict:
        """Both stay: the target's where it is, ours among the conflicts, once. inv[conflict.keeps-both]"""
        if self.conflicts is None:
            staged.discard()
            raise Failed(
                f"{path} is in {self.target.root} already, with other content",
                hint="move one of them away, then run the setup again",
            )
        literal = "".join(f"[{c}]" if c in "*?[" else c for c in path)  # a pattern that matches only the path itself
        for kept in self.conflicts.glob(f"*/{literal}"):
            if kept.is_file() and hash_file(kept).sha256 == staged.sha256:
                staged.discard()
                return Conflict(path, str(kept))
        place(staged, self.conflicts / "setup", path)
        return Conflict(path, str(self.conflicts / "setup" / path))


def _regular(file: Path, path: str) -> os.stat_result:
    if not is_safe(path):
        raise Failed(f"{path!r} cannot be a path in a datastore", hint=f"rename {file}")
    try:
        found = file.lstat()
    except OSError as error:
        raise Failed(f"{file} cannot be read: {error.strerror}", hint="run the setup again") from error
    if not stat.S_ISREG(found.st_mode):
        raise Failed(f"{file} is not a regular file", hint="remove it, or put what it points to in its place")
    return found


Proof = Callable[[str, str], bool]
"""Whether the bytes of this hash are at the target now, under this path or kept beside it from a conflict."""


def clean_up(copied: Copied, is_there: Proof) -> list[str]:
    """Empties a plain directory of what the target is proven to hold; what had to stay (L65).

    A file that changed since it was copied stays, and so does every name that was not copied. inv[source.proven]
    """
    kept: list[str] = []
    for path, (hint, sha256) in copied.seen.items():
        file = copied.source / path
        try:
            if fingerprint_of(file.lstat()) != hint or not is_there(path, sha256):
                kept.append(path)
                continue
            file.unlink()
        except FileNotFoundError:
            continue
    for tier in TIER_DIRECTORIES:
        _remove_empty(copied.source, tier)
    return kept


def holds(file: Path, sha256: str) -> bool:
    """Whether a file has these bytes: they are read again."""
    try:
        return file.is_file() and hash_file(file).sha256 == sha256
    except SwampError:
        return False  # unreadable proves nothing: the source stays


def _remove_empty(root: Path, tier: str) -> None:
    """Directories that hold nothing go, and with them our own `latest` markers of names that have no version left."""
    for directory, _, names in os.walk(root / tier, topdown=False):
        inside = Path(directory).relative_to(root).as_posix()
        alone = names == [LATEST] and os.listdir(directory) == [LATEST]  # noqa: PTH208 - as it is now
        if alone and is_internal(f"{inside}/{LATEST}"):
            _remove_marker(Path(directory) / LATEST)
        try:
            Path(directory).rmdir()
        except OSError:
            continue  # something is left in it: not ours to remove


def _remove_marker(marker: Path) -> None:
    """Only what we could have written: a version's number. Anything else of that name is somebody's."""
    try:
        text = marker.read_bytes()[:32].decode("ascii", "replace").strip()
        if parse_version(text) is not None and marker.stat().st_size <= len(text) + 1:
            marker.unlink()
    except OSError:
        return  # it stays where it is
