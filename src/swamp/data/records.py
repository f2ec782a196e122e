"""One YAML file per record: how outputs, runs and definitions are written, found and removed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from swamp.cache.files import disk_error, on_disk, place, read_at_most, remove_empty_parents, stage_file
from swamp.data.document import MAX_BYTES, load_mapping
from swamp.sync.port import Tree

SUFFIX: Final = ".yaml"


class RecordFiles:
    """The record files below one directory of the tree. Changes are announced by path. inv[journal.first]"""

    def __init__(self, tree: Tree, directory: str) -> None:
        self._tree = tree
        self.directory = directory

    def write(self, path: str, content: bytes) -> None:
        with self._tree.announce([path]):
            place(stage_file(self._staging(path), [content]), self._tree.root, path)

    def _staging(self, path: str) -> Path:
        """Beside its place, so that the rename stays within one file system."""
        parent = (self._tree.root / path).parent
        with on_disk("create", path):
            parent.mkdir(parents=True, exist_ok=True)
        return parent

    def remove(self, paths: Sequence[str], *, confirmed: bool = False) -> int:
        """Removes those that are there, in one announcement; none there: nothing is announced."""
        present = [path for path in paths if (self._tree.root / path).is_file()]
        if not present:
            return 0
        with self._tree.announce(present, "delete", confirmed=confirmed):
            for path in present:
                with on_disk("delete", path):
                    (self._tree.root / path).unlink(missing_ok=True)
                remove_empty_parents(self._tree.root, path)
        return len(present)

    def read(self, path: str) -> dict[str, Any] | None:
        """The document at `path`, None if there is none."""
        raw = self.read_bytes(path)
        return None if raw is None else load_mapping(raw, path)

    def read_bytes(self, path: str) -> bytes | None:
        try:
            return read_at_most(self._tree.materialize(path), MAX_BYTES) if self._exists(path) else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(error, "read", path) from error

    def _exists(self, path: str) -> bool:
        return (self._tree.root / path).is_file()

    def paths(self, under: str = "") -> Iterator[str]:
        """The record files below, newest names first, one directory in memory at a time."""
        top = self._tree.root / self.directory / under
        for directory, children, files in os.walk(top):
            children.sort()
            inside = Path(directory).relative_to(self._tree.root).as_posix()
            for name in sorted(files, reverse=True):
                if name.endswith(SUFFIX) and not name.startswith("."):
                    yield f"{inside}/{name}"

    def holding(self, needle: str, under: str = "") -> Iterator[str]:
        """The files whose bytes hold `needle`: cheap enough to run before any parsing."""
        wanted = needle.encode()
        for path in self.paths(under):
            if wanted in (self.read_bytes(path) or b""):
                yield path
