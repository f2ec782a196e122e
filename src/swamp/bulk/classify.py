"""base, local, remote -> what each path is and what is to be done about it: a full outer join and the decision table.

The table's rows are `sync.decide.TABLE`, the same data that the planner in process looks up; the labels are those of
`sync.facts.Facts`, written as columns. A property test holds both equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.indexing import DELETED, DROPPED, ENTRY
from swamp.bulk.schemas import BASE, INDEX, LOCAL, Boundary
from swamp.sync.decide import TABLE, Decision
from swamp.sync.units import LARGE_PART, MANIFEST, METADATA, SPARK_PART

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# sync.units.unit_of, as a pattern
UNIT: Final = r"^(data/[^/]+/[^/]+/[^/]+(?:/[^/]+)*?/\p{Nd}+)/(?:metadata\.yaml|parts\.parquet|raw)(?:/.*)?$"
_HINTS: Final = ("h_size", "h_mtime", "h_ctime", "h_inode")


def join(
    base: DataFrame, local: DataFrame, index: DataFrame, told: DataFrame, *, whole_index: bool, parts: int
) -> DataFrame:
    """One row per path that any side knows, with what was announced of it by name.

    All sides travel once, to where the rest of their unit goes: the winner of a path's index rows, the join and the
    question whether a unit is worth keeping need no further exchange. inv[index.highest-seq]
    Without the whole index a path that it does not name is what base says.
    """
    from pyspark.sql import functions as sf

    # With equal numbers they are the same row, or the live one stays.
    age = sf.struct(sf.coalesce("seq", sf.lit(0)), (sf.col("kind") == ENTRY).cast("int"))
    sides = (
        BASE.select(base).select("path", _packed(BASE, "b")),
        local.select("path", _packed(LOCAL, "l")),
        INDEX.select(index).where(sf.col("kind") != DROPPED).select("path", _packed(INDEX, "r"), age.alias("age")),
        told.select("path", sf.col("kind").alias("word")),
    )
    everything = sides[0]
    for side in sides[1:]:
        everything = everything.unionByName(side, allowMissingColumns=True)
    gathered = everything.withColumn("unit", unit()).repartition(max(1, parts), "unit").groupBy("unit", "path")
    merged = gathered.agg(
        sf.first("b", ignorenulls=True).alias("b"),
        sf.first("l", ignorenulls=True).alias("l"),
        sf.max_by("r", "age").alias("r"),
        sf.coalesce(sf.bool_or(sf.col("word") == "delete"), sf.lit(False)).alias("deleted"),
        sf.coalesce(sf.bool_or(sf.col("word") == "owed"), sf.lit(False)).alias("owed"),
    ).where("b is not null or l is not null or r is not null")
    columns = [*_unpacked(BASE, "b"), *_unpacked(LOCAL, "l"), *_unpacked(INDEX, "r")]
    joined = merged.select("unit", "path", "deleted", "owed", *columns)
    return joined if whole_index else joined.withColumns(_from_base())


def _of_side(boundary: Boundary) -> list[str]:
    return [column for column in boundary.columns if column != "path"]


def _packed(boundary: Boundary, name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.struct(*_of_side(boundary)).alias(name)


def _unpacked(boundary: Boundary, name: str) -> list[Column]:
    from pyspark.sql import functions as sf

    return [sf.col(f"{name}.{column}").alias(f"{name}_{column}") for column in _of_side(boundary)]


def _from_base() -> dict[str, Column]:
    """What an incremental index says of the paths that it does not name."""
    from pyspark.sql import functions as sf

    unnamed = sf.col("r_key").isNull() & sf.col("b_key").isNotNull()
    same = {f"r_{name}": f"b_{name}" for name in ("key", "size", "sha256", "seq", "id", "id_seq")}
    filled = {mine: sf.when(unnamed, sf.col(theirs)).otherwise(sf.col(mine)) for mine, theirs in same.items()}
    filled["r_kind"] = sf.when(unnamed, sf.lit(ENTRY)).otherwise(sf.col("r_kind"))
    filled["r_last_modified"] = sf.when(unnamed, sf.lit("")).otherwise(sf.col("r_last_modified"))
    return filled


def announced(joined: DataFrame, writes: DataFrame, depths: Iterable[int]) -> DataFrame:
    """With `edited`: a write row on the path or above it. `depths` are the lengths of the announced paths: one lookup
    for each, so that no path has to be taken apart."""
    from pyspark.sql import functions as sf

    edited = sf.lit(False)
    for depth in sorted(set(depths)):
        mark, above = f"edited_{depth}", f"above_{depth}"
        of_depth = writes.where(sf.size(sf.split("path", "/")) == depth)
        named = of_depth.select(sf.col("path").alias(above), sf.lit(True).alias(mark)).distinct()
        here = joined.withColumn("here", sf.substring_index("path", "/", depth))
        joined = here.join(named, sf.col("here") == sf.col(above), "left").drop("here", above)
        edited = edited | sf.coalesce(mark, sf.lit(False))
    return joined.withColumn("edited", edited)


def classify(joined: DataFrame, *, in_history: bool, lazy: bool = False, leave_large: bool = False) -> DataFrame:
    """With labels, the verb of the table (null while a hash must be learned first), and whether it is trivial."""
    from pyspark.sql import functions as sf

    known = joined.withColumns(_facts())
    labelled = known.withColumns(
        {"local_label": _local_label(in_history), "remote_label": _remote_label(in_history), "equal": _equal()}
    )
    undecided = sf.col("needs_hash") | sf.col("needs_remote_hash")
    verb = sf.when(undecided, sf.lit(None).cast("string")).otherwise(case_when(TABLE))
    return labelled.withColumns({"verb": verb, "trivial": _trivial(lazy, leave_large)})


def unit() -> Column:
    from pyspark.sql import functions as sf

    found = sf.regexp_extract("path", UNIT, 1)
    return sf.when(found != "", found).otherwise(sf.col("path"))


def case_when(table: tuple[Decision, ...]) -> Column:
    """The decision table as one expression."""
    from pyspark.sql import functions as sf

    made: Any = None
    for row in table:
        fits = sf.col("local_label").isin(*row.local) & sf.col("remote_label").isin(*row.remote)
        if row.equal is not None:
            fits = fits & (sf.col("equal") == sf.lit(row.equal))
        made = sf.when(fits, row.verb) if made is None else made.when(fits, row.verb)
    return made  # type: ignore[no-any-return]


def _facts() -> dict[str, Column]:
    from pyspark.sql import functions as sf

    c = sf.col
    here = c("l_h_size").isNotNull()
    held = c("b_key").isNotNull() & c("b_present")
    same_size = here & held & (c("l_h_size") == c("b_size"))
    vouched = c("b_h_size").isNotNull()
    for name in _HINTS:
        vouched = vouched & (c(f"b_{name}") == c(f"l_{name}"))
    proven = c("l_sha256").isNotNull() & (c("l_sha256") == c("b_sha256"))
    unchanged = _true(same_size) & (_true(vouched) | _true(proven))
    there = _true(c("r_kind") == ENTRY)
    matching = there & here & _true(c("r_size") == c("l_h_size"))
    unhashed = here & c("l_sha256").isNull() & ~unchanged
    is_base = there & _true(_identity("r") == _identity("b"))
    return {
        "here": here,
        "unchanged": unchanged,
        "there": there,
        "needs_hash": unhashed & (_true(same_size) | matching),
        "needs_remote_hash": matching & c("r_sha256").isNull() & ~(is_base & unchanged),
    }


def _equal() -> Column:
    from pyspark.sql import functions as sf

    mine = sf.when(sf.col("unchanged"), sf.col("b_sha256")).otherwise(sf.col("l_sha256"))
    same_size = _true(sf.col("l_h_size") == sf.col("r_size"))
    return sf.col("there") & sf.col("here") & same_size & _true(mine == sf.col("r_sha256"))


def _local_label(in_history: bool) -> Column:
    from pyspark.sql import functions as sf

    told = sf.col("r_kind").isNotNull() | sf.lit(in_history)
    return (
        sf.when(~sf.col("here"), sf.when(sf.col("deleted"), "deleted").otherwise("absent"))
        .when(sf.col("unchanged") & told, "same")
        .when(sf.col("edited"), "edited")
        .otherwise("found")
    )


def _remote_label(in_history: bool) -> Column:
    from pyspark.sql import functions as sf

    known = sf.col("b_key").isNotNull()
    same_key = _true(_identity("r") == _identity("b"))
    # inv[delete.by-key]: what was undeleted since is not what was deleted.
    returned = sf.col("deleted") & ~sf.col("here") & _true(_number("r") > _number("b"))
    return (
        sf.when(sf.col("r_kind").isNull(), sf.when(known & sf.lit(in_history), "tombstone").otherwise("none"))
        .when(sf.col("r_kind") == DELETED, "tombstone")
        .when(same_key & ~returned, "same")
        .otherwise("newer")
    )


def _trivial(lazy: bool, leave_large: bool) -> Column:
    """`Facts.trivial`; of what stays in the store `Facts.resting`, too."""
    from pyspark.sql import functions as sf

    c = sf.col
    quiet = ~c("edited") & ~c("deleted") & ~c("owed") & c("l_problem").isNull()
    quiet = quiet & c("there") & _true(c("r_key") == c("b_key")) & _true(c("r_seq") == c("b_seq"))
    if not lazy and not leave_large:
        return quiet & c("unchanged")
    described = [sf.concat(c("unit"), sf.lit(f"/{name}")) for name in (METADATA, MANIFEST)]
    content = (c("unit") != c("path")) & ~c("path").isin(*described)
    if not lazy:
        content = content & c("path").rlike(SPARK_PART) & _true(c("r_size") >= LARGE_PART)
    return quiet & (c("unchanged") | (~c("here") & ~_true(c("b_present")) & content))


def _identity(side: str) -> Column:
    """`Known.identity`: base says "" and the index null where it is the key. inv[pack.identity]"""
    from pyspark.sql import functions as sf

    return sf.coalesce(sf.nullif(sf.col(f"{side}_id"), sf.lit("")), sf.col(f"{side}_key"))


def _number(side: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.coalesce(sf.nullif(sf.col(f"{side}_id_seq"), sf.lit(0)), sf.col(f"{side}_seq"))


def _true(condition: Column) -> Column:
    """Null is not true."""
    from pyspark.sql import functions as sf

    return sf.coalesce(condition, sf.lit(False))


def worth_keeping(classified: DataFrame) -> DataFrame:
    """Whole units of which something is not trivial: what the planner needs of them. inv[unit.whole]"""
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    busy = sf.max((~sf.col("trivial")).cast("int")).over(Window.partitionBy("unit"))
    sides = [f"{mark}_{c}" for mark, side in (("b", BASE), ("l", LOCAL), ("r", INDEX)) for c in _of_side(side)]
    return classified.withColumn("busy", busy).where("busy = 1").select("unit", "path", *sides)
