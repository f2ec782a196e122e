"""What the tests of this directory share."""

import os
from pathlib import Path

import pytest

from swamp.errors import MissingTool
from swamp.pipeline.java import find_java


def require_java():
    try:
        find_java(os.environ)
    except MissingTool as error:
        if "spark" in os.environ.get("SWAMP_REQUIRE", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for path, body in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
