"""Datasets beside plain Spark on the same Parquet files, warm: by Spark's own reader, and by the Python source.

    .venv/bin/python bench/datasets.py [rows] [runs] [stores]      writes bench/results/datasets.md

    .venv/bin/python bench/datasets.py 10000000 1 file      (BENCH_PARTS: how many small parts, 1000)

One session (`local[2]`), 9 columns. Plain Spark reads copies of the very parts of the dataset. Each run does every
case once for each reader, one after the other, after one round that is thrown away; medians of the time and of the CPU
of all processes (JVM and Python workers). In brackets: beside plain Spark.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from run import server

import swamp.spark
from swamp.pipeline.place import open_place
from swamp.pipeline.session import open_session, stop_session
from swamp.pipeline.settings import SparkSettings
from swamp.pipeline.source import find_asked
from swamp.repo.config import init_repo, write_config

RESULT = Path(__file__).parent / "results" / "datasets.md"
SMALL_PARTS = int(os.environ.get("BENCH_PARTS", "1000"))
COLUMNS = (
    "id",
    "pmod(hash(id), 1000000) as user",
    "round(rand(7) * 1000, 2) as price",
    "cast(pmod(id, 17) as int) as quantity",
    "concat('category-', pmod(hash(id), 100)) as category",
    "timestamp_seconds(1700000000 + id) as at",
    "pmod(id, 3) = 0 as paid",
    "sha2(cast(id as string), 224) as reference",
    "date_add(date '2026-01-01', cast(pmod(id, 365) as int)) as day",
)


def main(rows="10000000", runs="3", stores="file,s3"):
    home = Path(tempfile.mkdtemp(prefix="swamp-datasets-"))
    lines = []
    try:
        with server(home) as env:
            os.environ |= env  # before Java starts: the workers have it from there
            spark = open_session(SparkSettings("local[2]", None, {"spark.driver.memory": "3g"}))
            try:
                for store in stores.split(","):
                    lines += measured(spark, home / f"of-{store}", store, int(rows), int(runs))
            finally:
                stop_session(spark)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    RESULT.write_text(report(lines, f"{rows} {runs} {stores}"))
    print(RESULT.read_text())


def measured(spark, home, store, rows, runs):
    """Every case on one store: (store, case, reader, seconds, CPU seconds)."""
    repo = repository(home, store)
    frame = spark.range(0, rows, 1, 8).selectExpr(*COLUMNS)
    found = []
    for run in range(-1, runs):
        found += [(store, run, *one) for one in written(frame, home, repo, run)]
        print(time.strftime("%H:%M:%S"), *found[-2:], flush=True)
    many = frame.limit(100_000).repartition(SMALL_PARTS)
    swamp.spark.write(many, "bench", "small", repo=repo)
    readers = {name: list(readers_of(spark, home, repo, name)) for name in ("events", "small")}
    for run in range(-1, runs):
        for case, name, query in cases(rows):
            for reader, opened in readers[name]:
                found.append((store, run, case, reader, *timed(lambda o=opened, q=query, c=case: q(o(c)))))
                print(time.strftime("%H:%M:%S"), *found[-1], f"load {os.getloadavg()[0]:.1f}", flush=True)
    return [row for row in found if row[1] >= 0]


def repository(home, store):
    init_repo(home / "repo")
    if store == "s3":
        config = {"type": "s3", "url": "s3://bench/datasets", "config": {"endpoint": os.environ["AWS_ENDPOINT_URL"]}}
    else:
        (home / "bucket").mkdir()
        config = {"type": "file", "url": (home / "bucket").as_uri()}
    write_config(home / "repo", {"datastore": config})
    return home / "repo"


def written(frame, home, repo, run):
    plain = home / f"written-{run}"
    yield "write", "plain", *timed(lambda: frame.write.option("compression", "zstd").parquet(plain.as_uri()))
    shutil.rmtree(plain)
    yield "write", "native", *timed(lambda: swamp.spark.write(frame, "bench", "events", repo=repo))


def cases(rows):
    yield "read all", "events", lambda frame: frame.write.format("noop").mode("overwrite").save()
    yield "count(*)", "events", lambda frame: frame.count()
    yield "one column", "events", lambda frame: frame.selectExpr("sum(price)").collect()
    yield "point filter", "events", lambda frame: frame.where(f"id = {rows // 3}").collect()
    yield f"{SMALL_PARTS} small parts", "small", lambda frame: frame.write.format("noop").mode("overwrite").save()


def readers_of(spark, home, repo, name):
    """Plain Spark, Spark's own reader through `swamp.spark.read` where it can be used, and the Python source."""
    options = {"repo": str(repo), "model": "bench", "name": name}
    links = home / f"plain-{name}"
    place = open_place(options)
    for number, file in enumerate(find_asked(place, options).files):
        links.mkdir(exist_ok=True)
        with place.open(file) as source, (links / f"part-{number:05d}.parquet").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    schema = spark.read.parquet(links.as_uri()).schema
    yield "plain", lambda case: spark.read.schema(schema).parquet(links.as_uri())
    native = swamp.spark.read(spark, "bench", name, repo=repo)
    if "FileScan" in native._jdf.queryExecution().toString():
        yield "native", lambda case: swamp.spark.read(spark, "bench", name, repo=repo)

    def source(case):
        chosen = {"columns": "price"} if case == "one column" else {}
        return spark.read.format("swamp").options(**options, **chosen).load()

    yield "source", source


def timed(work):
    begun, used = time.monotonic(), cpu_of_all()
    work()
    return time.monotonic() - begun, cpu_of_all() - used


def cpu_of_all():
    """Seconds of CPU of this process and everything it has started."""
    stats = {}
    for name in Path("/proc").iterdir():
        if name.name.isdigit():
            try:
                words = (name / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(name.name)] = (int(words[1]), sum(map(int, words[11:15])))
    mine, before = {os.getpid()}, 0
    while len(mine) != before:
        before = len(mine)
        mine |= {pid for pid, (parent, _) in stats.items() if parent in mine}
    return sum(stats[pid][1] for pid in mine if pid in stats) / os.sysconf("SC_CLK_TCK")


def report(found, command):
    cells = {}
    for store, _, case, reader, seconds, cpu in found:
        cells.setdefault((store, case), {}).setdefault(reader, []).append((seconds, cpu))
    lines = [
        "# Datasets beside plain Spark",
        "",
        f"`.venv/bin/python bench/datasets.py {command}` (rows, runs, stores): {len(COLUMNS)} columns, `local[2]`, "
        f"{os.cpu_count()} cores, warm, medians; load {os.getloadavg()[0]:.1f} at the end.",
        "",
        "| store | case | plain | native | Python source |",
        "|---|---|---|---|---|",
    ]
    for (store, case), by_reader in cells.items():
        plain = [statistics.median(column) for column in zip(*by_reader["plain"], strict=True)]
        shown = [f"{plain[0]:.2f} s, CPU {plain[1]:.2f} s"]
        for reader in ("native", "source"):
            runs = by_reader.get(reader)
            middle = [statistics.median(column) for column in zip(*runs, strict=True)] if runs else []
            shown.append(" / ".join(f"{m:.2f} s ({m / p:.2f})" for m, p in zip(middle, plain, strict=False) if p))
        lines.append(f"| {store} | {case} | {' | '.join(shown)} |")
    return "\n".join([*lines, "", "native, source: time / CPU, in brackets beside plain.", ""])


if __name__ == "__main__":
    main(*sys.argv[1:4])
