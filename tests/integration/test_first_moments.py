"""Somebody who stops a command in its first moments is not shown a traceback of what was just being loaded."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

INSTALLED = "import sys\nfrom swamp.cli.main import main\nsys.exit(main())\n"
"""As an installer writes it."""
STOPPED = """
import os, signal, sys
count = int(sys.argv.pop(1))

def stop(event, _):
    global count
    if event == "import" and "swamp.cli.main" in sys.modules:
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(stop)
"""
"""The same, which is stopped at the import of so many modules after its own first line."""


def command(script: Path, *words: object) -> subprocess.Popen[str]:
    line = [sys.executable, str(script), *map(str, words)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("count", range(1, 80, 6))
def test_a_command_that_is_stopped_while_it_is_loaded_ends_without_a_word(tmp_path, count):
    (tmp_path / "swamp").write_text(STOPPED + INSTALLED)
    running = command(tmp_path / "swamp", count, "--version")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "")


def test_whenever_a_command_is_stopped_nothing_of_it_is_in_a_traceback(tmp_path):
    """Before the first line of ours it is Python that loads, and says what it says."""
    (tmp_path / "swamp").write_text(INSTALLED)
    ends = []
    for delay in range(0, 150, 5):
        running = command(tmp_path / "swamp", "--version")
        time.sleep(delay / 1000)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=60)
        shown = [file for file in re.findall(r'File "(.+)", line', err) if "/src/swamp/" in file]
        assert [file for file in shown if not file.endswith("/swamp/__init__.py")] == [], err
        ends.append(running.returncode)
    assert 130 in ends


def test_a_command_ends_with_its_own_code_and_all_of_its_words(tmp_path):
    """It leaves without taking every module apart, but not before what others registered for the end."""
    late = "import atexit\ncode = main()\natexit.register(print, 'late')\nsys.exit(code)"
    (tmp_path / "swamp").write_text(INSTALLED.replace("sys.exit(main())", late))
    for words, code in {("--version",): 0, ("nonsense",): 2}.items():
        running = command(tmp_path / "swamp", *words)
        out, err = running.communicate(timeout=60)
        assert running.returncode == code and out.endswith("late\n")
        assert ("swamp 0" in out) == (code == 0) and ("nonsense" in err) == (code == 2)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_without_an_output_does_its_work(tmp_path, closed):
    """As cron, an init system or a shell may begin one."""
    (tmp_path / "swamp").write_text(INSTALLED)
    line = f"'{sys.executable}' '{tmp_path}/swamp' repo init '{tmp_path}/repo' {closed}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert (tmp_path / "repo/.swamp.yaml").exists()
