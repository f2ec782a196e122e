"""A directory as a bucket, with a real compare-and-swap that several processes can use at once.

Objects are plain files under their own names. A write goes to a temporary file, is made durable, and is renamed
into place under a lock of its key, so that a reader sees one version or the next. The version token is the
modification time: each write stamps it, in nanoseconds, above every stamp given before under that lock.
"""

from __future__ import annotations

import datetime as dt
import errno
import fcntl
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from swamp.cache.files import sync_directory
from swamp.env import SYSTEM, UTC, Env
from swamp.errors import OutcomeUnknown, Unavailable, UsageError
from swamp.store.chunks import lost_race, missing
from swamp.store.explain import explain_os
from swamp.store.keys import check_key, check_prefix
from swamp.store.port import (
    Condition,
    CreateOnly,
    Fetched,
    Level,
    Match,
    ObjectMeta,
    StreamedBody,
    Token,
    Uploaded,
    check_in_memory,
)
from swamp.store.upload import MIB
from swamp.store.walk import ASIDE, INTERNAL, Walk, components_of, plain_path

CHUNK_BYTES: Final = MIB
PAGE: Final = 1000
STALE_SECONDS: Final = 86_400
_STAMP = struct.Struct("<q")
_STEPS_NS: Final = (1, 100, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)
_NOT_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


class DirectoryStore:
    """An ObjectStore in a directory of a local or shared file system with working locks."""

    def __init__(self, root: Path, env: Env = SYSTEM) -> None:
        self._root = root.absolute()
        self._env = env
        self._folders: set[Path] = set()
        self._ready = False

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def __repr__(self) -> str:
        return f"DirectoryStore({self.url!r})"

    # -- reading: no locks, a file is never changed after it got its name

    def head(self, key: str) -> ObjectMeta:
        descriptor = self._open(key)
        try:
            return self._meta(key, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> Fetched:
        with os.fdopen(self._open(key), "rb") as file, self._explained(key):
            meta = self._meta(key, os.fstat(file.fileno()))
            if length is None:
                check_in_memory(key, meta.size - start)
            file.seek(start)
            return Fetched(meta, file.read() if length is None else file.read(length))

    def get_if_changed(self, key: str, token: Token) -> Fetched | None:
        with os.fdopen(self._open(key), "rb") as file, self._explained(key):
            meta = self._meta(key, os.fstat(file.fileno()))
            if meta.token == token:
                return None
            check_in_memory(key, meta.size)
            return Fetched(meta, file.read())

    @contextmanager
    def open(self, key: str, *, start: int = 0) -> Iterator[StreamedBody]:
        """It stays readable and unchanged even if its key is written or deleted meanwhile."""
        with os.fdopen(self._open(key), "rb") as file:
            file.seek(start)
            yield StreamedBody(self._meta(key, os.fstat(file.fileno())), self._chunks(key, file))

    def _chunks(self, key: str, file: BinaryIO) -> Iterator[bytes]:
        with self._explained(key):
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def _open(self, key: str) -> int:
        """A descriptor of the object's file. Raises ObjectMissing."""
        self._check(key)
        with self._explained(key):
            path = self._locate(key)
            if path is None:
                raise missing(self.url, key)
            try:
                return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                raise missing(self.url, key) from None

    def _locate(self, key: str) -> Path | None:
        plain = self._root / plain_path(key)
        if _is_file(plain):
            return plain
        *folders, name = [components_of(s) for s in key.split("/")]
        parents = [self._root]
        for parts in folders:
            parents = [p for parent in parents for p in _forms(parent, parts) if p.is_dir()]
        return next((p for parent in parents for p in _forms(parent, name) if _is_file(p)), None)

    # -- writing

    def put(self, key: str, body: bytes, condition: Condition = None) -> ObjectMeta:
        self._check(key)
        with self._explained(key), self._temporary() as (file, path):
            file.write(body)
            return self._publish(key, file, path, condition)

    def put_file(self, key: str, path: Path) -> Uploaded:
        return self.put_file_if(key, path, None)

    def put_file_if(self, key: str, path: Path, condition: Condition) -> Uploaded:
        self._check(key)
        digest = hashlib.sha256()
        with path.open("rb") as source, self._explained(key), self._temporary() as (file, temporary):
            while piece := source.read(CHUNK_BYTES):
                digest.update(piece)
                file.write(piece)
            return Uploaded(self._publish(key, file, temporary, condition), digest.hexdigest())

    def _publish(self, key: str, file: BinaryIO, temporary: Path, condition: Condition) -> ObjectMeta:
        """Under the key's lock: check, stamp, rename. The bytes are durable before they get a name."""
        file.flush()
        descriptor = file.fileno()
        os.fsync(descriptor)
        with self._lock(key) as lock:
            present = self._locate(key)
            self._require(key, present, condition)  # inv[store.compare-and-swap]
            _stamp(lock, descriptor, int(self._env.clock.now().timestamp() * 1e9))
            target = self._place(key, temporary, present)
            meta = self._meta(key, os.fstat(descriptor))
            self._sync_name(key, target.parent)
        return meta

    def _require(self, key: str, present: Path | None, condition: Condition) -> None:
        if condition is None:
            return
        if isinstance(condition, CreateOnly):
            holds = present is None
        else:
            holds = present is not None and _token(present.lstat()) == condition.token
        if not holds:
            raise lost_race(self.url, key)

    def _place(self, key: str, temporary: Path, present: Path | None) -> Path:
        """Gives the file its name. Whoever removes or fills a directory meanwhile makes this look again."""
        for _ in range(100):
            target = present or self._free_place(key)
            try:
                self._make_folder(target.parent)
                temporary.rename(target)
                return target
            except (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError):
                self._folders.discard(target.parent)
                if not temporary.exists():
                    raise
        raise Unavailable(f"{self.url} keeps changing around {key}", hint="try again", details={"key": key})

    def _free_place(self, key: str) -> Path:
        """The plain path, or one aside of what stands in its way: a file for a directory, or the reverse."""
        *folders, name = [components_of(s) for s in key.split("/")]
        parent = self._root
        for parts in folders:
            plain = parent.joinpath(*parts)
            parent = plain.with_name(plain.name + ASIDE) if _is_file(plain) else plain
        target = parent.joinpath(*name)
        return target.with_name(target.name + ASIDE) if target.is_dir() else target

    def _make_folder(self, folder: Path) -> None:
        if folder in self._folders or folder == self._root:
            return
        created: list[Path] = []
        at = folder
        while not at.is_dir():
            created.append(at)
            at = at.parent
        folder.mkdir(parents=True, exist_ok=True)
        for made in created:
            sync_directory(made.parent)
        self._folders.add(folder)

    def _sync_name(self, key: str, folder: Path) -> None:
        try:
            sync_directory(folder)
        except FileNotFoundError:
            return  # somebody deleted the object already, and its empty directory with it
        except OSError as error:
            raise OutcomeUnknown(
                f"{key} was written, but not surely to disk ({error.strerror})",
                hint="check the disk and read it back",
                details={"key": key},
            ) from error

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._check(key)
        for key in keys:
            self._remove(key, None)

    def delete_if(self, key: str, token: Token) -> None:
        self._check(key)
        self._remove(key, Match(token))

    def _remove(self, key: str, condition: Condition) -> None:
        with self._explained(key), self._lock(key):
            path = self._locate(key)
            self._require(key, path, condition)
            if path is not None:
                path.unlink()
                self._prune(path.parent)

    def _prune(self, folder: Path) -> None:
        """A bucket has no empty directories."""
        while folder != self._root:
            self._folders.discard(folder)
            try:
                folder.rmdir()
            except OSError:
                break
            folder = folder.parent
        try:
            sync_directory(folder)
        except FileNotFoundError:
            return

    # -- listing

    def list(self, prefix: str = "", *, start_after: str | None = None) -> Iterator[Sequence[ObjectMeta]]:
        check_prefix(prefix)
        page: list[ObjectMeta] = []
        with self._explained(prefix):
            for key, status in Walk(self._root, prefix, start_after or "").objects():
                page.append(self._meta(key, status))
                if len(page) == PAGE:
                    yield page
                    page = []
        if page:
            yield page

    def level(self, prefix: str = "") -> Level:
        check_prefix(prefix)
        with self._explained(prefix):
            dirs, objects = Walk(self._root, prefix, "").level()
        return Level(tuple(dirs), tuple(self._meta(k, s) for k, s in objects))

    # -- parts

    def _check(self, key: str) -> None:
        check_key(key)
        if INTERNAL in key and INTERNAL in key.split("/"):
            raise UsageError(f"{INTERNAL} is reserved", hint="use another name", details={"key": key})

    def _meta(self, key: str, status: os.stat_result) -> ObjectMeta:
        modified = dt.datetime.fromtimestamp(status.st_mtime_ns // 1000 / 1e6, UTC)
        return ObjectMeta(key, status.st_size, _token(status), modified)

    def _prepare(self) -> None:
        """Makes the bucket on first use, and clears away what writers of yesterday left unfinished."""
        for name in ("locks", "unfinished"):
            (self._root / INTERNAL / name).mkdir(parents=True, exist_ok=True)
        oldest = self._env.clock.now().timestamp() - STALE_SECONDS
        for entry in os.scandir(self._root / INTERNAL / "unfinished"):
            with suppress(FileNotFoundError):  # its writer has finished it meanwhile
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    Path(entry.path).unlink()
        self._ready = True

    @contextmanager
    def _temporary(self) -> Iterator[tuple[BinaryIO, Path]]:
        if not self._ready:
            self._prepare()
        path = self._root / INTERNAL / "unfinished" / self._env.ulid()
        try:
            with path.open("xb") as file:
                yield file, path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _lock(self, key: str) -> Iterator[int]:
        """One writer per key, over all processes: a flock that dies with its holder."""
        if not self._ready:
            self._prepare()
        path = self._root / INTERNAL / "locks" / f"{zlib.crc32(key.encode()) & 0xFF:02x}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise explain_os(error, self.url, key) from error


def _token(status: os.stat_result) -> Token:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _stamp(lock: int, descriptor: int, now: int) -> None:
    """Gives the file a modification time that no version under this lock ever had. inv[store.token-unique]"""
    before = os.pread(lock, _STAMP.size, 0)
    last = _STAMP.unpack(before)[0] if len(before) == _STAMP.size else 0
    for step in _STEPS_NS:
        stamp = -(-max(now, last + step) // step) * step
        os.utime(descriptor, ns=(stamp, stamp))
        if os.fstat(descriptor).st_mtime_ns == stamp:
            break  # this file system keeps times at least that fine
    os.pwrite(lock, _STAMP.pack(stamp), 0)


def _forms(parent: Path, parts: tuple[str, ...]) -> tuple[Path, Path]:
    plain = parent.joinpath(*parts)
    return plain, plain.with_name(plain.name + ASIDE)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError as error:
        if error.errno in _NOT_THERE:
            return False
        raise
