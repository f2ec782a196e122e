"""Spark's daemons that are forked from a process which has imported everything (tests/spark_workers) are what they
stand for."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import java_archive

REPORT = r"""
import os, sys
def main(infile, outfile):
    told = repr((os.environ.get("SWAMP_TEST_SAID"), os.getcwd(), sys.path[0], "pyarrow" in sys.modules, os.getppid()))
    outfile.write(told.encode() + b"\n")
"""


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A kind of worker that says where it finds itself; in a package whose name lets Spark's daemon take it."""
    package = tmp_path / "pyspark_reports"
    package.mkdir()
    (package / "__init__.py").write_text(REPORT)
    return tmp_path


@contextmanager
def daemon(directory: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    """As a JVM starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", "pyspark_reports"],
        cwd=directory,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "s", **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def reported(process: subprocess.Popen[bytes]) -> tuple[str, str, str, bool, int]:
    """What a worker of that daemon says, after what a daemon and a JVM say to each other first."""
    assert process.stdout is not None
    (port,) = struct.unpack("!i", process.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire, wire.makefile("rwb") as stream:
        assert struct.unpack("!i", stream.read(4))[0] > 0  # its number
        stream.write(struct.pack("!i", 1) + b"s")
        stream.flush()
        assert stream.read(6) == struct.pack("!i", 2) + b"ok"
        return eval(stream.readline())


def ended(pid: int) -> bool:
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.05)
    return not os.path.exists(f"/proc/{pid}")


@pytest.fixture(autouse=True)
def _there() -> None:
    if "SPARK_TEST_WORKERS" not in os.environ or not java_archive.archive().exists():
        pytest.skip("workers start from nothing here")


def test_a_daemon_has_what_spark_gave_it_and_its_imports_behind_it(reports, tmp_path):
    with daemon(reports, SWAMP_TEST_SAID="one") as first, daemon(reports, SWAMP_TEST_SAID="two") as second:
        one, two = reported(first), reported(second)
    assert one[:4] == ("one", str(tmp_path), str(tmp_path), True)
    assert two[:4] == ("two", str(tmp_path), str(tmp_path), True)
    assert one[4] != two[4] != second.pid


def test_without_a_place_it_starts_from_nothing_and_answers_the_same(reports, tmp_path):
    with daemon(reports, SWAMP_TEST_SAID="one", SPARK_TEST_WORKERS="") as process:
        assert reported(process) == ("one", str(tmp_path), str(tmp_path), False, process.pid)


def test_what_cannot_be_imported_beforehand_starts_from_nothing(reports, tmp_path):
    """As on an executor without the package: nobody else's imports are lent to it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['swamp'] = None\n")
    with daemon(reports, PYTHONPATH=str(tmp_path)) as process:
        assert reported(process)[3:] == (False, process.pid)


@pytest.mark.parametrize("how", ["its stdin is closed", "it is told to end"])
def test_a_daemon_ends_as_spark_ends_it(reports, how):
    with daemon(reports) as process:
        forked = reported(process)[4]
        assert forked != process.pid and os.path.exists(f"/proc/{forked}")
        if how == "it is told to end":
            process.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.wait(60) == 0
        assert ended(forked)
