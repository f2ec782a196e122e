"""Staging is swept of what the dead left, and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from swamp.cache.layout import FOLDER_PREFIX, OLD_SECONDS, sweep_staging
from swamp.cache.paths import TEMP_PREFIX


def dead() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_only_what_the_dead_left_goes_and_only_after_a_while(tmp_path):
    gone = dead()
    (tmp_path / f"{TEMP_PREFIX}{gone}-1").write_text("half a file")
    (tmp_path / f"{FOLDER_PREFIX}{gone}-X").mkdir()
    (tmp_path / f"{FOLDER_PREFIX}{gone}-X" / "part").write_text("x")
    (tmp_path / f"{TEMP_PREFIX}{os.getpid()}-1").write_text("mine")
    (tmp_path / f"{TEMP_PREFIX}{'9' * 30}-1").write_text("no such number")
    (tmp_path / "something else").write_text("x")
    assert sweep_staging(tmp_path, time.time()) == 0, "somebody whom we cannot see may be at work"
    later = time.time() + OLD_SECONDS + 1
    assert sweep_staging(tmp_path, later) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{TEMP_PREFIX}{os.getpid()}-1", "something else"])


def test_a_process_that_began_later_only_has_the_number(tmp_path, monkeypatch):
    left = tmp_path / f"{TEMP_PREFIX}{os.getpid()}-1"
    left.write_text("of an earlier process with this number")
    monkeypatch.setattr("swamp.cache.layout._began", lambda process: time.time() + 600)
    assert sweep_staging(tmp_path, time.time(), 0) == 1


def test_there_may_be_no_staging_yet(tmp_path):
    assert sweep_staging(tmp_path / "none", time.time()) == 0
