"""Locks between real threads and real processes."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from swamp.env import SYSTEM, Env
from swamp.errors import Failed, LockTimeout
from swamp.locks.flock import FileLock

HOLD = """
import sys, time
from pathlib import Path
from swamp.locks.flock import FileLock
with getattr(FileLock(Path(sys.argv[1])), sys.argv[2])():
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hold(tmp_path):
    """Starts a process that holds the lock."""
    started = []

    def start(how):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path / "lock"), how], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def lock(tmp_path) -> FileLock:
    return FileLock(tmp_path / "lock")


def test_an_exclusive_holder_keeps_everybody_out_and_is_named(lock, hold):
    holder = hold("exclusive")
    for attempt in (lock.shared, lock.exclusive):
        with pytest.raises(LockTimeout) as caught, attempt(timeout=0.1):
            pytest.fail("two holders")
        assert str(holder.pid) in caught.value.message
        assert caught.value.exit_code == 75 and caught.value.hint


def test_who_waits_is_no_holder(lock, hold):
    """It stands in the queue while it waits, and named itself beside the process that it waited for."""
    holder = hold("exclusive")
    with (
        pytest.raises(LockTimeout, match=rf"in use by process {holder.pid} and") as caught,
        lock.exclusive(timeout=0.1),
    ):
        pytest.fail("two holders")
    assert str(os.getpid()) not in caught.value.message


def test_sharing_lets_others_share_and_keeps_exclusive_out(lock, hold):
    hold("shared")
    with lock.shared(timeout=5):
        pass
    with pytest.raises(LockTimeout), lock.exclusive(timeout=0.1):
        pytest.fail("not exclusive")


@pytest.mark.parametrize("how", ["shared", "exclusive"])
def test_a_lock_dies_with_its_process(lock, hold, how):
    holder = hold(how)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with lock.exclusive(timeout=5):
        pass


def test_threads_of_one_process_exclude_each_other(lock):
    inside, worst = [0], [0]

    def work():
        for _ in range(20):
            with lock.exclusive(timeout=30):
                inside[0] += 1
                worst[0] = max(worst[0], inside[0])
                time.sleep(0.0005)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert worst == [1]


def test_a_stream_of_sharers_does_not_starve_an_exclusive_waiter(lock):
    """Without the queue some thread always shares and a plan would never start."""
    stop = threading.Event()

    def share():
        while not stop.is_set():
            with lock.shared(timeout=30):
                time.sleep(0.01)

    threads = [threading.Thread(target=share) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            with lock.exclusive(timeout=30):
                pass
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_a_thread_that_shares_may_share_again_while_somebody_waits_for_exclusive(lock):
    order = []

    def plan():
        with lock.exclusive(timeout=10):
            order.append("exclusive")

    with lock.shared():
        waiting = threading.Thread(target=plan)
        waiting.start()
        time.sleep(0.1)
        with lock.shared(timeout=8):
            order.append("nested")
    waiting.join(10)
    assert order == ["nested", "exclusive"]


def test_a_lock_is_released_when_the_body_raises(lock):
    for how in (lock.shared, lock.exclusive):
        with pytest.raises(ValueError), how():
            raise ValueError
    with lock.exclusive(timeout=0):
        pass


def test_a_lock_file_removed_by_hand_does_not_let_two_in(lock, tmp_path):
    with lock.exclusive():
        (tmp_path / "lock").unlink()
        with lock.exclusive(timeout=1):
            assert (tmp_path / "lock").exists()
    with lock.exclusive(timeout=0):
        pass


def test_waiting_is_bounded_on_the_given_clock_and_leaves_no_descriptor(tmp_path):
    class Clock:
        slept = 0.0

        def now(self):
            raise AssertionError("wall clock is not for waiting")

        def monotonic(self):
            return self.slept

        def sleep(self, seconds):
            assert 0 < seconds <= 0.05
            self.slept += seconds

    clock = Clock()
    waiting = FileLock(tmp_path / "lock", Env(clock, SYSTEM.rng))
    with FileLock(tmp_path / "lock").exclusive():
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(LockTimeout, match="this one"), waiting.shared(timeout=60):
            pass
        assert len(os.listdir("/proc/self/fd")) == before
    assert 60 <= clock.slept < 60.1


def test_a_lock_that_cannot_be_created_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Failed), FileLock(tmp_path / "file" / "lock").shared():
        pass
