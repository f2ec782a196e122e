"""Datasets beside plain Spark on the same Parquet files, warm: by Spark's own reader, and by the Python source.

    .venv/bin/python bench/spark_datasets.py [--rows 10000000] [--runs 3] [--stores file,s3] [--minutes 20]
    .venv/bin/python bench/spark_datasets.py --stores s3 --server nginx      S3 by servers that are no bottleneck

One session (`local[2]`), 9 columns. Plain Spark reads copies of the very parts of the dataset, on this machine's disk.
Each run does every case once for each reader, one after the other, after one round that is thrown away (a tenth of the
rows, for writes); medians of the time and of the CPU of all processes (JVM and Python workers). The Python source is
told the columns of a query (`columns`, and an empty schema for a count), because Spark does not tell it. `format` is
`format("swamp")` after `swamp.spark.register`, which is told nothing (decision 0026). `floor` is
what Spark's API for Python sources costs by itself: a source that hands over the same ready batch again and again, as
many rows, the same columns, nothing read.

Of S3, where the JVM has no connector here, `native` is what `swamp.spark.read` gives: copies of the parts on this disk,
once they were read (decision 0024); `lent` is the same without copies, and `plain over HTTP` plain Spark's own copies
lent from the disk, without a store behind them. `first read` is a version that nobody has read yet, so that its copies
are made meanwhile. Writes bench/results/spark-datasets.md after every figure; once the minutes
are over, no further run is begun.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cpu import cpu_of_all
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from run import OTHERS, server
from spark_all import note

import swamp.spark
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import COPY_BYTES, SparkSettings
from swamp.datasets.batches import arrow_target
from swamp.datasets.deliver import publish
from swamp.datasets.lend import lender
from swamp.datasets.native import BY_POSITION
from swamp.datasets.parts import write_parts
from swamp.datasets.place import Bucket, FileRef, open_place
from swamp.datasets.source import data_source, find_asked, register
from swamp.index.root import Root
from swamp.models.builtin import _of_its_own
from swamp.repo.config import init_repo, write_config
from swamp.store.open import StoreSpec

RESULT = Path(__file__).parent / "results" / "spark-datasets.md"
ROWS_OF_A_SMALL_PART = 100
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
SAID = {"one column": "price"}
"""The columns that the Python source is told of, by case."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--stores", default="file,s3")
    parser.add_argument("--parts", type=int, default=1000, help="how many the dataset of small parts has")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--server", default="double", choices=("double", "nginx", "rclone", "moto", "ministack"))
    parser.add_argument("--minutes", type=float, default=20.0)
    asked = parser.parse_args()
    asked.until = time.monotonic() + 60 * asked.minutes
    asked.phases = 2 * len(asked.stores.split(","))
    home = Path(tempfile.mkdtemp(prefix="swamp-datasets-"))
    os.environ["SWAMP_HOME"] = str(home / "home")
    rows, loads = [], []
    try:
        with server(home, asked.server) as env:
            os.environ |= env  # before Java starts: the workers have it from there
            spark = register(open_session(SparkSettings("local[2]", None, {"spark.driver.memory": "3g"})))
            try:
                for store in asked.stores.split(","):
                    for row in measured(spark, home / f"of-{store}", store, asked):
                        rows.append(row)
                        loads.append(os.getloadavg()[0])
                        print(time.strftime("%H:%M:%S"), *row, f"load {loads[-1]:.1f}", flush=True)
                        asked.out.write_text(report(rows, asked, loads))
            finally:
                stop_session(spark)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(asked.out.read_text())
    for store, case, reader, seconds, cpu in ratios(rows):
        note(reader, "small parts" if case.endswith("small parts") else case, f"({store})", seconds, cpu)


def ratios(found):
    """Every reader beside plain Spark, by the medians: of time, of CPU."""
    for (store, case), by_reader in cells_of(found).items():
        if "plain" not in by_reader:
            continue
        plain = [statistics.median(column) for column in zip(*by_reader.pop("plain"), strict=True)]
        for reader, runs in by_reader.items():
            yield (
                store,
                case,
                reader,
                *(
                    statistics.median(column) / of_plain
                    for column, of_plain in zip(zip(*runs, strict=True), plain, strict=True)
                ),
            )


def cells_of(found):
    cells = {}
    for store, run, case, reader, seconds, cpu in found:
        if run >= 0:
            cells.setdefault((store, case), {}).setdefault(reader, []).append((seconds, cpu))
    return cells


def measured(spark, home, store, asked):
    """Every case on one store: (store, run, case, reader, seconds, CPU seconds); run -1 warms up."""
    repo = repository(home, store)
    for run in in_time(asked):
        asked.unread = run  # so many versions of all rows, beside the last one, which is read
        rows = asked.rows if run >= 0 else asked.rows // 10
        frame = spark.range(0, rows, 1, 8).selectExpr(*COLUMNS)
        for one in written(frame, home, repo, run):
            yield store, run, *one
    write_small_parts(spark, repo, asked.parts)
    readers = {name: list(readers_of(spark, home, repo, name)) for name in ("events", "small")}
    for run in in_time(asked):
        for case, name, query in cases(asked):
            for reader, opened in readers[name]:
                if reader == "floor" and case.endswith("small parts"):
                    continue
                try:
                    taken = timed(lambda o=opened, q=query, c=case: q(o(c)))
                except Exception as error:  # noqa: BLE001  (its cell stays empty; the figures of the others are not lost)
                    print(f"{store}, {case}, {reader} FAILED: {error}", file=sys.stderr, flush=True)
                    continue
                yield store, run, case, reader, *taken
                if case == "read all" and reader == "plain":
                    yield store, run, "first read", reader, *taken
        if store == "s3" and 0 <= run < asked.unread:
            yield store, run, "first read", "native", *first_read(spark, home, repo, run)


def first_read(spark, home, repo, run):
    """All columns of a version that was written in that run and not read since, by a user who has no copies yet: the
    time of the query, and the CPU until all copies are there."""
    before = os.environ["SWAMP_HOME"]
    os.environ["SWAMP_HOME"] = str(home / f"first-{run}")
    try:
        frame = swamp.spark.read(spark, "bench", "events", repo=repo, version=run + 2)
        assert all(path.startswith("webhdfs:") for path in frame.inputFiles()), "it was read before"
        used = cpu_of_all(OTHERS)
        seconds, _ = timed(lambda: frame.write.format("noop").mode("overwrite").save())
        until, shelf = time.monotonic() + 60, home / f"first-{run}" / "parts"
        while len(list(shelf.glob("?" * 64))) < len(frame.inputFiles()) and time.monotonic() < until:
            time.sleep(0.1)
        return seconds, cpu_of_all(OTHERS) - used
    finally:
        os.environ["SWAMP_HOME"] = before


def in_time(asked):
    """The numbers of the runs, -1 first; at least one that counts, and no more once this phase's time is over."""
    begun = time.monotonic()
    limit = begun + max(0.0, asked.until - begun) / asked.phases
    asked.phases -= 1
    for run in range(-1, asked.runs):
        if run <= 0 or time.monotonic() < limit:
            yield run


def write_small_parts(spark, repo, count):
    """A version of so many parts, by the code of the tasks and of the commit, without a task for each."""
    frame = spark.range(0, count * ROWS_OF_A_SMALL_PART, 1, 1).selectExpr(*COLUMNS)
    options = {"repo": str(repo), "model": "bench", "name": "small"}
    writer = data_source()(CaseInsensitiveDict(options)).writer(frame.schema, False)
    schema, table = arrow_target(frame.schema), frame.toArrow()
    parts = []
    for number in range(count):
        some = table.slice(number * ROWS_OF_A_SMALL_PART, ROWS_OF_A_SMALL_PART)
        parts += write_parts(writer.target, number, iter(some.to_batches()), schema)
    publish(writer.target, parts)


def repository(home, store):
    init_repo(home / "repo")
    if store == "s3":
        config = {"type": "s3", "url": "s3://bench/datasets", "config": {"endpoint": os.environ["AWS_ENDPOINT_URL"]}}
        init_repo(home / "lent")
        other = {**config, "config": {**config["config"], "requestTimeoutMs": 30_001}}
        write_config(home / "lent", {"datastore": other})
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


def cases(asked):
    yield "read all", "events", lambda frame: frame.write.format("noop").mode("overwrite").save()
    yield "count(*)", "events", lambda frame: frame.count()
    yield "one column", "events", lambda frame: frame.selectExpr("sum(price)").collect()
    yield "point filter", "events", lambda frame: frame.where(f"id = {asked.rows // 3}").collect()
    yield f"{asked.parts} small parts", "small", lambda frame: frame.write.format("noop").mode("overwrite").save()


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
        if any(path.startswith("webhdfs:") for path in native.inputFiles()):
            yield "lent", lambda case: without_copies(spark, name, repo.parent / "lent")
            over_http = [lent_copy(file) for file in sorted(links.iterdir())]
            yield "http", lambda case: spark.read.option(BY_POSITION, "false").schema(schema).parquet(*over_http)

    session = _of_its_own(spark)  # the other one keeps the Python source
    yield "format", lambda case: session.read.format("swamp").options(**options).load()

    def source(case):
        chosen = {"columns": SAID[case]} if case in SAID else {}
        reader = spark.read.format("swamp").options(**options, **chosen)
        return (reader.schema(StructType([])) if case == "count(*)" else reader).load()

    yield "source", source
    if name == "events" and "file" in repo.parent.name:
        part = str(next(links.glob("*.parquet")))
        yield "floor", lambda case: floor(spark, schema, case, part)


def without_copies(spark, name, repo):
    """Through a repository of its own, so that the addresses are others than those whose bytes are kept."""
    spark.conf.set(COPY_BYTES, "0")
    try:
        return swamp.spark.read(spark, "bench", name, repo=repo)
    finally:
        spark.conf.unset(COPY_BYTES)


def lent_copy(file):
    """Plain Spark's copy of a part at an address of the lender: what reading over loopback costs without a store."""
    place = Bucket(StoreSpec(file.parent.as_uri()), Root("", 0, "", "", "", {}))
    return lender().lend(place, FileRef(file.name, file.name, file.stat().st_size))


def floor(spark, schema, case, part):
    if "floor" not in REGISTERED:
        spark.dataSource.register(Floor)
        REGISTERED.append("floor")
    columns = [] if case == "count(*)" else [schema[SAID[case]]] if case in SAID else list(schema)
    rows = spark.read.parquet(str(Path(part).parent)).count() if not ROWS_OF else ROWS_OF[0]
    ROWS_OF[:] = [rows]
    options = {"part": part, "rows": str(rows), "tasks": str(len(list(Path(part).parent.iterdir())))}
    return spark.read.format("floor").schema(StructType(columns)).options(**options).load()


REGISTERED, ROWS_OF = [], []


class Floor(DataSource):
    """Hands over ready batches of a part's first rows until there were as many rows as in all parts."""

    @classmethod
    def name(cls):
        return "floor"

    def reader(self, schema):
        return FloorReader(dict(self.options), schema)


class FloorReader(DataSourceReader):
    def __init__(self, options, schema):
        self.options, self.schema = options, schema

    def partitions(self):
        tasks = int(self.options["tasks"])
        return [InputPartition(int(self.options["rows"]) // tasks) for _ in range(tasks)]

    def read(self, partition):
        import pyarrow.parquet as pq

        from swamp.datasets.batches import arrow_target
        from swamp.datasets.content import GROUP_BATCH_ROWS, shaped

        target = arrow_target(self.schema)
        opened = pq.ParquetFile(self.options["part"])
        ready = shaped(next(opened.iter_batches(GROUP_BATCH_ROWS, columns=target.names)), target)
        for left in range(partition.value, 0, -ready.num_rows):
            yield ready if left >= ready.num_rows else ready.slice(0, left)


def timed(work):
    begun, used = time.monotonic(), cpu_of_all(OTHERS)
    work()
    return time.monotonic() - begun, cpu_of_all(OTHERS) - used


def medians(runs):
    return [statistics.median(column) for column in zip(*runs, strict=True)] if runs else []


def report(found, asked, loads):
    cells = cells_of(found)
    lines = [
        "# Datasets beside plain Spark",
        "",
        f"`.venv/bin/python bench/spark_datasets.py --rows {asked.rows} --runs {asked.runs} "
        f"--stores {asked.stores} --server {asked.server}`: "
        f"{len(COLUMNS)} columns, `local[2]`, {os.cpu_count()} cores, warm, interleaved, medians. Load average while "
        f"it ran: {min(loads):.1f} to {max(loads):.1f}, so that of the times only the ratios say something; CPU is of "
        "the JVM and of all Python processes.",
        "",
        "| store | case | plain | native | format | lent | plain over HTTP | Python source | floor of its API |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (store, case), by_reader in cells.items():
        if "plain" not in by_reader:
            continue
        plain = [statistics.median(column) for column in zip(*by_reader["plain"], strict=True)]
        shown = [f"{plain[0]:.2f} s, CPU {plain[1]:.2f} s"]
        for reader in ("native", "format", "lent", "http", "source", "floor"):
            middle = medians(by_reader.get(reader))
            beside = [f"{m:.2f} s ({m / p:.2f})" for m, p in zip(middle, plain, strict=False) if p]
            if beside and reader in ("native", "lent") and "http" in by_reader:
                beside.append(f"{middle[0] / medians(by_reader['http'])[0]:.2f} of HTTP")
            shown.append(" / ".join(beside))
        lines.append(f"| {store} | {case} | {' | '.join(shown)} |")
    return "\n".join(
        [
            *lines,
            "",
            "Time / CPU, in brackets beside plain Spark on the disk; `of HTTP`: time beside plain Spark over HTTP. Of "
            "S3, native reads copies on this disk (decision 0024), lent does not (0021).",
            "",
        ]
    )


if __name__ == "__main__":
    main()
