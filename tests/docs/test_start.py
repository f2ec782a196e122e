"""The process starts fast: nothing heavy is imported before a command needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.models import CommandInfo

from swamp.cli.main import main

HEAVY = ("pyspark", "pyarrow", "pandas", "numpy", "google", "pydantic", "obstore", "boto3", "yaml", "rich", "sqlite3")
SCRIPT = """
import json, sys
from swamp.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as leaving:
    code = leaving.code
json.dump({"code": code, "modules": sorted(sys.modules)}, sys.stderr)
"""


def imported(tmp_path: Path, *args: str) -> tuple[int, set[str]]:
    """Exit code and top-level modules of one command, in a process of its own."""
    environment = {**os.environ, "SWAMP_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *args], capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path
    )
    report = json.loads(ran.stderr.splitlines()[-1])
    return report["code"], {name.partition(".")[0] for name in report["modules"]}


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(tmp_path: Path, flag: str) -> None:
    code, modules = imported(tmp_path, flag)
    assert code == 0
    assert "typer" in modules
    assert sorted(modules & set(HEAVY)) == []


def test_the_package_is_a_command_too() -> None:
    """Where no script is on the PATH (an agent's venv, a container), `python -m swamp` is what people try."""
    ran = subprocess.run([sys.executable, "-m", "swamp", "--version"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.split()[0], ran.stderr) == (0, "swamp", "")


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import swamp, sys; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = set(ran.stdout.split())
    assert "swamp" in modules
    assert sorted(modules & {*HEAVY, "typer", "click"}) == []


def test_a_look_ahead_begins_before_anything_slow_is_loaded() -> None:
    """What comes before it is waited for on both cores."""
    script = "import swamp.cli.main, swamp.cache.second, sys; print(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    modules = set(ran.stdout.split())
    assert "swamp.cache.second" in modules
    assert sorted(modules & {"typing", "re", "sqlite3", "datetime", "dataclasses", "pathlib"}) == []


def test_a_command_makes_no_other_command_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """typer takes a millisecond for each: a group with one is told from the whole one by nobody who named it."""
    made: list[str] = []
    make = typer.main.get_command_from_info

    def noted(command_info: CommandInfo, **options: Any) -> Any:
        made.append(str(command_info.name))
        return make(command_info, **options)

    monkeypatch.setattr(typer.main, "get_command_from_info", noted)
    for line, expected in {"datastore sync": "sync", "log": "log", "datastore lock status": "status"}.items():
        made.clear()
        assert main([*line.split(), "--help"]) == 0
        assert expected in made and "doctor" not in made, line
    assert main(["datastore", "--help"]) == 0
    assert "doctor" in made


def test_a_fresh_pull_reads_segments_without_pyarrow(tmp_path: Path) -> None:
    """pyarrow takes a quarter of a second to load, and is no part of a slim install."""
    first, second, bucket = tmp_path / "first", tmp_path / "second", (tmp_path / "bucket").as_uri()
    for repo in (first, second):
        assert imported(tmp_path, "repo", "init", str(repo), "-q")[0] == 0
    (first / ".swamp" / "files").mkdir(parents=True)
    for n in range(1500):  # more than a root holds by itself
        (first / ".swamp" / "files" / f"{n:04d}").write_text("x")
    assert imported(tmp_path, "datastore", "setup", bucket, "--repo-dir", str(first), "-q")[0] == 0
    assert list((tmp_path / "bucket").rglob("*.parquet"))
    code, modules = imported(tmp_path, "datastore", "setup", bucket, "--repo-dir", str(second), "-q")
    assert (code, "pyarrow" in modules, "pandas" in modules) == (0, False, False)
