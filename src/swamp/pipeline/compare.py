"""The full comparison on Spark: walk, read base, read the index, join, and hand over what is not trivial.

Base is read in ranges by tasks from `state.db`; the result lies in Parquet files beside the cache and is read back
batch by batch: neither index nor base is ever in the driver's memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.cache.layout import CacheDir
from swamp.cache.scan import Observed, ScanProblem
from swamp.cache.state import BaseRow, State
from swamp.env import SYSTEM
from swamp.index.entry import Row
from swamp.pipeline import classify, stages
from swamp.pipeline.beacon import Address, Beat
from swamp.pipeline.indexing import index_row, row_from
from swamp.pipeline.inventory import subtrees
from swamp.pipeline.kernels import Batches, hint_from, hint_row, rows_of
from swamp.pipeline.ranges import by_segments
from swamp.pipeline.schemas import BASE, DIRECTORIES, FILES, INDEX, JOURNAL, RANGES
from swamp.sync.gather import Gathered, Gatherer
from swamp.sync.progress import Patience

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from swamp.pipeline.bulk import OnStore

Triple = tuple[str, BaseRow | None, Observed | None, Row | None]
READ_ROWS: Final = 4_096


@dataclass(frozen=True)
class ReadBase:
    """Path ranges -> base rows of this cache."""

    database: str
    beacon: Address | None = None

    def __call__(self, batches: Batches) -> Batches:
        state = State.open(Path(self.database))
        try:
            with Beat(self.beacon):
                for row in rows_of(batches):
                    yield from BASE.batches(map(base_row, state.base_between(row["after"] or "", row["until"])))
        finally:
            state.close()


def base_row(row: BaseRow) -> dict[str, Any]:
    named = {name: getattr(row, name) for name in ("path", "key", "size", "sha256", "seq", "present")}
    return {**named, **hint_row(row.hint)}


@dataclass(frozen=True)
class Comparison:
    """One full comparison of a cache with a store."""

    on: OnStore
    gatherer: Gatherer
    cache: CacheDir
    patience: Patience

    def run(self, out: Gathered) -> Iterator[Triple]:
        """Triples in units; what could not be looked at goes to `out` first. Its files are gone afterwards."""
        folder = self.cache.staging / f"compare-{SYSTEM.ulid()}"
        try:
            frame = self.frame()
            kept = classify.worth_keeping(frame).orderBy("unit", "path")
            jobs = self.on.jobs
            jobs.run("compare", lambda: kept.write.mode("error").parquet(str(folder)), self.patience)
            out.problems.extend(_problems(folder))
            yield from _triples(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def frame(self) -> DataFrame:
        """Every path of the three sides, classified."""
        view = self.gatherer.view
        joined = classify.join(self.base(), self.local(), self.remote(), whole_index=view.full)
        rows = self.gatherer.snapshot.rows
        told = classify.announced(
            joined,
            self._paths("write", [r.path for r in rows if r.kind == "write"]),
            self._paths("delete", [r.path for r in rows if r.kind == "delete"]),
            self._paths("owed", list(self.gatherer.deferred)),
        )
        return classify.classify(told, in_history=view.in_history)

    def base(self) -> DataFrame:
        cuts = [path for ref in self.gatherer.view.root.segments for path in (ref.min_path, ref.max_path)]
        ranges = by_segments(cuts, self.on.jobs.parallelism * 4)
        rows = ({"prefix": "", "after": start, "until": stop} for start, stop in ranges)
        frame = stages.frame_of(self.on.jobs.session, RANGES, rows).repartition(len(ranges))
        return BASE.select(frame.mapInArrow(ReadBase(str(self.cache.state_db)), BASE.ddl))

    def local(self) -> DataFrame:
        from pyspark.sql import functions as sf

        tree, exclude, wanted = str(self.gatherer.tree), self.gatherer.exclude, self.on.jobs.parallelism * 4
        found = subtrees(tree, tuple(self.gatherer.starts()), wanted, exclude)
        rows = ({"directory": directory} for directory in found)
        frame = stages.frame_of(self.on.jobs.session, DIRECTORIES, rows)
        files = stages.inventory_local(frame, tree, self.on.jobs.parallelism, self.on.jobs.beacon, exclude)
        return FILES.select(files).withColumn("sha256", sf.lit(None).cast("string"))

    def remote(self) -> DataFrame:
        """The whole index, or what is new in it and what an earlier pull owes."""
        view = self.gatherer.view
        if view.full:
            return stages.winners(self.on.index(view.root, usable_only=True))
        owed = {path: row for path, row in self.gatherer.deferred.items() if row is not None}
        rows = {**owed, **view.delta}.values()
        return stages.frame_of(self.on.jobs.session, INDEX, map(index_row, rows))

    def _paths(self, kind: str, paths: list[str]) -> DataFrame:
        rows = ({"path": path, "kind": kind} for path in paths)
        return stages.frame_of(self.on.jobs.session, JOURNAL, rows).select("path")


def _batches(folder: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for file in sorted(folder.glob("*.parquet")):
        opened = pq.ParquetFile(file)
        for batch in opened.iter_batches(READ_ROWS, use_threads=False):
            yield from batch.to_pylist()


def _problems(folder: Path) -> Iterator[ScanProblem]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    named = ["path", "l_problem", "l_directory", "l_error"]
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(READ_ROWS, columns=named, use_threads=False):
            for row in batch.filter(pc.is_valid(batch.column("l_problem"))).to_pylist():
                yield ScanProblem(row["path"], row["l_problem"], row["l_error"] or "", bool(row["l_directory"]))


def _triples(folder: Path) -> Iterator[Triple]:
    for row in _batches(folder):
        if row["l_problem"] is None:
            yield row["path"], _base_of(row), _local_of(row), _remote_of(row)


def _side(row: dict[str, Any], mark: str) -> dict[str, Any]:
    return {name.removeprefix(mark): value for name, value in row.items() if name.startswith(mark)}


def _base_of(row: dict[str, Any]) -> BaseRow | None:
    side = _side(row, "b_")
    if side["key"] is None:
        return None
    return BaseRow(
        row["path"], side["key"], side["size"], side["sha256"], side["seq"], side["present"], hint_from(side)
    )


def _local_of(row: dict[str, Any]) -> Observed | None:
    hint = hint_from(_side(row, "l_"))
    return None if hint is None else Observed(row["path"], hint)


def _remote_of(row: dict[str, Any]) -> Row | None:
    side = _side(row, "r_")
    if side["kind"] is None:
        return None
    return row_from({**side, "path": row["path"]})  # type: ignore[return-value]
