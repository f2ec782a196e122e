"""Spark jobs as processes, killed with everything they have started, at a moment that the bucket shows."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kills import end_group
from machines import Machine, Place
from swamp.bulk.settings import find_java
from swamp.errors import MissingTool, ObjectMissing
from swamp.index.root import ROOT_KEY

JOB = Path(__file__).with_name("spark_job.py")
Moment = Callable[[], bool]


# Asking Java which one it is starts a JVM, and it is the same one for all tests of a worker.
_java = functools.cache(lambda: find_java(os.environ))


def require_java() -> None:
    try:
        _java()
    except MissingTool as error:
        if "spark" in os.environ.get("SWAMP_REQUIRE", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))


def run_job(
    machine: Machine,
    *writes: str,
    rows: int = 3000,
    until: Moment | None = None,
    env: dict[str, str] | None = None,
) -> int:
    """Writes each `name=writeId`. The exit code; killed (-9, Java and workers too) as soon as `until` holds."""
    process = subprocess.Popen(
        [sys.executable, str(JOB), str(machine.repo), str(rows), *writes],
        env=machine.environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 900
    try:
        while process.poll() is None and time.monotonic() < deadline and not (until and until()):
            time.sleep(0.01)
    finally:
        end_group(process)
    said, _ = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), said[-3000:]
    return process.returncode


def parts_of(place: Place, name: str) -> list[str]:
    """Uploaded parts of any attempt."""
    keys = (meta.key for page in place.open().list("data/") for meta in page)
    return [key for key in keys if f"/{name}/" in key and "/raw/" in key and "~" in key]


def committed(place: Place, name: str) -> bool:
    try:
        return f"/{name}/" in place.open().get(ROOT_KEY).body.decode()
    except ObjectMissing:
        return False
