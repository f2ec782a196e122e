"""The long forms. They are run by `make soak`, which says for how many minutes; `make test` does not collect them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

RESULT = Path(__file__).parents[2] / "bench" / "results" / "soak.md"
collect_ignore_glob = [] if os.environ.get("SWAMP_SOAK_MINUTES") else ["test_*.py"]


@dataclass
class Report:
    """What was done to whom and what came of it: bench/results/soak.md."""

    lines: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, title: str, *lines: str) -> None:
        self.lines += [f"\n## {title}\n", *(f"- {line}" for line in lines)]
        print(f"\n{title}: " + "; ".join(lines))

    def write(self) -> None:
        where = f"{platform.system()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        took = (time.monotonic() - self.began) / 60
        minutes = os.environ["SWAMP_SOAK_MINUTES"]
        head = [
            "# Soak",
            "",
            f"Written by `make soak MINUTES={minutes}` on {where}, in {took:.0f} minutes.",
            "Real processes, killed with SIGKILL; a real S3 server (moto) behind a proxy that misbehaves.",
        ]
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text("\n".join(head + self.lines) + "\n")


@pytest.fixture(scope="session")
def report() -> Iterator[Report]:
    made = Report()
    yield made
    made.write()
