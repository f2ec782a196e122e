"""What a killed attempt left is taken over or removed, never doubled; a number taken by another is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benches import open_bench, shell

from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName
from swamp.models.run import Hooks, Request, run_method
from swamp.sync.progress import Cancel


@pytest.fixture
def once(bench):
    bench.workflow("one", f"  - {{name: j, steps: [{{name: s, task: {shell('m', 'echo x >> did')}}}]}}\n")
    return bench


def as_if_killed(bench, run, *, output_status: str | None) -> None:
    """The records as a process leaves them that is killed before it writes the step's end."""
    state = bench.driver.runs.get(run.id)
    step = next(step for _, step in state.steps)
    if output_status is not None:
        output = bench.context.outputs.get(step.extra["outputId"])
        path = bench.context.outputs.save(replace(output, status=output_status, completed_at=None, artifacts=()))
        (bench.path / ".swamp" / "run-logs" / f"{output.id}.path").write_text(path)
    step.status, step.artifacts = "running", []
    state.status, state.completed_at, state.jobs[0].status = "running", None, "running"
    bench.driver.runs.save(state)


@pytest.mark.inv("run.not-doubled")
def test_work_that_was_finished_is_taken_over(once):
    run = once.run("one")
    as_if_killed(once, run, output_status=None)
    again = once.driver.resume(run.id)
    assert again.status == "succeeded"
    assert (once.path / "did").read_text().split() == ["x"]
    assert once.versions("m", "result") == [1]
    step = next(step for _, step in again.steps)
    assert [(a["name"], a["version"]) for a in step.artifacts] == [("result", 1), ("log", 1)]


@pytest.mark.inv("run.not-doubled")
def test_half_of_the_work_is_removed_and_done_again(once):
    run = once.run("one")
    as_if_killed(once, run, output_status="running")
    again = once.driver.resume(run.id)
    assert again.status == "succeeded"
    assert (once.path / "did").read_text().split() == ["x", "x"]
    assert len(once.versions("m", "result")) == 1
    assert len(once.versions("m", "log")) == 1
    told = [output.status for output in once.context.outputs.list()]
    assert sorted(told) == ["failed", "succeeded"]


@pytest.mark.inv("model.failure-keeps")
def test_data_of_other_runs_and_of_failed_attempts_stays(once):
    first = once.run("one")
    run = once.run("one")
    as_if_killed(once, run, output_status="failed")
    once.driver.resume(run.id)
    assert once.versions("m", "result") == [1, 2, 3]
    owners = {
        version.version: version.meta.owner.workflow_run_id
        for version in once.context.data.versions(once.context.lookup.find("m", "result").ref.data)
    }
    assert owners == {1: first.id, 2: run.id, 3: run.id}


@pytest.mark.inv("conflict.keeps-both")
def test_a_version_that_another_machine_took_first_is_saved_again_as_the_next(file_team, monkeypatch):
    """No lease helps when two write at once: the loser's data becomes the next version, its record follows."""
    one, two = file_team.machine("one"), file_team.machine("two")
    for machine in (one, two):
        target = machine.repo / "models" / "command" / "shell" / "web.yaml"
        target.parent.mkdir(parents=True)
        target.write_text(
            "id: 99999999-2222-4333-8444-555555555555\nname: web\ntype: command/shell\n"
            "methods: {execute: {arguments: {run: echo mine}}}\n"
        )

    def intrude() -> None:
        monkeypatch.setenv("SWAMP_HOME", two.environment()["SWAMP_HOME"])
        with open_bench(two.repo) as other:
            name = DataName.of("command/shell", "99999999-2222-4333-8444-555555555555", "result")
            owner = Owner("model-method", name.model_id)
            other.context.data.save(
                name, Draft(owner, "application/json", tags={"modelName": "web"}), b'{"stdout": "theirs"}'
            )
            other.context.repo.datastore.must_sync().push()

    monkeypatch.setenv("SWAMP_HOME", one.environment()["SWAMP_HOME"])
    with open_bench(one.repo) as bench:
        calls = []

        def end(result) -> None:
            calls.append([(a["name"], a["version"]) for a in result.artifacts])
            if len(calls) == 1:
                intrude()

        definition = bench.context.models.find("web")
        result = run_method(bench.context, Request(definition, "execute"), Cancel(), Hooks(end=end))
        assert calls == [[("result", 1), ("log", 1)], [("result", 2), ("log", 1)]]
        assert bench.content("web", "result", 2)["stdout"] == "mine\n"
        assert bench.content("web", "result", 1)["stdout"] == "theirs"
        assert bench.context.outputs.get(result.output.id).artifacts[0]["version"] == 2
        assert result.sync is not None and result.sync["conflicts"] == []
    reader = file_team.machine("reader")
    assert reader.versions("web", "result") == [2, 1]
    assert reader("model", "output", "get", "web").ok()["artifacts"]["dataArtifacts"][0]["version"] == 2
