"""The process: ready when it is ready, one message and exit 2 for what cannot be, an end that loses nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from machines import Machine
from serving import Serving, add_hooks, add_workflow, serving, start, until


def test_it_says_where_it_is_and_answers(server: Serving) -> None:
    assert requests.get(f"{server.url}/healthz").text == "ok\n"
    assert requests.get(f"{server.url}/readyz").status_code == 200
    assert server.get("/api/v1/datastore/status", role="viewer")["healthy"] is True
    assert server.stop() == 0


def test_ready_is_not_said_when_the_store_is_away(server: Serving, tmp_path: Path) -> None:
    (tmp_path / "bucket").rename(tmp_path / "away")
    assert requests.get(f"{server.url}/healthz").status_code == 200
    refused = requests.get(f"{server.url}/readyz")
    assert (refused.status_code, refused.json()["code"]) == (503, "not-ready")
    assert str(tmp_path) not in refused.text


@pytest.mark.inv("serve.recover")
def test_a_server_that_starts_with_the_store_away_looks_for_killed_runs_when_it_answers(
    machine: Machine, tmp_path: Path
) -> None:
    add_workflow(machine, "slow", run=f"touch {tmp_path / 'mark'}; sleep 60")
    process = machine.start("workflow", "run", "slow")
    until((tmp_path / "mark").exists)
    process.kill()
    process.communicate()
    bucket, away = tmp_path / "bucket", tmp_path / "away"
    bucket.rename(away)
    with serving(machine) as server:
        assert requests.get(f"{server.url}/readyz").status_code == 503
        accepted = server.deliver("one").json()["runId"]
        away.rename(bucket)
        until(lambda: any("was interrupted" in line for line in server.err))
        assert server.ended(accepted)["status"] == "succeeded"
    told = machine("workflow", "run", "search", "--status", "failed").ok()["items"]
    assert [run["workflowName"] for run in told] == ["slow"]


def refused(machine: Machine, *args: str, env: dict[str, str] | None = None) -> str:
    """One clear message and exit 2."""
    done = machine("serve", "--port", "0", *args, env=env)
    found = done.failed(2)
    assert len(done.err.strip().splitlines()) == 1
    return f"{found['error']} {found.get('hint', '')}"


def test_a_webhook_for_a_workflow_that_is_not_there(machine: Machine) -> None:
    (machine.repo / "workflows" / "workflow-deploy.yaml").unlink()
    assert "/hooks/deploy" in refused(machine)


def test_a_secret_that_is_not_there(machine: Machine) -> None:
    assert "HOOK_SECRET" in refused(machine, env={"HOOK_SECRET": ""})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("serve: {webhooks: [{route: /hooks/x, workflow: deploy, scheme: morse, secret: '@env=HOME'}]}\n", "morse"),
        ("serve: {webhooks: [{route: x, workflow: deploy, secret: '@env=HOME'}]}\n", "route"),
        ("serve: {webhooks: [{route: /hooks/x, workflow: deploy, secret: plain}]}\n", "@env=NAME"),
        ("serve: {webhooks: [{route: /hooks/x, workflow: deploy, secret: '@env=HOME', "
         "inputs: {a: '${{ env.A }}'}}]}\n", "env"),
        ("serve: {port: 70000}\n", "65535"),
        ("serve: {publicUrl: swamp.example.org}\n", "https://swamp.example.org"),
        ("serve: {publicUrl: https://example.org/swamp}\n", "https://swamp.example.org"),
        ("serve: {publicUrl: https://me:word@example.org}\n", "https://swamp.example.org"),
        ("serve: {publicUrl: 'https://example.org:x'}\n", "https://swamp.example.org"),
        ("serve: {colour: red}\n", "colour"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be(team, text: str, word: str) -> None:
    machine = team.machine("b")
    add_workflow(machine)
    add_hooks(machine, text)
    args = () if "port" in text else ("--port", "0")
    done = machine("serve", *args)
    assert word in str(done.failed(2))
    assert not (machine.repo / ".swamp" / "serve.db").exists()


def test_a_port_that_is_taken(machine: Machine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = machine("serve", "--port", str(taken.getsockname()[1]))
    assert "cannot listen" in done.failed(2)["error"]


def test_another_host_without_tls_is_refused(machine: Machine) -> None:
    assert "--behind-proxy" in refused(machine, "--host", "0.0.0.0")
    with serving(machine, "--host", "0.0.0.0", "--behind-proxy") as server:
        assert server.login is None
        local = server.url.replace("0.0.0.0", "127.0.0.1")
        assert requests.get(f"{local}/healthz").status_code == 200
        assert requests.get(f"{local}/metrics").status_code == 401


def test_the_missing_extra_is_named(machine: Machine, tmp_path: Path) -> None:
    """As on a machine where only `swamp` was installed."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name.split('.')[0] == 'uvicorn' else real(name, *a)\n"
    )
    assert "swamp[serve]" in refused(machine, env={"PYTHONPATH": str(blocked)})


def test_one_server_per_queue(server: Serving) -> None:
    assert "another server" in refused(server.machine)


@pytest.mark.inv("serve.recover")
def test_sigterm_lets_runs_finish_and_pushes(machine: Machine) -> None:
    add_workflow(machine, run="sleep 2; echo done")
    with serving(machine, "--drain", "60") as server:
        run = server.deliver("one").json()["runId"]
        until(lambda: server.get(f"/api/v1/runs/{run}")["status"] == "running")
        assert server.stop() == 0
    assert machine("workflow", "history", "get", run).ok()["status"] == "succeeded"
    assert machine("datastore", "sync").ok()["filesPushed"] == 0


def test_runs_that_take_longer_than_the_drain_are_cancelled_and_shared(machine: Machine) -> None:
    add_workflow(machine, run="sleep 600")
    with serving(machine, "--drain", "0") as server:
        run = server.deliver("one").json()["runId"]
        until(lambda: server.get(f"/api/v1/runs/{run}")["status"] == "running")
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 40
    assert machine("workflow", "history", "get", run).ok()["status"] == "cancelled"
    assert machine("datastore", "sync").ok()["filesPushed"] == 0


def test_a_second_signal_ends_at_once_and_loses_nothing(machine: Machine) -> None:
    add_workflow(machine, run="while [ ! -e go ]; do sleep 0.1; done; echo done")
    server = start(machine, "--drain", "600")
    run = server.deliver("one").json()["runId"]
    until(lambda: server.get(f"/api/v1/runs/{run}")["status"] == "running")
    later = server.deliver("two").json()["runId"]
    server.process.send_signal(signal.SIGTERM)
    until(lambda: any("again to end now" in line for line in server.err))
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0, "the run would not have ended in the ten minutes of its drain"
    (machine.repo / "go").touch()
    with serving(machine) as again:
        assert again.ended(run)["status"] == "succeeded"
        assert again.ended(later)["status"] == "succeeded"


def test_the_runs_do_not_see_the_secrets_of_webhooks(machine: Machine) -> None:
    add_workflow(machine, run="env | grep -c HOOK_SECRET || true")
    with serving(machine) as server:
        run = server.deliver("one").json()["runId"]
        server.ended(run)
        lines = server.get(f"/api/v1/runs/{run}/logs")["lines"]
        assert [line.rpartition("| ")[2] for line in lines] == ["0"]


def test_its_own_file_is_nobody_elses(server: Serving) -> None:
    mode = os.stat(server.machine.repo / ".swamp" / "serve.db").st_mode
    assert mode & 0o077 == 0


ONE_RUN = """
import os, sys
from swamp.serve import spawn
spawn._import_everything()
spawn.runs_directory(spawn.Path(os.environ["SWAMP_REPO_DIR"])).mkdir(parents=True)
before = set(sys.modules)
repo, run = os.environ["SWAMP_REPO_DIR"], "5b6a4b50-0000-4000-8000-000000000001"
job = spawn.WorkerJob(repo, run, "deploy", "run", {}, {"kind": "api"})
code = spawn.work(job)
print(code, *sorted(name for name in set(sys.modules) - before if not name.startswith("encodings.") and name != "pwd"))
"""


def test_a_run_finds_everything_imported_before_the_fork(machine: Machine) -> None:
    """Imports are the dear part of a run; the process that forks has made them, or every run makes them again."""
    done = subprocess.run(
        [sys.executable, "-c", ONE_RUN],
        env=machine.environment(),
        cwd=machine.repo,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.split() == ["0"], done.stdout + done.stderr
