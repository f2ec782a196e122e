"""Files as wholes: written beside their place, verified, made durable, then renamed. inv[cache.no-torn-file]"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from swamp.cache.paths import TEMP_PREFIX, resolve_inside
from swamp.errors import CorruptData, Failed, NotFound, SwampError
from swamp.values import value

CHUNK: Final = 1 << 20
RACY_NS: Final = 2_000_000_000
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_counter = itertools.count(1)
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_RIGHTS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_IN_THE_WAY = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY})


@contextmanager
def on_disk(verb: str, path: str) -> Iterator[None]:
    """Turns what the operating system says into an error with a next step."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, verb, path) from error


def disk_error(error: OSError, verb: str, path: str) -> SwampError:
    """The error to raise when `verb`ing `path` failed."""
    message = f"cannot {verb} {path}: {error.strerror or error}"
    if error.errno == errno.ENOENT:
        return NotFound(message)
    if error.errno in _NO_SPACE:
        return Failed(message, hint="free some space and run the command again: nothing was lost")
    if error.errno in _NO_RIGHTS:
        return Failed(message, hint="make it readable and writable for this user, then run the command again")
    if error.errno in _IN_THE_WAY:
        return Failed(message, hint="a file stands where a directory must be, or the other way round: move it")
    return Failed(message)


@value
class StatFingerprint:
    """What a stat says of a file: only ever saves re-hashing it. inv[hint.racy]"""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


def fingerprint_of(found: os.stat_result) -> StatFingerprint:
    return StatFingerprint(found.st_size, found.st_mtime_ns, _ctime_ns(found), found.st_ino)


def _ctime_ns(found: os.stat_result) -> int:
    """Apart, so that the simulator can play a file system whose ctime tells nothing."""
    return found.st_ctime_ns


def trusted(hint: StatFingerprint, observed_ns: int) -> bool:
    """Whether a file that still has this hint must still have the bytes that were hashed at `observed_ns`.

    A file written again in the same tick keeps its stat, so a fresh mtime proves nothing.
    """
    return hint.mtime_ns < observed_ns - RACY_NS  # inv[hint.racy]


@value
class Staged:
    """A whole, verified, durable file that waits for its place."""

    file: str
    size: int
    sha256: str

    @property
    def path(self) -> Path:
        return Path(self.file)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)


def stage_file(
    staging: str | Path,
    chunks: Iterable[bytes | memoryview],
    size: int | None = None,
    sha256: str | None = None,
    *,
    mtime_ns: int | None = None,
    durable: bool = True,
) -> Staged:
    """Writes `chunks` below `staging`; raises CorruptData if they are not what was promised. Leaves no half file.

    `mtime_ns` backdates the file: a pulled file whose mtime lies in the past has a hint that can be trusted.
    Without `durable` the caller flushes before it renames (`cache.places`). inv[cache.no-torn-file]
    """
    with _new_file(os.fspath(staging), mtime_ns, durable) as (path, descriptor):
        written, digest = _fill(descriptor, chunks, size, sha256)
    return Staged(path, written, digest)


def stage_bytes(
    staging: str, body: bytes | memoryview, size: int, sha256: str | None, mtime_ns: int | None, durable: bool
) -> Staged:
    """The same of bytes that are all here, ten thousand times: they are looked at before anything is written."""
    digest = hashlib.sha256(body).hexdigest()
    _check_whole(len(body), size, digest, sha256)
    with _new_file(staging, mtime_ns, durable) as (path, descriptor):
        _write_all(descriptor, body)
    return Staged(path, size, digest)


@contextmanager
def _new_file(staging: str, mtime_ns: int | None, durable: bool) -> Iterator[tuple[str, int]]:
    """A file to write into; of one that does not become whole nothing stays, also after Ctrl-C."""
    path, descriptor = _open_temp(staging)
    try:
        yield path, descriptor
        if mtime_ns is not None:
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        if durable:
            os.fsync(descriptor)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        if isinstance(error, OSError):
            raise disk_error(error, "write", path) from error
        raise
    finally:
        os.close(descriptor)


def _fill(
    descriptor: int, chunks: Iterable[bytes | memoryview], size: int | None, sha256: str | None
) -> tuple[int, str]:
    """How many bytes were written, and their hash."""
    digest, written = hashlib.sha256(), 0
    for chunk in chunks:
        written += len(chunk)
        if size is not None and written > size:  # stop here: a wrong body must not fill the disk
            raise CorruptData(f"expected {size} bytes and more arrived", details={"size": size})
        digest.update(chunk)
        _write_all(descriptor, chunk)
    found = digest.hexdigest()
    _check_whole(written, size, found, sha256)
    return written, found


def _check_whole(written: int, size: int | None, found: str, sha256: str | None) -> None:
    if size is not None and written != size:
        raise CorruptData(f"expected {size} bytes, {written} arrived", details={"size": size})
    if sha256 is not None and found != sha256:
        raise CorruptData("the bytes that arrived are not the bytes that were stored", details={"sha256": sha256})


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    done = os.write(descriptor, data)
    while done < len(data):
        done += os.write(descriptor, memoryview(data)[done:])


def _open_temp(directory: str) -> tuple[str, int]:
    """A new file under a name that no scan takes for a user's; the directory is made where there is none."""
    while True:
        path = f"{directory}/{TEMP_PREFIX}{os.getpid()}-{next(_counter)}"
        try:
            return path, os.open(path, _NEW, 0o666)
        except FileExistsError:
            continue
        except FileNotFoundError:
            with on_disk("write into", directory):
                os.makedirs(directory, exist_ok=True)  # noqa: PTH103
        except OSError as error:
            raise disk_error(error, "write into", directory) from error


def place(staged: Staged, tree: Path, path: str) -> StatFingerprint:
    """Renames a staged file to `path` in the tree, for good. A batch goes through `Places`."""
    target = resolve_inside(tree, path)
    with on_disk("write", path):
        _make_parents(tree, target.parent)
        try:
            staged.path.replace(target)
        except IsADirectoryError:
            remove_empty(target)  # empty directories are not data; one that is not empty stays and is the error
            staged.path.replace(target)
        sync_directory(target.parent)
        return fingerprint_of(target.lstat())


def remove_empty(directory: Path) -> None:
    """Removes a directory that holds nothing but empty directories; one that does stays and is the error."""
    for inside in directory.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            remove_empty(inside)
    directory.rmdir()


def in_the_way(tree: Path, path: str) -> str | None:
    """What keeps a file from being placed at `path`: a file where a directory must be, or a directory that holds
    something where the file must be. Its path, below `tree`."""
    for parent in reversed((tree / path).relative_to(tree).parents[:-1]):
        found = tree / parent
        if os.path.lexists(found) and (found.is_symlink() or not found.is_dir()):
            return str(parent)
    target = tree / path
    if target.is_dir() and not target.is_symlink():
        held = (inside for inside in target.rglob("*") if inside.is_symlink() or not inside.is_dir())
        return next((str(inside.relative_to(tree)) for inside in held), None)
    return None


def _make_parents(top: Path, parent: Path) -> None:
    """Creates the directories from `top` down to `parent`, each durable in its own parent."""
    top.mkdir(parents=True, exist_ok=True)
    missing = []
    while parent != top and not parent.is_dir():
        missing.append(parent)
        parent = parent.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


@contextmanager
def open_directory(directory: str | Path) -> Iterator[int]:
    """A descriptor of it, for the block."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """After this, names in the directory survive a power cut."""
    with open_directory(directory) as descriptor:
        os.fsync(descriptor)


def move_aside(tree: Path, path: str, conflicts: Path, op: str) -> str:
    """Moves a file or directory of the tree to `conflicts/<op>/<path>`, over nothing; says where below `conflicts`.

    A second file of the same operation and path goes to `<op>.2` and so on. inv[conflict.keeps-both]
    """
    source = resolve_inside(tree, path)
    for attempt in itertools.count(1):
        kept = f"{op if attempt == 1 else f'{op}.{attempt}'}/{path}"
        with on_disk("move aside", path):
            source.lstat()
            if not _moved(source, conflicts, conflicts / kept):
                continue
            sync_directory(source.parent)
        remove_empty_parents(tree, path)
        return kept
    raise AssertionError("unreachable")


def _moved(source: Path, top: Path, target: Path) -> bool:
    """False when something is in the way at the target: nothing is ever overwritten."""
    try:
        _make_parents(top, target.parent)
    except (FileExistsError, NotADirectoryError):
        return False
    if os.path.lexists(target):
        return False
    source.rename(target)
    sync_directory(target.parent)
    return True


def remove_empty_parents(tree: Path, path: str) -> None:
    """Removes the directories above `path` that hold nothing any more, never the tree itself."""
    parent = (tree / path).parent
    while parent != tree:
        try:
            parent.rmdir()
        except OSError:
            return  # not empty, or not ours to remove: an empty directory does no harm
        parent = parent.parent


class FileHash(NamedTuple):
    sha256: str
    size: int
    stat: os.stat_result


def hash_file(path: Path) -> FileHash:
    """The hash of a regular file's bytes, with the stat from *before* they were read.

    If the file changes meanwhile its later stat differs from this one, so no hint vouches for a mixture.
    """
    digest, size = hashlib.sha256(), 0
    with on_disk("read", str(path)):
        # O_NONBLOCK: opening a pipe must fail, not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            before = os.fstat(descriptor)
            if not stat.S_ISREG(before.st_mode):
                raise Failed(f"cannot read {path}: it is not a regular file")
            while chunk := os.read(descriptor, CHUNK):
                digest.update(chunk)
                size += len(chunk)
        finally:
            os.close(descriptor)
    return FileHash(digest.hexdigest(), size, before)


def read_atomic(path: Path) -> bytes | None:
    """The whole content of a file that is only ever replaced, None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error(error, "read", str(path)) from error


def read_at_most(path: Path, limit: int) -> bytes:
    """The file's bytes; of one that is longer than `limit` just enough to see that it is. Raises OSError."""
    with path.open("rb") as file:
        # Never `read(limit)`: Python makes room for all of it first.
        return file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)


def write_atomic(path: Path, data: bytes) -> None:
    """Readers see the old bytes or the new ones, also after a power cut."""
    staged = stage_file(path.parent, [data])
    try:
        with on_disk("write", str(path)):
            staged.path.replace(path)
            sync_directory(path.parent)
    except SwampError:
        staged.discard()
        raise
