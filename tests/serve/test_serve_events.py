"""The event stream: in order, numbered, and without a gap for who comes back."""

from __future__ import annotations

import pytest

from machines import Machine
from serving import Serving, Stream, add_workflow, serving, start, until


def test_a_run_can_be_watched_from_its_delivery_to_its_end(server: Serving) -> None:
    stream = Stream(server)
    run = server.deliver("one").json()["runId"]
    assert stream.wait("run", runId=run, status="succeeded")["trigger"] == {
        "kind": "webhook", "deliveryId": "one", "route": "/hooks/deploy",
    }  # fmt: skip
    stream.wait("delivery", deliveryId="one", status="done")
    of_run = [
        (kind, data.get("status") or data.get("line")) for _, kind, data in stream.events if data.get("runId") == run
    ]
    steps = [entry for entry in of_run if entry[0] in ("run", "step", "log")]
    assert steps == [
        ("run", "running"), ("step", "running"), ("log", "hello"), ("step", "succeeded"), ("run", "succeeded"),
    ]  # fmt: skip
    numbers = [number for number, _, _ in stream.events]
    assert numbers == sorted(set(numbers))
    stream.close()


@pytest.mark.inv("serve.events")
def test_who_comes_back_has_missed_nothing_also_after_a_kill(machine: Machine) -> None:
    add_workflow(machine, run="for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.3; done")
    server = start(machine)
    begin = Stream(server)
    run = server.deliver("one").json()["runId"]
    begin.wait("log", runId=run, line="line 2")
    last = begin.events[-1][0]
    seen = list(begin.events)
    server.kill()
    with serving(machine) as again:
        stream = Stream(again, last=last)
        stream.wait("run", runId=run, status="succeeded")
        numbers = [number for number, _, _ in seen] + [number for number, _, _ in stream.events]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no gap, nothing twice"
        lines = [d["line"] for _, k, d in seen + stream.events if k == "log"]
        assert lines == [f"line {n}" for n in range(1, 10)]
        stream.close()


def test_one_run_alone_and_some_kinds_alone(server: Serving) -> None:
    first = server.deliver("one").json()["runId"]
    server.ended(first)
    second = server.deliver("two").json()["runId"]
    server.ended(second)
    stream = Stream(server, last=0, query=f"?run={second}&kinds=run,step")
    stream.wait("run", runId=second, status="succeeded")
    assert {data["runId"] for _, _, data in stream.events} == {second}
    assert {kind for _, kind, _ in stream.events} == {"run", "step"}
    stream.close()
    assert server.ask("GET", "/api/v1/events?kinds=nonsense").status_code == 400


def test_what_the_command_line_and_other_machines_do_is_told(team, machine: Machine) -> None:
    with serving(machine) as server:
        stream = Stream(server)
        run = machine("workflow", "run", "deploy").ok()["id"]
        stream.wait("run", runId=run, status="succeeded")
        other = team.machine("b")
        other.put("web", "page", "from another machine")
        commit = stream.wait("commit", seconds=30)
        assert commit["seq"] > 0
        until(lambda: any(i["modelName"] == "web" for i in server.get("/api/v1/data")["items"]), 30)
        stream.close()


def test_a_reader_from_long_ago_is_told_to_start_again(server: Serving) -> None:
    server.ended(server.deliver("one").json()["runId"])
    stream = Stream(server, last=10**9)
    assert stream.wait("reset")["after"] > 0
    stream.close()
