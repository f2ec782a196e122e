"""Spark jobs as processes, killed with everything they have started, at a moment that the bucket shows."""

from __future__ import annotations

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
from swamp.errors import MissingTool
from swamp.index.root import ROOT_KEY
from swamp.pipeline.java import find_java

JOB = Path(__file__).with_name("spark_job.py")
Moment = Callable[[], bool]


def require_java() -> None:
    try:
        find_java(os.environ)
    except MissingTool as error:
        if "spark" in os.environ.get("SWAMP_REQUIRE", ""):
            pytest.fail(str(error))
        pytest.skip(str(error))


def run_job(machine: Machine, name: str, write_id: str, *, rows: int = 3000, until: Moment | None = None) -> int:
    """The exit code; killed (-9, Java and workers too) as soon as `until` holds."""
    process = subprocess.Popen(
        [sys.executable, str(JOB), str(machine.repo), name, write_id, str(rows)],
        env=machine.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 280
    try:
        while process.poll() is None and time.monotonic() < deadline and not (until and until()):
            time.sleep(0.005)
    finally:
        end_group(process)
    said, _ = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), said[-3000:]
    return process.returncode


def parts_of(bucket: Path, name: str) -> list[Path]:
    """Uploaded parts of any attempt."""
    return list(bucket.glob(f"data/*/*/*/{name}/*/raw/*~*"))


def committed(place: Place, bucket: Path, name: str) -> bool:
    root = bucket / ROOT_KEY
    return root.exists() and f"/{name}/" in root.read_text(errors="replace")
