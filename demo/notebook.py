"""What a data engineer would type into a notebook: read a dataset of the repository, write another one."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import SparkSession

from swamp.spark import register

repo = sys.argv[1]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors need a Python that has swamp
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)

swamp = spark.read.format("swamp").option("repo", repo)
revenue = swamp.option("model", "revenue").option("name", "by_product").load()
read = {row["product"]: row["revenue"] for row in revenue.collect()}

squares = spark.range(1000).selectExpr("id", "id * id AS square")
to = squares.write.format("swamp").mode("append").option("repo", repo)
to.option("model", "notebook").option("name", "squares").save()

back = spark.read.format("swamp").option("repo", repo).option("model", "notebook").option("name", "squares").load()
sums = [frame.selectExpr("sum(square)").first()[0] for frame in (squares, back)]
spark.stop()
print(json.dumps({"read": read, "written": sums[0], "back": sums[1]}))
