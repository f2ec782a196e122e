"""Versions that a command made and that are not in the tree any more: where they were moved to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from swamp.cache.layout import CacheDir
from swamp.data.metadata import decode
from swamp.data.names import METADATA
from swamp.errors import CorruptData
from swamp.sync.result import Conflict


def moved_aside(cache: CacheDir, made: Mapping[str, str]) -> list[Conflict]:
    """One conflict for each version of `made` (path to id) whose place in the tree holds another, or nothing."""
    return [
        Conflict(f"{path}/{METADATA}", _kept(cache, path, id_))
        for path, id_ in made.items()
        if _id_at(cache.tree / path) != id_
    ]


def _kept(cache: CacheDir, path: str, id_: str) -> str:
    """Where the loser's bytes are, below the cache; the conflicts directory itself if nobody can say."""
    for directory in _newest_first(cache.conflicts):
        if _id_at(directory / path) == id_:
            return f"{cache.conflicts.name}/{directory.name}/{path}/{METADATA}"
    return cache.conflicts.name


def _newest_first(conflicts: Path) -> Iterator[Path]:
    yield from sorted((p for p in conflicts.iterdir() if p.is_dir()), reverse=True)  # named by ULIDs


def _id_at(version: Path) -> str | None:
    try:
        return decode((version / METADATA).read_bytes(), METADATA).id
    except (OSError, CorruptData):
        return None
