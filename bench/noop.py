"""A sync that finds nothing to do, with 100,000 files that are all here, by how many directories they are in.

    .venv/bin/python bench/noop.py [runs]        writes bench/results/noop.md

A bucket in a directory: what is measured is swamp, not a server. Every run is a cold process; the kinds take turns, so
that each meets the same machine. Each time every directory is looked at: nothing has vanished (S20). CPU is of both
processes. Wall clock means something only on a quiet machine, which the load average before and after tells.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from costs import RESULTS, machine

from peers import HERE
from swamp.cache.rows import BaseRow
from swamp.cache.state import State

FILES = 100_000
KINDS = {
    "1,000 directories": ("data/bench/{group:05d}/n/{d:06d}/part{f:03d}", 100),
    "25,000 version directories": ("data/bench/{group:05d}/n{d:06d}/1/part{f}", 4),
    "50,000 version directories": ("data/bench/{group:05d}/n{d:06d}/1/part{f}", 2),
}


def made(home, form, each):
    """The command of a machine that holds all files, which has looked at them once."""
    env, repo = machine(home, 0)
    filled(home, [form.format(group=n // 1000, d=n // each, f=n % each) for n in range(FILES)])
    command = [str(HERE / "swamp"), "datastore", "sync", "--json", "--repo-dir", str(repo)]
    for _ in range(2):  # the first look remembers the directories
        run(command, env)
    return command, env


def filled(home, paths):
    """Files in the tree of the one cache below `home` that its base calls present, an hour old."""
    [cache] = (home / "home" / "repos").glob("*/*")
    past, directories = time.time() - 3600, set()
    for path in paths:
        file = cache / "tree" / path
        if file.parent not in directories:
            file.parent.mkdir(parents=True, exist_ok=True)
            directories.add(file.parent)
        file.write_bytes(b"abc")
    for directory in directories:
        os.utime(directory, (past, past))
    state = State.open(cache / "state.db", durable=False)
    with state.transaction() as tx:
        tx.put_bases(BaseRow(path, path, 3, "0" * 64, 1, True) for path in paths)
    state.close()


def run(command, env):
    """Seconds of wall clock, user and system CPU, and the requests of one no-op."""
    before, started = os.times(), time.perf_counter()
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - started, os.times()
    found = json.loads(done.stdout)
    assert found["fastPath"], found
    user, system = after.children_user - before.children_user, after.children_system - before.children_system
    return wall, user, system, found["requests"]


def table(home, runs):
    load = os.getloadavg()[0]
    kinds = {name: made(home / str(number), *kind) for number, (name, kind) in enumerate(KINDS.items())}
    seen = {name: [] for name in kinds}
    for _ in range(runs):
        for name, kind in kinds.items():
            seen[name].append(run(*kind))
    loads = f"load average {load:.1f} before and {os.getloadavg()[0]:.1f} after"
    yield f"{FILES:,} files, {runs} runs each in turns; {loads}"
    yield ""
    yield "| files in | wall s: median | best | worst | CPU s: user | system | requests |"
    yield "|---|---|---|---|---|---|---|"
    for name, measured in seen.items():
        walls, users, systems, requests = zip(*measured, strict=True)
        middle = [f"{statistics.median(numbers):.3f}" for numbers in (walls, users, systems)]
        bounds = f"{min(walls):.3f} | {max(walls):.3f}"
        yield f"| {name} | {middle[0]} | {bounds} | {middle[1]} | {middle[2]} | {max(requests)} |"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="swamp-noop-") as home:
        lines = list(table(Path(home), int(sys.argv[1]) if len(sys.argv) > 1 else 11))
    print("\n".join(lines))
    (RESULTS / "noop.md").write_text("\n".join(lines) + "\n")
