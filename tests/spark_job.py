"""A nightly job as a data engineer writes it: a Spark session of its own that writes one dataset.

`python spark_job.py REPO NAME WRITE_ID ROWS`; prints one JSON line when the write has been acknowledged.
"""

from __future__ import annotations

import json
import os
import sys


def main(repo: str, name: str, write_id: str, rows: str) -> None:
    from pyspark.sql import SparkSession

    from swamp.pipeline.source import SwampDataSource

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "512m").getOrCreate()
    spark.dataSource.register(SwampDataSource)
    frame = spark.range(0, int(rows), 1, 3).selectExpr("id", "id * id AS square")
    to = frame.write.format("swamp").mode("append").option("repo", repo).option("writeId", write_id)
    to.option("model", "nightly").option("name", name).save()
    print(json.dumps({"written": int(rows)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
