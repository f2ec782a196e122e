"""The pipeline's stages, in pipeline order: DataFrame -> DataFrame, each on one screen.

Every stage begins and ends with a `select` of its boundary; what happens inside a task is in `kernels` and
`indexing`. Nothing here runs anything: a stage is a description until `bulk` asks for its rows. Transfers are no
stages: lists of files go to tasks as they are (`spread`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from swamp.bulk.balance import ALONE
from swamp.bulk.beacon import Address
from swamp.bulk.clients import StoreAddress
from swamp.bulk.indexing import (
    DROPPED,
    ENTRY,
    PAYLOAD,
    AdoptObjects,
    ListOwn,
    ProposeEntries,
    ProposePacked,
    ReadSegments,
    WriteSegments,
)
from swamp.bulk.kernels import VerifyEntries
from swamp.bulk.schemas import (
    FINDINGS,
    INDEX,
    OBJECTS,
    RANGES,
    SEGMENTS,
    Boundary,
)
from swamp.env import ULID_LENGTH
from swamp.index.keys import PACK_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def frame_of(session: SparkSession, boundary: Boundary, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Driver-side rows as a DataFrame: addresses of work, never an index."""
    import pyarrow as pa

    table = pa.Table.from_batches([boundary.batch(rows)])
    return session.createDataFrame(table, boundary.ddl)


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


def propose_packed(packs: DataFrame, store: StoreAddress, tasks: int) -> DataFrame:
    """Packs of a bucket whose index is lost -> entries, as their footers tell."""
    spread = OBJECTS.select(packs).repartition(max(1, tasks))
    return INDEX.select(spread.mapInArrow(ProposePacked(store), INDEX.ddl))


def newest_uploads(entries: DataFrame) -> DataFrame:
    """One entry for each path, by when its content was first uploaded: a ULID sorts by time. A plain key, which we
    never write, gives way to any of ours. As `repo.repair`. inv[rebuild.newest-identity]"""
    from pyspark.sql import functions as sf

    identity = sf.coalesce(sf.nullif("id", sf.lit("")), "key")
    entries = entries.withColumn("identity", identity)
    packed = sf.substring("identity", len(PACK_PREFIX) + 1, ULID_LENGTH)
    uploaded = sf.when(sf.col("identity").rlike(PAYLOAD), sf.substring("identity", -ULID_LENGTH, ULID_LENGTH))
    uploaded = sf.when(is_slice_column("identity"), packed).otherwise(uploaded)
    own = is_slice_column("key") | sf.col("key").rlike(PAYLOAD)
    age = sf.struct(own.cast("int"), sf.coalesce(uploaded, sf.lit("")), sf.col("key"))
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

    return index.sortWithinPartitions("path", sf.col("kind") == DROPPED, sf.coalesce("seq", sf.lit(0)), "key")


def write_segments(ordered: DataFrame, store: StoreAddress, added_seq: int = 0) -> DataFrame:
    """Rows in path order -> descriptors of new segments. Nothing names them before the driver publishes."""
    return SEGMENTS.select(ordered.mapInArrow(WriteSegments(store, added_seq), SEGMENTS.ddl))


def balanced(entries: DataFrame, bins: int, large: int) -> DataFrame:
    """Rows with a `size` shared out by bytes without collecting them: the large ones are dealt to bins of their own.

    `bins` for the small ones, `large` (possibly 0) for rows over the size that fills a bin alone. The files of a pack
    come to one task, one after the other, so that it is read once.
    """
    from pyspark.sql import functions as sf

    spot = sf.xxhash64(object_of_column("key"))
    number = sf.pmod(spot, sf.lit(max(1, bins)))
    if large:
        apart = sf.pmod(spot, sf.lit(large)) + sf.lit(max(1, bins))
        alone = (sf.col("size") >= ALONE) & ~is_slice_column("key")
        number = sf.when(alone, apart).otherwise(number)
    return entries.repartitionById(max(1, bins) + large, number.cast("int")).sortWithinPartitions("key")


def is_slice_column(column: str) -> Column:
    """Whether `index.keys.object_of` is another name than the key."""
    from pyspark.sql import functions as sf

    return sf.col(column).rlike(f"^{PACK_PREFIX}[0-9A-HJKMNP-TV-Z]{{26}}@")


def object_of_column(column: str) -> Column:
    """`index.keys.object_of` for a column."""
    from pyspark.sql import functions as sf

    key = sf.col(column)
    return sf.when(is_slice_column(column), sf.substring(key, 1, len(PACK_PREFIX) + 26)).otherwise(key)


def verify(entries: DataFrame, store: StoreAddress, beacon: Address | None = None) -> DataFrame:
    """Entries -> findings: read, hash, compare."""
    return FINDINGS.select(INDEX.select(entries).mapInArrow(VerifyEntries(store, beacon), FINDINGS.ddl))
