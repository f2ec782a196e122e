"""Schedules: each tick one run, among several servers, through restarts, with a say about overlap."""

from __future__ import annotations

import datetime as dt
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from machines import Machine, Place, Team
from serving import Serving, add_workflow, serving, start, until
from swamp.serve.schedule import Claims, tick_after, tick_before
from swamp.wiring import open_repo
from swamp.workflows.schema import fault_of

EVERY_SECOND = 'schedule: "* * * * * *"\n'


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def test_ticks_in_a_time_zone_through_the_changes_of_summer_time() -> None:
    berlin = ("30 2 * * *", "Europe/Berlin")
    assert tick_after(*berlin, at("2026-03-27T12:00:00+00:00")) == at("2026-03-28T01:30:00+00:00")
    # 02:30 does not exist on the 29th: cron runs it when the clock has jumped
    assert tick_after(*berlin, at("2026-03-28T12:00:00+00:00")) == at("2026-03-29T01:00:00+00:00")
    assert tick_after(*berlin, at("2026-03-29T12:00:00+00:00")) == at("2026-03-30T00:30:00+00:00")
    assert tick_before("*/5 * * * *", "UTC", at("2026-01-01T00:07:09.5+00:00")) == at("2026-01-01T00:05:00+00:00")
    assert tick_before("*/5 * * * *", "UTC", at("2026-01-01T00:05:00+00:00")) == at("2026-01-01T00:05:00+00:00")


def test_what_is_not_a_schedule_is_said_at_validation(machine: Machine) -> None:
    assert fault_of("*/5 * * * *", "UTC") is None
    for schedule, zone in (("every day", "UTC"), ("61 * * * *", "UTC"), ("* * 31 2 *", "UTC"), ("* * * * *", "Mars/X")):
        assert fault_of(schedule, zone) is not None, schedule
    add_workflow(machine, more='schedule: "61 * * * *"\n')
    done = machine("workflow", "validate", "deploy")
    assert done.code == 1 and done.json["problems"][0]["line"] == 4
    add_workflow(machine, more='schedule: "* * * * *"\noverlap: maybe\n')
    assert machine("workflow", "validate", "deploy").code == 1


def ticks(server: Serving, name: str = "tick") -> list[dict]:
    return [run for run in server.runs(workflow=name) if run["trigger"]["kind"] == "schedule"]


def test_a_tick_becomes_a_run_and_the_api_tells_of_it(machine: Machine) -> None:
    add_workflow(machine, "tick", more='schedule: "*/2 * * * * *"\ntimezone: Europe/Berlin\n')
    with serving(machine) as server:
        until(lambda: len([r for r in ticks(server) if r["status"] == "succeeded"]) >= 2)
        [item] = server.get("/api/v1/schedules")["items"]
        assert item["workflow"] == "tick" and item["next"] > item["last"]
        run = ticks(server)[0]
        assert run["trigger"]["deliveryId"].startswith("tick@")
        assert int(run["trigger"]["scheduledAt"][17:19]) % 2 == 0
    with serving(machine, "--no-schedule") as quiet:
        before = len(ticks(quiet))
        time.sleep(4)
        assert len(ticks(quiet)) <= before + 1  # one may have been in the queue


@pytest.mark.parametrize("where", ["file", "rclone", "directory"])
@pytest.mark.inv("schedule.once")
def test_a_tick_is_claimed_once_and_taken_over_once(
    servers, tmp_path: Path, fresh_prefix, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """On a store with conditions, on one that ignores them, and in a plain directory."""
    if where == "file":
        place = Place((tmp_path / "bucket").as_uri())
    elif where == "rclone":
        running = servers["rclone"]
        place = Place(f"{running.url}/{fresh_prefix()}", dict(running.config), dict(running.environ))
    else:
        place = None
    a = Machine.make(tmp_path, "a", place.env if place else {})
    if place is not None:
        a.setup(*place.setup_args)
    tick = at("2026-01-01T00:00:00+00:00")
    monkeypatch.setenv("SWAMP_HOME", str(a.home / ".swamp"))
    with open_repo(a.repo) as repo:
        one, two = Claims(repo, "one"), Claims(repo, "two")
        assert one.take("w", tick) and one.take("w", tick) and not two.take("w", tick)
        seen = two.look("w", tick)
        assert seen is not None and seen.server == "one"
        assert two.take_over("w", tick, seen)
        assert not Claims(repo, "three").take_over("w", tick, seen), "it does not stand as it was seen"
        later = tick + dt.timedelta(minutes=1)
        assert two.take("w", later)
        two.skip("w", later)
        skipped = one.look("w", later)
        assert skipped is not None and skipped.skipped and not one.take_over("w", later, skipped)


@pytest.mark.inv("schedule.once")
def test_two_servers_on_one_bucket_fire_each_tick_once(team: Team) -> None:
    """Real processes and a real bucket; `make soak` does a hundred ticks."""
    more = EVERY_SECOND.replace("* * * * * *", "*/2 * * * * *") + "overlap: queue\n"
    servers = []
    for name in ("a", "b"):
        one = team.machine(name)
        add_workflow(one, "tick", more=more)
        servers.append(start(one))
    try:
        until(lambda: len(ticks(servers[0])) >= 6, 120, 0.5)
    finally:
        for server in servers:
            server.stop()
    fresh = team.machine("c")
    found = fresh("workflow", "run", "search", "--limit", "500").ok()["results"]
    fired = Counter(run["trigger"]["scheduledAt"] for run in found)
    assert len(fired) >= 6 and set(fired.values()) == {1}


@pytest.mark.inv("schedule.once")
def test_a_claim_whose_server_died_is_taken_over_and_one_that_became_a_run_is_not(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkouts have ids of their own and share only the bucket: the run of a tick is the same for all of them."""
    a, b = team.machine("a"), team.machine("b")
    schedule = 'schedule: "0 0 1 1 *"\ncatchup: last\n'
    for one in (a, b):
        add_workflow(one, "tick", more=schedule)
    tick = tick_before("0 0 1 1 *", "UTC", dt.datetime.now(dt.UTC))
    assert tick is not None
    monkeypatch.setenv("SWAMP_HOME", str(a.home / ".swamp"))
    with open_repo(a.repo) as repo:
        workflow = next((a.repo / "workflows").glob("workflow-tick.yaml")).read_text().splitlines()[0].split()[1]
        assert Claims(repo, "a server that died").take(workflow, tick)
    with missing_a_tick(b) as server:
        [run] = until(lambda: done(server), 60)
        assert run["trigger"]["scheduledAt"].startswith(tick.strftime("%Y-01-01T00:00:00"))
    with missing_a_tick(a) as server:
        until(lambda: server.get("/api/v1/schedules")["items"][0]["last"] == run["trigger"]["scheduledAt"])
        time.sleep(3)  # longer than the claim is given
        assert [one["id"] for one in ticks(server)] == [run["id"]]


def missing_a_tick(machine: Machine) -> Any:
    """A server that knew of its schedule before the last tick, and gives claims of others a second."""
    with serving(machine) as first:  # the API knows of a file before the scheduler has looked at it
        until(lambda: any(one["last"] for one in first.get("/api/v1/schedules")["items"]))
    with sqlite3.connect(machine.repo / ".swamp" / "serve.db") as db:
        db.execute("UPDATE meta SET value = '2020-01-01T00:00:00Z' WHERE name LIKE 'tick:%'")
    return serving(machine, env={"SWAMP_SERVE_CLAIM": "1"})


def done(server: Serving) -> list[dict[str, Any]]:
    return [run for run in ticks(server) if run["status"] == "succeeded"]


def test_overlap_skip_queue_and_cancel(machine: Machine) -> None:
    add_workflow(machine, "tick", run="sleep 5", more=EVERY_SECOND + "overlap: skip\n")
    with serving(machine) as server:
        until(lambda: [d for d in server.get("/api/v1/deliveries")["items"] if d["status"] == "skipped"])
        assert len([r for r in ticks(server) if r["status"] == "running"]) <= 1
    add_workflow(
        machine,
        "tick",
        run="sleep 600",
        more=EVERY_SECOND.replace("* * * * * *", "*/4 * * * * *") + "overlap: cancel-running\n",
    )
    with serving(machine) as server:
        until(lambda: [r for r in ticks(server) if r["status"] == "cancelled"], 90)
        assert len([r for r in ticks(server) if r["status"] == "running"]) <= 1


def test_catchup_runs_the_last_tick_that_was_missed_and_no_other(machine: Machine) -> None:
    add_workflow(machine, "tick", more='schedule: "0 * * * *"\ncatchup: last\n')
    with serving(machine) as server:
        until(lambda: server.get("/api/v1/schedules")["items"][0]["last"])
        assert ticks(server) == [], "a new schedule has missed nothing"
        server.stop()
    with sqlite3.connect(machine.repo / ".swamp" / "serve.db") as db:
        db.execute("UPDATE meta SET value = '2026-01-01T00:00:00Z' WHERE name LIKE 'tick:%'")
    with serving(machine) as server:
        [run] = until(lambda: ticks(server), 60)
        assert run["trigger"]["scheduledAt"][14:19] == "00:00"
        time.sleep(2)
        assert len(ticks(server)) == 1
