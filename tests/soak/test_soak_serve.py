"""`make soak`: 2,000 webhook deliveries at 200 a second with random kills; two servers and a hundred ticks."""

from __future__ import annotations

import datetime as dt
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from machines import Machine, Place, Team
from serving import Serving, add_hooks, add_workflow, start, until
from swamp.env import parse_rfc3339, rfc3339

pytestmark = pytest.mark.skipif(not os.environ.get("SWAMP_SOAK_MINUTES"), reason="make soak")
DELIVERIES = int(os.environ.get("SWAMP_SOAK_DELIVERIES", "2000"))
RATE = float(os.environ.get("SWAMP_SOAK_RATE", "200"))
SEED = int(os.environ.get("SWAMP_SOAK_SEED", "1"))
"""Which moments the server is killed at, so that a failure can be played again."""
LONGEST = 7200.0
WORKFLOWS = 4
HOOK = """\
    - route: /hooks/deploy{number}
      workflow: deploy{number}
      scheme: github
      secret: "@env=HOOK_SECRET"
      inputs: {{ref: "${{{{ event.body.ref }}}}"}}
"""
TICKS = int(os.environ.get("SWAMP_SOAK_TICKS", "100"))
EVERY = 3
"""Seconds between two ticks: runs of two machines that wait for each other have to fit in between."""


class Sender:
    """Sends at a rate and again until it is answered, as a provider does."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.accepted: dict[str, str] = {}
        self.refused = Counter[str]()
        self._lock = threading.Lock()

    def send(self, identity: str, at: float) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        while True:
            try:
                answer = self.server.deliver(identity, route=route_of(identity))
                if answer.status_code in (200, 202):
                    with self._lock:
                        self.accepted[identity] = answer.json()["runId"]
                    return
                self.refused[str(answer.status_code)] += 1
            except requests.RequestException as error:
                self.refused[type(error).__name__] += 1
            time.sleep(0.5)


def route_of(identity: str) -> str:
    """Several workflows with models of their own: runs of one model wait for each other, whatever serves them."""
    return f"/hooks/deploy{int(identity[1:]) % WORKFLOWS}"


def prepare(machine: Machine) -> None:
    routes = ""
    for number in range(WORKFLOWS):
        add_workflow(machine, f"deploy{number}")
        routes += HOOK.format(number=number)
    add_hooks(machine, f"serve:\n  concurrency: {2 * WORKFLOWS}\n  webhooks:\n{routes}")


class Killer:
    """Ends the server without mercy at random moments, and starts it again."""

    def __init__(self, sender: Sender) -> None:
        self.sender, self.kills = sender, 0
        self._chance = random.Random(SEED)

    def strike(self, shortest: float, longest: float) -> Serving:
        time.sleep(self._chance.uniform(shortest, longest))
        self.sender.server.kill()
        self.kills += 1
        self.sender.server = start(self.sender.server.machine, seconds=300)
        return self.sender.server


def left(server: Serving) -> int:
    """Deliveries that wait or run, as Prometheus sees them."""
    lines = requests.get(f"{server.url}/metrics", timeout=300).text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("swamp_queue_length "))))


def test_every_accepted_delivery_runs_once(tmp_path, report):
    """The server is killed while it takes deliveries in, and goes on being killed while it works them off."""
    machine = Team(tmp_path, Place((tmp_path / "bucket").as_uri())).machine("a")
    prepare(machine)
    sender = Sender(start(machine))
    killer = Killer(sender)
    began = time.monotonic()
    with ThreadPoolExecutor(64) as pool:
        sending = [pool.submit(sender.send, f"d{n}", began + n / RATE) for n in range(DELIVERIES)]
        while not all(one.done() for one in sending) or killer.kills < 10:
            killer.strike(0.5, 6.0)
    for one in sending:
        one.result()
    sent = time.monotonic() - began
    while left(sender.server) and time.monotonic() - began < LONGEST:
        print(f"{time.monotonic() - began:.0f} s: {left(sender.server)} left, {killer.kills} kills", flush=True)
        killer.strike(45, 120)
    server = sender.server
    until(lambda: not left(server), 60, 2.0)
    took = time.monotonic() - began
    runs = server.runs()
    fired = Counter(run["trigger"]["deliveryId"] for run in runs)
    states = Counter(run["status"] for run in runs)
    assert server.stop() == 0
    logs = [machine("data", "versions", f"deploy{n}-hello", "log").ok()["total"] for n in range(WORKFLOWS)]
    versions = sum(logs)
    counts = f"runs: {len(runs)} {dict(states)}, data versions {versions}"
    print(f"accepted {len(sender.accepted)}, {counts}, killed {killer.kills} times (seed {SEED})", flush=True)
    assert set(fired) == set(sender.accepted) and len(fired) == DELIVERIES
    assert set(fired.values()) == {1} and set(states) == {"succeeded"}
    assert {run["id"] for run in runs} == set(sender.accepted.values())
    assert versions == DELIVERIES
    report.add(
        f"{DELIVERIES} webhook deliveries with kills of the server",
        f"accepted {len(sender.accepted)}, sent at {RATE:g}/s in {sent:.0f} s, all ran after {took:.0f} s",
        f"killed: {killer.kills} times (seed {SEED}); refused meanwhile: {dict(sender.refused)}",
        f"{counts}, lost 0, run twice 0",
    )


def test_two_servers_a_hundred_ticks_a_hundred_runs(tmp_path, report):
    team = Team(tmp_path, Place((tmp_path / "bucket").as_uri()))
    servers = []
    for name in ("a", "b"):
        machine = team.machine(name)
        add_workflow(machine, "tick", more=f'schedule: "*/{EVERY} * * * * *"\noverlap: queue\n')
        servers.append(start(machine))
    began = time.monotonic()
    ticks = until(lambda: first_ticks(servers[0].runs(workflow="tick")), LONGEST, 2.0)
    took = time.monotonic() - began
    for server in servers:
        assert server.stop(seconds=120) == 0
    found = team.machine("c")("workflow", "run", "search", "--limit", "1000").ok()["results"]
    fired = Counter(run["trigger"]["scheduledAt"] for run in found)
    print(f"{len(fired)} ticks, {len(found)} runs", flush=True)
    assert set(fired.values()) == {1} and ticks <= set(fired)
    report.add(
        "Two servers, one schedule",
        f"{len(ticks)} ticks one after the other, {len(ticks)} runs in {took:.0f} s; lost 0, run twice 0",
        f"all runs seen by a third machine: {len(found)}, ticks {len(fired)}",
    )


def first_ticks(runs: list[dict[str, Any]]) -> set[str]:
    """The first TICKS ticks, if every one of them has run: a tick that nobody fired is waited for in vain."""
    done = {run["trigger"]["scheduledAt"] for run in runs if run["status"] == "succeeded"}
    first = min((parse_rfc3339(tick) for tick in done), default=None)
    if first is None:
        return set()
    wanted = {rfc3339(first + dt.timedelta(seconds=EVERY * n)) for n in range(TICKS)}
    return wanted if wanted <= done else set()
