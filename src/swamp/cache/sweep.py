"""What a killed process leaves in staging: nobody will ever rename it, and nobody else would remove it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from swamp.cache.paths import TEMP_PREFIX

FOLDER_PREFIX: Final = "compare-"
_OWNED = re.compile(rf"(?:{re.escape(TEMP_PREFIX)}|{re.escape(FOLDER_PREFIX)})(\d+)-")


def sweep_staging(staging: Path) -> int:
    """Removes what belongs to processes that are no more; how many things that were.

    A cache belongs to one machine, so a number that no process here has is nobody's. What a living process stages,
    also one that only reads a file into a lazy cache, stays.
    """
    try:
        found = [entry for entry in os.scandir(staging) if _OWNED.match(entry.name)]
    except FileNotFoundError:
        return 0
    dead = [entry for entry in found if not _is_alive(_owner(entry.name))]
    for entry in dead:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)
    return len(dead)


def _owner(name: str) -> int:
    owned = _OWNED.match(name)
    assert owned is not None
    return int(owned.group(1))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's: there is one
    return True
