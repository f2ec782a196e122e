"""Commands that are forked from a process which has imported swamp (tests/warm.py) are what they stand for."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import pytest

from machines import NURSERY, SWAMP, Machine, Team
from warm import Nursery, Process

ASKED = (("data", "list"), ("data", "get", "web", "nothing"), ("no-such-command",), ("data", "--help"), ("--version",))


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine.make(tmp_path, "a")


def test_the_answers_are_those_of_the_installed_command(machine, monkeypatch):
    warm = [machine(*words, json=False) for words in ASKED]
    monkeypatch.setenv("SWAMP_TEST_COLD", "1")
    cold = [machine(*words, json=False) for words in ASKED]
    assert warm == cold
    assert {ran.code for ran in warm} >= {0, 2} and warm[-1].out.startswith("swamp ")


def test_an_interpreter_that_is_taken_apart_says_nothing(tmp_path, monkeypatch, lying_place):
    """What forked commands leave out: with threads and connections behind it, the end of a command is silent, and its
    exit code is the command's."""
    monkeypatch.setenv("SWAMP_TEST_COLD", "1")
    machine = Team(tmp_path, lying_place).machine("a")
    file = tmp_path / "input"
    file.write_text("x" * 2000)
    put = ("data", "put", "web", "report", str(file))
    for words in (put, ("datastore", "sync"), ("datastore", "verify"), ("data", "get", "web", "report")):
        ran = machine(*words)
        assert (ran.code, ran.err) == (0, ""), ran
    missing = machine("data", "get", "web", "nothing")
    assert missing.failed(1) and len(missing.err.splitlines()) == 1, missing.err


def test_each_is_a_process_of_its_own(machine):
    with machine.start("data", "list", group=True) as first, machine.start("data", "list") as second:
        assert isinstance(first, Process) and isinstance(second, Process)
        assert len({first.pid, second.pid, os.getpid()}) == 3
        for process in (first, second):
            process.communicate(timeout=60)
            assert process.returncode == 0


def test_its_settings_are_its_own(machine, tmp_path):
    other = Machine.make(tmp_path, "b")
    machine.put("web", "report", "of a")
    assert machine.names() == [("web", "report")] and other.names() == []
    assert machine("data", "list", env={"SWAMP_REPO_DIR": str(other.repo)}).ok()["items"] == []


def test_a_killed_one_says_by_what(machine, tmp_path):
    began = tmp_path / "began"
    machine("model", "create", "command/shell", "slow", "--arg", f"execute.run=touch {began}; sleep 60").ok()
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 130)):
        began.unlink(missing_ok=True)
        process = machine.start("model", "method", "run", "slow", "execute", group=True)
        by = time.monotonic() + 60
        while not began.exists():
            assert time.monotonic() < by and process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, number)
        assert process.wait(timeout=60) == code
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_another_interpreter_is_started_as_one(machine):
    """What an interpreter reads when it starts cannot be given to one that has started."""
    machine("data", "list").ok()
    process = NURSERY.start(("--version",), {**machine.environment(), "PYTHONUTF8": "0"}, machine.repo)
    with process:
        assert not isinstance(process, Process) and process.args[0] == str(SWAMP)
        assert process.communicate(timeout=60)[0].startswith("swamp ")


def test_an_odd_interpreter_that_is_asked_for_first_does_not_make_all_others_start_the_long_way(machine, tmp_path):
    usual = machine.environment()
    with Nursery(SWAMP) as nursery:
        with nursery.start(("--version",), {**usual, "PYTHONPATH": str(tmp_path)}, machine.repo) as odd:
            odd.communicate(timeout=60)
        with nursery.start(("--version",), usual, machine.repo) as plain:
            plain.communicate(timeout=60)
    assert not isinstance(odd, Process) and isinstance(plain, Process)
