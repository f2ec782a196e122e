"""S22: a workflow's first step computes with what the store holds after it has its lease; others know of its run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from machines import Machine, Place, Team
from swamp.data.names import auto_id
from swamp.data.records import MANUAL_TYPE
from swamp.data.run_record import RunState
from swamp.errors import Unavailable
from swamp.models.context import RunContext
from swamp.sync.progress import Progress
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie
from swamp.wiring import open_repo
from swamp.workflows.recorder import RunRecorder
from swamp.workflows.run import Driver


@pytest.fixture
def team(double_team: Team) -> Team:
    return double_team


def flow(machine: Machine, run: str) -> None:
    task = {"type": "model_method", "modelType": "command/shell", "modelName": "m", "methodName": "execute"}
    steps = [{"name": "one", "task": {**task, "inputs": {"run": run}}}]
    document = {"id": "wf-one", "name": "one", "jobs": [{"name": "j", "steps": steps}]}
    (machine.repo / "workflows" / "workflow-one.yaml").write_text(json.dumps(document))


def until(true: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


@pytest.mark.inv("run.fresh")
def test_S22_the_first_step_sees_what_was_committed_while_it_took_its_lease(team: Team, double: S3Double):
    """A commit that lands after the run has its lock and before its step has its lease: one behind is too many."""
    a, b = team.machine("a"), team.machine("b")
    a.put("source", "number", "1")
    flow(b, "echo ${{ data.latest('source', 'number').content }}")
    b.sync()
    commit = Lie(
        "delay", "PUT", "*/data/command/shell/*/.lock", seconds=0.0, then=lambda: a.put("source", "number", "2")
    )
    double.lies.append(commit)
    b("workflow", "run", "one").ok()
    assert not commit.times
    assert json.loads(b.get("m", "result")["content"])["stdout"].strip() == "2"


@pytest.mark.inv("run.fresh")
def test_S22_a_step_is_made_of_data_that_this_machine_has_never_heard_of(team: Team):
    """Its inputs are looked at after the store was asked: they were, before, and `there is no data` was said of it."""
    a, b = team.machine("a"), team.machine("b")
    a.put("source", "number", "1")
    flow(b, "echo ${{ data.latest('source', 'number').content }}")
    b("workflow", "run", "one").ok()
    assert json.loads(b.get("m", "result")["content"])["stdout"].strip() == "1"


@pytest.mark.inv("run.known")
def test_S22_a_run_whose_first_step_waits_for_its_lease_is_known_to_others(team: Team, tmp_path: Path):
    a, b = team.machine("a"), team.machine("b")
    go = tmp_path / "go"
    flow(a, f"until test -e {go}; do sleep 0.05; done")
    flow(b, "echo done")
    first = a.start("workflow", "run", "one")
    until(lambda: a("workflow", "run", "search").ok()["results"])
    until(lambda: any(key.endswith("/.lock") and key.startswith("data/") for key in team.place.objects("data/")))
    second = b.start("workflow", "run", "one")
    try:

        def known() -> bool:
            found = a("workflow", "run", "search", env={"SWAMP_FRESH": "always"}).ok()["results"]
            return len(found) == 2 and {row["status"] for row in found} == {"running"}

        until(known)
    finally:
        go.touch()
    for process in (first, second):
        with process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)


@pytest.mark.inv("run.known")
def test_S22_a_step_does_not_begin_before_its_run_is_in_the_store(tmp_path: Path):
    bucket = tmp_path / "bucket"
    a = Team(tmp_path, Place(bucket.as_uri())).machine("a")
    a.put("web", "x", "not the first commit")
    commits = len(list((bucket / "_index" / "log").iterdir()))
    flow(a, f"ls {bucket}/_index/log | wc -l")
    a("workflow", "run", "one").ok()
    assert int(json.loads(a.get("m", "result")["content"])["stdout"]) == commits + 1


@pytest.mark.inv("run.known")
def test_S22_a_run_that_could_not_be_made_known_does_nothing(team: Team, double: S3Double, tmp_path: Path):
    a = team.machine("a")
    a.put("web", "x", "not the first commit")
    ran = tmp_path / "ran"
    flow(a, f"touch {ran}")
    double.lies.append(Lie("refuse", "PUT", "*/_packs/*", status=403, times=10))
    done = a("workflow", "run", "one")
    assert done.code not in (0, 1) and not ran.exists(), done
    assert "kept" in done.error["error"] + done.error["hint"]


class Meanwhile(Progress):
    """Does something in another thread when the n-th push has planned and has sent nothing yet."""

    def __init__(self, act: Callable[[], object], push: int) -> None:
        self.other, self.left = threading.Thread(target=act), push

    def begin(self, label: str, files: int, total: int) -> None:
        if label == "pushing":
            self.left -= 1
            if self.left == 0:
                self.other.start()
                self.other.join(1)  # it may have to wait for the end of this push


def run_with(machine: Machine, progress: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> RunState:
    for name, value in machine.environment().items():
        monkeypatch.setenv(name, value)
    with open_repo(machine.repo, progress=progress) as repo, RunContext(repo) as context:
        run = Driver(context).start("one", {})
        progress.other.join()
        return run


@pytest.mark.inv("run.known")
def test_S22_a_record_that_a_parallel_step_saves_meanwhile_does_not_fail_the_run(tmp_path: Path, monkeypatch):
    """The first push of its record is answered for by one step; the others say meanwhile that they have begun."""
    a = Team(tmp_path, Place((tmp_path / "bucket").as_uri())).machine("a")
    flow(a, "echo done")
    made: list[RunRecorder] = []
    recorder = Driver.recorder
    monkeypatch.setattr(Driver, "recorder", lambda self, run: made.append(recorder(self, run)) or made[-1])

    def said() -> None:
        with made[0].change() as run:
            run.tags["saved"] = "meanwhile"

    progress = Meanwhile(said, push=1)
    run = run_with(a, progress, monkeypatch)
    assert run.tags["saved"] == "meanwhile"
    assert run.status == "succeeded", [step.error for _, step in run.steps]


def test_S22_a_line_of_the_audit_that_is_written_meanwhile_does_not_fail_a_step(tmp_path: Path, monkeypatch):
    """No command answers for the file that all of them write: the next push takes it."""
    a = Team(tmp_path, Place((tmp_path / "bucket").as_uri())).machine("a")
    flow(a, "echo done")
    tree = a.tree

    def line() -> None:
        [file] = tree.glob("audit/*.jsonl")
        with file.open("a") as out:
            out.write("{}\n")

    progress = Meanwhile(line, push=2)
    run = run_with(a, progress, monkeypatch)
    assert run.status == "succeeded", [step.error for _, step in run.steps]


def test_S22_what_was_kept_for_a_model_is_not_delivered_by_who_holds_its_lease(tmp_path: Path, monkeypatch):
    """It would wait for itself: a run's first record inside a step leaves the outbox to the next command."""
    a = Team(tmp_path, Place((tmp_path / "bucket").as_uri())).machine("a")
    for name, value in a.environment().items():
        monkeypatch.setenv(name, value)
    told: list[str] = []
    with open_repo(a.repo, overrides={"lock_timeout_ms": 200}, notify=told.append) as repo:
        with repo.changes.model("model method run", MANUAL_TYPE, auto_id(MANUAL_TYPE, "m")):
            repo.kept.keep("m", "x", b"1", {"tags": {}, "contentType": "text/plain"}, Unavailable("the store is away"))
            with repo.changes.records("workflow run", ("workflow-runs/x",)):
                pass
        assert not [said for said in told if "could not be delivered" in said]
        repo.kept.deliver()
        assert repo.kept.waiting() == [] and repo.data.get("m", "x").version == 1
