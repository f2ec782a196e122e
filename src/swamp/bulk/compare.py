"""The full comparison on Spark: walk, read base, read the index, join, and hand over what is not trivial.

Base is read in ranges by tasks from `state.db`, as columns; the three sides meet in one exchange; only what is not
trivial is written, to Parquet files beside the cache, put in order, and read back batch by batch. Neither index nor
base is ever in the driver's memory; what changed is, as facts (decision 0009).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk import classify, stages
from swamp.bulk.balance import tasks_for
from swamp.bulk.beacon import Address, Beat
from swamp.bulk.indexing import index_row, row_from
from swamp.bulk.inventory import subtrees
from swamp.bulk.kernels import Batches, rows_of
from swamp.bulk.ranges import by_segments
from swamp.bulk.schemas import BASE, DIRECTORIES, INDEX, JOURNAL, LOCAL, RANGES
from swamp.cache.files import StatFingerprint
from swamp.cache.layout import FOLDER_PREFIX, CacheDir
from swamp.cache.rows import BaseRow
from swamp.cache.scan import Observed, ScanProblem
from swamp.cache.state import State
from swamp.env import SYSTEM
from swamp.index.entry import Row
from swamp.sync.gather import Gathered, Gatherer
from swamp.sync.progress import IdleTimeout

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from swamp.bulk.maintain import OnStore

Triple = tuple[str, BaseRow | None, Observed | None, Row | None]
READ_ROWS: Final = 4_096
BASE_ROWS: Final = 10_000
PART_ROWS: Final = 200_000
ORDERED_HERE: Final = 200_000


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
                    for columns in state.base_columns(row["after"] or "", row["until"], BASE_ROWS):
                        yield base_batch(columns)
        finally:
            state.close()


def base_batch(columns: Mapping[str, Sequence[object]]) -> pa.RecordBatch:
    """Columns as SQLite gives them, as Arrow: its 0 and 1 become booleans."""
    import pyarrow as pa

    arrays = [pa.array(columns[f.name], pa.int64() if f.name == "present" else f.type) for f in BASE.arrow()]
    return pa.RecordBatch.from_arrays(
        [a.cast(f.type) for a, f in zip(arrays, BASE.arrow(), strict=True)], schema=BASE.arrow()
    )


@dataclass(frozen=True)
class SparkComparison:
    """One full comparison of a cache with a store."""

    on: OnStore
    gatherer: Gatherer
    cache: CacheDir
    idle_timeout: IdleTimeout

    def run(self, out: Gathered) -> Iterator[Triple]:
        """Triples in units; what could not be looked at goes to `out` first. Its files are gone afterwards."""
        folder = self.cache.staging / f"{FOLDER_PREFIX}{os.getpid()}-{SYSTEM.ulid()}"
        try:
            kept = classify.worth_keeping(self.frame())
            self._write("compare", kept, folder / "kept")
            # What is left is put in order by itself: sorting before the writing would compare everything twice.
            if not _ordered_here(folder / "kept", folder / "ordered"):
                left = self.on.jobs.session.read.schema(kept.schema).parquet(_here(folder / "kept"))
                self._write("order", left.orderBy("unit", "path"), folder / "ordered")
            out.problems.extend(_problems(folder / "ordered"))
            yield from _triples(folder / "ordered")
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, stage: str, frame: DataFrame, folder: Path) -> None:
        self.on.jobs.run(stage, lambda: frame.write.mode("error").parquet(_here(folder)), self.idle_timeout)

    def frame(self) -> DataFrame:
        """Every path of the three sides, classified."""
        view, rows = self.gatherer.view, self.gatherer.snapshot.rows
        intent = self.gatherer.snapshot.intent()
        told = [(path, "delete") for path in sorted(intent.deletes - intent.again)]
        told += [(path, "owed") for path in self.gatherer.deferred]
        sides = self.base(), self.local(), self.remote()
        joined = classify.join(*sides, self._marks(told), whole_index=view.full, parts=self._parts())
        writes = [row.path for row in rows if row.kind == "write"]
        marks = self._marks([(path, "write") for path in writes])
        edited = classify.announced(joined, marks, (path.count("/") + 1 for path in writes))
        return classify.classify(
            edited, in_history=view.in_history, lazy=self.gatherer.lazy, leave_large=self.gatherer.leave_large
        )

    def _parts(self) -> int:
        """Exchange partitions that a task sorts in memory; at least a round for every core."""
        root = self.gatherer.view.root
        rows = 2 * self.gatherer.state.base_rows() + sum(ref.rows for ref in root.segments)
        return tasks_for(rows, PART_ROWS, least=self.on.jobs.parallelism)

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
        return LOCAL.select(files.withColumn("sha256", sf.lit(None)))

    def remote(self) -> DataFrame:
        """The whole index, or what is new in it and what an earlier pull owes."""
        view = self.gatherer.view
        if view.full:
            return self.on.index(view.root, usable_only=True)
        owed = {path: row for path, row in self.gatherer.deferred.items() if row is not None}
        rows = {**owed, **view.delta}.values()
        return stages.frame_of(self.on.jobs.session, INDEX, map(index_row, rows))

    def _marks(self, told: list[tuple[str, str]]) -> DataFrame:
        rows = ({"path": path, "kind": kind} for path, kind in told)
        return stages.frame_of(self.on.jobs.session, JOURNAL, rows)


def _ordered_here(kept: Path, ordered: Path) -> bool:
    """Whether there was so little that the driver has put it in order: a job costs seconds, whatever it does."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files = [pq.ParquetFile(file) for file in sorted(kept.glob("*.parquet"))]
    if sum(file.metadata.num_rows for file in files) > ORDERED_HERE:
        return False
    ordered.mkdir()
    if files:
        found = pa.concat_tables([file.read(use_threads=False) for file in files])
        pq.write_table(found.sort_by([("unit", "ascending"), ("path", "ascending")]), ordered / "all.parquet")
    return True


def _problems(folder: Path) -> Iterator[ScanProblem]:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    named = ["path", "l_problem", "l_directory", "l_error"]
    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(READ_ROWS, columns=named, use_threads=False):
            for row in batch.filter(pc.is_valid(batch.column("l_problem"))).to_pylist():
                yield ScanProblem(row["path"], row["l_problem"], row["l_error"] or "", bool(row["l_directory"]))


def _triples(folder: Path) -> Iterator[Triple]:
    import pyarrow.parquet as pq

    for file in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(file).iter_batches(READ_ROWS, use_threads=False):
            columns = batch.to_pydict()
            sides = [_side(columns, "b", _BASE), _side(columns, "l", _HINT), _side(columns, "r", _INDEX)]
            for path, problem, base, local, remote in zip(columns["path"], columns["l_problem"], *sides, strict=True):
                if problem is None:
                    yield path, _base_of(path, *base), _local_of(path, *local), _remote_of(path, remote)


def _side(columns: Mapping[str, Sequence[Any]], mark: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(columns[f"{mark}_{name}"] for name in names), strict=True)


_HINT: Final = ("h_size", "h_mtime", "h_ctime", "h_inode")
_BASE: Final = ("key", "size", "sha256", "seq", "present", "id", "id_seq", *_HINT)
_INDEX: Final = tuple(name for name in INDEX.columns if name != "path")


def _base_of(path: str, key: str | None, *told: Any) -> BaseRow | None:
    if key is None:
        return None
    size, sha256, seq, present, first, number, *hint = told
    return BaseRow(path, key, size, sha256, seq, present, _hint_of(*hint), first or "", number or 0)


def _hint_of(size: int | None, mtime: int, ctime: int, inode: int) -> StatFingerprint | None:
    return None if size is None else StatFingerprint(size, mtime, ctime, inode)


def _local_of(path: str, *hint: Any) -> Observed | None:
    found = _hint_of(*hint)
    return None if found is None else Observed(path, found)


def _remote_of(path: str, values: tuple[Any, ...]) -> Row | None:
    row = dict(zip(_INDEX, values, strict=True), path=path)
    return None if row["kind"] is None else row_from(row)  # type: ignore[return-value]


def _here(folder: Path) -> str:
    """As the JVM names a directory of this machine, whatever file system its paths mean by default (`fs.defaultFS`).
    Not as a URI: it would take `%20` for part of the name."""
    return f"file://{folder.absolute()}"
