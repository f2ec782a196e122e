"""How the last process left state.db: a file that was changed since, by whatever, is checked before it is believed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def left_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.left")


def note_left(path: Path) -> None:
    """Only ever saves a check, so it is written without ceremony."""
    with suppress(OSError):
        left_of(path).write_text(_looks(path))


def was_left(path: Path) -> bool:
    """Whether the file is as it was left. A process that was killed left no word, and its file is checked."""
    try:
        return left_of(path).read_text() == _looks(path)
    except (OSError, ValueError):
        return False


def _looks(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
