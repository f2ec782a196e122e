"""`swamp://model/name[@version][/part]` for everything that knows fsspec: pandas, dask, DuckDB, pyarrow, polars.

    pd.read_parquet("swamp://web/orders")
    frame.to_parquet("swamp://web/orders", storage_options={"repo": "~/work/shop"})

Reading is lazy: of content that only the store has, the ranges that are asked for are fetched. A file that is written
is one new version when it closes; files below one name that are written in `with fs.transaction:` are one together.
"""

from __future__ import annotations

import errno
import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.transaction import Transaction

from swamp.api.repository import Repository, open_repository
from swamp.data.versions import DataVersion
from swamp.errors import AccessDenied, NotFound, SwampError, UsageError
from swamp.repo.contents import File, read_range
from swamp.values import value

VERIFIED: Final = 8 << 20
"""A local file up to this size is compared with its checksum first; of a larger one only what is asked for is read."""


@value
class NamedPath:
    """What a path names: a model, a name of it, a version, and a part or a directory of parts."""

    model: str = ""
    name: str = ""
    version: int | None = None
    part: str = ""

    @classmethod
    def parse(cls, path: str) -> NamedPath:
        model, _, rest = path.partition("/")
        called, _, part = rest.partition("/")
        name, at, number = called.rpartition("@")
        if not at or not number.isdecimal():
            return cls(model, called, None, part)
        return cls(model, name, int(number), part)

    @property
    def called(self) -> str:
        """The path of the version itself, without a part."""
        return f"{self.model}/{self.name}" + ("" if self.version is None else f"@{self.version}")


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """The errors that users of file systems expect, each with ours as its cause."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, error.message, path) from error
    except AccessDenied as error:
        raise PermissionError(errno.EACCES, error.message, path) from error
    except UsageError as error:
        raise ValueError(f"{path}: {error}") from error
    except SwampError as error:
        raise OSError(errno.EIO, error.message, path) from error


class _OneVersionEach(Transaction):  # type: ignore[misc] # fsspec is not typed
    """What is written inside becomes one version per name, when it ends without an error."""

    def complete(self, commit: bool = True) -> None:
        files, fs = list(self.files), self.fs
        self.files.clear()
        super().complete(commit)
        try:
            if commit:
                fs.put_together(files)
        finally:
            for file in files:
                file.discard()


class SwampFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec is not typed
    """The data of one repository as files. `repo`: where it is, found as by `swamp.open`; `fresh`: as there."""

    protocol = "swamp"
    root_marker = ""
    transaction_type = _OneVersionEach

    def __init__(self, repo: str | Path | None = None, fresh: bool | None = None, **options: Any) -> None:
        super().__init__(repo=repo, fresh=fresh, **options)
        self._where, self._fresh = repo, fresh
        self._read_last: dict[str, int] = {}
        """The version that a look at a name without one has found: its parts are read from that one, until the next."""

    @cached_property
    def repo(self) -> Repository:
        """The repository, opened when it is first needed."""
        return open_repository(self._where, fresh=self._fresh)

    # -- looking

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        """Models; the names of a model; the parts of a version. Raises FileNotFoundError."""
        path = self._strip_protocol(path)
        with _as_os_errors(path):
            found = self._listed(NamedPath.parse(path), path)
        return found if detail else [one["name"] for one in found]

    def _listed(self, place: NamedPath, path: str) -> list[dict[str, Any]]:
        if not place.model:
            return [_directory(model) for model in sorted({row["modelName"] for row in self.repo.list()})]
        if not place.name:
            found = [self.repo.artifacts.read(row.ref) for row in self.repo.data.list(place.model)]
            return [self._described(f"{place.model}/{one.name}", one) for one in found]
        version = self._found(place, look=not place.part)
        if not version.meta.has_parts:
            return _none(path) if place.part else [self._file(path, version, next(self._files(version)))]
        return self._below(place, version, path)

    def _below(self, place: NamedPath, version: DataVersion, path: str) -> list[dict[str, Any]]:
        """Files and directories directly below a directory of parts; the part itself, if it is one."""
        inside, found = f"{place.part}/" if place.part else "", dict[str, dict[str, Any]]()
        for file in self._files(version):
            if file.name == place.part:
                return [self._file(path, version, file)]
            if file.name.startswith(inside):
                first, slash, _ = file.name[len(inside) :].partition("/")
                name = f"{place.called}/{inside}{first}"
                found[name] = _directory(name) if slash else self._file(name, version, file)
        return list(found.values()) or _none(path)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and type of one path; of data also version, checksum and content type."""
        path = self._strip_protocol(path)
        place = NamedPath.parse(path)
        with _as_os_errors(path):
            if not place.name:
                if place.model and not any(row["modelName"] == place.model for row in self.repo.list()):
                    _none(path)
                return _directory(path)
            version = self._found(place, look=not place.part)
            if not place.part:
                return self._described(path, version)
            one = self._below(place, version, path) if version.meta.has_parts else _none(path)
            return one[0] if one[0]["name"] == path else _directory(path)

    def created(self, path: str) -> Any:
        """When the version was saved."""
        with _as_os_errors(path):
            return self._found(NamedPath.parse(self._strip_protocol(path))).meta.created

    modified = created

    def _found(self, place: NamedPath, *, look: bool = True) -> DataVersion:
        """The version of a path. Parts of a name without one come from the version that was last looked at."""
        known = None if look else self._read_last.get(place.called)
        found = self.repo.data.find(place.model, place.name, place.version or known)
        if place.version is None:
            self._read_last[place.called] = found.version
        return found

    def _files(self, version: DataVersion) -> Iterator[File]:
        """As the metadata tells of them: nothing is fetched for it."""
        return self.repo.data.contents.listed(version, self.repo.tree.root / version.ref.raw_path)

    def _described(self, name: str, version: DataVersion) -> dict[str, Any]:
        if version.meta.has_parts:
            return {**_directory(name), "version": version.version, "contentType": version.meta.content_type}
        return self._file(name, version, next(self._files(version)))

    def _file(self, name: str, version: DataVersion, file: File) -> dict[str, Any]:
        return {
            "name": name,
            "size": file.size,
            "type": "file",
            "version": version.version,
            "checksum": file.checksum,
            "contentType": version.meta.content_type,
            "created": version.meta.created_at,
        }

    # -- reading and writing

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True, **options: Any
    ) -> BinaryIO | RangedFile | VersionFile:
        place = NamedPath.parse(path)
        if mode in ("wb", "xb"):
            return self._to_write(place, path, mode, autocommit, options)
        if mode != "rb":
            raise ValueError(f"{path}: a version is read or written, mode {mode!r} would change it")
        with _as_os_errors(path):
            return self._to_read(place, path, block_size, options)

    def _to_read(
        self, place: NamedPath, path: str, block_size: Any, options: Mapping[str, Any]
    ) -> BinaryIO | RangedFile:
        if not place.name:
            raise IsADirectoryError(errno.EISDIR, "a model is a directory", path)
        version = self._found(place, look=not place.part)
        file = next((one for one in self._files(version) if one.name == place.part), None)
        if file is None:
            if not place.part:
                raise IsADirectoryError(errno.EISDIR, f"it has {version.meta.part_count} parts: name one", path)
            raise NotFound(f"{place.called} has no part {place.part}")
        self.repo._note(version)
        if not file.path.is_file():
            sized = {"block_size": block_size or "default", "cache_options": options.get("cache_options")}
            return RangedFile(self, path, "rb", cache_type="readahead", size=file.size, file=file, **sized)
        if file.size <= VERIFIED:
            self.repo.data.contents.verified(version, file)
        return file.path.open("rb")

    def _to_write(
        self, place: NamedPath, path: str, mode: str, autocommit: bool, options: Mapping[str, Any]
    ) -> VersionFile:
        if not place.name or place.version is not None:
            raise ValueError(f"{path}: a new version gets its number when it closes; write to model/name")
        if place.part and autocommit:
            raise ValueError(f"{path}: parts make one version together; write them in `with fs.transaction:`")
        if mode == "xb" and self.exists(place.called):
            raise FileExistsError(errno.EEXIST, "it has versions", path)
        said = {key: options[key] for key in ("tags", "lifetime", "keep", "content_type") if key in options}
        return VersionFile(self, place, said, autocommit)

    def put_one(self, place: NamedPath, file: Path, said: Mapping[str, Any]) -> None:
        """Saves a file, or a directory of parts, as the next version."""
        with _as_os_errors(place.called):
            self._read_last[place.called] = self.repo.write(place.model, place.name, file, **said).version

    def put_together(self, files: list[VersionFile]) -> None:
        """Saves the files of a transaction: those below one name as the parts of one version."""
        by_name: dict[str, list[VersionFile]] = {}
        for file in files:
            by_name.setdefault(file.place.called, []).append(file)
        for several in by_name.values():
            first = several[0]
            if not first.place.part:
                self.put_one(several[-1].place, several[-1].path, several[-1].said)
                continue
            with tempfile.TemporaryDirectory(prefix="swamp-") as folder:
                for file in several:
                    target = Path(folder) / file.place.part
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(file.path, target)
                self.put_one(first.place, Path(folder), first.said)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Names need no directory: a version makes what it needs."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As `mkdir`."""

    def _rm(self, path: str) -> None:
        place = NamedPath.parse(self._strip_protocol(path))
        if not place.name or place.part:
            raise PermissionError(errno.EACCES, "only a name or a version of it can be deleted", path)
        with _as_os_errors(path):
            self.repo.data.delete(place.model, place.name, place.version)


def _directory(name: str) -> dict[str, Any]:
    return {"name": name, "size": 0, "type": "directory"}


def _none(path: str) -> NoReturn:
    raise NotFound(f"there is no data at {path}", hint="`swamp data list` shows what is there")


class RangedFile(AbstractBufferedFile):  # type: ignore[misc] # fsspec is not typed
    """A file that only the store has, read by ranges."""

    def __init__(self, fs: SwampFileSystem, path: str, mode: str, *, file: File, **options: Any) -> None:
        self._file = file
        super().__init__(fs, path, mode, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        with _as_os_errors(self.path):
            return read_range(self.fs.repo, self._file, start, end)


class VersionFile(io.FileIO):
    """A file that is being written: a version when it closes, or a part of one when its transaction ends."""

    def __init__(self, fs: SwampFileSystem, place: NamedPath, said: Mapping[str, Any], autocommit: bool) -> None:
        self.place, self.said = place, said
        self._fs, self._autocommit = fs, autocommit
        self._folder = tempfile.TemporaryDirectory(prefix="swamp-")
        # Named as in the repository, because the ending says of what type it is.
        self.path = Path(self._folder.name) / (place.part or place.name).rpartition("/")[2]
        super().__init__(str(self.path), "w+b")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._autocommit = False  # what was not written to its end is no version
            self.close()
            self.discard()
        else:
            self.close()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._autocommit:
            try:
                self._fs.put_one(self.place, self.path, self.said)
            finally:
                self.discard()

    def commit(self) -> None:
        """Called for each file of a transaction; they are saved together afterwards."""

    def discard(self) -> None:
        self._folder.cleanup()
