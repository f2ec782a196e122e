"""Everything that issue 18 must show, beside its bounds, in one go on a quiet machine (about ten minutes on two cores).

    .venv/bin/python bench/spark_all.py [--rows 10000000] [--runs 2] [--stores file,s3] [--files 20000] [--only STEP,…]

Steps: planning, datasets, files. Each is the script of its name, which writes its own file into bench/results; at the
end the ratios stand beside their bounds, in bench/results/spark-all.md. `--files 20000,100000` takes five minutes more.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULT = HERE / "results" / "spark-all.md"
BOUNDS = {
    ("native", "read all"): 1.15,
    ("native", "count(*)"): 1.15,
    ("native", "one column"): 1.15,
    ("native", "point filter"): 1.15,
    ("native", "write"): 1.15,
    ("native", "small parts"): 2.0,
    ("lent", "read all"): 1.6,
    ("lent", "count(*)"): 1.5,
    ("lent", "one column"): 2.0,
    ("format", "read all"): 1.6,
    ("format", "count(*)"): 1.5,
    ("format", "one column"): 2.0,
    ("format", "small parts"): 2.0,
    ("source", "read all"): 1.6,
    ("source", "count(*)"): 1.5,
    ("source", "one column"): 2.0,
    ("source", "small parts"): 2.0,
    ("spark", "push 20000"): 0.8,
    ("spark", "pull 20000"): 0.8,
    ("spark", "push 100000"): 1.0,
    ("spark", "pull 100000"): 1.0,
    ("planning", "CPU s"): 0.2,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="10000000")
    parser.add_argument("--runs", default="2")
    parser.add_argument("--stores", default="file,s3")
    parser.add_argument("--files", default="20000", help="how many small files; more than one number with commas")
    parser.add_argument("--only", default="planning,datasets,files")
    asked = parser.parse_args()
    steps = asked.only.split(",")
    lines, begun = [], os.getloadavg()[0]
    if "planning" in steps:
        lines += step("spark_planning.py")
    if "datasets" in steps:
        lines += step("spark_datasets.py", "--rows", asked.rows, "--runs", asked.runs, "--stores", asked.stores)
    for files in asked.files.split(",") if "files" in steps else ():
        lines += step("spark_files.py", files, "2048", "rclone,spark", "1")
    load = f"load average {begun:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end"
    head = [
        "# What must be shown, beside its bounds",
        "",
        f"`.venv/bin/python bench/spark_all.py {' '.join(sys.argv[1:])}`".replace(" `", "`") + f": {load}.",
        "",
        "| what | measured | by CPU | bound | |",
        "|---|---|---|---|---|",
    ]
    RESULT.write_text("\n".join([*head, *lines, ""]))
    print(RESULT.read_text())


def step(script, *args):
    """The lines of the table that a script is good for."""
    begun = time.monotonic()
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as found:
        env = {**os.environ, "BENCH_RATIOS": found.name}
        subprocess.run([sys.executable, str(HERE / script), *args], env=env, check=True)
        rows = [json.loads(line) for line in found]
    print(f"{script}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return [line_of(**row) for row in rows]


def line_of(who, what, where, ratio, cpu):
    bound = BOUNDS.get((who, what))
    by_cpu = f"{cpu:.2f}" if cpu is not None else ""
    held = "" if bound is None else "held" if ratio <= bound else "**missed**"
    return f"| {who}, {what} {where} | {ratio:.2f} | {by_cpu} | {'' if bound is None else bound} | {held} |"


def note(who, what, where, ratio, cpu=None):
    """Called by the scripts: one figure for the table, if somebody makes one."""
    if os.environ.get("BENCH_RATIOS"):
        with Path(os.environ["BENCH_RATIOS"]).open("a") as file:
            file.write(json.dumps({"who": who, "what": what, "where": where, "ratio": ratio, "cpu": cpu}) + "\n")


if __name__ == "__main__":
    main()
