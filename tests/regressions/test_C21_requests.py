"""C21: `requests` in a result is what stood in front of the store saw, and `engine` what really ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from machines import Machine, Place, Team
from servers.proxy import FaultProxy, Rule
from swamp.sync.result import SyncResult
from swamp.testing.s3_bucket import Manners
from swamp.testing.s3_double import S3Double
from swamp.testing.s3_lies import Lie


@pytest.fixture
def team(double_team: Team) -> Team:
    return double_team


def seen_by(double: S3Double, machine: Machine, *command: str) -> tuple[int, Any]:
    """How many requests arrived during the command, and its document."""
    before = len(double.seen)
    done = machine(*command)
    assert done.code == 0, done
    return len(double.seen) - before, done.json


def write(machine: Machine, text: str) -> str:
    (machine.home / "input").write_text(text)
    return str(machine.home / "input")


@pytest.mark.inv("store.requests-counted")
@pytest.mark.parametrize("conditions", ["enforced", "ignored"])
def test_C21_requests_are_those_that_arrived(team: Team, double: S3Double, conditions: Any):
    double.manners = Manners(conditions=conditions)
    a, b = team.machine("a"), team.machine("b")
    for text in ("1", "2"):
        arrived, done = seen_by(double, a, "data", "put", "web", "x", write(a, text))
        assert done["sync"]["requests"] == arrived, "lease, pull, push and release"
    for mode in ((), ("--push",), ("--pull",), ("--full",), ()):
        arrived, done = seen_by(double, b, "datastore", "sync", *mode)
        assert done["requests"] == arrived, mode
    assert arrived <= (1 if conditions == "enforced" else 2), "without conditions the log is looked at, too"


def flow(machine: Machine, *, at_once: bool = False) -> None:
    """A workflow of two shell steps, one after the other or both at once."""
    task = {"type": "model_method", "modelType": "command/shell", "methodName": "execute"}
    steps = [
        {"name": name, "task": {**task, "modelName": f"m-{name}", "inputs": {"run": f"echo {name}"}}, **more}
        for name, more in [("one", {}), ("two", {} if at_once else {"dependsOn": [{"step": "one"}]})]
    ]
    document = {"id": "wf-two", "name": "two", "jobs": [{"name": "j", "steps": steps}]}
    (machine.repo / "workflows" / "workflow-two.yaml").write_text(json.dumps(document))


BOUNDS: dict[str, dict[str, int]] = {
    "enforced": {"first": 16, "put": 10, "run": 10, "nothing": 1},
    "ignored": {"first": 29, "put": 16, "run": 16, "nothing": 2},
}


@pytest.mark.inv("commit.alone")
@pytest.mark.inv("commit.condition")
@pytest.mark.parametrize("conditions", list(BOUNDS))
def test_C21_no_command_asks_twice_for_one_answer(team: Team, double: S3Double, conditions: Any):
    """How many requests arrive, on a store that enforces conditions and on one that does not (decision 0006)."""
    double.manners = Manners(conditions=conditions)
    bound, a = BOUNDS[conditions], team.machine("a")
    assert seen_by(double, a, "data", "put", "web", "first", write(a, "1"))[0] <= bound["first"]
    for text in ("2", "3"):
        assert seen_by(double, a, "data", "put", "web", "x", write(a, text))[0] <= bound["put"]
    a("model", "create", "command/shell", "sh").ok()
    for _ in range(2):
        run = ("model", "method", "run", "sh", "execute", "--input", "run=echo hi")
        assert seen_by(double, a, *run)[0] <= bound["run"]
    assert seen_by(double, a, "datastore", "sync")[0] <= bound["nothing"]
    roots = double.requests("PUT", ".datastore-index.json")
    assert roots and all(asked.condition for asked in roots), "no root goes out without its condition"


@pytest.mark.inv("run.fresh")
@pytest.mark.inv("run.known")
def test_C21_every_step_of_a_workflow_asks_under_its_own_lease(team: Team, double: S3Double):
    """Within 22 requests: the first step's answer is also the root that the run's first record is committed on."""
    a, b = team.machine("a"), team.machine("b")
    a.put("web", "x", "not the first commit")
    flow(a)
    for _ in range(2):
        arrived, _done = seen_by(double, a, "workflow", "run", "two")
        seen = double.seen[-arrived:]
        asks = [n for n, asked in enumerate(seen) if asked.method == "GET" and "index.json" in asked.key]
        roots = [n for n, asked in enumerate(seen) if asked.method == "PUT" and "index.json" in asked.key]
        # On a busy machine more than the two seconds may pass for which a push need not ask again: one look each.
        assert arrived <= 22 + len(asks) - 2 and 2 <= len(asks) <= 6
        locks = [n for n, asked in enumerate(seen) if asked.method == "PUT" and asked.key.endswith("/.lock")]
        run, first, first_over, second, second_over, _run_over = locks
        assert run < first and any(first < n < roots[0] for n in asks), "the first step asks, and then the run is known"
        assert roots[0] < roots[1] < first_over, "before its work is committed"
        assert any(second < n < second_over for n in asks), "so does the second step"
    run_id = a("workflow", "run", "two").ok()["id"]
    assert b("workflow", "history", "get", run_id).ok()["status"] == "succeeded"


def test_C21_two_steps_at_once_ask_no_more_than_two_in_a_row(team: Team, double: S3Double):
    """Within 22 requests: what one step committed a moment ago is the root that the other one builds on."""
    a = team.machine("a")
    a.put("web", "x", "not the first commit")
    flow(a, at_once=True)
    arrived = sorted(seen_by(double, a, "workflow", "run", "two")[0] for _ in range(7))
    assert arrived[3] <= 22, "on a busy machine more than two seconds may pass in some run: then it asks once more"


@pytest.mark.parametrize("lie", ["refuse", "cut", "refuse after"])
def test_C21_what_is_tried_again_counts_again(team: Team, double: S3Double, lie: Any):
    a = team.machine("a")
    a("data", "put", "web", "x", write(a, "1")).ok()
    double.lies += [Lie(lie, "GET", "*", skip=1), Lie(lie, "PUT", "*/.datastore-index.json")]
    arrived, done = seen_by(double, a, "data", "put", "web", "x", write(a, "2"))
    assert double.told and done["sync"]["requests"] == arrived


def test_C21_large_files_and_a_proxy(moto: Any, tmp_path: Path, fresh_prefix: Any):
    """Uploads in parts and downloads in ranges, counted by a proxy in front of another server."""
    with FaultProxy(moto.endpoint, [Rule("answer", "PUT", r"_packs/", 1, 503)]) as proxy:
        config = {**moto.config, "endpoint": proxy.endpoint}
        team = Team(tmp_path, Place(f"{moto.url}/{fresh_prefix()}", config, dict(moto.environ)))
        a, b = team.machine("a"), team.machine("b")
        (a.home / "large").write_bytes(bytes(20 << 20))
        before = len(proxy.seen)
        done = a("data", "put", "web", "large", str(a.home / "large")).ok()
        assert done["sync"]["requests"] == len(proxy.seen) - before
        before = len(proxy.seen)
        assert b.sync()["requests"] == len(proxy.seen) - before
        assert proxy.fired


def test_C21_a_plain_directory_has_asked_nobody(tmp_path: Path):
    a = Machine.make(tmp_path, "a")
    assert json.loads(a("datastore", "sync").out)["requests"] == 0


def test_C21_engine_is_what_ran():
    none, inline, spark = (SyncResult("sync", engine=name, engine_reason=name) for name in ("none", "inline", "spark"))
    for first, later, ran in [
        (none, none, "none"), (none, inline, "inline"), (inline, none, "inline"), (inline, spark, "spark"),
        (spark, inline, "spark"), (spark, none, "spark"),
    ]:  # fmt: skip
        joined = first.merged(later, "sync")
        assert (joined.engine, joined.engine_reason) == (ran, ran)
