"""What swamp's own parts cost, apart from any peer: start-up, no-op, announce, commit, writers, catalog, a bad server.

    .venv/bin/python bench/costs.py [start noop announce commit writers catalog faults requests]

Prints one table per part and writes bench/results/costs.md. Medians; nothing is asserted.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the servers
import run
from plan_memory import indexed, remembered

from peers import HERE, PEERS, Swamp

RESULTS = Path(__file__).parent / "results"
CONTENT = "data/bench/{group:05d}/n{n:08d}/1/raw"  # what a lazy cache leaves in the bucket
NAMES = int(os.environ.get("SWAMP_BENCH_NAMES", "10000"))  # a hundred versions each
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def timed(command: list[str], env: dict[str, str] | None = None, runs: int = 5) -> tuple[float, float, float]:
    """Median seconds of wall clock and of CPU, and peak MB, of a cold process."""
    walls, cpus, peak = [], [], 0.0
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(
            ["/usr/bin/time", "-f", "%U %S %M", *command],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
        )
        walls.append(time.perf_counter() - started)
        if done.returncode:
            raise SystemExit(f"{command}: {done.stderr}")
        user, system, memory = done.stderr.split()[-3:]
        cpus.append(float(user) + float(system))
        peak = max(peak, int(memory) / 1024)
    return statistics.median(walls), statistics.median(cpus), peak


def start(_: Path) -> Iterator[str]:
    yield "| command | wall s | CPU s | peak MB |"
    yield "|---|---|---|---|"
    for name, command in {
        "python -c pass": [sys.executable, "-c", "pass"],
        "swamp --version": [str(HERE / "swamp"), "--version"],
        "swamp --help": [str(HERE / "swamp"), "--help"],
    }.items():
        wall, cpu, peak = timed(command)
        yield f"| `{name}` | {wall:.3f} | {cpu:.3f} | {peak:.0f} |"


def noop(home: Path) -> Iterator[str]:
    """A bucket in a directory: what is measured is swamp, not a server."""
    yield "| entries | wall s | CPU s | peak MB | requests |"
    yield "|---|---|---|---|---|"
    for entries in SIZES:
        env, repo = machine(home / f"noop-{entries}", entries)
        command = [str(HERE / "swamp"), "datastore", "sync", "--json", "--repo-dir", str(repo)]
        first = json.loads(subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True).stdout)
        assert first["fastPath"], first
        wall, cpu, peak = timed(command, env)
        yield f"| {entries:,} | {wall:.3f} | {cpu:.3f} | {peak:.0f} | {first['requests']} |"


def machine(home: Path, entries: int) -> tuple[dict[str, str], Path]:
    """A lazy checkout that knows an index of `entries`."""
    home.mkdir(parents=True)
    env, repo = {"SWAMP_HOME": str(home / "home")}, home / "repo"

    def swamp(*args: str) -> dict[str, object]:
        command = [str(HERE / "swamp"), *args, "--json"]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True)
        found: dict[str, object] = json.loads(done.stdout)
        return found

    indexed(home / "bucket", entries, CONTENT)
    swamp("repo", "init", str(repo))
    swamp("datastore", "setup", f"file://{home}/bucket", "--hydrate", "lazy", "--repo-dir", str(repo))
    return env, repo


def announce(home: Path) -> Iterator[str]:
    from swamp.cache.layout import CacheDir
    from swamp.cache.state import State

    yield "| journal rows | announce of one path, ms |"
    yield "|---|---|"
    for rows in (10, 1_000_000):
        cache = CacheDir(home / f"announce-{rows}").ensure()
        state = State.open(cache.state_db)
        with state.transaction() as tx:
            tx.announce((f"files/{n:07d}" for n in range(rows)), "write")
        costs = []
        for n in range(200):
            started = time.perf_counter()
            state.announce([f"files/new/{n}"], "write")
            costs.append((time.perf_counter() - started) * 1000)
        yield f"| {rows:,} | {statistics.median(costs):.2f} |"


def commit(home: Path) -> Iterator[str]:
    """One changed file, by sequence of sizes: what one commit asks, sends and takes."""
    from swamp.cache.layout import CacheDir
    from swamp.index.root import Writer
    from swamp.store.layers import MeterStore
    from swamp.store.open import open_store
    from swamp.sync.engine import Engine, Policy

    yield "| entries | requests | bytes sent | bytes received | ms |"
    yield "|---|---|---|---|---|"
    for entries in (*SIZES, 10_000_000):
        bucket, cache = home / f"commit-{entries}", CacheDir(home / f"cache-{entries}").ensure()
        remembered(cache, indexed(bucket, entries, CONTENT), entries, CONTENT)
        store = MeterStore(open_store(bucket.as_uri()))
        writer = Writer("r", "h", "u", 1, "0")
        engine = Engine.open(store, cache, writer=writer, policy=Policy("lazy"))
        figures = []
        for n in range(7):
            with engine.announce([f"files/new/{n}"]):
                (engine.root / "files/new").mkdir(parents=True, exist_ok=True)
                (engine.root / f"files/new/{n}").write_text("x")
            before = (store.meter.requests, store.meter.sent, store.meter.received)
            started = time.perf_counter()
            engine.push()
            took = (time.perf_counter() - started) * 1000
            after = (store.meter.requests, store.meter.sent, store.meter.received)
            figures.append((*(b - a for a, b in zip(before, after, strict=True)), took))
        requests, sent, received, took = (statistics.median(f[i] for f in figures) for i in range(4))
        yield f"| {entries:,} | {requests:.0f} | {sent:,.0f} | {received:,.0f} | {took:.0f} |"


WRITER = """
import sys
from pathlib import Path
from swamp.cache.layout import CacheDir
from swamp.index.root import Writer
from swamp.store.open import open_store
from swamp.sync.engine import Engine, Policy
base, bucket, name, count = sys.argv[1:]
engine = Engine.open(open_store(bucket), CacheDir(Path(base) / name).ensure(), writer=Writer("r", name, "u", 1, "0"))
for n in range(int(count)):
    with engine.announce([f"files/{name}/{n}"]):
        (engine.root / f"files/{name}").mkdir(parents=True, exist_ok=True)
        (engine.root / f"files/{name}/{n}").write_text("x")
    done = engine.push()
    assert done.ok and done.files_pushed == 1, done
"""


def writers(home: Path) -> Iterator[str]:
    """Processes that commit one file at a time to one bucket in a directory."""
    yield "| writers | commits | seconds | commits a second |"
    yield "|---|---|---|---|"
    for crowd in (1, 4, 16):
        each = 96 // crowd
        bucket = (home / f"writers-{crowd}").as_uri()
        started = time.perf_counter()
        running = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(home / f"caches-{crowd}"), bucket, f"w{n}", str(each)])
            for n in range(crowd)
        ]
        if any(process.wait() for process in running):
            raise SystemExit("a writer failed")
        took = time.perf_counter() - started
        yield f"| {crowd} | {crowd * each} | {took:.1f} | {crowd * each / took:.1f} |"


def catalog(home: Path) -> Iterator[str]:
    """Versions as files in a plain repository: one is written by swamp, the others are copies under other names."""
    import swamp

    versions = 100 * NAMES
    subprocess.run([str(HERE / "swamp"), "repo", "init", str(home / "catalog"), "-q"], check=True, capture_output=True)
    source = home / "input"
    source.write_text("x")
    with swamp.open_repo(home / "catalog") as repo:
        repo.data.put("model", "name-0", source, tags={"n": "1"})
    (first,) = (home / "catalog").rglob("name-0/1/metadata.yaml")
    text, model = first.read_text(), first.parents[2]
    for n in range(NAMES):
        for version in range(1, 101):
            place = model / f"name-{n}" / str(version)
            place.mkdir(parents=True, exist_ok=True)
            told = text.replace("name: name-0", f"name: name-{n}").replace("version: 1\n", f"version: {version}\n")
            (place / "metadata.yaml").write_text(told)
            if not (place / "raw").exists():
                os.link(first.parent / "raw", place / "raw")
    yield "| versions | rebuild s | `data list` rows, ms | `data query` on a column, ms |"
    yield "|---|---|---|---|"
    with swamp.open_repo(home / "catalog") as repo:
        rebuilt = _seconds(lambda: repo.catalog.rebuild())
        listed = _seconds(lambda: repo.data.list())
        asked = _seconds(lambda: repo.data.query('name == "name-7"'))
    yield f"| {versions:,} | {rebuilt:.1f} | {listed * 1000:.0f} | {asked * 1000:.0f} |"


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@contextmanager
def proxied(home: Path) -> Iterator[tuple[dict[str, str], object]]:
    from servers.proxy import FaultProxy

    with run.server(home) as env, FaultProxy(env["AWS_ENDPOINT_URL"]) as proxy:
        yield {**env, **run._environment(proxy.endpoint)}, proxy


def faults(home: Path, files: int = 2_000) -> Iterator[str]:
    """The same push through the same proxy, without and with a 500 on every 100th PUT."""
    from servers.proxy import Rule

    yield "| tool | no fault s | 500 on every 100th PUT s | ratio |"
    yield "|---|---|---|---|"
    source = home / "source"
    run.generate(run.Workload(files, 2048), source)
    for name in ("swamp", "rclone", "s5cmd"):
        took: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(6):
            place = home / f"{name}-{turn}"
            with proxied(place) as (env, proxy):
                counter = iter(range(1, 10**9))
                if turn % 2:
                    proxy.rules.append(  # type: ignore[attr-defined]
                        Rule("answer", "PUT", status=500, times=None, when=lambda _, c=counter: next(c) % 100 == 0)
                    )
                peer = PEERS[name](name, place, name, env)
                peer.prepare(source)
                took[bool(turn % 2)].append(peer.push(first=True))
        plain, faulty = statistics.median(took[False]), statistics.median(took[True])
        yield f"| {name} | {plain:.2f} | {faulty:.2f} | {faulty / plain:.2f} |"


def requests(home: Path, files: int = 1_000) -> Iterator[str]:
    """Counted at a proxy, so that every tool is counted alike."""
    yield "| tool | operation | requests |"
    yield "|---|---|---|"
    source = home / "source"
    paths = run.generate(run.Workload(files, 2048), source)
    for name in ("swamp", "rclone", "s5cmd"):
        with proxied(home / name) as (env, proxy):
            peer = PEERS[name](name, home / name, name, env)
            peer.prepare(source)
            for operation in ("first push", "no-op", "10 changed", "fresh pull"):
                if operation == "10 changed":
                    peer.change(paths[:10], [], 2048)
                before = len(proxy.seen)  # type: ignore[attr-defined]
                if operation == "fresh pull":
                    peer.pull()
                elif operation == "no-op" and isinstance(peer, Swamp):
                    peer.sync()
                else:
                    peer.push(first=operation == "first push")
                yield f"| {name} | {operation} | {len(proxy.seen) - before:,} |"  # type: ignore[attr-defined]


PARTS = {f.__name__: f for f in (start, noop, announce, commit, writers, catalog, faults, requests)}


def main() -> None:
    chosen = sys.argv[1:] or list(PARTS)
    told = RESULTS / "costs.md"
    known = _sections(told.read_text()) if told.exists() else {}
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="swamp-costs-") as home:
            stamp = f"{time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f} at the start"
            lines = []
            print(f"## {name}")
            for line in PARTS[name](Path(home)):
                print(line, flush=True)
                lines.append(line)
            known[name] = "\n".join([f"Measured {stamp}.", "", *lines])
        body = "\n\n".join(f"## {part}\n\n{known[part].strip()}" for part in PARTS if part in known)
        told.write_text(f"# What swamp's own parts cost\n\n{body}\n")


def _sections(text: str) -> dict[str, str]:
    return {part.partition("\n")[0].strip(): part.partition("\n")[2] for part in text.split("\n## ")[1:]}


if __name__ == "__main__":
    main()
