"""When does Spark pay? Times a cold session, its first jobs, and pushes of the same files by both engines.

    .venv/bin/python bench/spark_breakeven.py [files …]      writes bench/results/spark-breakeven.md

Each push goes to a new bucket in a directory. `bulk/choose.py` keeps what comes out of it. Beside the seconds on
the clock stand the seconds of CPU that this process, its JVM and their workers used: a busy machine changes them less.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from swamp.bulk.choose import Chooser
from swamp.bulk.session import open_session, stop_session
from swamp.bulk.settings import SparkSettings
from swamp.cache.layout import CacheDir
from swamp.index.root import Writer
from swamp.store.open import StoreSpec
from swamp.sync.engine import Engine
from swamp.sync.progress import Progress

SIZE = 2_000
RESULT = Path(__file__).parent / "results" / "spark-breakeven.md"


def cpu():
    """Seconds of CPU of this process and everything below it, the ended included."""
    parents, used = {}, {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(entry.parent.name)
        parents[number] = int(fields[1])
        used[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    mine = {os.getpid()}
    while more := {child for child, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(used.get(number, 0.0) for number in mine)


class Took(float):
    """Seconds on the clock; `.cpu` of work."""

    def __new__(cls, seconds, work):
        made = super().__new__(cls, seconds)
        made.cpu = work
        return made


def timed(action):
    begun, work = time.monotonic(), cpu()
    value = action()
    return Took(time.monotonic() - begun, cpu() - work), value


def push(setting, files):
    base = Path(tempfile.mkdtemp(prefix="swamp-bench-"))
    try:
        (base / "bucket").mkdir()
        spec = StoreSpec((base / "bucket").as_uri())
        cache = CacheDir(base / "cache").ensure()
        for number in range(files):
            file = cache.tree / "files" / f"{number % 100:02d}" / f"{number:06d}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(hashlib.sha256(str(number).encode()).digest() * (SIZE // 32))
        store = spec.open()
        chooser = Chooser(setting, {"master": "local[2]"}, spec, store, cache.base, Progress())
        engine = Engine.open(store, cache, writer=Writer("bench", "h", "u", 1, "0"), pick=chooser)
        seconds, result = timed(lambda: engine.push(full=True))
        assert result.files_pushed == files, result
        engine.close()
        return seconds
    finally:
        shutil.rmtree(base)


def echo(batches):
    yield from batches


def main(counts):
    push("inline", 50)
    inline = {n: push("inline", n) for n in counts}
    start, session = timed(lambda: open_session(SparkSettings("local[2]", None, {"spark.driver.memory": "1g"})))
    first, _ = timed(lambda: session.range(0, 100, 1, 2).mapInArrow(echo, "id bigint").count())
    warm, _ = timed(lambda: session.range(0, 100, 1, 2).mapInArrow(echo, "id bigint").count())
    cold = push("spark", counts[0])
    spark = {n: push("spark", n) for n in counts}
    stop_session(session)
    RESULT.write_text(report(inline, spark, cold, start, first, warm))
    print(RESULT.read_text())


def report(inline, spark, cold, start, first, warm):
    low, high = min(inline), max(inline)

    def per_file(found, kind):
        return (kind(found[high]) - kind(found[low])) / (high - low)

    def line(n):
        clock = f"{inline[n]:.1f} | {n / inline[n]:.0f} | {spark[n]:.1f} | {n / spark[n]:.0f}"
        return f"| {n} | {clock} | {inline[n].cpu:.1f} | {spark[n].cpu:.1f} |"

    lines = []
    for name, kind in (("clock", float), ("CPU", lambda took: took.cpu)):
        fixed = kind(start) + kind(first) + kind(cold) - per_file(spark, kind) * low
        lines.append(
            f"- by {name}: session {kind(start):.1f} s, first Arrow job {kind(first):.1f} s, warm Arrow job "
            f"{kind(warm):.2f} s, first push of {low} files {kind(cold):.1f} s; so a cold Spark costs {fixed:.1f} s "
            f"before it moves a file; per file inline "
            f"{per_file(inline, kind) * 1000:.2f} ms, Spark {per_file(spark, kind) * 1000:.2f} ms"
        )
    return "\n".join(
        [
            "# Break-even of a cold Spark session",
            "",
            f"`bench/spark_breakeven.py {low} {high}`, {os.cpu_count()} cores, niceness {os.nice(0)}, load average "
            f"{os.getloadavg()[0]:.1f} at the end,",
            f"files of {SIZE} bytes, a bucket in a directory, `local[2]`. The inline push is one process, so its CPU",
            "is its clock on a quiet machine; Spark's CPU is shared by two cores there.",
            "",
            *lines,
            "",
            "| files | inline s | files/s | Spark s (warm) | files/s | inline CPU s | Spark CPU s |",
            "|---|---|---|---|---|---|---|",
            *map(line, inline),
            "",
        ]
    )


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [1_000, 12_000])
