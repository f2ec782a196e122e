"""`python java_archive.py FILE`: what makes Spark start quickly in the tests, beside the jars of this environment.

The classes of Spark as a JVM wants them in memory, for all the JVMs of the tests; and a line that has its Python
workers forked from a process that has imported everything (`tests/spark_workers`).

Half of the processor time of a short Spark job is Java reading, checking and linking the same 14,000 classes again
(13 CPU seconds until a session is there, 7 with the archive; 25 and 14 with a first query). Java's own class data
sharing keeps them. An archive that does not fit a JVM (another Java, other jars) is ignored by it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

WORKERS = Path(__file__).parent / "spark_workers"
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Of a Java that lives for seconds: it ends before its second compiler has paid."""


def archive() -> Path:
    """Beside the jars whose classes it holds."""
    return Path(sys.prefix) / "spark.jsa"


def options() -> str:
    """For JDK_JAVA_OPTIONS. Without its log, because what Spark's launcher prints is a command to run."""
    file = archive()
    return f'{FLAGS} "-XX:SharedArchiveFile={file}" -Xlog:disable' if file.exists() else FLAGS


def add_workers() -> None:
    """Every Python of this environment looks whether it is to be a daemon of Spark's: Spark names no other place."""
    line = 'import os; "SPARK_TEST_WORKERS" in os.environ and __import__("warm_workers")'
    (Path(sysconfig.get_path("purelib")) / "swamp-test-workers.pth").write_text(f"{WORKERS}\n{line}\n")


def make(file: Path) -> None:
    """Loads what sessions load, and lets Java write it down when it ends."""
    os.environ["JDK_JAVA_OPTIONS"] = FLAGS
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={file} -Xlog:disable"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    rows = spark.range(0, 1000, 1, 3).selectExpr("id", "id * id AS square")
    with tempfile.TemporaryDirectory() as folder:
        rows.mapInArrow(lambda batches: batches, rows.schema).write.parquet(f"{folder}/rows")
        read = spark.read.parquet(f"{folder}/rows")
        assert read.join(rows, "id").groupBy(rows.square).count().orderBy("square").toArrow().num_rows == 1000
    gateway = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    add_workers()
    part = archive().with_suffix(".part")
    make(part)
    part.replace(sys.argv[1])
