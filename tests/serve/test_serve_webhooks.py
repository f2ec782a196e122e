"""Webhooks: proven to come from who knows the secret, on disk before they are answered, run exactly once."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from machines import Machine
from serving import SECRET, Serving, add_hooks, add_workflow, serving, signed, start, until
from swamp.serve.api_events import WINDOW_S, NotSigned, verify

NOW = 1_800_000_000.0


def mark(text: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


def slack(body: bytes, at: float, secret: str) -> dict[str, str]:
    stamp = str(int(at))
    return {
        "x-slack-request-timestamp": stamp,
        "x-slack-signature": f"v0={mark(f'v0:{stamp}:'.encode() + body, secret)}",
    }


def stripe(body: bytes, at: float, secret: str) -> dict[str, str]:
    return {"stripe-signature": f"t={int(at)},v1={'0' * 64},v1={mark(f'{int(at)}.'.encode() + body, secret)}"}


def generic(body: bytes, at: float, secret: str) -> dict[str, str]:
    stamp = str(int(at))
    return {"x-timestamp": stamp, "x-signature-256": f"sha256={mark(f'{stamp}.'.encode() + body, secret)}",
            "x-delivery-id": "abc"}  # fmt: skip


SCHEMES: dict[str, tuple[Callable[[bytes, float, str], dict[str, str]], dict[str, Any], str | None]] = {
    "github": (lambda b, t, s: {"x-hub-signature-256": f"sha256={mark(b, s)}", "x-github-delivery": "abc"}, {}, "abc"),
    "gitlab": (lambda b, t, s: {"x-gitlab-token": s, "x-gitlab-event-uuid": "abc"}, {}, "abc"),
    "linear": (lambda b, t, s: {"linear-signature": mark(b, s), "linear-delivery": "abc"}, {}, "abc"),
    "stripe": (stripe, {"id": "evt_1"}, "evt_1"),
    "slack": (slack, {"event_id": "Ev1"}, "Ev1"),
    "generic": (generic, {}, "abc"),
}
TIMED = ("linear", "stripe", "slack", "generic")


@pytest.mark.inv("serve.signed")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_signatures_of_every_scheme(scheme: str) -> None:
    sign, more, identity = SCHEMES[scheme]

    def body_at(at: float) -> bytes:
        return json.dumps({"ref": "main", "webhookTimestamp": at * 1000, **more}).encode()

    body = body_at(NOW)
    good = sign(body, NOW, SECRET)
    sent = verify(scheme, SECRET.encode(), good, body, NOW)
    assert sent.id == identity and sent.body["ref"] == "main"
    assert SECRET not in json.dumps(dict(sent.headers))

    def refused(headers: dict[str, str], raw: bytes, now: float = NOW) -> None:
        with pytest.raises(NotSigned):
            verify(scheme, SECRET.encode(), headers, raw, now)

    refused({}, body)
    refused(sign(body, NOW, "another secret"), body)
    refused(dict.fromkeys(good, ""), body)
    if scheme != "gitlab":
        refused(good, body + b" ")
    if scheme in TIMED:
        refused(good, body, NOW + WINDOW_S + 1)
        refused(good, body, NOW - WINDOW_S - 1)
        stale = body_at(NOW - 10_000)
        refused(sign(stale, NOW - 10_000, SECRET), stale)
        verify(scheme, SECRET.encode(), good, body, NOW + WINDOW_S - 1)


def test_without_an_id_it_is_a_hash_of_body_and_time() -> None:
    headers = {"x-hub-signature-256": f"sha256={mark(b'{}')}"}
    first, again, later = (verify("github", SECRET.encode(), headers, b"{}", at).id for at in (NOW, NOW, NOW + 1))
    assert first == again != later
    odd = {**headers, "x-github-delivery": "a\nb"}
    assert verify("github", SECRET.encode(), odd, b"{}", NOW).id == first, "an id that is none is not taken over"


def test_a_form_with_a_payload_is_read_too() -> None:
    raw = b"payload=%7B%22ref%22%3A%22x%22%7D"
    headers = {"x-hub-signature-256": f"sha256={mark(raw)}", "content-type": "application/x-www-form-urlencoded"}
    assert verify("github", SECRET.encode(), headers, raw, NOW).body == {"ref": "x"}


def test_a_delivery_runs_with_its_inputs_and_says_why(machine: Machine) -> None:
    add_workflow(machine, run="echo got ${{ inputs.ref }}")
    with serving(machine) as server:
        first = server.deliver("one", {"ref": "a-branch"})
        assert (first.status_code, first.json()["status"], first.json()["deliveryId"]) == (202, "queued", "one")
        again = server.deliver("one", {"ref": "a-branch"})
        assert (again.status_code, again.json()["status"]) == (200, "duplicate")
        run = again.json()["runId"]
        done = server.ended(run)
        assert done["status"] == "succeeded" and done["inputs"] == {"ref": "a-branch"}
        assert server.get(f"/api/v1/runs/{run}/logs")["lines"] == ["main/hello | got a-branch"]
        [item] = server.runs(workflow="deploy")
        assert item["trigger"]["kind"] == "webhook" and item["trigger"]["deliveryId"] == "one"
        assert machine("workflow", "history", "get", run).ok()["trigger"]["deliveryId"] == "one"
        late = server.deliver("one", {"ref": "a-branch"})
        assert (late.status_code, late.json()["runId"]) == (200, run)


def test_what_is_refused(server: Serving) -> None:
    body = b'{"ref": "x"}'
    url = f"{server.url}/hooks/deploy"
    answers = [
        requests.post(url, data=body),
        requests.post(url, data=body, headers=signed(body, "x", "wrong")),
        requests.post(url, data=body + b" ", headers=signed(body, "x")),
        requests.post(url, data=body, headers={"X-Hub-Signature-256": "sha1=abc"}),
    ]
    assert {(answer.status_code, answer.text) for answer in answers} == {(401, answers[0].text)}
    assert requests.post(f"{server.url}/hooks/other", data=body, headers=signed(body, "x")).status_code == 404
    assert requests.get(url).status_code == 405
    assert server.get("/api/v1/deliveries")["items"] == []


def test_a_full_queue_says_so_and_drops_nothing(machine: Machine) -> None:
    add_workflow(machine, run="sleep 2")
    add_hooks(machine, "  queue: 3\n  concurrency: 1\n")
    with serving(machine) as server:
        answers = [server.deliver(f"d{n}") for n in range(6)]
        codes = [answer.status_code for answer in answers]
        assert codes == [202, 202, 202, 503, 503, 503]
        assert answers[-1].json()["code"] == "queue-full" and int(answers[-1].headers["Retry-After"]) > 0
        for answer in answers[:3]:
            assert server.ended(answer.json()["runId"])["status"] == "succeeded"
        assert until(lambda: server.deliver("d5").status_code == 202)


def test_an_event_without_what_the_inputs_ask_for_is_told(server: Serving) -> None:
    server.deliver("one", {"other": 1})
    failed = until(lambda: [d for d in server.get("/api/v1/deliveries")["items"] if d["status"] == "failed"])
    assert "ref" in failed[0]["error"]


def test_deliveries_are_listed_shown_and_replayed(server: Serving) -> None:
    machine = server.machine
    first = server.deliver("one", {"ref": "v1"}).json()["runId"]
    server.ended(first)
    until(lambda: machine("serve", "deliveries", "list").ok()["items"][0]["status"] == "done")
    shown = machine("serve", "deliveries", "show", "one").ok()
    assert shown["event"]["body"] == {"ref": "v1"} and shown["runId"] == first
    assert "x-hub-signature-256" not in shown["event"]["headers"]
    again = machine("serve", "deliveries", "replay", "one").ok()
    assert again["deliveryId"].startswith("one#") and again["runId"] != first
    assert server.ended(again["runId"])["inputs"] == {"ref": "v1"}
    machine("serve", "deliveries", "show", "none").failed(1)


@pytest.mark.inv("serve.accepted")
@pytest.mark.inv("serve.once")
@pytest.mark.inv("run.once")
@pytest.mark.parametrize("pause", [0.0, 0.3, 0.6, 1.0, 1.5])
def test_kill_9_between_accepting_and_the_end(machine: Machine, pause: float) -> None:
    """Before its process exists, while that starts, while it runs, while it pushes."""
    add_workflow(machine, run="sleep 0.3; echo x")
    server = start(machine)
    accepted = [answer.json()["runId"] for n in range(3) if (answer := server.deliver(f"d{n}")).status_code == 202]
    time.sleep(pause)
    server.kill()
    assert len(accepted) == 3
    with serving(machine) as again:
        for run in accepted:
            assert again.ended(run)["status"] == "succeeded"
        found = again.runs(workflow="deploy")
        assert sorted(item["trigger"]["deliveryId"] for item in found) == ["d0", "d1", "d2"]
        until(lambda: all(d["status"] == "done" for d in again.get("/api/v1/deliveries")["items"]))
    versions = machine("data", "versions", "deploy-hello", "log").ok()["total"]
    assert versions == 3, "each ran once"


def test_the_processes_are_killed_too(machine: Machine) -> None:
    """As when the machine loses power: what had begun is told as interrupted, the rest runs."""
    add_workflow(machine, run="sleep 600")
    add_hooks(machine, "  concurrency: 1\n")
    server = start(machine)
    begun = server.deliver("begun").json()["runId"]
    until(lambda: server.get(f"/api/v1/runs/{begun}")["status"] == "running")
    waiting = server.deliver("waiting").json()["runId"]
    with serving_after_power_cut(server) as again:
        done = again.ended(begun)
        assert done["status"] == "failed" and done["interrupted"] is True
        assert again.ended(waiting)["status"] == "succeeded"
        assert len(again.runs(workflow="deploy")) == 2


def serving_after_power_cut(server: Serving) -> Any:
    from serving import end_workers

    server.kill()
    end_workers(server.machine)
    add_workflow(server.machine, run="echo short")
    return serving(server.machine)


def test_many_at_once_with_random_kills(machine: Machine) -> None:
    """A small form of what `make soak` does with 2,000: every accepted one runs once, none is lost."""
    total, server = 40, start(machine)
    accepted: set[str] = set()

    def send(identity: str) -> None:
        while identity not in accepted:
            try:
                if server.deliver(identity).status_code in (200, 202):
                    accepted.add(identity)
            except requests.RequestException:
                time.sleep(0.2)

    with ThreadPoolExecutor(8) as pool:
        sending = [pool.submit(send, f"d{n}") for n in range(total)]
        for pause in (0.5, 1.5):
            time.sleep(pause)
            server.kill()
            server = start(machine)
        for one in sending:
            one.result(timeout=120)
    assert len(accepted) == total
    over = ("succeeded",)
    until(lambda: len([r for r in server.runs(workflow="deploy") if r["status"] in over]) >= total, 200, 1.0)
    found = [run["trigger"]["deliveryId"] for run in server.runs(workflow="deploy")]
    assert sorted(found) == sorted(accepted)
    assert server.stop() == 0
    assert machine("data", "versions", "deploy-hello", "log").ok()["total"] == total


def test_deliveries_of_a_status_or_kind_that_there_is_not_are_refused(server: Serving) -> None:
    """An empty list would say that nothing failed."""
    for option, word in (("status", "fail"), ("kind", "hook")):
        error = server.machine("serve", "deliveries", "list", f"--{option}", word).failed(2)
        assert f"`{word}` is not a {option}" in error["error"]
        asked = server.ask("GET", f"/api/v1/deliveries?{option}={word}")
        assert asked.status_code == 400 and asked.json()["code"] == "usage"
