"""Many small files through Spark, beside the peers, on one `rclone serve s3`: the whole command, and its transfers.

    .venv/bin/python bench/spark_files.py [files] [size] [tools] [runs]      writes bench/results/spark-files….md

Every command is a cold process on its own copy of the same files, the tools one after the other in each run; medians.
The transfer alone is the sum of the times of the command's upload (or download) jobs, with the session up: what passes
between them is not in it, nor the files that were moved in process while it started.
"""

import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run import Workload, generate, look_over, server
from spark_all import note

from peers import HERE, PEERS, Swamp

RESULT = Path(__file__).parent / "results" / "spark-files.md"
TRANSFER = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, os.environ["BENCH_HOME"])
from cpu import cpu_of_all
from swamp.bulk import transfer

stages = []
finish = transfer.Jobs.finish

def timed(self, job, idle_timeout):
    table = finish(self, job, idle_timeout)
    stages.append((job._stage, job.seconds))
    return table

transfer.Jobs.finish = timed
from swamp.cli.main import main
sys.argv = ["swamp", *sys.argv[2:]]
begun = time.monotonic()
try:
    main()
finally:
    found = {"whole": time.monotonic() - begun, "jobs": stages, "cpu": cpu_of_all()}
    Path(os.environ["BENCH_STAGES"]).write_text(json.dumps(found))
"""


class OnSpark(Swamp):
    """The same commands with Spark doing the work."""

    def _swamp(self, *args, machine="a"):
        command = super()._swamp(*args, machine=machine)
        self.env |= {"SWAMP_SPARK_MASTER": "local[2]", "BENCH_STAGES": str(self.work / "stages.json")}
        self.env["BENCH_HOME"] = str(Path(__file__).parent)
        if "sync" not in args and not (machine == "b" and "setup" in args):
            return command
        return [str(HERE / "python"), "-c", TRANSFER, *command, "--engine", "spark"]

    def stages(self, name):
        return sum(seconds for stage, seconds in self._found()["jobs"] if stage == name)

    def cpu(self):
        """With the JVM, which nobody waits for."""
        return self._found()["cpu"]

    def _found(self):
        return json.loads((self.work / "stages.json").read_text())


KINDS = {"rclone": PEERS["rclone"], "s5cmd": PEERS["s5cmd"], "inline": Swamp, "spark": OnSpark}


def main(files="100000", size="2048", tools="rclone,s5cmd,inline,spark", runs="3"):
    home = Path(tempfile.mkdtemp(prefix="swamp-spark-files-"))
    took, raw = {name: [] for name in tools.split(",")}, []
    try:
        generate(Workload(int(files), int(size)), home / "source")
        for run in range(int(runs)):
            for name, rows in took.items():
                rows.append(measured(name, home / f"{name}-{run}", home / "source"))
                raw.append(f"{time.strftime('%H:%M:%S')} {name} {rows[-1]} load {os.getloadavg()[0]:.1f}")
                print(raw[-1], flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    command = f"{files} {size} {tools} {runs}"
    result = RESULT if files == "100000" else RESULT.with_stem(f"spark-files-{files}")
    result.write_text(
        report([(name, *map(middle, zip(*rows, strict=True))) for name, rows in took.items()], raw, command)
    )
    print(result.read_text())
    middles = {name: [*map(middle, zip(*rows, strict=True))] for name, rows in took.items()}
    for what, at in (("push", 0), ("pull", 3)):
        peer, mine = middles.get("rclone"), middles.get("spark")
        if peer and mine:
            note("spark", f"{what} {files}", "files, beside rclone", mine[at] / peer[at], mine[at + 2] / peer[at + 2])


def measured(name, home, source):
    """Push and pull on a server and a copy of the files of their own: seconds, seconds of transfers, CPU, each."""
    kind = KINDS[name]
    home.mkdir()
    with server(home) as env:
        peer = kind(name, home, name, dict(env))
        peer.prepare(source)
        if kind is Swamp:
            peer.env["SWAMP_ENGINE"] = "inline"
        push = command(peer, lambda: peer.push(first=True), "upload")
        look_over(env, name)
        pull = command(peer, peer.pull, "download")
    return tuple(None if seconds is None else round(seconds, 1) for seconds in (*push, *pull))


def command(peer, run, stage):
    before = spent()
    seconds = run()
    on_spark = isinstance(peer, OnSpark)
    return seconds, peer.stages(stage) if on_spark else None, peer.cpu() if on_spark else spent() - before


def spent():
    """CPU of the commands that have ended; not that of the server, which runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def middle(seconds):
    return None if None in seconds else statistics.median(seconds)


def report(rows, raw, command):
    peers = [r for r in rows if r[0] in PEERS]
    fastest = {"push": min(r[1] for r in peers), "pull": min(r[4] for r in peers)}

    def cell(seconds, operation):
        return "" if seconds is None else f"{seconds:.1f} s ({seconds / fastest[operation]:.2f})"

    lines = [
        "# Many small files through Spark",
        "",
        f"`.venv/bin/python bench/spark_files.py {command}` (files, bytes, tools, runs): `rclone serve s3` on the same "
        f"machine, {os.cpu_count()} cores, `local[2]`, medians, files below {tempfile.gettempdir()}. In brackets: "
        "beside the fastest peer.",
        "",
        "| tool | first push | transfer alone | CPU | fresh pull | transfer alone | CPU |",
        "|---|---|---|---|---|---|---|",
        *[
            f"| {name} | {cell(push, 'push')} | {cell(up, 'push')} | {used:.1f} s "
            f"| {cell(pull, 'pull')} | {cell(down, 'pull')} | {spent:.1f} s |"
            for name, push, up, used, pull, down, spent in rows
        ],
        "",
        *[f"    {line}" for line in raw],
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main(*sys.argv[1:5])
