"""People decide: a run waits without a process, and what they said is in its record before anything is built on it."""

from __future__ import annotations

import pytest
from benches import shell, statuses

from swamp.errors import UsageError
from swamp.workflows.decide import cancel_run, decide


@pytest.fixture
def gated(bench):
    bench.workflow(
        "gated",
        f"""  - name: pre
    steps: [{{name: build, task: {shell("build", "echo build >> did")}}}]
  - name: release
    dependsOn: [{{job: pre}}]
    steps:
      - {{name: ask, task: {{type: manual_approval, prompt: "Ship ${{{{ run.workflowName }}}}?"}}}}
      - {{name: ship, dependsOn: [{{step: ask}}], task: {shell("ship", "echo ship >> did")}}}
      - name: sorry
        dependsOn: [{{step: ask, condition: {{type: failed}}}}]
        task: {shell("sorry", "echo sorry >> did")}
""",
    )
    return bench


def did(bench) -> list[str]:
    return (bench.path / "did").read_text().split()


def on_disk(bench, run):
    return bench.driver.runs.get(run.id)


def test_a_question_suspends_the_run_with_the_question_in_its_record(gated):
    run = gated.run("gated")
    assert run.status == "suspended"
    record = on_disk(gated, run)
    assert statuses(record) == {"build": "succeeded", "ask": "suspended", "ship": "pending", "sorry": "pending"}
    ask = next(step for _, step in record.steps if step.name == "ask")
    assert ask.extra["approval"] == {"prompt": "Ship gated?"}
    assert did(gated) == ["build"]


def test_approve_then_resume(gated):
    run = gated.run("gated")
    decided = decide(gated.driver, run.id, "approved", reason="looks good")
    assert (decided.step, decided.left_waiting, decided.run.status) == ("ask", True, "suspended")
    ask = next(step for _, step in on_disk(gated, run).steps if step.name == "ask")
    assert ask.extra["approval"]["decision"] == "approved"
    assert ask.extra["approval"]["reason"] == "looks good"
    assert did(gated) == ["build"]
    done = gated.driver.resume(run.id)
    assert done.status == "succeeded"
    assert statuses(done) == {"build": "succeeded", "ask": "succeeded", "ship": "succeeded", "sorry": "skipped"}
    assert did(gated) == ["build", "ship"]


def test_reject_then_what_waits_for_a_no_runs(gated):
    run = gated.run("gated")
    decided = decide(gated.driver, run.id, "rejected", reason="not today")
    assert decided.left_waiting
    done = gated.driver.resume(run.id)
    assert done.status == "failed"
    assert statuses(done) == {"build": "succeeded", "ask": "failed", "ship": "skipped", "sorry": "succeeded"}
    assert next(step.error for _, step in done.steps if step.name == "ask") == "rejected: not today"
    assert did(gated) == ["build", "sorry"]


def test_a_decision_that_ends_the_run_ends_it_at_once(bench):
    bench.workflow(
        "last",
        """  - name: j
    steps:
      - {name: ask, task: {type: manual_approval}}
      - {name: then, dependsOn: [{step: ask}], task: {type: assert, expression: "true"}}
""",
    )
    run = bench.run("last")
    decided = decide(bench.driver, run.id, "rejected")
    assert not decided.left_waiting
    record = on_disk(bench, run)
    assert record.status == "failed"
    assert record.completed_at is not None
    assert statuses(record) == {"ask": "failed", "then": "skipped"}


def test_resume_without_a_decision_goes_on_waiting(gated):
    run = gated.run("gated")
    assert gated.driver.resume(run.id).status == "suspended"
    assert did(gated) == ["build"]


def test_what_does_not_wait_cannot_be_decided(gated):
    run = gated.run("gated")
    with pytest.raises(UsageError, match="`ship` does not wait"):
        decide(gated.driver, run.id, "approved", step="ship")
    decide(gated.driver, run.id, "approved")
    with pytest.raises(UsageError, match="does not wait for a decision"):
        decide(gated.driver, run.id, "rejected")


def test_of_several_questions_one_has_to_be_named(bench):
    bench.workflow(
        "two",
        """  - name: j
    steps:
      - {name: a, task: {type: manual_approval}}
      - {name: b, task: {type: manual_approval}}
""",
    )
    run = bench.run("two")
    with pytest.raises(UsageError, match=r"j\.a, j\.b"):
        decide(bench.driver, run.id, "approved")
    assert decide(bench.driver, run.id, "approved", step="a").run.status == "suspended"
    assert decide(bench.driver, run.id, "approved", step="j.b").run.status == "succeeded"


def test_other_steps_go_on_while_a_question_is_open_and_a_failure_is_not_forgotten(bench):
    bench.workflow(
        "mixed",
        f"""  - name: j
    steps:
      - {{name: ask, task: {{type: manual_approval}}}}
      - {{name: bad, task: {shell("bad", "echo tried >> did; exit 1")}}}
      - {{name: good, task: {shell("good", "echo good >> did")}}}
      - {{name: end, dependsOn: [{{step: ask}}], task: {shell("end", "echo end >> did")}}}
""",
    )
    run = bench.run("mixed")
    assert run.status == "suspended"
    decide(bench.driver, run.id, "approved")
    done = bench.driver.resume(run.id)
    assert done.status == "failed"
    assert sorted(did(bench)) == ["end", "good", "tried"]


def test_a_question_inside_a_nested_workflow_is_answered_from_outside(bench):
    bench.workflow(
        "inner",
        f"""id: inner
name: inner
jobs:
  - name: j
    steps:
      - {{name: ask, task: {{type: manual_approval, prompt: inside?}}}}
      - {{name: act, dependsOn: [{{step: ask}}], task: {shell("act", "echo act >> did")}}}
""",
    )
    bench.workflow("outer", "  - {name: j, steps: [{name: child, task: {type: workflow, workflowIdOrName: inner}}]}\n")
    run = bench.run("outer")
    assert (run.status, statuses(run)) == ("suspended", {"child": "suspended"})
    assert decide(bench.driver, run.id, "approved").step == "ask"
    done = bench.driver.resume(run.id)
    assert done.status == "succeeded"
    assert did(bench) == ["act"]
    assert bench.driver.runs.search().total == 2


def test_a_suspended_run_is_cancelled_at_once(gated):
    run = gated.run("gated")
    assert cancel_run(gated.driver, run.id) == "cancelled"
    record = on_disk(gated, run)
    assert record.status == "cancelled"
    assert statuses(record) == {"build": "succeeded", "ask": "cancelled", "ship": "cancelled", "sorry": "cancelled"}
    with pytest.raises(UsageError, match="is over: cancelled"):
        cancel_run(gated.driver, run.id)
    assert gated.driver.resume(run.id).status == "suspended"
