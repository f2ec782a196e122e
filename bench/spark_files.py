"""Many small files through Spark, beside the peers, on one `rclone serve s3`: the whole command, and its transfers.

    .venv/bin/python bench/spark_files.py [files] [size] [tools]      writes bench/results/spark-files.md

Every command is a cold process on its own copy of the same files. The transfer alone is the sum of the times of the
command's upload (or download) jobs, with the session up: what passes between them is not in it.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run import Workload, generate, look_over, server

from peers import HERE, PEERS, Swamp

RESULT = Path(__file__).parent / "results" / "spark-files.md"
TRANSFER = """
import json, sys, time
from pathlib import Path
from swamp.pipeline import transfer

stages = []
finish = transfer.Jobs.finish

def timed(self, job, patience):
    table = finish(self, job, patience)
    stages.append((job._stage, job.seconds))
    return table

transfer.Jobs.finish = timed
from swamp.cli.main import main
sys.argv = ["swamp", *sys.argv[2:]]
begun = time.monotonic()
try:
    main()
finally:
    found = {"whole": time.monotonic() - begun, "jobs": stages}
    Path(__import__("os").environ["BENCH_STAGES"]).write_text(json.dumps(found))
"""


class OnSpark(Swamp):
    """The same commands with Spark doing the work."""

    def _swamp(self, *args, machine="a"):
        command = super()._swamp(*args, machine=machine)
        self.env |= {"SWAMP_SPARK_MASTER": "local[2]", "BENCH_STAGES": str(self.work / "stages.json")}
        if "sync" not in args and not (machine == "b" and "setup" in args):
            return command
        return [str(HERE / "python"), "-c", TRANSFER, *command, "--engine", "spark"]

    def stages(self, name):
        found = json.loads((self.work / "stages.json").read_text())
        return sum(seconds for stage, seconds in found["jobs"] if stage == name)


KINDS = {"rclone": PEERS["rclone"], "s5cmd": PEERS["s5cmd"], "inline": Swamp, "spark": OnSpark}


def main(files=100_000, size=2048, tools="rclone,s5cmd,inline,spark"):
    home = Path(tempfile.mkdtemp(prefix="swamp-spark-files-"))
    rows, raw = [], []
    try:
        with server(home) as env:
            generate(Workload(int(files), int(size)), home / "source")
            for name, kind in ((n, KINDS[n]) for n in tools.split(",")):
                (home / name).mkdir()
                peer = kind(name, home / name, name, dict(env))
                peer.prepare(home / "source")
                if kind is Swamp:
                    peer.env["SWAMP_ENGINE"] = "inline"
                push = peer.push(first=True)
                up = peer.stages("upload") if kind is OnSpark else None
                look_over(env, name)
                pull = peer.pull()
                down = peer.stages("download") if kind is OnSpark else None
                rows.append((name, push, up, pull, down))
                raw.append(f"{time.strftime('%H:%M:%S')} {rows[-1]} load {os.getloadavg()[0]:.1f}")
                print(raw[-1], flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    RESULT.write_text(report(rows, raw, int(files), size))
    print(RESULT.read_text())


def report(rows, raw, files, size):
    peers = [r for r in rows if r[0] in PEERS]
    fastest = {"push": min(r[1] for r in peers), "pull": min(r[3] for r in peers)}

    def cell(seconds, operation):
        return "" if seconds is None else f"{seconds:.1f} s ({seconds / fastest[operation]:.2f})"

    lines = [
        f"# {files:,} files of {size} bytes through Spark",
        "",
        f"`.venv/bin/python bench/spark_files.py {files} {size}`: `rclone serve s3` on the same machine, "
        f"{os.cpu_count()} cores, `local[2]`, one run, niceness {os.nice(0)}. In brackets: beside the fastest peer.",
        "",
        "| tool | first push | transfer alone | fresh pull | transfer alone |",
        "|---|---|---|---|---|",
        *[
            f"| {name} | {cell(push, 'push')} | {cell(up, 'push')} | {cell(pull, 'pull')} | {cell(down, 'pull')} |"
            for name, push, up, pull, down in rows
        ],
        "",
        *[f"    {line}" for line in raw],
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main(*sys.argv[1:4])
