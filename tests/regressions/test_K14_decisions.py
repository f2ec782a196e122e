"""K14: an acknowledged decision about a run is in its record, or its command says that it lost. Real processes race."""

from __future__ import annotations

import json
import time

import pytest

from machines import Machine, Team

GATED = """id: 11111111-2222-4333-8444-555555555555
name: gated
jobs:
  - name: j
    steps:
      - {name: ask, task: {type: manual_approval, prompt: "go on?"}}
      - name: work
        dependsOn: [{step: ask}]
        task: {type: model_method, modelType: command/shell, modelName: w, methodName: execute,
               inputs: {run: "sleep 0.3"}}
      - name: more
        dependsOn: [{step: work}]
        task: {type: model_method, modelType: command/shell, modelName: m, methodName: execute,
               inputs: {run: "sleep 0.3"}}
"""


ASKED = {"SWAMP_FRESH": "always"}


def suspended(machine: Machine) -> str:
    run = machine("workflow", "run", "gated").json
    assert run["status"] == "suspended", run
    return str(run["id"])


@pytest.fixture
def both(team: Team) -> tuple[Machine, Machine]:
    a, b = team.machine("a"), team.machine("b")
    for machine in (a, b):
        (machine.repo / "workflows" / "workflow-gated.yaml").write_text(GATED)
    return a, b


@pytest.mark.timeout(600)
@pytest.mark.inv("run.decided")
def test_K14_a_cancel_beside_a_resume_is_in_the_record_or_says_that_it_lost(both):
    a, b = both
    outcomes = []
    for offset in (0.0, 0.4, 1.0, 2.2):
        run = suspended(a)
        a("workflow", "approve", run).ok()
        resume = a.start("workflow", "resume", run)
        time.sleep(offset)
        cancel = b("workflow", "cancel", run)
        resume.communicate(timeout=200)
        b.sync()
        record = b("workflow", "history", "get", run).ok()
        outcomes.append((offset, cancel.code, record["status"], resume.returncode))
        if cancel.code == 0:
            assert record["status"] == "cancelled" and resume.returncode == 1, (outcomes, cancel.out)
        else:
            assert record["status"] in ("succeeded", "cancelled") and cancel.code in (1, 2, 75), (outcomes, cancel.err)


@pytest.mark.inv("run.decided")
def test_K14_a_resume_that_did_not_know_of_a_cancel_loses_and_a_second_one_goes_on(both):
    """What CI met: the cancel was whole before the resume had the run's lock, and the resume undid it unseen."""
    a, b = both
    run = suspended(a)
    a("workflow", "approve", run).ok()
    assert b("workflow", "cancel", run).ok()["status"] == "cancelled"
    lost = a("workflow", "resume", run).failed(1)
    assert "was cancelled meanwhile" in lost["error"] and "once more" in lost["hint"]
    assert b("workflow", "history", "get", run, env=ASKED).ok()["status"] == "cancelled"
    assert a("workflow", "resume", run).ok()["status"] == "succeeded"


@pytest.mark.inv("lease.epoch")
def test_K14_a_run_that_is_let_go_of_keeps_its_lease_object_so_that_nobody_deletes_the_next_holders(both, team):
    a, _ = both
    run = suspended(a)
    key = f"workflow-runs/11111111-2222-4333-8444-555555555555/{run}/.lock"
    store = team.place.open()
    epochs = []
    for words in ((), ("approve", run), ("resume", run)):
        if words:
            a("workflow", *words).ok()
        body = json.loads(store.get(key).body)
        assert body["state"] == "released"
        epochs.append(body["epoch"])
    assert epochs == sorted(set(epochs)), epochs


@pytest.mark.inv("run.decided")
def test_K14_a_request_that_nobody_heard_comes_before_a_resume(both):
    """The process that was asked to stop died: the decision is not forgotten, and can be overruled by a second word."""
    a, b = both
    run = suspended(a)
    a("workflow", "approve", run).ok()
    request = a.tree / "workflow-runs" / "11111111-2222-4333-8444-555555555555" / f"cancel-{run}.request"
    request.write_text("2026-11-17T10:00:00Z\n")
    a("datastore", "sync", "--full").ok()
    resumed = b("workflow", "resume", run)
    assert resumed.code == 1 and resumed.json["status"] == "cancelled" and "was asked to stop" in resumed.err
    assert a("workflow", "history", "get", run, env=ASKED).ok()["status"] == "cancelled"
    a.sync()
    assert not request.exists()
    assert b("workflow", "resume", run).ok()["status"] == "succeeded"


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_K14_two_who_decide_at_once_do_not_both_win(both, decision):
    a, b = both
    run = suspended(a)
    b.sync()
    racing = [a.start("workflow", decision, run), b.start("workflow", "approve", run)]
    codes = []
    for process in racing:
        process.communicate(timeout=200)
        codes.append(process.returncode)
    assert sorted(code == 0 for code in codes) == [False, True], codes
