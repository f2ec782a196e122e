"""What a killed process leaves in staging: nobody will ever rename it, and nobody else would remove it."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from swamp.cache.paths import TEMP_PREFIX

FOLDER_PREFIX: Final = "compare-"
OLD_SECONDS: Final = 3600.0
CLOCK_SECONDS: Final = 60.0
"""How far the system's idea of its own start may be off."""
_OWNED = re.compile(rf"(?:{re.escape(TEMP_PREFIX)}|{re.escape(FOLDER_PREFIX)})(\d+)-")


def sweep_staging(staging: Path, now: float, older_than: float = OLD_SECONDS) -> int:
    """Removes what was put there an hour ago or earlier by processes that are no more; how many things that were.

    What a living process stages, also one that only reads a file into a lazy cache, stays. The hour is for those whom
    this process cannot see: another container that shares the cache.
    """
    try:
        with os.scandir(staging) as entries:
            found = [entry for entry in entries if _OWNED.match(entry.name)]
    except FileNotFoundError:
        return 0
    left = [entry for entry in found if _is_left(entry, now - older_than)]
    for entry in left:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            with suppress(OSError):  # somebody else's to remove
                Path(entry.path).unlink(missing_ok=True)
    return len(left)


def _is_left(entry: os.DirEntry[str], before: float) -> bool:
    owned = _OWNED.match(entry.name)
    assert owned is not None
    try:
        made = entry.stat(follow_symlinks=False).st_ctime
    except OSError:
        return False  # gone meanwhile
    return made <= before and not _is_alive(int(owned.group(1)), made)


def _is_alive(process: int, since: float) -> bool:
    """Whether that very process runs; one that began later only has its number (in a container: often)."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # somebody else's: there is one
    began = _began(process)
    return began is None or began <= since + CLOCK_SECONDS


def _began(process: int) -> float | None:
    """When it was started, where the system tells."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        booted = next(row for row in Path("/proc/stat").read_text().splitlines() if row.startswith("btime "))
    except (OSError, StopIteration):
        return None
    return int(booted.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
