"""`make bench`: swamp beside rclone, s5cmd, aws-cli and restic on one server, the same files, interleaved, medians.

    make bench                                  the default: 1,000 and 10,000 files of 2 KB, 200 of 5 MB, a mix
    make bench ARGS="--only 100,000 --runs 3 --tools swamp,rclone,s5cmd --output large"
    make bench ARGS="--files 5000 --size 4096"  a workload of one's own
    make bench ARGS="--files 2000 --delay 30 --tools swamp,rclone-defaults --operations 'first push,fresh pull'"

Prints one table, writes bench/results/latest.md and a chart. Ratios in one run on one machine; none is asserted. Where
one run takes minutes, `--samples FILE` keeps the seconds of each, and the table shows the medians of all of them.

Two habits of the machine are kept from deciding anything. `rclone serve s3` hashes an object when it is first asked
for it and remembers that: each tool's objects are listed once before its fresh pull, so that no pull pays for it.
And a disk without a journal (as here) searches long for room among names that were just removed: trees stay until the
end. Where a disk is slowed down after some gigabytes, `TMPDIR=/dev/shm` keeps it out of the measurement.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the servers
from ranges import honest_ranges

from peers import HERE, PEERS, Peer, Swamp

RESULTS = Path(__file__).parent / "results"
KEY, SECRET = "benchaccesskey", "benchsecretkey1"
CHUNK = 1 << 20
OPERATIONS = (
    "first push", "no-op", "no-op push", "no-op pull", "10 changed", "10 deleted", "1 % changed", "fresh pull",
    "discovery", "lazy + one file",
)  # fmt: skip
SERVERS = {
    "rclone": "`rclone serve s3` (ignores conditions: swamp commits under a lease)",
    "nginx": "nginx, for ranges of payloads, before `rclone serve s3`",
    "ministack": "ministack (enforces conditions)",
    "moto": "moto (enforces conditions)",
    "double": "the S3 server of swamp.testing in a process of its own (in memory, conditions and ranges as on S3)",
}
SWAMP_ONLY = {"discovery", "lazy + one file"}  # no peer keeps an index that could be missing or left remote
COPIERS = ("rclone", "rclone-defaults", "s5cmd", "aws")  # what swamp is divided by: a file is an object for all of them


@dataclass(frozen=True)
class Workload:
    """So many files of so many bytes; of no size in particular: a mix."""

    files: int
    size: int | None

    @property
    def name(self) -> str:
        if self.size is None:
            return f"{self.files:,} mixed"
        unit, name = next((u, n) for u, n in ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")) if self.size >= u)
        return f"{self.files:,} x {self.size // unit:,} {name}"

    @property
    def operations(self) -> tuple[str, ...]:
        """A few large files are pushed and pulled; the rest asks how many files there are."""
        return OPERATIONS if self.files >= 100 else ("first push", "no-op", "no-op pull", "fresh pull")

    def sizes(self) -> Iterator[int]:
        """What repositories hold: many records, some logs, a few tables; the same in every run."""
        rng = random.Random(self.files)
        for _ in range(self.files):
            yield self.size if self.size is not None else min(20 << 20, int(rng.lognormvariate(8.5, 2.2)))


@dataclass
class Table:
    """Seconds by workload, operation and tool."""

    cells: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    peaks: dict[tuple[str, str, str], float] = field(default_factory=dict)
    requests: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, workload: str, operation: str, peer: Peer, seconds: float) -> None:
        key = (workload, operation, peer.name)
        self.cells.setdefault(key, []).append(seconds)
        self.peaks[key] = max(self.peaks.get(key, 0.0), peer.peak_mb)
        if isinstance(peer, Swamp) and isinstance(peer.last.get("requests"), int):
            self.requests.setdefault((workload, operation), []).append(int(str(peer.last["requests"])))
        print(f"  {workload:>18}  {operation:<12} {peer.name:<7} {seconds:8.2f} s  {peer.peak_mb:6.0f} MB", flush=True)

    def saved(self) -> str:
        cells = [[*key, seconds] for key, seconds in self.cells.items()]
        peaks = [[*key, peak] for key, peak in self.peaks.items()]
        return json.dumps({"cells": cells, "peaks": peaks, "requests": [[*k, n] for k, n in self.requests.items()]})

    @classmethod
    def loaded(cls, text: str) -> Table:
        doc = json.loads(text)
        made = cls({(w, o, t): s for w, o, t, s in doc["cells"]}, {(w, o, t): p for w, o, t, p in doc["peaks"]})
        made.requests = {(w, o): n for w, o, n in doc["requests"]}
        return made

    @property
    def runs(self) -> int:
        return min(map(len, self.cells.values()), default=0)

    def median(self, workload: str, operation: str, tool: str) -> float | None:
        found = self.cells.get((workload, operation, tool))
        return statistics.median(found) if found else None


@contextmanager
def server(home: Path, kind: str = "rclone", delay: float = 0.0) -> Iterator[dict[str, str]]:
    """A server on loopback, and the environment with which each tool finds it; every answer comes `delay` later."""
    if delay:
        from servers.proxy import FaultProxy, Rule

        rules = [Rule("delay", times=None, seconds=delay)]
        with server(home, kind) as env, FaultProxy(env["AWS_ENDPOINT_URL"], rules) as proxy:
            yield _environment(proxy.endpoint)
        return
    if kind in ("rclone", "nginx"):
        with _rclone(home) if kind == "rclone" else _nginx(home) as env:
            yield env
        return
    if kind == "double":
        with _double() as env:
            yield env
        return
    from servers.start import start

    with start(kind) as running:
        assert running.endpoint is not None
        urllib.request.urlopen(urllib.request.Request(f"{running.endpoint}/bench", method="PUT")).close()
        yield _environment(running.endpoint)


@contextmanager
def _rclone(home: Path) -> Iterator[dict[str, str]]:
    (home / "data" / "bench").mkdir(parents=True)
    port = _free_port()
    command = [str(HERE / "rclone"), "serve", "s3", str(home / "data"), "--addr", f"127.0.0.1:{port}"]
    command += ["--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", "--config", str(home / "none")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    OTHERS.add(process.pid)
    try:
        _await(port)
        yield _environment(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _nginx(home: Path) -> Iterator[dict[str, str]]:
    with _rclone(home) as env:
        behind, port = int(env["AWS_ENDPOINT_URL"].rpartition(":")[2]), _free_port()
        with honest_ranges(home, home / "data", behind, port) as pid:
            OTHERS.add(pid)
            _await(port)
            yield _environment(f"http://127.0.0.1:{port}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


OTHERS: set[int] = set()
"""Processes that stand for another machine."""
_DOUBLE = """
import sys
from swamp.testing.s3_double import S3Double
with S3Double("bench") as double:
    print(double.endpoint, flush=True)
    sys.stdin.read()
"""


@contextmanager
def _double() -> Iterator[dict[str, str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _DOUBLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    OTHERS.add(process.pid)
    try:
        yield _environment(process.stdout.readline().strip())
    finally:
        process.stdin.close()
        process.wait()


def _await(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def _environment(endpoint: str) -> dict[str, str]:
    login = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    rclone = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": endpoint,
        "ACCESS_KEY_ID": KEY,
        "SECRET_ACCESS_KEY": SECRET,
    }
    aws = {"AWS_ENDPOINT_URL": endpoint, "S3_ENDPOINT_URL": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
    return {**login, **aws, **{f"RCLONE_CONFIG_BENCH_{k}": v for k, v in rclone.items()}}


def generate(workload: Workload, root: Path) -> list[str]:
    """Random bytes, 100 files to a directory."""
    rng = random.Random(workload.files)
    paths = [f"files/{i // 100:05d}/{i % 100:02d}.bin" for i in range(workload.files)]
    for path, size in zip(paths, workload.sizes(), strict=True):
        file = root / path.removeprefix("files/")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as out:
            for left in range(size, 0, -CHUNK):
                out.write(rng.randbytes(min(CHUNK, left)))
    return paths


def one_run(
    workload: Workload,
    tools: list[str],
    table: Table,
    home: Path,
    env: dict[str, str],
    turn: int,
    operations: tuple[str, ...] = OPERATIONS,
) -> None:
    """Every operation by every tool in turn, so that a slow minute hits all of them."""
    source = home / "source"
    paths = generate(workload, source)
    peers = _peers(tools, home, env, turn)
    for peer in peers:
        peer.prepare(source)
    changes = _changes(paths, random.Random(turn)) if len(paths) >= 100 else {}
    for operation in (o for o in workload.operations if o in operations):
        for peer in peers:
            if operation in changes:
                peer.change(*changes[operation], workload.size or 4096)
            if operation == "fresh pull":
                look_over(env, peer.prefix)
            seconds = _do(operation, peer, peers, source)
            if seconds is not None:
                table.add(workload.name, operation, peer, seconds)


def _changes(paths: list[str], rng: random.Random) -> dict[str, tuple[list[str], list[str]]]:
    """What is written and what is deleted before an operation."""
    mixed = rng.sample(paths, 20)
    changed, gone = mixed[:10], mixed[10:]
    some = rng.sample([p for p in paths if p not in gone], max(1, len(paths) // 100))
    return {"10 changed": (changed, []), "10 deleted": ([], gone), "1 % changed": (some, [])}


def look_over(env: dict[str, str], prefix: str) -> None:
    """Lists a tool's objects once, so that the server has hashed all of them before any pull is timed."""
    command = [str(HERE / "rclone"), "lsf", "-R", "--hash", "MD5", "--format", "ph", f"bench:bench/{prefix}"]
    subprocess.run(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, check=True)


def _do(operation: str, peer: Peer, peers: list[Peer], source: Path) -> float | None:
    """Seconds, or None for what this tool does not do."""
    if operation in SWAMP_ONLY:
        plain = next((p.prefix for p in peers if p is not peer), None)
        if not isinstance(peer, Swamp) or plain is None:
            return None
        return peer.discover(plain) if operation == "discovery" else peer.lazy(source)
    if operation == "no-op":
        return peer.sync() if isinstance(peer, Swamp) else peer.push(first=False)
    if operation == "fresh pull":
        return peer.pull()
    return peer.pull_again() if operation == "no-op pull" else peer.push(first=operation == "first push")


def _peers(tools: list[str], home: Path, env: dict[str, str], turn: int) -> list[Peer]:
    order = tools[turn % len(tools) :] + tools[: turn % len(tools)]
    made = []
    for name in order:
        work = home / name
        work.mkdir()
        made.append(PEERS[name](name, work, f"{name}-{turn}", dict(env)))
    return made


def write_report(table: Table, workloads: list[Workload], tools: list[str], about: str) -> str:
    lines = ["# swamp beside its peers", ""]
    lines += [f"Measured {time.strftime('%Y-%m-%d %H:%M')} on {os.cpu_count()} cores, {platform.platform()}, Python"]
    lines[-1] += f" {platform.python_version()}, {about}; medians of {table.runs} interleaved runs,"
    lines += [f"cold processes, files in {tempfile.gettempdir()}."]
    lines += ["`ratio` is swamp divided by the fastest tool that copies files one by one, `of restic` by restic, which"]
    lines += ["packs too: below 1 swamp is faster.", ""]
    lines += [f"`{' '.join(['bench/run.py', *sys.argv[1:]])}`", ""]
    head = [*tools, "ratio", *(["of restic"] if "restic" in tools else []), "swamp's requests", "peak MB"]
    lines += ["| workload | operation | " + " | ".join(head) + " |", "|---|---|" + "---|" * len(head)]
    for workload in workloads:
        done = (o for o in workload.operations if any((workload.name, o, t) in table.cells for t in tools))
        lines += [_row(table, workload.name, operation, tools) for operation in done]
    return "\n".join(lines) + "\n"


def _row(table: Table, workload: str, operation: str, tools: list[str]) -> str:
    found = {t: s for t in tools if (s := table.median(workload, operation, t)) is not None}
    fastest = min((found[t] for t in COPIERS if t in found), default=None)
    cells = [f"{found[t]:.2f} s" if t in found else "" for t in tools]
    cells.append(_ratio(found.get("swamp"), fastest))
    cells += [_ratio(found.get("swamp"), found.get("restic"))] if "restic" in tools else []
    requests = table.requests.get((workload, operation))
    peaks = [f"{peak:.0f}" for t in tools if (peak := table.peaks.get((workload, operation, t)))]
    cells += [f"{statistics.median(requests):.0f}" if requests else "", " / ".join(peaks)]
    return "| " + " | ".join([workload, operation, *cells]) + " |"


def _ratio(mine: float | None, other: float | None) -> str:
    return f"**{mine / other:.2f}**" if mine is not None and other else ""


def draw(table: Table, workloads: list[Workload], tools: list[str], output: str) -> None:
    """Seconds of each tool: against the number of small files where there are several, as bars where there are not."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        print("no chart: matplotlib is not installed (make bench installs it)")
        return
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    small = sorted((w for w in workloads if w.size == 2048), key=lambda w: w.files)
    charts = [(w, o) for w in workloads for o in w.operations if o not in SWAMP_ONLY]
    charts = [(w, o) for w, o in charts if any((w.name, o, t) in table.cells for t in tools)]
    if len(small) > 1:
        charts = [(w, o) for w, o in charts if w is small[-1]]
    across = -(-len(charts) // 2) if len(charts) > 3 else len(charts)
    figure, axes = plt.subplots(-(-len(charts) // across), across, figsize=(4 * across, 8), squeeze=False)
    for axis, (workload, operation) in zip(axes.flat, charts, strict=False):
        if len(small) > 1:
            for tool in tools:
                points = [(w.files, s) for w in small if (s := table.median(w.name, operation, tool))]
                axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=tool)
            axis.set(title=operation, xscale="log", yscale="log", xlabel="files of 2 KB", ylabel="seconds")
            axis.legend()
        else:
            axis.bar(tools, [table.median(workload.name, operation, t) or 0 for t in tools])
            axis.set(title=f"{workload.name}: {operation}", ylabel="seconds")
    figure.tight_layout()
    figure.savefig(RESULTS / f"{output}.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, action="append")
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--only", action="append", help="workloads whose name begins like this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--tools", default="swamp,rclone,s5cmd,aws,restic")
    parser.add_argument("--output", default="latest")
    parser.add_argument("--server", default="rclone", choices=SERVERS)
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds that every answer comes later")
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    parser.add_argument("--samples", type=Path, help="a file that keeps the seconds of every run for the next one")
    args = parser.parse_args()
    tools, begun = args.tools.split(","), os.getloadavg()[0]
    chosen = [Workload(n, args.size) for n in args.files or ()] or _named(args.only)
    table = Table.loaded(args.samples.read_text()) if args.samples and args.samples.exists() else Table()
    compileall.compile_dir(HERE.parents[1] / "src", quiet=1)  # as pip does when it installs a wheel
    with ExitStack() as at_the_end:
        for workload in chosen:
            for turn in range(table.runs, table.runs + args.runs):
                home = Path(tempfile.mkdtemp(prefix="swamp-bench-"))
                at_the_end.callback(shutil.rmtree, home, ignore_errors=True)
                with server(home, args.server, args.delay / 1000) as env:
                    one_run(workload, tools, table, home, env, turn, tuple(args.operations.split(",")))
                if args.samples:
                    args.samples.write_text(table.saved())
                if workload.files < 1000:  # gigabytes, and few names: the disk is needed, the names do no harm
                    shutil.rmtree(home)
    where = f"{SERVERS[args.server]} on the same machine"
    where += f", {args.delay:.0f} ms behind every request" if args.delay else ""
    report = write_report(
        table, chosen, tools, f"load {begun:.1f} at the start, {os.getloadavg()[0]:.1f} at the end; {where}"
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{args.output}.md").write_text(report)
    draw(table, chosen, tools, args.output)
    print(report)


DEFAULT = [Workload(1_000, 2048), Workload(10_000, 2048), Workload(200, 5 << 20), Workload(2_000, None)]
LARGE = [Workload(100_000, 2048), Workload(1, 2 << 30)]


def _named(beginnings: list[str] | None) -> list[Workload]:
    if not beginnings:
        return DEFAULT
    return [w for w in DEFAULT + LARGE if any(w.name.startswith(b) for b in beginnings)]


if __name__ == "__main__":
    main()
