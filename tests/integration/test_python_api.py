"""The public names, and what the command line costs before it does anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import swamp
from machines import SWAMP, Machine, Team

HEAVY = ("pyspark", "pyarrow", "pandas", "pydantic", "google", "rich", "numpy")


def modules_after(machine: Machine, code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(' '.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], env=machine.environment(), cwd=machine.repo, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.strip().splitlines()[-1].split())


def test_import_swamp_is_cheap(local_team: Team):
    a = local_team.machine("a", joined=False)
    loaded = modules_after(a, "import swamp")
    assert not {m for m in loaded if m.startswith("swamp.")}


@pytest.mark.parametrize("words", [["--help"], ["datastore", "sync", "--json"], ["data", "list", "--json"]])
def test_small_commands_load_nothing_heavy(local_team: Team, words):
    """The process starts fast: a test counts imports, no test counts seconds."""
    a = local_team.machine("a")
    a.put("web", "report", "1")
    a.sync()
    code = f"import sys\nsys.argv = ['swamp', *{words!r}]\nfrom swamp.cli.main import main\nmain()"
    loaded = modules_after(a, code)
    assert not [m for m in loaded if m.split(".")[0] in HEAVY]
    if words[0] != "data":
        assert "yaml" not in loaded


def test_a_program_does_what_the_cli_does(local_team: Team, monkeypatch):
    a, b = local_team.machine("a"), local_team.machine("b")
    monkeypatch.setenv("SWAMP_HOME", str(a.home / ".swamp"))
    with swamp.open_repo(a.repo) as repo:
        done = repo.data.put("web", "report", b"hello", content_type="text/plain", tags={"k": "v"})
        assert done.version.version == 1 and done.sync is not None and done.sync.files_pushed >= 3
        assert [row.fields["name"] for row in repo.data.list()] == ["report"]
        assert repo.data.text(repo.data.get("web", "report")) == "hello"
        assert repo.datastore.sync().fast_path
        with pytest.raises(swamp.errors.NotFound):
            repo.data.get("web", "nothing")
    b.sync()
    assert b.get("web", "report")["tags"]["k"] == "v"
    assert b("data", "delete", "web", "report", "--yes").ok() == {"versionsDeleted": 1}
    with swamp.open_repo(a.repo) as repo:
        assert repo.datastore.sync("pull").ok
        assert list(repo.data.list()) == []


def test_outside_a_repository_the_error_says_what_to_do(tmp_path: Path):
    done = subprocess.run(
        [str(SWAMP), "data", "list"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Hint: run `swamp repo init`" in done.stderr and done.stdout == ""


def test_common_options_are_accepted_anywhere(local_team: Team):
    a = local_team.machine("a")
    for words in (
        ("--json", "datastore", "status"),
        ("datastore", "--json", "status"),
        ("datastore", "status", "-q", "-v", "--no-color", "--repo-dir", str(a.repo)),
        ("--repo-dir", str(a.repo), "datastore", "lock", "status"),
    ):
        assert isinstance(a(*words).ok(), dict)


def test_completion_knows_groups_commands_and_options(local_team: Team):
    a = local_team.machine("a")

    def complete(line: str) -> str:
        env = {"_SWAMP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        return a(json=False, env=env).out

    assert "datastore" in complete("swamp da") and "data" in complete("swamp da")
    assert "setup" in complete("swamp datastore se")
    assert "--dry-run" in complete("swamp datastore sync --dr")


def test_in_a_pipe_there_are_plain_lines(local_team: Team):
    a = local_team.machine("a")
    a.put("web", "report", "1")
    listed = a("data", "list", json=False).out.splitlines()
    assert listed[0].split("\t")[:2] == ["MODEL", "NAME"] and listed[1].split("\t")[:2] == ["web", "report"]
    assert "\x1b" not in a("--help", json=False).out + a("datastore", "status", json=False).out
