"""Editing a file of the repository: from a file, from stdin, or in the user's editor; a wrong text changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from swamp.errors import Failed, UsageError


def new_text(current: str, file: str | None, check: Callable[[str], None], suffix: str = ".yaml") -> str:
    """The text that takes the place of `current`. `check` raises when it is wrong."""
    if file is not None:
        text = sys.stdin.read() if file == "-" else _read(Path(file))
        check(text)
        return text
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("there is no terminal to edit in", hint="give the new text with --file FILE (or - for stdin)")
    return _edited(current, check, suffix)


def given_as(file: str | None, otherwise: str) -> str:
    """What to call the new text in an error: the user corrects what they gave, not where it was to go."""
    if file is None:
        return otherwise
    return "standard input" if file == "-" else file


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _edited(current: str, check: Callable[[str], None], suffix: str) -> str:
    """In $VISUAL or $EDITOR, on a copy: what is saved there is checked before it counts."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.NamedTemporaryFile("w", suffix=suffix, delete=False, encoding="utf-8") as copy:
        copy.write(current)
    path = Path(copy.name)
    try:
        code = subprocess.call([*editor.split(), str(path)])
        if code != 0:
            raise Failed(f"the editor ended with code {code}", hint="nothing was changed")
        text = path.read_text(encoding="utf-8")
        check(text)
        return text
    finally:
        path.unlink(missing_ok=True)
