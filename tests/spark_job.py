"""A nightly job as a data engineer writes it: a Spark session of its own that writes a dataset, or several.

`python spark_job.py REPO ROWS NAME=WRITE_ID…`; prints one JSON line for each write that has been acknowledged.
To be killed before a commit: while the file `SWAMP_TEST_HOLD` exists the last task waits. To be killed after one: with
`SWAMP_TEST_STAY` it does not end by itself.
"""

from __future__ import annotations

import json
import os
import sys
import time

TASKS = 3


def main(repo: str, rows: str, *writes: str) -> None:
    from pyspark.sql import SparkSession

    from swamp.pipeline.source import SwampDataSource

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    spark.dataSource.register(SwampDataSource)
    frame = spark.range(0, int(rows), 1, TASKS).selectExpr("id", "id * id AS square")
    if hold := os.environ.get("SWAMP_TEST_HOLD"):
        frame = frame.mapInArrow(held_by(hold), frame.schema)
    for name, _, write_id in (write.partition("=") for write in writes):
        to = frame.write.format("swamp").mode("append").option("repo", repo).option("writeId", write_id)
        to.option("model", "nightly").option("name", name).save()
        print(json.dumps({"written": name, "rows": int(rows)}), flush=True)
    if "SWAMP_TEST_STAY" in os.environ:
        time.sleep(300)


def held_by(file: str):
    def passed_on(batches):
        from pyspark import TaskContext

        while TaskContext.get().partitionId() == TASKS - 1 and os.path.exists(file):
            time.sleep(0.05)
        yield from batches

    return passed_on


if __name__ == "__main__":
    main(*sys.argv[1:])
