"""Machines that share a bucket: a run, its data and its record arrive; two runs at once both do; so does a cancel."""

from __future__ import annotations

import json
import time

import pytest
from benches import shell

from machines import Machine

DEMO = f"""id: 11111111-2222-4333-8444-555555555555
name: demo
inputs: {{type: object, properties: {{hosts: {{type: array, default: [a, b, c]}}}}}}
jobs:
  - name: scan
    steps:
      - name: scan-${{{{ self.host }}}}
        forEach: {{item: host, in: "${{{{ inputs.hosts }}}}"}}
        task: {shell("scan-${{ self.host }}", "echo scanned ${{ self.host }}")}
      - {{name: broken, allowFailure: true, task: {shell("broken", "exit 3")}}}
  - name: check
    dependsOn: [{{job: scan}}]
    steps:
      - {{name: ok, task: {{type: assert, expression: "data.latest('scan-a', 'result').attributes.exitCode == 0"}}}}
"""
NAMES = [(model, name) for model in ("broken", "scan-a", "scan-b", "scan-c") for name in ("log", "result")]


def give(machine: Machine, name: str, text: str) -> None:
    (machine.repo / "workflows" / f"workflow-{name}.yaml").write_text(text)


def wait_for(path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def test_a_reader_sees_the_run_its_data_and_its_content(team):
    writer = team.machine("writer")
    give(writer, "demo", DEMO)
    ran = writer("workflow", "run", "demo")
    done = ran.ok()
    assert done["status"] == "succeeded"
    assert writer.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}

    reader = team.machine("reader")
    found = reader("workflow", "run", "search").ok()
    assert [(r["runId"], r["status"], r["stepProgress"]) for r in found["results"]] == [
        (done["id"], "succeeded", "5/5")
    ]
    assert reader.names() == NAMES
    assert json.loads(reader.get("scan-b", "result")["content"])["stdout"] == "scanned b\n"
    history = reader("workflow", "history", "get", done["id"]).ok()
    assert history["jobs"] == done["jobs"]
    outputs = reader("model", "output", "list").ok()
    assert outputs["total"] == 4
    logs = reader("model", "output", "logs", "scan-a").ok()
    assert logs["lines"] == ["scanned a"]
    leases = [body for key, body in team.place.objects("workflow-runs/").items() if key.endswith("/.lock")]
    assert [json.loads(lease)["state"] for lease in leases] == ["released"], (
        "marked, and not deleted under a next holder"
    )


def test_two_machines_run_the_same_workflow_at_once(team):
    """Both runs complete, and no two of their versions are one."""
    machines = [team.machine("a"), team.machine("b")]
    for machine in machines:
        give(machine, "demo", DEMO)
    running = [machine.start("workflow", "run", "demo") for machine in machines]
    documents = []
    for process in running:
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        documents.append(json.loads(out))
    written = [
        (artifact["modelName"], artifact["name"], artifact["version"])
        for document in documents
        for job in document["jobs"]
        for step in job["steps"]
        for artifact in step["dataArtifacts"]
    ]
    assert len(written) == 16
    assert len(set(written)) == 16
    reader = team.machine("reader")
    assert reader("workflow", "run", "search").ok()["total"] == 2
    assert reader.versions("scan-a", "result") == [2, 1]
    for machine in machines:
        machine.sync()
        assert machine.versions("scan-c", "result") == [2, 1]


def test_decisions_and_cancelling_reach_the_bucket(file_team):
    """C08: approve, reject and cancel are pushed by the command that says so."""
    one, two = file_team.machine("one"), file_team.machine("two")
    text = f"""id: g
name: gate
jobs:
  - name: j
    steps:
      - {{name: ask, task: {{type: manual_approval, prompt: "Go?"}}}}
      - {{name: act, dependsOn: [{{step: ask}}], task: {shell("act", "echo act")}}}
"""
    for machine in (one, two):
        give(machine, "gate", text)
    run = one("workflow", "run", "gate").ok()
    assert run["status"] == "suspended"
    assert two("workflow", "approve", run["id"]).ok()["decision"] == "approved"
    one.sync()
    assert one("workflow", "resume", run["id"]).ok()["status"] == "succeeded"
    two.sync()
    assert two("workflow", "history", "get", run["id"]).ok()["status"] == "succeeded"
    second = one("workflow", "run", "gate").ok()
    two.sync()
    assert two("workflow", "cancel", second["id"]).ok()["status"] == "cancelled"
    one.sync()
    assert one("workflow", "history", "get", second["id"]).ok()["status"] == "cancelled"


def test_a_store_that_is_not_there_runs_nothing(file_team):
    """Unreachable before the run: exit 69, and no step has begun."""
    one = file_team.machine("one")
    give(one, "demo", DEMO.replace("echo scanned", "touch ran; echo"))
    one("model", "create", "command/shell", "web", "--arg", "execute.run=touch ran").ok()
    config = one.repo / ".swamp.yaml"
    moved = file_team.directory / "moved"
    (file_team.directory / "bucket").rename(moved)
    (file_team.directory / "bucket").write_text("not a directory")
    try:
        quick = {"SWAMP_REQUEST_TIMEOUT_MS": "1000", "SWAMP_LOCK_TIMEOUT_MS": "2000"}
        for args in (("workflow", "run", "demo"), ("model", "method", "run", "web", "execute")):
            ran = one(*args, env=quick)
            assert ran.code in (69, 2), (ran.code, ran.err)
            assert ran.out == ""
    finally:
        (file_team.directory / "bucket").unlink()
        moved.rename(file_team.directory / "bucket")
    assert not (one.repo / "ran").exists()
    assert config.exists()
    assert one("workflow", "run", "demo").ok()["status"] == "succeeded"


@pytest.mark.parametrize("lazy", [False, True])
def test_a_lazy_reader_runs_a_workflow_on_data_it_does_not_hold(file_team, lazy):
    writer = file_team.machine("writer")
    give(writer, "demo", DEMO)
    writer("workflow", "run", "demo").ok()
    other = file_team.machine("other", *(("--hydrate", "lazy") if lazy else ()))
    give(other, "demo", DEMO)
    assert other("workflow", "run", "demo").ok()["status"] == "succeeded"
    assert other.versions("scan-a", "result") == [2, 1]
    writer.sync()
    assert writer.versions("scan-a", "result") == [2, 1]


ELSEWHERE = f"""id: aaaaaaaa-0000-4333-8444-555555555555
name: elsewhere
jobs:
  - name: j
    steps:
      - {{name: first, task: {shell("first", "echo said first")}}}
      - {{name: inner, dependsOn: [{{step: first}}], task: {{type: workflow, workflowIdOrName: inner}}}}
      - name: each-${{{{ self.code }}}}
        dependsOn: [{{step: inner}}]
        forEach: {{item: code, in: "${{{{ [data.latest('first', 'result').attributes.exitCode] }}}}"}}
        guard: data.latest('asked', 'result').attributes.exitCode == 0
        task: {shell("last", "echo said last")}
"""
INNER = f"""id: bbbbbbbb-0000-4333-8444-555555555555
name: inner
jobs:
  - name: i
    steps:
      - {{name: before, task: {shell("asked", "echo said asked")}}}
      - {{name: ask, dependsOn: [{{step: before}}], task: {{type: manual_approval, prompt: "Go?"}}}}
"""


@pytest.mark.parametrize("hydrate", ["full", "lazy"])
def test_a_run_goes_on_where_nothing_of_it_was_ever_seen(file_team, hydrate):
    """Approved and resumed by a machine that never synced: on the data, logs and nested runs of the first one."""
    one, two = file_team.machine("one"), file_team.machine("two", "--hydrate", hydrate)
    for machine in (one, two):
        give(machine, "elsewhere", ELSEWHERE)
        give(machine, "inner", INNER)
    run = one("workflow", "run", "elsewhere").ok()
    assert run["status"] == "suspended"
    assert two("workflow", "approve", run["id"]).ok()["resumable"] is True
    done = two("workflow", "resume", run["id"]).ok()
    steps = {step["name"]: step["status"] for job in done["jobs"] for step in job["steps"]}
    assert steps == {"first": "succeeded", "inner": "succeeded", "each-0": "succeeded"}
    assert two.versions("first", "result") == two.versions("asked", "result") == two.versions("last", "result") == [1]

    reader = file_team.machine("reader")
    assert reader("workflow", "history", "get", run["id"]).ok()["status"] == "succeeded"
    lines = reader("workflow", "history", "logs", run["id"]).ok()["lines"]
    assert [line.rpartition("said ")[2] for line in lines] == ["first", "last"]
    assert reader("workflow", "run", "search").ok()["total"] == 2
    audited = [json.loads(line) for file in reader.tree.glob("audit/*") for line in file.read_text().splitlines()]
    by_two = [
        line["command"] for line in audited if f"repoId: {line['repoId']}" in (two.repo / ".swamp.yaml").read_text()
    ]
    assert sorted(by_two) == ["model method run", "workflow approved", "workflow resume"]


def test_a_cancel_from_elsewhere_is_heard_before_the_next_step(file_team, tmp_path):
    """What runs may finish; nothing begins after it, and the run is cancelled for everybody."""
    one, two = file_team.machine("one"), file_team.machine("two")
    mark, go = tmp_path / "mark", tmp_path / "go"
    text = f"""id: c
name: long
jobs:
  - name: j
    steps:
      - {{name: a, task: {shell("a", f"touch {mark}; while [ ! -e {go} ]; do sleep 0.1; done")}}}
      - {{name: b, dependsOn: [{{step: a}}], task: {shell("b", "echo must not run")}}}
      - {{name: c, dependsOn: [{{step: b}}], task: {shell("c", "echo must not run either")}}}
"""
    give(one, "long", text)
    process = one.start("workflow", "run", "long")
    wait_for(mark)
    two.sync()
    run = two("workflow", "run", "search", "--status", "running").ok()["results"][0]
    assert two("workflow", "cancel", run["runId"]).ok()["status"] == "cancelling"
    go.touch()
    out, err = process.communicate(timeout=100)
    assert process.returncode == 1, err
    done = json.loads(out)
    assert done["status"] == "cancelled"
    assert {s["name"]: s["status"] for s in done["jobs"][0]["steps"]} == {
        "a": "succeeded",
        "b": "cancelled",
        "c": "cancelled",
    }
    two.sync()
    assert two("workflow", "history", "get", run["runId"]).ok()["status"] == "cancelled"
    assert two.names() == [("a", "log"), ("a", "result")]
    assert one("workflow", "resume", run["runId"]).ok()["status"] == "succeeded"
