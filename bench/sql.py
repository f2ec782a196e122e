"""What `swamp sql` costs: beside `swamp data list`, and in process beside Spark.

    .venv/bin/python bench/sql.py [list] [engines]

`list`: cold processes, taken in turn so that a busy machine is busy for both. `engines`: what DuckDB is given in a
second by format, and what Spark takes for its first row: the figures behind `swamp.sql.answer`. Nothing is asserted.
Prints tables and writes bench/results/sql.md.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from swamp.repo.config import init_repo
from swamp.wiring import open_repo

SWAMP = str(Path(sys.executable).parent / "swamp")
RESULTS = Path(__file__).parent / "results" / "sql.md"
RUNS = int(os.environ.get("SWAMP_BENCH_RUNS", "7"))
ROWS = int(os.environ.get("SWAMP_BENCH_ROWS", "1000000"))


def once(repo: Path, *command: str) -> tuple[float, float]:
    """Seconds of wall clock and of CPU of one cold process."""
    started = time.perf_counter()
    done = subprocess.run(
        ["/usr/bin/time", "-f", "%U %S", SWAMP, *command, "--repo-dir", str(repo)], capture_output=True, text=True
    )
    wall = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    user, system = done.stderr.split()[-2:]
    return wall, float(user) + float(system)


def side_by_side(place: Path) -> Iterator[str]:
    yield "| versions | command | wall s | CPU s | x `data list` (wall) | x (CPU) |"
    yield "|---|---|---|---|---|---|"
    commands = {
        "swamp data list": ("data", "list"),
        'swamp sql "select count(*) from versions"': ("sql", "select count(*) from versions"),
    }
    for names, versions in ((16, 4), (1000, 4)):
        repo = place / f"list-{names}"
        init_repo(repo)
        with open_repo(repo) as opened:
            for number in range(names):
                for version in range(versions):
                    opened.data.put("web", f"n{number}", str(version).encode(), content_type="text/plain")
        for words in commands.values():
            once(repo, *words)  # the catalog is filled by whoever comes first
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(RUNS):
            for name, words in commands.items():
                found[name].append(once(repo, *words))
        medians = {n: [statistics.median(one[i] for one in runs) for i in (0, 1)] for n, runs in found.items()}
        base = medians["swamp data list"]
        for name, (wall, cpu) in medians.items():
            ratio = f"{wall / base[0]:.2f} | {cpu / base[1]:.2f}"
            yield f"| {names * versions:,} | `{name}` | {wall:.2f} | {cpu:.2f} | {ratio} |"


def engines(place: Path) -> Iterator[str]:
    yield "| dataset | MB | engine | wall s | CPU s | MB/s in process |"
    yield "|---|---|---|---|---|---|"
    repo = place / "engines"
    init_repo(repo)
    numbers = range(ROWS)
    table = pa.table({"id": numbers, "k": [f"key {n % 1000}" for n in numbers], "x": [n / 7 for n in numbers]})
    pa.parquet.write_table(table, place / "t.parquet")
    pa.csv.write_csv(table, place / "t.csv")
    with (place / "t.jsonl").open("w") as out:
        out.writelines(json.dumps(row) + "\n" for row in table.slice(0, ROWS // 4).to_pylist())
    with open_repo(repo) as opened:
        for kind in ("parquet", "csv", "jsonl"):
            opened.data.put("web", kind, place / f"t.{kind}")
        sizes = {kind: opened.data.get("web", kind).meta.size / 1e6 for kind in ("parquet", "csv", "jsonl")}
    text = "select k, count(*) as n, sum(x) as s from web.{} group by k order by k limit 3"
    start = once(repo, "sql", "select 1 as one", "--engine", "duckdb")
    yield f"| none | 0 | duckdb | {start[0]:.2f} | {start[1]:.2f} | |"
    for kind, size in sizes.items():
        runs = [once(repo, "sql", text.format(kind), "--engine", "duckdb") for _ in range(3)]
        wall, cpu = (statistics.median(one[i] for one in runs) for i in (0, 1))
        rate = size / max(0.01, cpu - start[1])
        yield f"| {kind} | {size:.1f} | duckdb | {wall:.2f} | {cpu:.2f} | {rate:.0f} |"
    for kind, words in (("none", "select 1 as one"), *((kind, text.format(kind)) for kind in sizes)):
        wall, cpu = once(repo, "sql", words, "--engine", "spark")
        yield f"| {kind} | {sizes.get(kind, 0):.1f} | spark | {wall:.2f} | {cpu:.2f} | |"


def main() -> None:
    parts = {"list": side_by_side, "engines": engines}
    chosen = sys.argv[1:] or list(parts)
    lines = [
        "# `swamp sql`, measured",
        "",
        f"`bench/sql.py {' '.join(sys.argv[1:])}` on {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}, load {os.getloadavg()[0]:.1f} before it; medians of {RUNS} cold processes in "
        "turn (of 3 for DuckDB on datasets, one for Spark).",
    ]
    with tempfile.TemporaryDirectory(prefix="swamp-bench-sql-") as folder:
        for name in chosen:
            lines += ["", f"## {name}", "", *parts[name](Path(folder))]
            print("\n".join(lines))
    RESULTS.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
