"""kill -9 of a workflow at any moment, then resume: it finishes, every step's data is there, nothing is doubled."""

from __future__ import annotations

import json
import random
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from benches import Bench, shell

from machines import Machine, Team
from servers.start import start

STEPS = 6
WORKFLOW = f"""id: aaaaaaaa-2222-4333-8444-555555555555
name: chain
concurrency: 2
jobs:
  - name: first
    steps:
      - name: s-${{{{ self.i }}}}
        forEach: {{item: i, in: [1, 2, 3, 4, 5, 6]}}
        task: {shell("m-${{ self.i }}", "echo ${{ self.i }}; sleep 0.15")}
  - name: last
    dependsOn: [{{job: first}}]
    steps:
      - {{name: end, task: {shell("end", "echo end")}}}
"""
MODELS = [*(f"m-{i}" for i in range(1, STEPS + 1)), "end"]


def give(machine: Machine, text: str = WORKFLOW) -> None:
    name = next(line.split()[1] for line in text.splitlines() if line.startswith("name:"))
    (machine.repo / "workflows" / f"workflow-{name}.yaml").write_text(text)


def kill_at(machine: Machine, line: int, delay: float, *args: str) -> bool:
    """Kills the command a moment after it has said so many lines; whether it was still running then."""
    process = machine.start(*args)
    assert process.stderr is not None
    for _ in range(line):
        if not process.stderr.readline():
            break
    time.sleep(delay)
    running = process.poll() is None
    process.kill()
    process.communicate()
    return running


def only_run(machine: Machine) -> dict | None:
    found = machine("workflow", "run", "search").ok()["results"]
    assert len(found) <= 1, found
    return found[0] if found else None


def check_whole(machine: Machine, run_id: str) -> None:
    """Every step succeeded, its data is there once, and its record names what exists."""
    history = machine("workflow", "history", "get", run_id).ok()
    steps = [step for job in history["jobs"] for step in job["steps"]]
    assert [step["status"] for step in steps] == ["succeeded"] * (STEPS + 1), steps
    found = machine("data", "query", "version > 0", "--select", "[modelName, name, string(version)]").ok()["results"]
    assert sorted((m, n) for m, n, _ in found) == sorted((m, n) for m in MODELS for n in ("log", "result"))
    named = [[a["modelName"], a["name"], str(a["version"])] for step in steps for a in step["dataArtifacts"]]
    assert sorted(named) == sorted(found)


@pytest.mark.inv("run.not-doubled")
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_and_resumed_until_it_is_done(file_team: Team, seed):
    rng = random.Random(seed)
    one = file_team.machine("one")
    give(one)
    began = time.monotonic()
    killed = at_risk = 0
    args: tuple[str, ...] = ("workflow", "run", "chain")
    for _ in range(6):
        before = only_run(one)
        if before is not None and before["status"] == "succeeded":
            break
        was_running = kill_at(one, rng.randint(1, 12), rng.uniform(0.0, 0.3), *args)
        killed += was_running
        run = only_run(one)
        if run is None:
            continue
        args = ("workflow", "resume", run["runId"])
        at_risk += was_running and run["stepProgress"] != f"{STEPS + 1}/{STEPS + 1}"
        assert run["status"] in ("failed", "succeeded"), f"a killed run is told as {run['status']}"
    run = only_run(one)
    if run is None or run["status"] != "succeeded":
        done = one(*args).ok()
        assert done["status"] == "succeeded"
        run = only_run(one)
    print(f"seed {seed}: killed {killed}, at risk {at_risk}, {time.monotonic() - began:.0f} s")
    assert killed and at_risk * 2 >= killed
    check_whole(one, run["runId"])
    one.sync()  # the last kill may have come after the run was done and before its record was delivered
    assert one.status()["pending"] == {"writes": 0, "deletes": 0, "found": 0, "outbox": 0}
    reader = file_team.machine("reader")
    check_whole(reader, run["runId"])


def at_work(machine: Machine, mark: Path) -> Any:
    """A run of the workflow `slow`, whose step has made its mark."""
    process = machine.start("workflow", "run", "slow")
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


def test_a_killed_run_is_told_as_interrupted_by_the_next_command_and_noted_by_the_next_run(file_team: Team, tmp_path):
    one = file_team.machine("one")
    mark = tmp_path / "mark"
    give(
        one,
        "id: x\nname: slow\njobs:\n  - name: j\n    steps:\n"
        f"      - {{name: s, task: {shell('m', f'touch {mark}; sleep 60')}}}\n",
    )
    process = at_work(one, mark)
    alive = one("workflow", "run", "search").ok()["results"][0]
    assert alive["status"] == "running"
    busy = one("workflow", "resume", alive["runId"], env={"SWAMP_LOCK_TIMEOUT_MS": "1"}, timeout=100)
    assert busy.failed(75)["error"].startswith(f"run {alive['runId']} is still running")
    process.kill()
    process.communicate()
    told = one("workflow", "run", "search").ok()["results"][0]
    assert (told["status"], told["interrupted"], told["failedStep"]) == ("failed", True, "j.s")
    assert one("workflow", "run", "search", "--status", "running").ok()["total"] == 0
    assert one("workflow", "run", "search", "--status", "failed").ok()["total"] == 1
    history = one("workflow", "history", "get", alive["runId"]).ok()
    assert history["interrupted"] and history["error"].startswith("interrupted at s")
    give(one, f"id: y\nname: quick\njobs: [{{name: j, steps: [{{name: s, task: {shell('q', 'echo hi')}}}]}}]\n")
    one("workflow", "run", "quick").ok()
    reader = file_team.machine("reader")
    seen = {r["runId"]: r["status"] for r in reader("workflow", "run", "search").ok()["results"]}
    assert seen[alive["runId"]] == "failed"
    assert len(seen) == 2


def test_another_machine_takes_a_killed_run_over(file_team: Team, tmp_path):
    """Without any pid: the lease stops moving, and after its time the other machine has it."""
    one, two = file_team.machine("one"), file_team.machine("two")
    mark = tmp_path / "mark"
    command = f"if [ -e {mark} ]; then echo b; else touch {mark}; sleep 90; fi"
    text = f"""id: t
name: over
jobs:
  - name: j
    steps:
      - {{name: a, task: {shell("a", "echo a")}}}
      - {{name: b, dependsOn: [{{step: a}}], task: {shell("b", command)}}}
"""
    give(one, text)
    give(two, text)
    process = one.start("workflow", "run", "over")
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.communicate()
    two.sync()
    run = only_run(two)
    assert run is not None and run["status"] == "running"
    file_team.place.shorten_leases()
    done = two("workflow", "resume", run["runId"], timeout=200).ok()
    assert {step["name"]: step["status"] for job in done["jobs"] for step in job["steps"]} == {
        "a": "succeeded",
        "b": "succeeded",
    }
    assert two.versions("a", "result") == [1]
    assert two.versions("b", "result") == [1]
    reader = file_team.machine("reader")
    assert only_run(reader)["status"] == "succeeded"


def test_a_store_that_goes_away_during_the_run_costs_no_work(tmp_path):
    """Lost before the run: 69 and nothing ran. Lost during it: 69, the work is kept, and a resume delivers it."""
    mark, go = tmp_path / "mark", tmp_path / "go"
    quick = {
        "SWAMP_REQUEST_TIMEOUT_MS": "2000",
        "SWAMP_LOCK_TIMEOUT_MS": "3000",
        "SWAMP_DATASTORE_SYNC_TIMEOUT_MS": "5000",
    }
    with start("moto") as server:
        from machines import Place

        team = Team(tmp_path, Place(f"{server.url}/gone", dict(server.config), dict(server.environ)))
        one = team.machine("one")
        command = f"echo done; touch {mark}; while [ ! -e {go} ]; do sleep 0.1; done"
        give(one, f"id: x\nname: slow\njobs: [{{name: j, steps: [{{name: s, task: {shell('m', command)}}}]}}]\n")
        process = one.start("workflow", "run", "slow", env=quick)
        deadline = time.monotonic() + 90
        while not mark.exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
    gone = socket.socket()  # has the port and never listens: no other test's server may answer there
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    gone.bind(("127.0.0.1", urlsplit(server.endpoint).port))
    go.touch()
    out, err = process.communicate(timeout=200)
    assert process.returncode == 69, (out, err)
    assert out == ""
    assert json.loads(err.strip().splitlines()[-1])["code"] in ("unavailable", "outcome-unknown")
    assert one.get("m", "result")["version"] == 1
    mark.unlink()
    one("model", "create", "command/shell", "web", "--arg", f"execute.run=touch {mark}").ok()
    for args in (("workflow", "run", "slow"), ("model", "method", "run", "web", "execute")):
        again = one(*args, env=quick, timeout=200)
        assert again.code == 69, (args, again.out, again.err)
        assert again.out == ""
    assert not mark.exists()
    gone.close()


def test_a_run_without_a_lease_is_interrupted_for_whoever_has_seen_everything(file_team: Team, tmp_path):
    """Its lease is gone and its last record never came: `running` for ever to nobody who has pulled all there is."""
    one, two = file_team.machine("one"), file_team.machine("two")
    mark = tmp_path / "mark"
    give(
        one,
        f"id: x\nname: slow\njobs: [{{name: j, steps: [{{name: s, task: {shell('m', f'touch {mark}; sleep 60')}}}]}}]",
    )
    process = at_work(one, mark)
    process.kill()
    process.communicate()
    store = file_team.place.open()
    store.delete([key for key in file_team.place.objects("workflow-runs/") if key.endswith("/.lock")])
    two.sync()
    file_team.machine("three").put("other", "name", "news")
    assert only_run(two)["status"] == "running", "its last record may be in what this machine has not seen"
    two.sync()
    told = only_run(two)
    assert (told["status"], told["interrupted"]) == ("failed", True)


def test_a_lock_is_no_sign_of_life_when_only_a_child_on_its_way_has_it(tmp_path, monkeypatch):
    """Killed between fork and exec, a process leaves its lock to the child, for the moment until that one executes."""
    import os
    import subprocess
    import sys

    from swamp.locks import flock

    file = tmp_path / "run.lock"
    read_end, write_end = os.pipe()
    program = f"""
import fcntl, os, signal
lock = os.open({str(file)!r}, os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
if os.fork() == 0:
    os.read({read_end}, 1)
    os._exit(0)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], pass_fds=[read_end], check=False, timeout=60)
    look = flock.pids_holding
    looks = []

    def let_the_child_go_on(path):
        looks.append(look(path))
        if len(looks) == 1:
            os.close(write_end)
        return looks[-1]

    monkeypatch.setattr(flock, "pids_holding", let_the_child_go_on)
    monkeypatch.setattr(flock, "ECHO_SECONDS", 60.0)
    assert flock.by_lock(file) == "dead"
    assert looks, "the lock was held when it was first looked at"
    os.close(read_end)


def test_two_who_ask_at_once_do_not_take_each_other_for_the_run(tmp_path):
    import fcntl

    from swamp.locks.flock import by_lock

    file = tmp_path / "run.lock"
    file.touch()
    with file.open("r+") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        assert by_lock(file) == "dead"
    with file.open("r+") as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        assert by_lock(file) == "alive"


def test_the_mark_of_another_steps_run_may_vanish_while_killed_runs_are_looked_for(tmp_path):
    """A step that ends removes its mark while the next one reads them all: seen as a mark that cannot be read."""
    machine = Machine.make(tmp_path, "a")
    machine("model", "create", "command/shell", "runner").ok()
    run = ("model", "method", "run", "runner", "execute", "--input", "run=echo hello")
    machine(*run).ok()
    marks = machine.repo / ".swamp" / "run-logs"
    (marks / "gone.path").symlink_to(marks / "nowhere")
    assert machine(*run).ok()["status"] == "succeeded"


def test_a_run_that_ends_while_others_look_for_killed_ones_stays_what_it_is(bench: Bench, monkeypatch):
    """Read as running, ended, found without a lock: it has succeeded, and nobody may say or write otherwise."""
    from dataclasses import replace

    from swamp.workflows import decide

    bench.workflow("one", f"  - name: j\n    steps: [{{name: s, task: {shell('m', 'echo hi')}}}]\n")
    run = bench.run("one")
    runs, ended = bench.driver.runs, bench.driver.runs.get(run.id)
    before = replace(ended, status="running")
    (bench.context.repo.datastore.directory / ".locks" / "runs").mkdir(parents=True, exist_ok=True)
    lock = bench.context.repo.datastore.directory / ".locks" / "runs" / f"{run.id}.lock"

    def looks_then_it_ends(locks, workflow_id, run_id, *, fresh):
        runs.save(ended)
        return "dead"

    monkeypatch.setattr(type(bench.driver.locks), "verdict", looks_then_it_ends)
    for look in (
        lambda: decide.as_seen(bench.driver, bench.driver.runs.get(run.id)).status,
        lambda: decide.search(bench.driver, "", status=None, since=None, limit=9)["results"][0]["status"],
        lambda: [lock.touch(), decide.note_interrupted(bench.driver)] and bench.driver.runs.get(run.id).status,
    ):
        runs.save(before)
        assert look() == "succeeded"
    runs.save(before)
    assert decide.note_interrupted(bench.driver) == []


def test_a_killed_method_run_is_told_as_interrupted(file_team: Team, tmp_path):
    """Its record says running for ever; whoever looks sees that nobody works on the model."""
    one, two = file_team.machine("one"), file_team.machine("two")
    mark = tmp_path / "mark"
    one("model", "create", "command/shell", "m", "--arg", f"execute.run=touch {mark}; sleep 60").ok()
    process = one.start("model", "method", "run", "m", "execute")
    deadline = time.monotonic() + 60
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert one("model", "output", "get", "m").ok()["status"] == "running"
    process.kill()
    process.communicate()
    one.sync()
    two.sync()
    store = file_team.place.open()
    store.delete([key for key in file_team.place.objects("data/") if key.endswith("/.lock")])  # as if it had run out
    for machine in (one, two):
        told = machine("model", "output", "get", "m").ok()
        assert (told["status"], told["error"].partition(":")[0]) == ("failed", "interrupted")
        assert machine("model", "output", "list", "--status", "running").ok()["total"] == 0
        assert machine("model", "output", "list", "--status", "failed").ok()["total"] == 1


def test_a_method_run_on_a_full_disk_says_how_it_ended(bench: Bench, monkeypatch):
    """The log does not fit any more; the record that it failed does."""
    from swamp.errors import Failed
    from swamp.models.context import RunContext

    def full(self, file, name):
        raise Failed("cannot write: No space left on device")

    monkeypatch.setattr(RunContext, "keep_log", full)
    bench.model("command/shell", "m")
    result = bench.method("m", run="echo hi")
    assert (result.output.status, result.error is not None) == ("failed", True)
    assert [output.status for output in bench.context.outputs.list()] == ["failed"]
