"""The notebook of the demo runs from its first cell to its last, and what it made is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from reading import REPO

import swamp
from swamp.repo.config import init_repo


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the orders that the workflow's first steps collect."""
    for name in [name for name in os.environ if name.startswith("SWAMP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWAMP_REPO_DIR", str(tmp_path / "repo"))
    init_repo(tmp_path / "repo")
    shutil.copytree(REPO / "demo" / "workflow", tmp_path / "repo", dirs_exist_ok=True)
    with swamp.open() as repo:
        from swamp.models.context import RunContext

        for region in ("north", "south"):
            RunContext(repo).models.create(
                "python/script", f"orders-{region}", global_arguments={}, methods={}, tags={}
            )
            repo.run(f"orders-{region}", "run", file="scripts/orders.py", args=[region]).wait()
    return tmp_path / "repo"


@pytest.mark.timeout(280)
def test_the_notebook_reads_draws_writes_back_and_tells_where_it_came_from(orders: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient

    notebook = nbformat.read(REPO / "demo" / "notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(orders)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = {kind for output in shown for kind in output.get("data", {})}
    assert "image/png" in kinds and "text/html" in kinds
    assert not [output for output in shown if output.output_type == "error"]
    with swamp.open() as repo:
        assert repo.read("notebook", "revenue.png").bytes().startswith(b"\x89PNG")
        found = repo.lineage("notebook", "revenue.png", down=False)
        assert [node.title for node in found.inputs] == ["notebook/revenue version 1"]
        table = found.inputs[0].path
        assert {node.title for node in found.before(table)} == {
            "orders-north/orders.jsonl version 1",
            "orders-south/orders.jsonl version 1",
        }


def test_the_notebook_is_kept_without_what_one_run_of_it_showed() -> None:
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(REPO / "demo" / "notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
