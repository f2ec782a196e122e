"""When does Spark pay? Times a cold session, its first jobs, and pushes of the same files by both engines.

    .venv/bin/python bench/spark_breakeven.py [files …]      writes bench/results/spark-breakeven.md

Each push goes to a new bucket in a directory. `pipeline/choose.py` keeps what comes out of it.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from swamp.cache.layout import CacheDir
from swamp.index.root import Writer
from swamp.pipeline.choose import Chooser
from swamp.pipeline.session import SparkSettings, open_session, stop_session
from swamp.store.open import StoreSpec
from swamp.sync.engine import Engine
from swamp.sync.progress import Silent

SIZE = 2_000
RESULT = Path(__file__).parent / "results" / "spark-breakeven.md"


def timed(action):
    begun = time.monotonic()
    value = action()
    return time.monotonic() - begun, value


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
        chooser = Chooser(setting, {"master": "local[2]"}, spec, store, cache.base, Silent())
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
    spark = {n: push("spark", n) for n in counts}
    stop_session(session)
    RESULT.write_text(report(inline, spark, start, first, warm))
    print(RESULT.read_text())


def report(inline, spark, start, first, warm):
    rows = [f"| {n} | {inline[n]:.1f} | {n / inline[n]:.0f} | {spark[n]:.1f} | {n / spark[n]:.0f} |" for n in inline]
    low, high = min(inline), max(inline)
    per_inline = (inline[high] - inline[low]) / (high - low)
    per_spark = (spark[high] - spark[low]) / (high - low)
    fixed = start + first + spark[low] - per_spark * low
    gain = 1 - per_spark / per_inline
    even = f"{fixed / (per_inline - per_spark):.0f} files" if gain > 0 else "never on this machine"
    return "\n".join(
        [
            "# Break-even of a cold Spark session",
            "",
            f"`bench/spark_breakeven.py`, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end, "
            f"files of {SIZE} bytes, a bucket in a directory, `local[2]`.",
            "",
            f"- session {start:.1f} s, first Arrow job {first:.1f} s, warm Arrow job {warm:.2f} s",
            f"- marginal cost per file: inline {per_inline * 1000:.2f} ms, Spark {per_spark * 1000:.2f} ms: "
            f"Spark saves {gain:.0%} of the in-process time once it runs",
            f"- fixed cost of Spark {fixed:.1f} s; it pays from {even} on",
            "",
            "| files | inline s | files/s | Spark s (warm) | files/s |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [500, 4_000])
