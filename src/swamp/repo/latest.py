"""`latest` markers: a local convenience for people and scripts, derived from what is there after a pull. S01, S02

They are never synced and nothing in swamp reads them, so they are written without ceremony.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from swamp.cache.paths import TEMP_PREFIX
from swamp.data.names import LATEST, METADATA, DataName, name_of_directory, parse_version


def derive_latest(root: Path, names: Iterable[str]) -> None:
    """Makes the marker of every name whose versions a pull touched say its highest version with metadata."""
    for data in map(name_of_directory, names):
        if data is not None:
            _derive(root, data)


def _derive(root: Path, data: DataName) -> None:
    directory = root / data.path
    newest = _newest(directory)
    marker = directory / LATEST
    if newest is None:
        marker.unlink(missing_ok=True)
        _prune(root, directory)
        return
    text = f"{newest}\n"
    try:
        if marker.read_text(encoding="ascii") == text:
            return
    except (OSError, ValueError):
        pass  # none yet, or not readable: written anew
    temp = directory / f"{TEMP_PREFIX}{os.getpid()}-latest"
    temp.write_text(text, encoding="ascii")
    temp.replace(marker)


def _newest(directory: Path) -> int | None:
    try:
        names = os.listdir(directory)  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError):
        return None
    numbers = sorted((n for n in map(parse_version, names) if n is not None), reverse=True)
    return next((n for n in numbers if (directory / str(n) / METADATA).is_file()), None)


def _prune(root: Path, directory: Path) -> None:
    """Directories that a pull has emptied; one that still holds something stays."""
    while directory != root:
        try:
            directory.rmdir()
        except OSError:
            return
        directory = directory.parent
