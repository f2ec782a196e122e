"""Steps that are tried again or stopped in time, plans, approvals, and logs followed from any machine."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from functools import partial
from typing import Any

import pytest

from flows import flow, shell
from machines import Machine, Team
from swamp.workflows.schema import inspect


def steps_of(run: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for job in run["jobs"] for step in job["steps"]}


# -- retries and timeouts


@pytest.mark.inv("run.retries")
def test_a_step_is_tried_again_until_it_works(a: Machine):
    flow(a, "flaky", shell("one", "echo x >> tries; test $(wc -l < tries) -ge 3", retries=4, backoff="100ms"))
    run = a("workflow", "run", "flaky").ok()
    assert run["status"] == "succeeded" and (a.repo / "tries").read_text().count("x") == 3
    assert [o["status"] for o in a("model", "output", "list").ok()["items"]] == ["succeeded", "failed", "failed"]
    said = "\n".join(a("workflow", "logs", run["id"]).ok()["lines"])
    assert "attempt 1 failed" in said and "attempt 2 failed" in said and "attempt 3" not in said


@pytest.mark.inv("run.retries")
def test_a_step_fails_when_its_retries_are_used_up(a: Machine):
    never = {"name": "two", "task": {"type": "assert", "expression": "1 == 2"}, "retries": 1, "backoff": "100ms"}
    flow(a, "broken", shell("one", "echo x >> tries; exit 7", retries=2, backoff="100ms", allowFailure=True), never)
    began = time.monotonic()
    ran = a("workflow", "run", "broken")
    assert ran.code == 1 and time.monotonic() - began < 60
    steps = steps_of(ran.json)
    assert steps["one"]["status"] == "failed" and "exit code 7" in steps["one"]["error"]
    assert steps["two"]["status"] == "failed" and "not true" in steps["two"]["error"]
    assert (a.repo / "tries").read_text().count("x") == 3


@pytest.mark.inv("run.retries")
def test_wrong_input_is_not_tried_again(a: Machine):
    wrong = shell("one", "true", retries=5, backoff="20s")
    wrong["task"]["inputs"] = {"run": "${{ inputs.nothing }}"}
    flow(a, "wrong", wrong)
    began = time.monotonic()
    assert a("workflow", "run", "wrong").code == 1
    assert time.monotonic() - began < 20


def test_an_attempt_that_takes_too_long_is_stopped_and_tried_again(a: Machine):
    run = "echo x >> tries; test $(wc -l < tries) -ge 2 || { sleep 300 & echo $! > pid; sleep 300; }"
    flow(a, "slow", shell("one", run, timeout="2s", retries=1, backoff="100ms"), shell("two", "true"))
    done = a("workflow", "run", "slow").ok()
    assert {s["status"] for s in steps_of(done).values()} == {"succeeded"}
    pid = int((a.repo / "pid").read_text())
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    assert state.strip()[:1] in ("", "Z"), "it is gone, whether or not somebody has asked for its exit code yet"
    flow(a, "stuck", shell("one", "sleep 300", timeout=1), shell("two", "true"))
    ran = a("workflow", "run", "stuck")
    steps = steps_of(ran.json)
    assert ran.code == 1 and ran.json["status"] == "failed", ran.out
    assert steps["one"]["status"] == "failed" and "longer than 1 s" in steps["one"]["error"]
    assert steps["two"]["status"] == "succeeded", "a step that runs out of time cancels nobody else"


def test_ctrl_c_ends_the_wait_between_attempts(a: Machine):
    flow(a, "waits", shell("one", "touch failed; exit 1", retries=3, backoff="1h"))
    running = a.start("workflow", "run", "waits")
    while not (a.repo / "failed").exists():
        time.sleep(0.1)
    time.sleep(2)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=40)
    assert running.returncode == 130
    assert a("workflow", "history", "get", "latest").ok()["status"] == "cancelled"


def test_what_a_retry_can_be_is_checked():
    def wrong(more: dict[str, Any]) -> list[str]:
        document = {"id": "x", "name": "x", "jobs": [{"name": "j", "steps": [shell("one", "true", **more)]}]}
        return [problem.message for problem in inspect(json.dumps(document), "x.yaml")[2]]

    assert wrong({"retries": 3, "backoff": "5s", "timeout": "10m"}) == []
    for more in ({"retries": -1}, {"retries": "many"}, {"backoff": "soon"}, {"timeout": 0}, {"retry": 2}):
        assert wrong(more), more


# -- plan


def test_a_plan_tells_what_would_run_and_runs_nothing(a: Machine):
    flow(
        a,
        "big",
        shell("each-${{ self.h }}", "touch ran", forEach={"item": "h", "in": "${{ inputs.hosts }}"}, retries=2),
        shell("many", "touch ran", guard="size(inputs.hosts) > 5"),
        shell("later", "touch ran", guard="data.latest('m-many', 'result').version > 1", dependsOn=[{"step": "many"}]),
        {"name": "gate", "task": {"type": "manual_approval"}, "dependsOn": [{"step": "later"}]},
        inputs={"type": "object", "properties": {"hosts": {"type": "array"}}, "required": ["hosts"]},
    )
    before = a("log").ok()["items"]
    plan = a("workflow", "run", "big", "--plan", "--input", 'hosts:json=["x", "y"]').ok()
    found = {step["step"]: step for step in plan["items"]}
    assert list(found) == ["each-x", "each-y", "many", "later", "gate"]
    assert [found[name]["runs"] for name in found] == ["yes", "yes", "no", "unknown", "asks"]
    assert [found[name]["stage"] for name in found] == [1, 1, 1, 2, 3]
    assert found["each-x"]["retries"] == 2 and found["many"]["why"].startswith("guard:")
    assert a("workflow", "run", "big", "--plan").failed(2)["code"] == "usage"
    assert not (a.repo / "ran").exists() and a("workflow", "run", "search").ok()["total"] == 0
    assert a("log").ok()["items"] == before
    text = a("run", "big", "--plan", "--input", 'hosts:json=["x"]', json=False).out
    assert text.startswith("STAGE\tSTEP\tDOES") and "m-each-x.execute" in text


# -- approvals


def test_what_waits_for_a_decision_is_listed_everywhere(a: Machine, local_team: Team):
    flow(a, "ship", {"name": "gate", "task": {"type": "manual_approval", "prompt": "Ship ${{ run.workflowName }}?"}})
    b = local_team.machine("b")
    ask = partial(b, "workflow", "approvals", env={"SWAMP_FRESH": "always"})  # b has asked less than 2 s ago
    assert ask().ok()["items"] == []
    run = a("workflow", "run", "ship").ok()["id"]
    [item] = ask().ok()["items"]
    assert (item["runId"], item["step"], item["prompt"]) == (run, "gate", "Ship ship?") and item["since"]
    a("workflow", "approve", run[:8]).ok()
    assert ask().ok()["total"] == 0


# -- following


@pytest.mark.timeout(300)
def test_a_run_is_followed_here_and_from_another_machine(a: Machine, local_team: Team):
    b = local_team.machine("b")
    second = shell("two", "touch begun; while [ ! -e go ]; do sleep 0.1; done; echo last words")
    flow(a, "long", shell("one", "echo first words"), {**second, "dependsOn": [{"step": "one"}]})
    running = a.start("workflow", "run", "long")
    while not (a.repo / "begun").exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    near, far = a.start("workflow", "logs", "latest", "-f"), b.start("workflow", "logs", "latest", "-f")
    time.sleep(6)
    assert near.poll() is None and far.poll() is None, "they follow until the run is over"
    seen = "\n".join(b("workflow", "logs", "latest").ok()["lines"])
    assert "first words" in seen and "last words" not in seen, "what a step has said came with its push"
    (a.repo / "go").touch()
    running.communicate(timeout=60)
    for follower in (near, far):
        out, err = follower.communicate(timeout=60)
        assert follower.returncode == 0, err
        told = json.loads(out)
        assert told["status"] == "succeeded"
        assert [line.split("| ")[-1] for line in told["lines"]] == ["first words", "last words"], told
