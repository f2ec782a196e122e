"""Datasets of a repository in a Spark session.

    import swamp.spark

    orders = swamp.spark.read(spark, "web", "orders")                 # or version=3, or timestamp="2026-11-15"
    swamp.spark.write(orders.where("total > 0"), "web", "paid")
    swamp.spark.history(spark, "web", "orders").show()

`read` looks up root and version once. The bytes are then read by Spark's own readers wherever the JVM can open the
parts or runs on this machine, and by this package's Python source elsewhere; the plan shows which (`FileScan` or
`BatchScan swamp`), the logger `swamp.spark` says why. After `register` the format `swamp` does the same for Parquet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["history", "read", "register", "session", "write"]


def session() -> SparkSession:
    """A session on this user's warm Spark server, which is started if it is not up (`swamp spark serve`)."""
    from swamp.bulk.keep import start_server
    from swamp.bulk.session import open_session
    from swamp.bulk.settings import SparkSettings

    return register(open_session(SparkSettings(remote=start_server(os.environ).url, served=True)))


def register(spark: SparkSession) -> SparkSession:
    """Makes `format("swamp")` known to a session; Parquet is read by Spark's own reader where that is possible."""
    from swamp.datasets.compile import make_native
    from swamp.datasets.source import data_source

    spark.dataSource.register(data_source())
    make_native(spark)
    return spark


def read(
    spark: SparkSession,
    model: str,
    name: str,
    *,
    version: int | None = None,
    timestamp: str | None = None,
    repo: str | Path | None = None,
    **options: str,
) -> DataFrame:
    """One version of an artifact as a DataFrame: the latest, version `version`, or the latest at `timestamp`.

    `options` are those of `format("swamp")` and of Spark's reader for the content. Raises NotFound, UsageError.
    """
    from swamp.datasets.native import read_version

    asked = _options(repo, model, name, options, version=version, timestampAsOf=timestamp)
    return read_version(spark, asked, options)


def write(
    frame: DataFrame,
    model: str,
    name: str,
    *,
    repo: str | Path | None = None,
    write_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    lifetime: str | None = None,
    partition_by: Sequence[str] = (),
    **options: str,
) -> None:
    """Writes a DataFrame as the next version of an artifact. The same `write_id` again changes nothing.

    With `partition_by` rows are brought together by these columns first, and each part holds one combination of them.
    """
    from swamp.data.records import read_so_far
    from swamp.datasets.source import data_source

    asked = _options(repo, model, name, options, writeId=write_id, lifetime=lifetime)
    if partition_by:
        asked["partitionBy"] = ",".join(partition_by)
        frame = frame.repartition(*partition_by).sortWithinPartitions(*partition_by)
    if tags:
        asked["tags"] = json.dumps(dict(tags))
    made_from = read_so_far()
    if made_from:
        asked["inputs"] = json.dumps([dict(one) for one in made_from])
    frame.sparkSession.dataSource.register(data_source())
    frame.write.format("swamp").mode("append").options(**asked).save()


def history(spark: SparkSession, model: str, name: str, *, repo: str | Path | None = None) -> DataFrame:
    """The versions of an artifact, newest first: the columns of the table `versions`."""
    from swamp.datasets.source import versions_of
    from swamp.datasets.tables import VERSIONS

    asked = _options(repo, model, name, {})
    return spark.createDataFrame(list(versions_of(asked)), VERSIONS.ddl)


def _options(
    repo: str | Path | None, model: str, name: str, options: Mapping[str, str], **given: Any
) -> dict[str, str]:
    from swamp.repo.config import locate

    where = {} if "url" in options else {"repo": str(locate(Path(repo) if repo is not None else None, os.environ))}
    said = {key: str(value) for key, value in given.items() if value is not None}
    return {**where, "model": model, "name": name, **options, **said}
