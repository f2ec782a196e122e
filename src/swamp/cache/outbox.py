"""The outbox: puts that could not begin because the store was away, kept whole until they are delivered.

outbox/<12 digits>-<ulid>/put.json   what was said of it, and the `writeId` that makes its delivery happen once
                          content    the file, or the directory of parts
                          begun      a delivery has begun: a version with that `writeId` may exist
An entry appears by one rename, with everything in it on disk, and goes by one rename. inv[outbox.once]
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Final

from swamp.cache.files import CHUNK, on_disk, place, stage_file, sync_directory
from swamp.cache.layout import CacheDir
from swamp.cache.paths import TEMP_PREFIX
from swamp.env import Env
from swamp.locks.flock import FileLock
from swamp.values import value

_SAID: Final = "put.json"
_CONTENT: Final = "content"
_BEGUN: Final = "begun"


@value
class Kept:
    """One put that waits for the store."""

    place: Path
    said: Mapping[str, Any]

    @property
    def content(self) -> Path:
        return self.place / _CONTENT

    @property
    def model(self) -> str:
        return str(self.said["model"])

    @property
    def name(self) -> str:
        return str(self.said["name"])

    @property
    def write_id(self) -> str:
        return str(self.said["writeId"])

    @property
    def size(self) -> int:
        return int(self.said["size"])

    @property
    def has_begun(self) -> bool:
        """Whether a delivery may have made its version already: the next one looks for it first. inv[outbox.once]"""
        return (self.place / _BEGUN).exists()

    @property
    def became(self) -> str:
        """Which metadata a delivery wrote, and its hash; empty before that."""
        try:
            return (self.place / _BEGUN).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def begin(self, became: str = "") -> None:
        """From now on whoever delivers it looks for its version first. On disk when this returns."""
        staged = stage_file(self.place, [became.encode()])
        staged.path.replace(self.place / _BEGUN)
        sync_directory(self.place)

    def to_json(self) -> dict[str, Any]:
        said = {key: self.said[key] for key in ("contentType", "size", "tags")}
        return {"name": self.name, "version": None, "modelName": self.model, "modelType": None, **said,
                "createdAt": self.said["keptAt"], "waiting": True}  # fmt: skip


class Outbox:
    """The outbox of one cache."""

    def __init__(self, cache: CacheDir, env: Env) -> None:
        self._cache = cache
        self._env = env

    @property
    def _top(self) -> Path:
        return self._cache.base / "outbox"

    def count(self) -> int:
        return len(self._names())

    def entries(self) -> list[Kept]:
        """What waits, in the order in which it was put. One that cannot be read is left out, and still counted."""
        found = []
        for name in self._names():
            try:
                said = json.loads((self._top / name / _SAID).read_bytes())
            except (OSError, ValueError):
                continue  # delivered meanwhile, or damaged: `count` tells
            found.append(Kept(self._top / name, said))
        return found

    def _names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._top) if name[:12].isdigit())  # noqa: PTH208
        except FileNotFoundError:
            return []

    def delivering(self, wait: float) -> AbstractContextManager[None]:
        """One process at a time. Raises LockTimeout. The lock dies with its holder."""
        return FileLock(self._cache.base / "outbox.lock", self._env).exclusive(wait)

    def keep(
        self, said: Mapping[str, Any], content: Path | bytes | BinaryIO | Iterable[bytes], pace: Callable[[], None]
    ) -> Kept:
        """Keeps a put: all of it is on disk and in the outbox when this returns, or nothing is."""
        draft = self._cache.staging / f"{TEMP_PREFIX}{os.getpid()}-outbox-{self._env.ulid()}"
        try:
            with on_disk("create", str(draft)):
                draft.mkdir(parents=True)
            size = _copied(content, draft, pace)
            whole = {**said, "size": size, "writeId": self._env.ulid()}
            place(stage_file(draft, [json.dumps(whole).encode()]), draft, _SAID)
            return Kept(self._added(draft), whole)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _added(self, draft: Path) -> Path:
        """Behind all that waits already: numbers, not clocks, say who was first."""
        with FileLock(self._cache.base / "outbox.number", self._env).exclusive(), on_disk("keep", str(self._top)):
            self._top.mkdir(exist_ok=True)
            last = max((int(name[:12]) for name in self._names()), default=0)
            target = self._top / f"{last + 1:012d}-{self._env.ulid()}"
            sync_directory(draft)
            draft.rename(target)
            sync_directory(self._top)
            sync_directory(self._cache.base)
        return target

    def drop(self, kept: Kept) -> None:
        """It is delivered. It goes by one rename, so that nobody meets half of it."""
        gone = self._cache.staging / f"{TEMP_PREFIX}{os.getpid()}-delivered-{self._env.ulid()}"
        with on_disk("remove", str(kept.place)):
            kept.place.rename(gone)
            sync_directory(self._top)
        shutil.rmtree(gone, ignore_errors=True)


def _copied(content: Path | bytes | BinaryIO | Iterable[bytes], draft: Path, pace: Callable[[], None]) -> int:
    """The content beside what is said of it, on disk; its size."""
    if not isinstance(content, Path) or not content.is_dir():
        return _copied_file(content, draft, _CONTENT, pace)
    files = sorted(file for file in content.rglob("*") if file.is_file())
    return sum(_copied_file(f, draft, f"{_CONTENT}/{f.relative_to(content).as_posix()}", pace) for f in files)


def _copied_file(
    content: Path | bytes | BinaryIO | Iterable[bytes], draft: Path, name: str, pace: Callable[[], None]
) -> int:
    with on_disk("keep", name):
        staged = stage_file(draft, _chunks(content, pace))
        size = staged.size
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        place(staged, draft, name)
    return size


def _chunks(content: Path | bytes | BinaryIO | Iterable[bytes], pace: Callable[[], None]) -> Iterator[bytes]:
    if isinstance(content, Path):
        with content.open("rb") as file:
            yield from _chunks(file, pace)
        return
    read = getattr(content, "read", None)
    pieces = [content] if isinstance(content, bytes) else iter(lambda: read(CHUNK), b"") if read else content
    for piece in pieces:
        pace()
        yield bytes(piece)
