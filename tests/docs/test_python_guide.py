"""The Python of the guide runs from top to bottom, in the repository that its shell blocks make."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from reading import REPO, blocks

import swamp

GUIDE = REPO / "docs" / "guides" / "python.md"
PUBLIC = ("Repository", "SavedVersion", "StartedRun", "NamedWorkflow", "Listing")


@pytest.mark.timeout(300)
def test_the_guide_runs_from_top_to_bottom(tmp_path: Path) -> None:
    found = blocks(GUIDE)
    shell = "\n".join(["set -euo pipefail", *(block.body for block in found if block.info == "sh")])
    program = "\n".join([*_registered(), *(block.body for block in found if block.info == "python")])
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SWAMP_")},
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "page.py").write_text(program)
    for command in (["bash", "-c", shell], [sys.executable, str(tmp_path / "page.py")]):
        ran = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=280)
        assert ran.returncode == 0, f"{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"


def _registered() -> list[str]:
    """An environment that was built before swamp had the entry point learns of it here; `make` renews it."""
    if entry_points(group="fsspec.specs", name="swamp"):
        return []
    return ['import fsspec; fsspec.register_implementation("swamp", "swamp.api.files.SwampFileSystem")']


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_method_is_typed_documented_and_shown(name: str) -> None:
    kind, text = getattr(swamp, name), GUIDE.read_text()
    own = {key: value for key, value in vars(kind).items() if not key.startswith("_")}
    called = {key: value for key, value in own.items() if callable(value)}
    assert kind.__doc__
    assert [key for key, value in called.items() if not value.__doc__] == []
    assert [key for key, value in called.items() if "return" not in value.__annotations__] == []
    assert [key for key in called if f".{key}(" not in text and f"`{key}`" not in text] == []
