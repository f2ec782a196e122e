"""Repacking by executors: what lives in each pack, and its slices copied into new packs. The driver commits.

A `commit.repack.Bulk`: the index is neither walked nor held on the driver, and no pack is read by two tasks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk import stages
from swamp.bulk.beacon import Address, Beat
from swamp.bulk.clients import StoreAddress, opened, put_patiently
from swamp.bulk.indexing import ENTRY, row_from
from swamp.bulk.kernels import Batches, rows_of
from swamp.bulk.maintain import OnStore, within
from swamp.bulk.schemas import INDEX, MOVED, OBJECTS
from swamp.commit.repack import OLD_DEAD, PackCopier, PackSurvey
from swamp.env import SYSTEM
from swamp.index.entry import Row, Unreferenced
from swamp.index.keys import MAX_SLICE, PACK_PREFIX, object_of
from swamp.index.root import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from swamp.commit.collect import Ages

_LENGTH: Final = rf"^{PACK_PREFIX}[0-9A-HJKMNP-TV-Z]{{26}}@[0-9]{{1,10}}\+([0-9]{{1,10}})(\.z)?$"
TASK_BYTES: Final = 64 << 20
"""What one task copies: some packs, so that new ones come out full."""


@dataclass(frozen=True)
class CopySlices:
    """Rows of packs, those of one pack in one partition -> the same rows with the place of their copy.

    A second attempt copies under other names; what nobody commits is an orphan. inv[object.key-once]
    """

    store: StoreAddress
    beacon: Address | None = None

    def __call__(self, batches: Batches) -> Batches:
        store = opened(self.store)
        with Beat(self.beacon) as beat, beat.at_work():
            copier = PackCopier(store, SYSTEM, lambda key, body: put_patiently(store, key, body))
            rows = {_row(found): found for found in rows_of(batches)}
            for batch in MOVED.batches(_placed(rows, copier), 500):
                beat.add(batch.num_rows)
                yield batch


def _placed(rows: dict[Row, dict[str, Any]], copier: PackCopier) -> Iterator[dict[str, Any]]:
    for row, place in copier.copy(rows, lambda: None):
        yield {**rows[row], "place": place}


def _row(found: dict[str, Any]) -> Row:
    row = row_from(found)
    assert not isinstance(row, Unreferenced)
    return row


@dataclass(frozen=True)
class Moving:
    """`commit.repack.Bulk` on one store, with one session."""

    bulk: OnStore

    def survey(self, root: Root, ages: Ages, keep: dt.timedelta) -> Iterable[PackSurvey]:
        """One row for each pack that the index names: a pack of 8 MiB is thousands of files."""
        from pyspark.sql import functions as sf

        index = self.bulk.index(root).withColumn("pack", stages.object_of_column("key"))
        length = sf.regexp_extract("key", _LENGTH, 1).try_cast("bigint")
        live = stages.winners(index).where(f"kind = '{ENTRY}'").withColumn("length", length)
        named = live.where(sf.col("length") <= MAX_SLICE).groupBy(stages.object_of_column("key").alias("pack"))
        lives = named.agg(sf.sum("length").alias("live"), sf.count("*").alias("rows"))
        given_up = index.where((sf.col("kind") != ENTRY) & sf.col("pack").startswith(PACK_PREFIX)).groupBy("pack")
        long = max(OLD_DEAD, keep)
        dies = given_up.agg(
            sf.max(within("seq", ages.young(keep))).alias("waits"),
            sf.max(~within("seq", ages.young(long))).alias("long_dead"),
        )
        frame = lives.join(dies, "pack", "full")
        for told in self.bulk.jobs.run("survey", frame.toArrow, self.bulk.idle_timeout).to_pylist():
            counted = int(told["live"] or 0), int(told["rows"] or 0)
            yield PackSurvey(told["pack"], *counted, bool(told["waits"]), bool(told["long_dead"]))

    def move(self, root: Root, packs: Sequence[str]) -> Iterable[tuple[Row, str]]:
        """Copies them in tasks of some packs each; what a run may move at most is what the driver holds."""
        from pyspark.sql import functions as sf

        wanted = stages.frame_of(self.bulk.jobs.session, OBJECTS, ({"key": key} for key in packs)).select(
            sf.col("key").alias("pack")
        )
        entries = self.bulk.entries(root).withColumn("pack", stages.object_of_column("key"))
        with self.bulk.kept(INDEX.select(entries.join(sf.broadcast(wanted), "pack", "left_semi"))) as rows:
            table = self.bulk.jobs.run("repack", self._copied(rows).toArrow, self.bulk.idle_timeout)
        moved = [(_row(found), str(found["place"])) for found in table.to_pylist()]
        return sorted(moved, key=lambda move: (object_of(move[0].key), move[0].path))

    def _copied(self, rows: DataFrame) -> DataFrame:
        size = self.bulk.total(rows)["size"]
        tasks = max(1, min(size // TASK_BYTES, self.bulk.jobs.parallelism * 4))
        shared = stages.balanced(rows, tasks, 0)
        kernel = CopySlices(self.bulk.spec, self.bulk.jobs.beacon)
        return MOVED.select(INDEX.select(shared).mapInArrow(kernel, MOVED.ddl))
