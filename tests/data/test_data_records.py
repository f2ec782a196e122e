"""Outputs, runs and definitions: records that survive, and searches that stay small."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from swamp.data import run_record as runs_module
from swamp.data.names import auto_id
from swamp.data.records import (
    AUTO,
    DefinitionRepository,
    Output,
    OutputRepository,
    Provenance,
    StoredDefinition,
    auto_definition,
)
from swamp.data.run_record import JobState, RunRepository, RunState, StepState
from swamp.errors import CorruptData, NotFound, UsageError
from swamp.sync.port import PlainTree

TIME = "2026-05-01T12:00:00.000Z"
ARTIFACT = {"name": "result", "version": 3, "modelName": "box", "path": "data/manual/data/x/result/3"}


@pytest.fixture
def output() -> Output:
    return Output(
        "o1",
        "d1",
        "command/shell",
        "execute",
        "succeeded",
        TIME,
        Provenance("hash", "workflow", "me", "r1", "ship"),
        completed_at="2026-05-01T12:00:01.000Z",
        duration_ms=1000,
        artifacts=(ARTIFACT,),
        log_file="logs/x.log",
        error=None,
        extra={"later": [1, 2]},
    )


@pytest.fixture
def run() -> RunState:
    steps = [
        StepState("build", "build", "succeeded", TIME, TIME, artifacts=[ARTIFACT]),
        StepState("ship", "ship", "failed", TIME, error="exit 3", extra={"attempt": 2}),
        StepState("tell", "each"),
    ]
    return RunState(
        "r1",
        "w1",
        "deploy",
        "failed",
        TIME,
        jobs=[JobState("release", "failed", steps, {"weight": 1})],
        inputs={"hosts": ["a", "b"]},
        tags={"env": "prod"},
        pid=7,
        host="h",
        trigger_source="cli",
        extra={"approvals": []},
    )


def test_an_output_round_trips_and_a_later_state_replaces_it(tree, output):
    repo = OutputRepository(tree)
    repo.save(replace(output, status="running", completed_at=None, artifacts=()))
    assert repo.save(output) == f"outputs/command/shell/execute/d1-{TIME}.yaml"
    assert repo.get("o1") == output
    assert list(repo.list()) == [output]


def test_an_output_holds_the_paths_of_the_versions_it_names(tree, output):
    path = OutputRepository(tree).save(output)
    assert b"data/manual/data/x/result/3" in (tree.root / path).read_bytes()


def test_two_runs_in_one_millisecond_are_two_outputs(tree, output):
    repo = OutputRepository(tree)
    repo.save(output)
    repo.save(replace(output, id="o2"))
    assert {found.id for found in repo.list()} == {"o1", "o2"}
    repo.save(replace(output, id="o2", status="failed"))
    assert repo.get("o2").status == "failed"
    assert repo.get("o1").status == "succeeded"


def test_outputs_are_searched_by_everything_given(tree, output):
    repo = OutputRepository(tree)
    repo.save(output)
    repo.save(replace(output, id="o2", started_at="2026-05-02T12:00:00.000Z", status="failed"))
    assert [o.id for o in repo.search(since="2026-05-02")] == ["o2"]
    assert [o.id for o in repo.search(definition_id="d1", workflow_run_id="r1")] == ["o2", "o1"]
    assert list(repo.search(definition_id="other")) == []
    assert [o.id for o in repo.list()] == ["o2", "o1"]
    with pytest.raises(NotFound):
        repo.get("o3")


def test_a_damaged_record_is_an_error_that_names_it(tree, output, run):
    path = OutputRepository(tree).save(output)
    with tree.announce([path]):
        (tree.root / path).write_text("id: o1\nstatus: x\n")
    with pytest.raises(CorruptData, match=r"d1-2026-05-01T12:00:00.000Z.yaml"):
        OutputRepository(tree).get("o1")
    path = RunRepository(tree).save(run)
    with tree.announce([path]):
        (tree.root / path).write_text("jobs: 3\n")
    with pytest.raises(CorruptData, match=r"workflow-run-r1\.yaml"):
        RunRepository(tree).get("r1")


def test_a_step_that_does_not_say_how_far_it_came_is_damage(run):
    """It would be done again by the next resume: nobody knows whether it was done."""
    document = {**run.head(), "jobs": [job.to_document() for job in run.jobs], **run.tail()}
    del document["jobs"][0]["steps"][0]["status"]
    with pytest.raises(CorruptData, match="status"):
        runs_module.decode(document, run.path)


def test_a_run_round_trips_with_what_others_add(tree, run):
    repo = RunRepository(tree)
    assert repo.save(run) == "workflow-runs/w1/workflow-run-r1.yaml"
    assert repo.get("r1") == run
    assert repo.get("r1", "w1") == run


def test_a_summary_says_what_failed_and_how_far_it_came(tree, run):
    repo = RunRepository(tree)
    repo.save(run)
    (found,) = repo.search().results
    assert found.to_json() == {
        "runId": "r1",
        "workflowName": "deploy",
        "status": "failed",
        "startedAt": TIME,
        "completedAt": None,
        "failedStep": "release.ship",
        "stepProgress": "2/3",
    }


def test_a_summary_needs_only_the_head_of_a_record(run, monkeypatch):
    raw = runs_module.encode(run)
    head, _, _ = raw.partition(b"\njobs:")
    assert runs_module.read_summary(head + b"\njobs: [this is not even YAML", "r") == run.summary


def test_a_record_without_a_summary_is_read_whole(run):
    raw = runs_module.encode(run).replace(b"summary:", b"unknown:")
    assert runs_module.read_summary(raw, "r") == run.summary


def test_runs_are_searched_newest_first_with_the_total(tree, run):
    repo = RunRepository(tree)
    for day in range(1, 6):
        status = "failed" if day % 2 else "succeeded"
        repo.save(replace(run, id=f"r{day}", started_at=f"2026-05-0{day}T00:00:00.000Z", status=status))
    repo.save(replace(run, id="other", workflow_id="w2", workflow_name="backup"))
    page = repo.search("DEPLOY", limit=2)
    assert ([s.run_id for s in page.results], page.total) == (["r5", "r4"], 5)
    assert [s.run_id for s in repo.search(status="succeeded").results] == ["r4", "r2"]
    assert [s.run_id for s in repo.search(since="2026-05-04").results] == ["r5", "r4"]
    assert [s.run_id for s in repo.search(workflow_id="w2").results] == ["other"]
    assert [s.run_id for s in repo.search("prod", limit=1).results] == ["r5"]


def test_C12_searching_a_long_history_does_not_hold_it_in_memory(tmp_path, run):
    """A page of a long history costs far less memory than its summaries, let alone its records."""
    run = replace(run, tags={**run.tags, "note": "x" * 1000})
    record = runs_module.encode(replace(run, id="run-00000"))
    (tmp_path / run.path).parent.mkdir(parents=True)
    for number in range(5000):
        path = tmp_path / replace(run, id=f"run-{number:05}").path
        path.write_bytes(record.replace(b"run-00000", b"run-%05d" % number))
    repo = RunRepository(PlainTree(tmp_path))
    assert repo.search(limit=5).total == 5000
    # The least of three: one of them may find the interpreter's table of interned strings (path names are) full, and
    # its growth is as large as the process has become: 1 MB in a young one, 4 MB in one that has run a thousand tests.
    searching = min(peak_of(lambda: repo.search(limit=5)) for _ in range(3))
    holding = peak_of(lambda: list(repo.list()))
    assert searching < holding / 3


def peak_of(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_only_a_known_and_ended_run_is_over(tree, run):
    repo = RunRepository(tree)
    assert not repo.is_over("r1")
    for status, over in (("running", False), ("suspended", False), ("succeeded", True), ("cancelled", True)):
        repo.save(replace(run, status=status))
        assert repo.is_over("r1") is over


def test_definitions_round_trip_by_type_and_name(tree):
    repo = DefinitionRepository(tree)
    web = StoredDefinition("d1", "web", "command/shell", {"globalArguments": {"a": 1}})
    assert repo.save(web) == "definitions-evaluated/command/shell/web.yaml"
    assert list(repo.search("d1")) == list(repo.search("web")) == [web]
    assert list(repo.search("nothing")) == []


def test_an_auto_definition_is_the_same_on_two_machines(tmp_path):
    for machine in ("a", "b"):
        DefinitionRepository(PlainTree(tmp_path / machine), AUTO).save(auto_definition("Manual::Data", "box"))
    path = "auto-definitions/manual/data/box.yaml"
    assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    assert auto_definition("manual/data", "box").id == auto_id("manual/data", "box")


@pytest.mark.parametrize("bad", ["../../etc/passwd", "a/b", "latest", ""])
def test_a_record_never_leaves_its_directory(tree, run, output, bad):
    for save in (
        lambda: RunRepository(tree).save(replace(run, id=bad if bad != "latest" else "a/b")),
        lambda: OutputRepository(tree).save(replace(output, definition_id=bad if bad != "latest" else "a/b")),
        lambda: DefinitionRepository(tree).save(StoredDefinition("d", bad, "command/shell")),
    ):
        with pytest.raises(UsageError):
            save()
    assert tree.announced == []
