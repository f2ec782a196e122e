"""The long forms: `make soak` says for how many minutes. Of them `make test` plays five minutes of chaos."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

RESULT = Path(__file__).parents[2] / "bench" / "results" / "soak.md"
HEAD = """# Soak

Written by `make soak`: real processes, killed with SIGKILL; real S3 servers behind a proxy that misbehaves; a bucket in
a directory. Each part says when it was run last; a run of some parts (`make soak ARGS="-k network"`) leaves the others.
A lost byte fails the run, so "lost 0" stands here by assertion: a part that lost something is not written down.
"""
collect_ignore_glob = [] if os.environ.get("SWAMP_SOAK_MINUTES") else ["test_soak.py"]


@dataclass
class Report:
    """What was done to whom and what came of it: bench/results/soak.md."""

    began: float = field(default_factory=time.monotonic)

    def add(self, title: str, *lines: str) -> None:
        """A part of the report, written at once: a run that is cut short keeps what it has shown."""
        print(f"\n{title}: " + "; ".join(lines))
        parts = self._parts()
        parts[title] = "\n".join([f"## {title}\n", *(f"- {line}" for line in (*lines, self._where()))]) + "\n"
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text("\n".join([HEAD, *(parts[name] for name in sorted(parts))]))

    def _parts(self) -> dict[str, str]:
        old = RESULT.read_text() if RESULT.exists() else ""
        return {part.partition("\n")[0]: f"## {part.strip()}\n" for part in re.split(r"^## ", old, flags=re.M)[1:]}

    def _where(self) -> str:
        took, self.began = (time.monotonic() - self.began) / 60, time.monotonic()
        on = f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        return f"run {time.strftime('%Y-%m-%d %H:%M')} on {on}, in {took:.1f} minutes"


@pytest.fixture(scope="session")
def report() -> Report:
    return Report()
