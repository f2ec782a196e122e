"""A child process has one end: it exits, its time is up, it is cancelled, or swamp itself is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from swamp.env import SYSTEM
from swamp.errors import UsageError
from swamp.models.process import KEPT_BYTES, run_process
from swamp.sync.progress import Cancel


def run(command: str, *, cwd: Path = Path("/"), cancel: Cancel | None = None, **kwargs):
    return run_process(
        ["/bin/sh", "-c", command],
        cwd=cwd,
        environment=kwargs.pop("environment", dict(os.environ)),
        cancel=cancel or Cancel(),
        env=SYSTEM,
        **kwargs,
    )


def alive(pid: int) -> bool:
    """Whether the process runs: one that is only waiting to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_what_a_command_has_said_is_read_to_its_end_by_a_slow_reader():
    """It lies in the pipe when the command is gone: reading it took longer than a second, and the rest was dropped."""
    found = run("seq 1 300", on_line=lambda *_: time.sleep(0.005))
    assert found.exit_code == 0 and found.stdout.split() == [str(n) for n in range(1, 301)]


def test_who_goes_on_talking_after_the_command_is_not_listened_to_for_ever():
    begun = time.monotonic()
    found = run("(while true; do echo tick; sleep 0.2; done) & exit 0")
    assert found.exit_code == 0 and time.monotonic() - begun < 60


def test_exit_code_and_both_streams_are_kept_and_seen_live():
    seen: list[tuple[str, str]] = []
    done = run("echo out; echo err >&2; exit 3", on_line=lambda stream, line: seen.append((stream, line)))
    assert (done.exit_code, done.stdout, done.stderr, done.ending) == (3, "out\n", "err\n", "exited")
    assert sorted(seen) == [("stderr", "err\n"), ("stdout", "out\n")]


def test_a_signal_is_a_negative_exit_code():
    assert run("kill -9 $$").exit_code == -9


def test_its_environment_is_the_given_one_and_its_input_is_empty():
    done = run("cat; echo $WHO", environment={"WHO": "me", "PATH": os.environ["PATH"]})
    assert done.stdout == "me\n"


def test_many_open_files_do_not_break_the_leash():
    """The shell's redirections know only one-digit descriptors; ours must not depend on the number we get."""
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(64)]
    try:
        assert run("echo ok").stdout == "ok\n"
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_a_talkative_command_keeps_its_end_and_does_not_fill_the_memory():
    done = run("i=0; while [ $i -lt 40 ]; do head -c 65536 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done; echo end")
    assert done.truncated
    assert done.stdout.endswith("end\n")
    assert len(done.stdout) <= KEPT_BYTES + 70000


@pytest.mark.inv("process.group-killed")
def test_a_timeout_ends_the_command_and_its_children(tmp_path):
    done = run("sleep 300 & echo $! > pid; sleep 300", cwd=tmp_path, timeout=5)
    assert done.ending == "timeout"
    assert gone_within(int((tmp_path / "pid").read_text()), 5)


def cancel_when_it_runs(cancel: Cancel, file: Path) -> None:
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    cancel.request()


@pytest.mark.inv("process.group-killed")
def test_cancelling_ends_a_command_that_ignores_the_polite_signal(tmp_path, monkeypatch):
    monkeypatch.setattr("swamp.models.process.GRACE_SECONDS", 0.5)
    cancel = Cancel()
    threading.Thread(target=cancel_when_it_runs, args=(cancel, tmp_path / "pid"), daemon=True).start()
    began = time.monotonic()
    done = run("trap '' TERM; echo $$ > pid; while :; do sleep 0.1; done", cwd=tmp_path, cancel=cancel)
    assert done.ending == "cancelled"
    assert time.monotonic() - began < 20
    assert gone_within(int((tmp_path / "pid").read_text()), 5)


def test_a_child_left_behind_with_our_pipe_does_not_hang_the_run(tmp_path):
    began = time.monotonic()
    done = run("sleep 300 & echo $! > pid; echo done", cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (0, "done\n")
    assert time.monotonic() - began < 20
    assert gone_within(int((tmp_path / "pid").read_text()), 5)


def test_a_daemon_with_its_own_output_may_stay(tmp_path):
    run("sleep 20 >/dev/null 2>&1 </dev/null & echo $! > pid", cwd=tmp_path)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.inv("process.no-orphan")
def test_killing_swamp_takes_its_command_along(tmp_path):
    """kill -9 cannot be caught: the command's own group notices that nobody holds its leash any more."""
    code = (
        "import os; from pathlib import Path; from swamp.env import SYSTEM; from swamp.sync.progress import Cancel;"
        "from swamp.models.process import run_process;"
        "run_process(['/bin/sh', '-c', 'echo $$ > pid; sleep 300'], cwd=Path('.'), environment=os.environ,"
        " cancel=Cancel(), env=SYSTEM)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    parent.kill()
    parent.wait()
    assert gone_within(pid, 15)


def test_a_directory_that_is_not_there_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError) as caught:
        run("true", cwd=tmp_path / "nowhere")
    assert "nowhere" in (caught.value.hint or "")
