"""The pipeline's stages, in pipeline order: DataFrame -> DataFrame, each on one screen.

Every stage begins and ends with a `select` of its boundary; what happens inside a task is in `kernels` and
`inventory`. Nothing here runs anything: a stage is a description until `bulk` asks for its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from swamp.pipeline.beacon import Address
from swamp.pipeline.clients import StoreAddress
from swamp.pipeline.indexing import AdoptObjects, ListOwn, ProposeEntries, ReadSegments, WriteSegments
from swamp.pipeline.inventory import Exclude, ListNames, LookAtFiles, nothing_excluded
from swamp.pipeline.kernels import FetchFiles, HashFiles, SendFiles, VerifyEntries
from swamp.pipeline.schemas import (
    DIRECTORIES,
    DOWNLOADS,
    FILES,
    FINDINGS,
    GOT,
    HASHED,
    HASHES,
    INDEX,
    NAMES,
    OBJECTS,
    RANGES,
    SEGMENTS,
    SENT,
    UPLOADS,
    Boundary,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(session: SparkSession, boundary: Boundary, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Driver-side rows as a DataFrame: addresses of work, never an index."""
    import pyarrow as pa

    table = pa.Table.from_batches([boundary.batch(rows)])
    return session.createDataFrame(table, boundary.ddl)


def binned(frame: DataFrame, bins: int) -> DataFrame:
    """One partition per bin, exactly as packed."""
    return frame.repartitionById(max(1, bins), "bin")


def inventory_local(
    directories: DataFrame,
    tree: str,
    parallelism: int,
    beacon: Address | None = None,
    exclude: Exclude = nothing_excluded,
) -> DataFrame:
    """Directories -> files. Listed where they are, looked at by everybody."""
    spread = DIRECTORIES.select(directories).repartition(parallelism * 2)
    names = spread.mapInArrow(ListNames(tree, exclude), NAMES.ddl)
    shared = names.repartition(parallelism * 4)
    return FILES.select(shared.mapInArrow(LookAtFiles(tree, beacon), FILES.ddl))


def inventory_remote(ranges: DataFrame, store: StoreAddress, tasks: int) -> DataFrame:
    """Key ranges -> objects of ours, paged, as Arrow."""
    spread = RANGES.select(ranges).repartition(max(1, tasks))
    return OBJECTS.select(spread.mapInArrow(ListOwn(store), OBJECTS.ddl))


def adopt(ranges: DataFrame, store: StoreAddress, tasks: int) -> DataFrame:
    """Key ranges of a bucket without an index -> entries (and `lost` rows, which forbid publishing)."""
    spread = RANGES.select(ranges).repartition(max(1, tasks))
    return INDEX.select(spread.mapInArrow(AdoptObjects(store), INDEX.ddl))


def propose(ranges: DataFrame, store: StoreAddress, tasks: int) -> DataFrame:
    """Key ranges of a bucket whose index is lost -> entries, several for a path that was uploaded several times."""
    spread = RANGES.select(ranges).repartition(max(1, tasks))
    return INDEX.select(spread.mapInArrow(ProposeEntries(store), INDEX.ddl))


def newest_uploads(entries: DataFrame) -> DataFrame:
    """One entry for each path: a ULID sorts by time; a plain key, which we never write, gives way to any of ours."""
    from pyspark.sql import functions as sf

    age = sf.struct((sf.col("key") != sf.col("path")).cast("int"), sf.col("key"))
    best = sf.max_by(sf.struct(*INDEX.columns), age).alias("best")
    return INDEX.select(entries.groupBy("path").agg(best).select("best.*"))


def read_index(segments: DataFrame, layer: DataFrame, kernel: ReadSegments, tasks: int) -> DataFrame:
    """Segments and the newest layer -> all rows of the index."""
    spread = SEGMENTS.select(segments).repartition(max(1, tasks))
    rows = spread.mapInArrow(kernel, INDEX.ddl)
    return INDEX.select(INDEX.select(layer).unionByName(rows))


def winners(index: DataFrame) -> DataFrame:
    """All rows -> the one that decides each path: the highest number wins wherever it lies. inv[index.highest-seq]"""
    from pyspark.sql import functions as sf

    from swamp.pipeline.indexing import DROPPED, ENTRY

    deciding = index.where(sf.col("kind") != DROPPED)
    # With equal numbers they are the same row, or the live one stays.
    age = sf.struct(sf.coalesce("seq", sf.lit(0)), (sf.col("kind") == ENTRY).cast("int"))
    best = sf.max_by(sf.struct(*INDEX.columns), age).alias("best")
    return INDEX.select(deciding.groupBy("path").agg(best).select("best.*"))


def ranged(index: DataFrame, parts: int) -> DataFrame:
    """A range of paths per partition, as segments want them."""
    return INDEX.select(index).repartitionByRange(max(1, parts), "path")


def ordered(index: DataFrame) -> DataFrame:
    """Rows of each partition in path order, as segments want them."""
    from pyspark.sql import functions as sf

    from swamp.pipeline.indexing import DROPPED

    return index.sortWithinPartitions("path", sf.col("kind") == DROPPED, sf.coalesce("seq", sf.lit(0)), "key")


def merge(index: DataFrame, kept: DataFrame, horizon_seq: int) -> DataFrame:
    """All rows -> what a compaction keeps: `index.merge.merge_segments`, as windows over each path.

    A tombstone goes when it is beyond the horizon, unless its path is in `kept` (the newest layer may still need it).
    One that lost to a newer row becomes a dropped key, so that its undo window still counts from the deletion (L33).
    Rows that are `ranged` stay where they are: nothing is exchanged here.
    """
    from pyspark.sql import functions as sf

    from swamp.pipeline.indexing import DELETED, DROPPED, ENTRY

    kind, seq, key = sf.col("kind"), sf.col("seq"), sf.col("key")
    told = _with_winner(INDEX.select(index))
    needed = kept.select("path").distinct().withColumn("needed", sf.lit(True))
    old = (kind == DELETED) & (seq <= horizon_seq)
    best = sf.col("best")
    rows = told.join(sf.broadcast(needed), "path", "left")
    lost = ~best & (kind != ENTRY) & ((kind == DROPPED) | (key != sf.coalesce("live", sf.lit(""))))
    revived = (sf.col("is") == ENTRY) & (sf.col("live") == key) & (sf.col("newest") < sf.col("since"))
    staying = best & (~old | sf.coalesce("needed", sf.lit(False)))
    going = ~best & (sf.col("place") == 1) & ~sf.coalesce(revived, sf.lit(False))
    shown = _newest_of_key(rows.where(best | lost)).where(staying | going)
    blank = {"size": "bigint", "sha256": "string", "last_modified": "string", "missing": "boolean", "extra": "string"}
    columns = {name: sf.when(best, sf.col(name)).otherwise(sf.lit(None).cast(t)) for name, t in blank.items()}
    columns["kind"] = sf.when(best, kind).otherwise(sf.lit(DROPPED))
    return INDEX.select(shown.withColumns(columns))


def _with_winner(index: DataFrame) -> DataFrame:
    """Each row with `best`: it decides its path; and what the deciding row is: `live`, `is`, `since`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    from swamp.pipeline.indexing import DROPPED, ENTRY

    kind = sf.col("kind")
    age = sf.coalesce("seq", sf.lit(0)).desc()
    first = Window.partitionBy("path").orderBy(kind == DROPPED, age, (kind == ENTRY).desc())
    decided = sf.first(kind).over(first) != DROPPED
    return index.withColumns(
        {
            "best": (sf.row_number().over(first) == 1) & (kind != DROPPED),
            "live": sf.when(decided, sf.first("key").over(first)),
            "is": sf.when(decided, sf.first("kind").over(first)),
            "since": sf.when(decided, sf.first("seq").over(first)),
        }
    )


def _newest_of_key(rows: DataFrame) -> DataFrame:
    """Each row with its `place` among those of its path and key, the newest first; the deciding row apart."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    same = Window.partitionBy("path", "best", "key")
    place = sf.row_number().over(same.orderBy(sf.coalesce("seq", sf.lit(0)).desc()))
    return rows.withColumns({"place": place, "newest": sf.col("seq")})


def write_segments(ordered: DataFrame, store: StoreAddress, added_seq: int = 0) -> DataFrame:
    """Rows in path order -> descriptors of new segments. Nothing names them before the driver publishes."""
    return SEGMENTS.select(ordered.mapInArrow(WriteSegments(store, added_seq), SEGMENTS.ddl))


def fingerprint(candidates: DataFrame, bins: int, beacon: Address | None = None) -> DataFrame:
    """Candidates -> hashed."""
    shared = binned(HASHES.select(candidates), bins)
    return HASHED.select(shared.mapInArrow(HashFiles(beacon), HASHED.ddl))


def transfer_up(uploads: DataFrame, bins: int, store: StoreAddress, beacon: Address | None = None) -> DataFrame:
    """Uploads -> what was sent, each call under a key of its own."""
    shared = binned(UPLOADS.select(uploads), bins)
    return SENT.select(shared.mapInArrow(SendFiles(store, beacon), SENT.ddl))


def transfer_down(downloads: DataFrame, bins: int, store: StoreAddress, beacon: Address | None = None) -> DataFrame:
    """Downloads -> verified files in staging."""
    shared = binned(DOWNLOADS.select(downloads), bins)
    return GOT.select(shared.mapInArrow(FetchFiles(store, beacon), GOT.ddl))


def balanced(entries: DataFrame, bins: int, large: int) -> DataFrame:
    """Rows with a `size` shared out by bytes without collecting them: the large ones are dealt to bins of their own.

    `bins` for the small ones, `large` (possibly 0) for rows over the size that fills a bin alone.
    """
    from pyspark.sql import functions as sf

    from swamp.pipeline.balance import ALONE

    spot = sf.xxhash64("path", "key")
    number = sf.pmod(spot, sf.lit(max(1, bins)))
    if large:
        apart = sf.pmod(spot, sf.lit(large)) + sf.lit(max(1, bins))
        number = sf.when(sf.col("size") >= ALONE, apart).otherwise(number)
    return entries.repartitionById(max(1, bins) + large, number.cast("int"))


def verify(entries: DataFrame, store: StoreAddress, beacon: Address | None = None) -> DataFrame:
    """Entries -> findings: read, hash, compare."""
    return FINDINGS.select(INDEX.select(entries).mapInArrow(VerifyEntries(store, beacon), FINDINGS.ddl))
