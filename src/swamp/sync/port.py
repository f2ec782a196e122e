"""What the rooms above know of a datastore: a directory, an announcement before each change, and content on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, Protocol

from swamp.values import value

Kind = Literal["write", "delete", "found"]


@value
class RemoteFile:
    """A file that this (lazy) cache knows of and does not hold."""

    path: str
    size: int
    sha256: str | None


@value
class Deferred:
    """A file that a pull was to bring and could not; the next one tries again."""

    path: str
    why: str


@value
class Touched:
    """Paths changed since a mark, by anyone: pulls, announcements, other processes. None: too long ago, rebuild."""

    mark: int
    paths: tuple[str, ...] | None


class Tree(Protocol):
    """The datastore tier as a directory. All paths are relative to `root`, `/`-separated."""

    @property
    def root(self) -> Path: ...

    def announce(
        self, paths: Iterable[str], kind: Kind = "write", *, confirmed: bool = False
    ) -> AbstractContextManager[None]:
        """Say what is about to change, then change it inside: one short mutation. inv[journal.first]"""
        ...

    def materialize(self, path: str) -> Path:
        """The local file or directory of `path`, fetched first where the cache is lazy. Raises NotFound."""
        ...

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        """Files below the directory `prefix` that are known and not held."""
        ...

    def deferred(self, prefix: str) -> Sequence[Deferred]:
        """Files below the directory `prefix` that the store has and the last pull could not bring."""
        ...

    def bring_back(self, prefix: str) -> None:
        """Fetches metadata and records below `prefix` that were here and are gone; what cannot come is owed."""
        ...

    def touched_since(self, mark: int) -> Touched: ...


@value
class PlainTree:
    """A directory without sync: announcing is a no-op and everything is here."""

    root: Path

    def announce(
        self, paths: Iterable[str], kind: Kind = "write", *, confirmed: bool = False
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def materialize(self, path: str) -> Path:
        from swamp.errors import NotFound

        found = self.root / path
        if not found.exists():
            raise NotFound(f"{path} does not exist")
        return found

    def remote_only(self, prefix: str = "") -> Iterator[RemoteFile]:
        return iter(())

    def deferred(self, prefix: str) -> Sequence[Deferred]:
        return ()

    def bring_back(self, prefix: str) -> None:
        """Nobody else has what a plain directory has lost."""

    def touched_since(self, mark: int) -> Touched:
        return Touched(mark, ())
