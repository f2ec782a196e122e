"""Trees that a test can watch: one that checks the order of announcement and change, one that holds back content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from swamp.cache.paths import is_internal
from swamp.data.versions import DataVersion, VersionReader
from swamp.errors import NotFound
from swamp.sync.port import Deferred, PlainTree, RemoteFile


def snapshot(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def covers(announced: str, path: str) -> bool:
    return path == announced or path.startswith(announced + "/")


@dataclass
class WatchedTree:
    """A plain directory that fails the test when a file changes that nobody announced first."""

    root: Path
    announced: list[tuple[str, tuple[str, ...], bool]] = field(default_factory=list)
    unannounced: set[str] = field(default_factory=set)
    open_now: int = 0
    late: list[Deferred] = field(default_factory=list)
    """What a pull could not bring."""

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._seen = snapshot(self.root)

    @contextmanager
    def announce(self, paths: Iterable[str], kind: str = "write", *, confirmed: bool = False) -> Iterator[None]:
        given = tuple(paths)
        assert given, "an announcement names something"
        assert not self.open_now, "announcements are short: they do not nest"
        self.check()
        self.announced.append((kind, given, confirmed))
        self.open_now += 1
        try:
            yield
        finally:
            self.open_now -= 1

    def check(self) -> None:
        """Every change so far lies below something that was announced before it happened."""
        now = snapshot(self.root)
        changed = {p for p in now.keys() | self._seen.keys() if now.get(p) != self._seen.get(p) and not is_internal(p)}
        self.unannounced |= {
            path for path in changed if not any(covers(a, path) for _, given, _ in self.announced for a in given)
        }
        self._seen = now
        assert not self.unannounced, f"changed before it was announced: {self.unannounced}"

    def materialize(self, path: str) -> Path:
        return PlainTree(self.root).materialize(path)

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        return iter(())

    def deferred(self, prefix: str):
        return [file for file in self.late if covers(prefix, file.path)]

    def bring_back(self, prefix: str) -> None: ...

    def touched_since(self, mark: int):
        return PlainTree(self.root).touched_since(mark)


@dataclass
class LazyTree:
    """A cache that knows of content it does not hold, and a bucket to fetch it from."""

    root: Path
    bucket: dict[str, bytes] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    forgotten_before: int = 0

    @contextmanager
    def announce(self, paths: Iterable[str], kind: str = "write", *, confirmed: bool = False) -> Iterator[None]:
        self.touched += paths
        yield

    def materialize(self, path: str) -> Path:
        found = self.root / path
        for remote, content in self.bucket.items():
            if covers(path, remote) and not (self.root / remote).exists():
                (self.root / remote).parent.mkdir(parents=True, exist_ok=True)
                (self.root / remote).write_bytes(content)
                self.fetched.append(remote)
        if not found.exists():
            raise NotFound(f"{path} does not exist")
        return found

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        for path, content in self.bucket.items():
            if covers(prefix, path) and not (self.root / path).exists():
                yield RemoteFile(path, len(content), None)

    def deferred(self, prefix: str):
        return ()

    def bring_back(self, prefix: str) -> None: ...

    def touched_since(self, mark: int):
        from swamp.sync.port import Touched

        if mark < self.forgotten_before:
            return Touched(len(self.touched), None)
        return Touched(len(self.touched), tuple(self.touched[mark:]))


def latest_of(reader: VersionReader) -> Iterator[DataVersion]:
    """The latest version of every name whose latest version holds data, as the tree says."""
    for data in reader.names():
        found = reader.newest(data)
        if found is not None and found.meta.active:
            yield found


def latest_names(reader: VersionReader) -> list[str]:
    return [version.name for version in latest_of(reader)]
