"""The swamp that wrote format version 3 and knows no later one, as a machine of today's tests can run it."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from machines import Machine

LAST_OF_VERSION_3 = "0dc8dc0"
REPO = Path(__file__).parent.parent
BUCKET = Path(__file__).parent / "fixtures" / "version3"
"""A bucket that it has written: `make_version3.py` beside it says how."""


def old_code(directory: Path) -> Path | None:
    """Its source, out of this repository's history; None where there is no history (an archive, a shallow clone)."""
    found = subprocess.run(["git", "archive", LAST_OF_VERSION_3, "src"], cwd=REPO, capture_output=True)
    if found.returncode != 0:
        return None
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def downgraded(machine: Machine, code: Path) -> Machine:
    """The same machine, cache and checkout, with the old program."""
    return Machine(machine.home, machine.repo, {**machine.env, "PYTHONPATH": str(code)})
