"""A process that does one thing with an engine and is killed at a chosen step, with SIGKILL and no warning.

`python killed.py '{"url": …, "config": …, "base": …, "do": "push", "at": 7, "limit": bytes}'`; at -1: not killed.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import Watched
from swamp.cache.layout import CacheDir
from swamp.errors import SwampError
from swamp.index.root import Writer
from swamp.store.open import StoreSpec
from swamp.sync.engine import Engine, Policy

KILLED = -signal.SIGKILL


@dataclass
class Steps:
    """Counts store calls and transactions; the chosen one is the last."""

    at: int
    seen: int = 0

    def step(self, *what: str) -> None:
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen += 1


def run(order: Mapping[str, Any]) -> dict[str, Any]:
    steps = Steps(order["at"])
    store = Watched(StoreSpec(order["url"], order["config"]).open(), steps.step, steps.step)
    policy = Policy(push_concurrency=1, pull_concurrency=1, commit_every=order.get("commit_every", 60.0))
    writer = Writer("repo-1", "killed", "k", os.getpid(), "0.1.0")
    engine = Engine.open(store, CacheDir(Path(order["base"])), writer=writer, policy=policy, hook=steps.step)
    if order.get("limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))  # a disk that is full
    try:
        result = _do(engine, order)
    except SwampError as error:
        return {"error": error.message, "hint": error.hint, "kind": error.kind}
    return {**result, "steps": steps.seen}


def _do(engine: Engine, order: Mapping[str, Any]) -> dict[str, Any]:
    if order["do"] == "write":
        with engine.announce([order["path"]]):
            (engine.root / order["path"]).parent.mkdir(parents=True, exist_ok=True)
            (engine.root / order["path"]).write_text("written")
        return {}
    if order["do"] == "collect":
        import datetime as dt

        from swamp.commit.collect import collect

        return {"deleted": collect(engine.committer, lambda: None, keep=dt.timedelta(0)).deleted}
    found: dict[str, Any] = getattr(engine, order["do"])().to_json()
    return found


def spawn(spec: StoreSpec, base: Path, do: str, at: int = -1, **more: Any) -> tuple[int, dict[str, Any]]:
    """The exit code (`KILLED`) and, from a process that lived, what it said."""
    order = {"url": spec.url, "config": dict(spec.config), "base": str(base), "do": do, "at": at, **more}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(order)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else {}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
