"""What a run does: order, conditions, parallelism, expansion, guards, nesting; and what its record says."""

from __future__ import annotations

import threading
import time

import pytest
from benches import shell, statuses

from swamp.errors import UsageError
from swamp.workflows.run import Driver


def record_of(bench, run):
    return bench.driver.runs.get(run.id)


def test_steps_run_in_the_order_of_their_dependencies(bench):
    bench.workflow(
        "order",
        f"""  - name: j
    steps:
      - {{name: c, dependsOn: [{{step: b}}], task: {shell("c", "echo c >> order")}}}
      - {{name: a, task: {shell("a", "sleep 0.2; echo a >> order")}}}
      - {{name: b, dependsOn: [{{step: a}}], task: {shell("b", "sleep 0.1; echo b >> order")}}}
""",
    )
    assert bench.run("order").status == "succeeded"
    assert (bench.path / "order").read_text().split() == ["a", "b", "c"]


def test_independent_steps_run_at_the_same_time(bench):
    """Each waits for the other's mark: one after the other they would never end."""
    meet = "touch {0}; i=0; while [ ! -e {1} ]; do i=$((i+1)); [ $i -gt 300 ] && exit 1; sleep 0.05; done"
    bench.workflow(
        "meet",
        f"""  - name: j
    steps:
      - {{name: a, task: {shell("a", meet.format("ma", "mb"))}}}
      - {{name: b, task: {shell("b", meet.format("mb", "ma"))}}}
""",
    )
    assert statuses(bench.run("meet")) == {"a": "succeeded", "b": "succeeded"}


@pytest.mark.parametrize(("where", "limit"), [("workflow", 1), ("step", 2)])
def test_concurrency_is_limited(bench, where, limit):
    """Every step notes how many are inside at once."""
    count = "mkdir -p in; touch in/$$; ls in | wc -l >> most; sleep 0.15; rm in/$$"
    top = f"concurrency: {limit}\n" if where == "workflow" else ""
    own = f"concurrency: {limit}, " if where == "step" else ""
    bench.workflow(
        "narrow",
        f"""id: x
name: narrow
{top}jobs:
  - name: j
    steps:
      - {{name: "s-${{{{ self.i }}}}", {own}forEach: {{item: i, in: [1, 2, 3, 4, 5]}},
         task: {shell("m-${{ self.i }}", count)}}}
""",
    )
    assert bench.run("narrow").status == "succeeded"
    seen = [int(line) for line in (bench.path / "most").read_text().split()]
    assert len(seen) == 5
    assert max(seen) <= limit


def test_for_each_makes_one_record_per_item(bench):
    bench.workflow(
        "each",
        f"""id: x
name: each
inputs: {{type: object, properties: {{hosts: {{type: array}}}}, required: [hosts]}}
jobs:
  - name: j
    steps:
      - {{name: "scan-${{{{ self.host }}}}", forEach: {{item: host, in: "${{{{ inputs.hosts }}}}"}},
         task: {shell("scan-${{ self.host }}", "echo ${{ self.host }} in ${{ run.stepName }}")}}}
      - {{name: after, dependsOn: [{{step: "scan-${{{{ self.host }}}}"}}], task: {{type: assert, expression: "true"}}}}
""",
    )
    run = bench.run("each", hosts=["a", "b"])
    assert statuses(run) == {"scan-a": "succeeded", "scan-b": "succeeded", "after": "succeeded"}
    assert bench.content("scan-b", "result")["stdout"] == "b in scan-b\n"
    owner = bench.context.lookup.find("scan-a", "result").meta.owner
    assert (owner.workflow_run_id, owner.job_name, owner.step_name) == (run.id, "j", "scan-a")
    assert statuses(bench.run("each", hosts=[])) == {"after": "succeeded"}
    with pytest.raises(UsageError, match="`hosts` is missing"):
        bench.run("each")


def test_for_each_over_a_mapping_without_a_name_of_its_own_and_with_equal_names(bench):
    bench.workflow(
        "maps",
        f"""  - name: j
    steps:
      - {{name: s, forEach: {{item: kv, in: {{x: 1, y: 2}}}},
         task: {shell("m-${{ self.kv.key }}", "echo ${{ self.kv.value }}")}}}
""",
    )
    assert statuses(bench.run("maps")) == {"s-0": "succeeded", "s-1": "succeeded"}
    assert bench.content("m-y", "result")["stdout"] == "2\n"
    bench.workflow(
        "same",
        """  - name: j
    steps:
      - {name: "s-${{ self.i }}", forEach: {item: i, in: [1, 1]}, task: {type: assert, expression: "true"}}
""",
    )
    run = bench.run("same")
    assert run.status == "failed"
    assert "several steps called `s-1`" in next(step.error for _, step in run.steps)


def test_a_failure_skips_what_needs_success_and_runs_what_waits_for_failure(bench):
    bench.workflow(
        "fails",
        f"""  - name: first
    steps:
      - {{name: bad, task: {shell("bad", "exit 1")}}}
      - {{name: other, task: {{type: assert, expression: "true"}}}}
      - {{name: needs, dependsOn: [{{step: bad}}], task: {{type: assert, expression: "true"}}}}
      - name: clean
        dependsOn: [{{step: bad, condition: {{type: failed}}}}]
        task: {{type: assert, expression: "true"}}
  - name: ifok
    dependsOn: [{{job: first}}]
    steps: [{{name: x, task: {{type: assert, expression: "true"}}}}]
  - name: iffailed
    dependsOn: [{{job: first, condition: {{type: not, condition: {{type: succeeded}}}}}}]
    steps: [{{name: y, task: {{type: assert, expression: "true"}}}}]
""",
    )
    run = bench.run("fails")
    assert statuses(run) == {
        "bad": "failed",
        "other": "succeeded",
        "needs": "skipped",
        "clean": "succeeded",
        "x": "skipped",
        "y": "succeeded",
    }
    assert {job.name: job.status for job in run.jobs} == {"first": "failed", "ifok": "skipped", "iffailed": "succeeded"}
    assert run.status == "failed"
    assert bench.driver.runs.search().results[0].failed_step == "first.bad"


def test_an_allowed_failure_fails_neither_its_job_nor_the_run(bench):
    bench.workflow(
        "allowed",
        f"""  - name: j
    steps:
      - {{name: bad, allowFailure: true, task: {shell("bad", "exit 1")}}}
  - {{name: next, dependsOn: [{{job: j}}], steps: [{{name: x, task: {{type: assert, expression: "true"}}}}]}}
""",
    )
    run = bench.run("allowed")
    assert run.status == "succeeded"
    assert statuses(run) == {"bad": "failed", "x": "succeeded"}
    assert bench.driver.runs.search().results[0].failed_step is None


def test_guards_and_assertions(bench):
    bench.workflow(
        "guards",
        f"""  - name: j
    steps:
      - {{name: never, guard: "${{{{ 1 > 2 }}}}", task: {shell("never", "echo never > never")}}}
      - {{name: fine, guard: "2 > 1", task: {shell("fine", "echo hi")}}}
      - {{name: unclear, guard: "'maybe'", task: {{type: assert, expression: "true"}}}}
      - {{name: wrong, task: {{type: assert, expression: "1 == 2", message: "one is not ${{{{ 1 + 1 }}}}"}}}}
""",
    )
    run = bench.run("guards")
    assert statuses(run) == {"never": "skipped", "fine": "succeeded", "unclear": "failed", "wrong": "failed"}
    assert not (bench.path / "never").exists()
    errors = {step.name: step.error for _, step in run.steps}
    assert errors["wrong"] == "one is not 2"
    assert "neither true nor false" in errors["unclear"]


def test_a_nested_workflow_is_a_run_of_its_own(bench):
    bench.workflow(
        "inner",
        f"""id: inner
name: inner
inputs: {{type: object, properties: {{who: {{type: string}}}}, required: [who]}}
jobs: [{{name: j, steps: [{{name: s, task: {shell("greet", "echo ${{ inputs.who }}")}}}]}}]
""",
    )
    bench.workflow(
        "outer",
        """  - name: j
    steps:
      - {name: child, task: {type: workflow, workflowIdOrName: inner, inputs: {who: "${{ run.workflowName }}"}}}
      - {name: bad, allowFailure: true, task: {type: workflow, workflowIdOrName: inner}}
""",
    )
    run = bench.run("outer")
    assert statuses(run) == {"child": "succeeded", "bad": "failed"}
    assert bench.content("greet", "result")["stdout"] == "outer\n"
    child = next(step for _, step in run.steps if step.name == "child")
    assert [a["name"] for a in child.artifacts] == ["result", "log"]
    inner = bench.driver.runs.get(child.extra["childRunId"])
    assert (inner.status, inner.workflow_name, inner.trigger_source) == ("succeeded", "inner", f"workflow:{run.id}")


def test_workflows_that_nest_in_a_circle_fail_instead_of_running_for_ever(bench):
    for name, other in (("a", "b"), ("b", "a")):
        bench.workflow(
            name, f"  - {{name: j, steps: [{{name: s, task: {{type: workflow, workflowIdOrName: {other}}}}}]}}\n"
        )
    run = bench.run("a")
    assert run.status == "failed"
    found = bench.driver.runs.search(limit=10).results
    assert len(found) == 2
    assert any(
        "inside itself" in (step.error or "") for r in found for _, step in bench.driver.runs.get(r.run_id).steps
    )


@pytest.mark.inv("run.saved")
def test_the_record_is_there_from_the_start_and_follows_every_change(bench):
    seen: list[tuple[str, str]] = []

    class Watcher:
        def changed(self, run):
            on_disk = bench.driver.runs.get(run.id)
            assert [s.status for _, s in on_disk.steps] == [s.status for _, s in run.steps]
            seen.append((on_disk.status, next(s.status for _, s in on_disk.steps)))

        def said(self, job, step, line): ...

    bench.workflow("one", f"  - {{name: j, steps: [{{name: s, task: {shell('m', 'echo hi')}}}]}}\n")
    run = Driver(bench.context, Watcher()).start("one", {})
    order = list(dict.fromkeys(seen))
    assert order[0] == ("running", "pending")
    assert ("running", "running") in order
    assert order[-1] == ("succeeded", "succeeded")
    record = record_of(bench, run)
    assert record.completed_at and record.duration_ms is not None
    assert record.pid and record.host


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_record_is_never_left_saying_running_by_a_process_that_could_still_speak(bench, at):
    """Whatever breaks, here the one who watches: the run is told as failed, with what broke."""
    seen = []

    class Breaks:
        def changed(self, run):
            seen.append(run.status)
            if len(seen) == at:
                raise RuntimeError("the screen is gone")

        def said(self, job, step, line): ...

    bench.workflow("one", f"  - {{name: j, steps: [{{name: s, task: {shell('m', 'echo hi')}}}]}}\n")
    with pytest.raises(RuntimeError):
        Driver(bench.context, Breaks()).start("one", {})
    record = bench.driver.runs.get(bench.driver.runs.search().results[0].run_id)
    assert record.status == "failed"
    assert "the screen is gone" in (record.error or "")
    assert bench.driver.resume(record.id).status == "succeeded"


def test_the_evaluated_workflow_and_the_log_are_kept(bench):
    bench.workflow("one", f"  - {{name: j, steps: [{{name: s, task: {shell('m', 'echo ${{ 1 + 1 }}')}}}]}}\n")
    run = bench.run("one")
    files = bench.files()
    assert "run: echo 2" in files[f"workflows-evaluated/wf-one/{run.id}.yaml"]
    assert files[f"logs/workflow-runs/{run.id}.log"] == "j/s | 2\n"


def test_a_step_that_cannot_even_begin_is_failed_with_its_reason(bench):
    bench.workflow(
        "bad",
        """  - name: j
    steps:
      - {name: a, task: {type: model_method, modelIdOrName: nobody, methodName: execute}}
      - {name: b, task: {type: model_method, modelType: command/shell, modelName: x, methodName: execute}}
      - {name: c, forEach: {item: i, in: "${{ 1 }}"}, task: {type: assert, expression: "true"}}
""",
    )
    run = bench.run("bad")
    errors = {step.name: step.error for _, step in run.steps}
    assert "there is no model `nobody`" in errors["a"]
    assert "`run` is missing" in errors["b"]
    assert "not a list" in errors["c"]


def test_resume_does_only_what_is_not_done(bench):
    bench.workflow(
        "retry",
        f"""  - name: j
    steps:
      - {{name: a, task: {shell("a", "echo a >> did")}}}
      - {{name: b, dependsOn: [{{step: a}}], task: {shell("b", "echo b >> did; test -e fixed")}}}
      - {{name: c, dependsOn: [{{step: b}}], task: {shell("c", "echo c >> did")}}}
""",
    )
    run = bench.run("retry")
    assert statuses(run) == {"a": "succeeded", "b": "failed", "c": "skipped"}
    (bench.path / "fixed").touch()
    again = bench.driver.resume(run.id)
    assert again.status == "succeeded"
    assert (bench.path / "did").read_text().split() == ["a", "b", "b", "c"]
    assert bench.versions("a", "result") == [1]
    assert bench.driver.runs.search().total == 1
    with pytest.raises(UsageError, match="has succeeded"):
        bench.driver.resume(run.id)


def test_resume_from_a_step_does_it_and_what_follows_again(bench):
    bench.workflow(
        "redo",
        f"""  - name: j
    steps:
      - {{name: a, task: {shell("a", "echo a >> did")}}}
      - {{name: b, dependsOn: [{{step: a}}], task: {shell("b", "echo b >> did")}}}
      - {{name: c, task: {shell("c", "echo c >> other")}}}
  - {{name: k, dependsOn: [{{job: j}}], steps: [{{name: d, task: {shell("d", "echo d >> did")}}}]}}
""",
    )
    run = bench.run("redo")
    bench.driver.resume(run.id, from_step="b")
    assert (bench.path / "did").read_text().split() == ["a", "b", "d", "b", "d"]
    assert (bench.path / "other").read_text().split() == ["c"]
    with pytest.raises(UsageError, match="no step `nope`"):
        bench.driver.resume(run.id, from_step="nope")


@pytest.mark.inv("secrets.never-written")
def test_an_input_that_was_a_secret_has_to_be_given_again(bench, monkeypatch, tmp_path):
    bench.workflow(
        "secret",
        f"""id: x
name: secret
inputs: {{type: object, properties: {{word: {{type: string, format: password}}}}}}
jobs: [{{name: j, steps: [{{name: s, task: {shell("m", "echo ${{ inputs.word }}; test -e fixed")}}}]}}]
""",
    )
    run = bench.run("secret", word="hunter2-is-my-word")
    assert not [path for path, text in bench.files().items() if "hunter2" in text]
    with pytest.raises(UsageError, match="`word` was a secret"):
        bench.driver.resume(run.id)
    (bench.path / "fixed").touch()
    assert bench.driver.resume(run.id, inputs={"word": "hunter2-is-my-word"}).status == "succeeded"


def test_cancelling_from_outside_ends_running_steps_and_starts_no_more(bench):
    from swamp.workflows.decide import cancel_run

    bench.workflow(
        "long",
        f"""  - name: j
    steps:
      - {{name: a, task: {shell("a", "echo $$ > pid; sleep 120")}}}
      - {{name: b, dependsOn: [{{step: a, condition: {{type: always}}}}], task: {shell("b", "touch never")}}}
""",
    )
    done = []
    thread = threading.Thread(target=lambda: done.append(Driver(bench.context).start("long", {})))
    thread.start()
    deadline = time.monotonic() + 60
    while not (bench.path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run_id = bench.driver.runs.search(status="running").results[0].run_id
    assert cancel_run(bench.driver, run_id) == "cancelling"
    thread.join(60)
    assert done and done[0].status == "cancelled"
    assert statuses(done[0]) == {"a": "cancelled", "b": "cancelled"}
    assert not (bench.path / "never").exists()
    assert not any("cancel-" in path for path in bench.files())
    (bench.path / "pid").unlink()
    with pytest.raises(UsageError, match="is over"):
        cancel_run(bench.driver, run_id)


@pytest.mark.parametrize("total", [300])
def test_search_finds_the_newest_and_counts_the_rest(bench, total):
    from swamp.data.run_record import RunState

    for i in range(total):
        bench.driver.runs.save(
            RunState(
                f"r{i:04}",
                "w",
                "bulk",
                "failed" if i % 3 else "succeeded",
                f"2026-01-01T00:{i // 60:02}:{i % 60:02}.000Z",
            )
        )
    from swamp.workflows.decide import search

    found = search(bench.driver, "bulk", status="failed", since=None, limit=5)
    assert found["total"] == 200
    assert [r["runId"] for r in found["results"]] == ["r0299", "r0298", "r0296", "r0295", "r0293"]
