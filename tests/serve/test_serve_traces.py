"""Traces and metrics: one span for everything that matters, for the server's runs and for the command line alike."""

from __future__ import annotations

import re

import pytest

from machines import Machine
from serving import SECRET, Serving, serving, until

WANTED = {"run", "step", "push", "commit", "store get", "store put"}
"""Not `pull`: a process that committed a moment ago knows all."""


def spans(text: str) -> dict[str, str]:
    """Name -> parent of the spans that the console exporter printed."""
    return dict(re.findall(r'"name": "([^"]+)",.*?"parent_id": (null|"\w+")', text, re.DOTALL))


def finished(server: Serving) -> str:
    """A run whose process has ended too."""
    run: str = server.deliver("one").json()["runId"]
    until(lambda: server.get("/api/v1/deliveries")["items"][0]["status"] == "done")
    return run


def test_a_command_has_spans_when_the_usual_variables_are_set(machine: Machine) -> None:
    done = machine("workflow", "run", "deploy", env={"OTEL_TRACES_EXPORTER": "console"})
    assert done.code == 0 and done.json["status"] == "succeeded"
    found = spans(done.err)
    assert set(found) >= WANTED | {"command"}
    assert found["command"] == "null" and all(parent != "null" for name, parent in found.items() if name != "command")
    assert "traceId" not in machine("workflow", "run", "deploy").err
    pulled = machine("datastore", "sync", "--pull", "--full", env={"OTEL_TRACES_EXPORTER": "console"})
    assert set(spans(pulled.err)) >= {"command", "pull", "store get"}


@pytest.mark.parametrize("env", [{"OTEL_TRACES_EXPORTER": "otlp"}, {"OTEL_SDK_DISABLED": "true"}, {}])
def test_without_the_extra_or_the_wish_a_command_just_works(machine: Machine, env: dict[str, str]) -> None:
    """The exporter of OTLP is not installed here: nothing is exported, and nothing fails."""
    assert machine("data", "list", env=env).code == 0


def test_the_runs_of_a_server_have_spans(machine: Machine) -> None:
    with serving(machine, env={"OTEL_TRACES_EXPORTER": "console"}) as server:
        run = finished(server)
        log = machine.repo / ".swamp" / "serve" / "runs" / f"{run}.log"
        assert set(spans(log.read_text())) >= WANTED
        assert SECRET not in log.read_text()


def test_metrics_tell_of_runs_requests_queue_and_sync(server: Serving) -> None:
    finished(server)
    server.get("/api/v1/data")
    text = server.ask("GET", "/metrics", role=None).text
    values = dict(re.findall(r"^([a-z_]+(?:{[^}]*})?) ([0-9.e+]+)$", text, re.MULTILINE))
    assert float(values['swamp_runs_total{status="succeeded",workflow="deploy"}']) == 1
    assert float(values['swamp_deliveries_total{kind="webhook",status="done"}']) == 1
    assert float(values['swamp_http_requests_total{method="GET",route="/api/v1/data",status="200"}']) == 1
    assert float(values["swamp_sync_lag_seconds"]) < 60 and float(values["swamp_sync_lag_commits"]) <= 1
    assert float(values["swamp_cache_bytes"]) > 0
    assert float(values['swamp_store_requests_total{verb="get"}']) > 0
    for name in ("swamp_queue_length", "swamp_conflicts", 'swamp_pending_files{kind="write"}'):
        assert name in values
