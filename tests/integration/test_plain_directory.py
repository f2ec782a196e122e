"""A datastore that is a plain directory: what a bucket's users are promised holds here too."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from machines import Machine, Place, Team
from swamp.env import SYSTEM
from swamp.locks.flock import DirectoryLeases


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.make(tmp_path, "one")


@contextmanager
def running_method(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """A method run that is at work, and ends when the block does."""
    go = machine.home / "go"
    told = f"touch {machine.home}/began; for i in $(seq 600); do [ -e {go} ] && exit 0; sleep 0.1; done"
    machine("model", "create", "command/shell", "web", "--arg", f"execute.run={told}").ok()
    process = machine.start("model", "method", "run", "web", "execute")
    deadline = time.monotonic() + 60
    while not (machine.home / "began").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    try:
        yield process
    finally:
        go.touch()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("args", "made"),
    [((), "named"), (("--repo-dir", "given"), "given"), (("path",), "path"), ((".",), ".")],
)
def test_a_repository_is_made_where_it_would_be_looked_for(machine: Machine, args, made):
    """The same order as everywhere: what stands on the line, else --repo-dir, else SWAMP_REPO_DIR."""
    (machine.repo / ".swamp.yaml").unlink()
    place = machine.repo / made
    done = machine("repo", "init", *args, env={"SWAMP_REPO_DIR": str(machine.repo / "named")}).ok()
    assert Path(done["path"]).resolve() == place.resolve()
    assert (machine.repo / ".swamp.yaml").exists() is (made == ".")


def test_lock_status_names_the_run_that_holds_a_model(machine: Machine):
    with running_method(machine) as process:
        model_id = machine("model", "get", "web").ok()["id"]
        found = machine("datastore", "lock", "status").ok()
        assert found["held"] is False
        [held] = found["models"]
        assert (held["model"], held["pid"]) == (f"command/shell/{model_id}", process.pid)
        assert "@" in held["holder"] and held["hostname"] and held["acquiredAt"] and held["ageMs"] >= 0

        second = machine("model", "method", "run", "web", "execute", env={"SWAMP_LOCK_TIMEOUT_MS": "300"}).failed(75)
        assert f"in use by process {process.pid} and" in second["error"], "who waits is no holder"
        assert second["details"]["holder"]["pid"] == process.pid
        assert second["details"]["holder"]["model"] == held["model"]

        kept = machine("datastore", "lock", "release", "--force", "--model", held["model"]).failed(1)
        assert str(process.pid) in kept["error"]
        text = machine("datastore", "lock", "status", json=False).out.splitlines()
        assert text == ["global: free", f"{held['model']}: held by {held['holder']}"]
    assert process.returncode == 0
    assert machine("datastore", "lock", "status").ok() == {"held": False, "models": []}
    assert machine("datastore", "lock", "release", "--force").ok() == {"released": False}


def test_lock_status_names_who_holds_the_whole_directory(machine: Machine):
    leases = DirectoryLeases(machine.repo / ".swamp" / ".locks", SYSTEM, 5)
    with leases.whole_store():
        found = machine("datastore", "lock", "status").ok()
        assert found["held"] is True and found["models"] == []
        lock = machine.status()["lock"]
        assert (lock["held"], lock["holder"]) == (True, found["info"]["holder"]) and lock["ageMs"] >= 0
        waiting = machine("data", "put", "web", "report", str(machine.repo / ".swamp.yaml"),
                          env={"SWAMP_LOCK_TIMEOUT_MS": "300"}).failed(75)  # fmt: skip
        assert waiting["details"]["holder"]["pid"] == found["info"]["pid"]
    assert machine.status()["lock"] == {"held": False}


def test_the_note_of_a_killed_holder_holds_nothing(machine: Machine):
    with running_method(machine) as process:
        process.kill()
        process.wait()
    assert machine("datastore", "lock", "status").ok() == {"held": False, "models": []}


def test_a_store_that_does_not_answer_has_not_said_who_holds_the_lease(tmp_path: Path):
    bucket = tmp_path / "bucket"
    a = Team(tmp_path, Place(bucket.as_uri())).machine("a")
    assert a.status()["lock"] == {"held": False}
    bucket.rename(tmp_path / "away")
    found = a("datastore", "status")
    assert found.code == 69
    assert found.json["healthy"] is False and found.json["lock"] == {"held": None}
