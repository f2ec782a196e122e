"""What scripts may rely on: with `--json` stdout holds one document, or nothing when there is no result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SWAMP = Path(sys.executable).with_name("swamp")


class Shell:
    """A repository with a directory as its bucket, and the command line as a process."""

    def __init__(self, root: Path) -> None:
        self.repo = root / "repo"
        self.repo.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SWAMP_")}
        self.environment = {**kept, "SWAMP_HOME": str(root / "home")}
        (self.repo / "file.json").write_text('{"n": 1}')

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SWAMP, *words], cwd=self.repo, env=self.environment, capture_output=True, text=True, timeout=120,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path)
    for words in (("repo", "init"), ("datastore", "setup", f"file://{tmp_path}/bucket")):
        ran = made(*words, "--json")
        assert ran.returncode == 0, ran.stderr
        json.loads(ran.stdout)
    return made


@pytest.mark.inv("cli.one-document")
def test_every_kind_of_command_prints_one_document(shell: Shell) -> None:
    commands = [
        "data put notes first file.json",
        "data list",
        "data get notes first",
        "data query attributes.n==1",
        "model type list",
        "model create command/shell hello",
        "model method run hello execute --input run=pwd",
        "workflow list",
        "datastore sync",
        "datastore status",
        "datastore log",
    ]
    for command in commands:
        ran = shell(*command.split(), "--json")
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        assert isinstance(json.loads(ran.stdout), dict), command


@pytest.mark.inv("cli.one-document")
@pytest.mark.parametrize(
    ("command", "code", "kind"),
    [
        ("data get notes nothing", 1, "not-found"),
        ("data delete notes nothing", 2, "usage"),  # asks on a terminal, needs --yes elsewhere
        ("data put notes", 2, "usage"),
        ("datastore sync --no-such-option", 2, "usage"),
        ("no-such-group", 2, "usage"),
    ],
)
def test_a_command_without_a_result_says_why_on_the_last_line_of_stderr(
    shell: Shell, command: str, code: int, kind: str
) -> None:
    ran = shell(*command.split(), "--json")
    assert (ran.returncode, ran.stdout) == (code, "")
    said = json.loads(ran.stderr.strip().splitlines()[-1])
    assert said["code"] == kind
    assert said["error"]
    assert "Traceback" not in ran.stderr
