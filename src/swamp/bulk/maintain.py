"""Bulk work on a store: compare, discover, verify, mark, compact, repack, re-index.

What is done is what is done in process, on a range of paths or of keys by each task; Spark brings together what belongs
together. What becomes true becomes true on the driver, once, through `commit/`. inv[spark.publish-once]
Push, pull and hydrate are the engine's own, with their transfers on Spark (`transfer`).
"""

from __future__ import annotations

import datetime as dt
import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk.jobs import Jobs
from swamp.bulk.kernels import (
    CopySlices,
    GatherRanges,
    JudgeObjects,
    OfListings,
    OfRanges,
    Pages,
    ProposePacked,
    Told,
    VerifyEntries,
    WriteSegments,
    adopted,
    entries_of,
    live_entries,
    merged,
    object_claims,
    own_listed,
    proposed,
)
from swamp.bulk.shares import ALONE, MOST_TASKS, bins_for, by_count, by_weight, cut, tasks_for
from swamp.bulk.spread import COLUMNS, InArrow, Kernel, Named, frame_of, named_frame, values_of
from swamp.cache.layout import FOLDER_PREFIX, CacheDir
from swamp.cache.scan import ScanProblem, landmarks
from swamp.commit.bootstrap import Bootstrapped, LeftOut
from swamp.commit.collect import Marked, MarkTerms, internal_objects, segments_live
from swamp.commit.commit import Committer, RootRead
from swamp.commit.log import Ages
from swamp.commit.repack import PackSurvey, survey
from swamp.env import SYSTEM
from swamp.index.entry import Row, object_of
from swamp.index.pack import packs_of
from swamp.index.read import row_groups
from swamp.index.root import Root, SegmentRef, Span
from swamp.sync.gather import Gathered, Gatherer
from swamp.sync.progress import IdleTimeout
from swamp.sync.units import cut_before
from swamp.sync.verify import Finding
from swamp.sync.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from swamp.store.open import StoreSpec

SEGMENT_TARGET: Final = 250_000
READ_TARGET: Final = 50_000
"""Rows of the index that one task reads: fewer than a segment has, so that several cores share one."""
TASK_BYTES: Final = 64 << 20
"""What one task of a repack copies: some packs, so that new ones come out full."""
RANGE_ROWS: Final = 250_000
"""Rows of base and index that one range of a comparison has, if there are enough of them for every core."""
PORTION: Final = 2_000
_NOTHING: Final = Bootstrapped(RootRead(None, None))


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification saw: how much, and every entry that is not what it must be."""

    checked: int
    bytes: int
    bad: tuple[Finding, ...]


@dataclass(frozen=True)
class OnStore:
    """Bulk commands on one store, with one session. For `commit.repack` it is a `Bulk`."""

    jobs: Jobs
    spec: StoreSpec
    committer: Committer
    idle_timeout: IdleTimeout

    # -- the index, by ranges of paths

    def of_ranges(self, root: Root, made: Callable[..., Iterable[Any]]) -> OfRanges:
        return OfRanges(self.spec, root, made, self.jobs.beacon)

    def ranges(self, refs: Sequence[SegmentRef], each: int = READ_TARGET) -> list[list[Span]]:
        """Ranges of about `each` rows, a task for each."""
        rows = sum(ref.rows for ref in refs)
        wanted = tasks_for(rows, each)
        step = max(1, rows // (wanted * 8))
        marks = [mark for ref in refs for mark in row_groups(self.committer.store, ref, step)]
        return [[found] for found in by_weight(marks, wanted)]

    def entries(self, root: Root) -> DataFrame:
        """The files that exist, by their objects."""
        return named_frame(self.jobs.session, self.ranges(root.segments), self.of_ranges(root, live_entries))

    def spread(self, stage: str, shares: Sequence[Sequence[Any]], kernel: Kernel) -> list[Any]:
        return self.jobs.run(stage, lambda: self.jobs.spread(shares, kernel), self.idle_timeout)

    def values(self, stage: str, frame: DataFrame, kernel: Kernel | None = None, files: int | None = None) -> list[Any]:
        """What a table holds, or what a kernel makes of each of its partitions."""
        made = frame if kernel is None else frame.mapInArrow(InArrow(kernel), COLUMNS)
        return list(values_of(self.jobs.run(stage, made.toArrow, self.idle_timeout, files=files)))

    @contextmanager
    def kept(self, rows: DataFrame) -> Iterator[DataFrame]:
        """Rows that are looked at more than once: computed by the first who looks, kept for the others."""
        kept = rows.persist()
        try:
            yield kept
        finally:
            kept.unpersist()

    def total(self, entries: DataFrame) -> dict[str, int]:
        """How many files there are, their bytes, and how many of them are large."""
        from pyspark.sql import functions as sf

        large = sf.coalesce(sf.sum((sf.col("size") >= ALONE).cast("int")), sf.lit(0))
        size = sf.coalesce(sf.sum(sf.col("size").cast("decimal(38,0)")), sf.lit(0))  # sizes that lie may overflow
        frame = entries.agg(sf.count("*").alias("files"), size.alias("size"), large.alias("large"))
        row = self.jobs.run("count", frame.toArrow, self.idle_timeout).to_pylist()[0]
        return {"files": row["files"], "size": int(row["size"]), "large": min(row["large"], MOST_TASKS)}

    def balanced(self, entries: DataFrame, total: dict[str, int]) -> DataFrame:
        """Shared out by bytes without collecting them: the large ones are dealt to bins of their own, and the files of
        a pack come to one task, one after the other, so that it is read once."""
        from pyspark.sql import functions as sf

        bins, large = bins_for(total["files"], total["size"], self.jobs.parallelism), total["large"]
        spot = sf.xxhash64("name")
        number = sf.pmod(spot, sf.lit(bins))
        if large:
            apart = sf.pmod(spot, sf.lit(large)) + sf.lit(bins)
            number = sf.when(sf.col("size") >= ALONE, apart).otherwise(number)
        return entries.repartitionById(bins + large, number.cast("int")).sortWithinPartitions("name")

    # -- a cache and the store

    def compare(self, gatherer: Gatherer, cache: CacheDir, most: int | None) -> Iterator[Gathered]:
        """The full comparison: what `sync.gather.Gatherer.gathered` finds, in portions of about `most` facts, whole
        units in path order.

        Each task reads base and tree where the cache is, and the index through the store client. Facts that are not
        trivial are written beside the cache, a file for each range, and read back in path order: neither index nor base
        is ever in the driver's memory (decision 0009). The files are gone afterwards.
        """
        folder = cache.staging / f"{FOLDER_PREFIX}{os.getpid()}-{SYSTEM.ulid()}"
        folder.mkdir()
        try:
            of_view, of_gatherer = _told(gatherer.view, "store"), _told(gatherer, "state", "view")
            portion = PORTION if most is None else min(PORTION, most)
            database, beacon = str(cache.state_db), self.jobs.beacon
            kernel = GatherRanges(self.spec, database, str(folder), of_view, of_gatherer, portion, beacon)
            shares = [[found] for found in self._compared_ranges(gatherer)]
            ranges: list[Told] = sorted(self.spread("compare", shares, kernel), key=itemgetter(0))
            # An obstacle on the border of two ranges was met by both.
            problems = list(dict.fromkeys(problem for _, _, met in ranges for problem in met))
            yield from _portions((folder / name for _, name, _ in ranges), problems, most)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _compared_ranges(self, gatherer: Gatherer) -> list[Span]:
        """Where the paths are cut, by what is known of all three sides without reading them."""
        state, root, full = gatherer.state, gatherer.view.root, gatherer.view.full
        rows = state.base_rows() + (sum(ref.rows for ref in root.segments) if full else 0)
        wanted = tasks_for(rows, RANGE_ROWS, least=self.jobs.parallelism * 2)
        step = max(1, rows // (wanted * 8))
        marks = [(path, step) for path in state.base_every(step)]
        if full:
            marks += [mark for ref in root.segments for mark in row_groups(self.committer.store, ref, step)]
        marks += landmarks(gatherer.tree, gatherer.starts(), wanted * 8, exclude=gatherer.exclude)
        return by_weight(((cut_before(path), weight) for path, weight in marks), wanted)

    # -- payloads

    def verify(self, root: Root) -> Verified:
        """Reads every payload and compares it with the index. Reports; changes nothing."""
        with self.kept(self.entries(root)) as entries:
            total = self.total(entries)
            kernel = VerifyEntries(self.spec, self.jobs.beacon)
            bad = self.values("verify", self.balanced(entries, total), kernel, total["files"])
        return Verified(total["files"], total["size"], tuple(sorted(bad, key=lambda found: str(found.entry.path))))

    # -- listings: discover, re-index

    def listed(self, made: Callable[[Pages], Iterable[Named]]) -> DataFrame:
        """The tier directories, a task for each range of keys or for some of them."""
        pieces = cut(self.committer.store, self.jobs.parallelism * 4)
        shares = by_count(pieces.listed, self.jobs.parallelism * 8)
        return named_frame(self.jobs.session, shares, OfListings(self.spec, made))

    def discover(self) -> Bootstrapped:
        """Publishes a first root over the objects of a bucket without one; none when it is empty. Create-only.

        The caller has made sure that there is neither a root nor a log nor an older format (`commit.bootstrap`).
        """
        with self.kept(self.listed(adopted)) as found:
            left = LeftOut()
            for count, first in sorted(self.values("discover", found.where("name = ''"))):
                left.add(count, first)
            entries = found.where("name != ''")
            files = self.jobs.run("discover", entries.count, self.idle_timeout)
            if not files:
                return left.told(_NOTHING)
            root = self.committer.first_root()
            root = replace(root, segments=self._segments(entries, files, root.seq))
        read = self.committer.replace(RootRead(None, None), root, self.idle_timeout.check)
        return left.told(Bootstrapped(read, discovered=read.root is not None and read.root.knows_op(root.op)))

    @contextmanager
    def proposal(self) -> Iterator[tuple[int, Callable[[int], tuple[SegmentRef, ...]]]]:
        """What a listing says the lost index was: how many files, and a way to write that as segments (L48).

        As `repo.repair`, which holds it in memory: the newest upload of each path. A guess, so a person agrees first.
        """
        packs = list(packs_of(self.committer.store))
        shares = by_count(packs, self.jobs.parallelism * 8)
        packed = named_frame(self.jobs.session, shares, ProposePacked(self.spec))
        with self.kept(self.listed(proposed).unionByName(packed)) as found:
            files = self.jobs.run("list", found.select("name").distinct().count, self.idle_timeout)
            yield files, lambda seq: self._segments(found, files, seq) if files else ()

    def _segments(self, entries: DataFrame, files: int, added_seq: int) -> tuple[SegmentRef, ...]:
        """New segments of entries by path, written by executors; they are nothing until they are published."""
        ranged = entries.repartitionByRange(tasks_for(files, SEGMENT_TARGET), "name").sortWithinPartitions("name")
        return _in_order(self.values("write segments", ranged, WriteSegments(self.spec, added_seq)))

    # -- what `commit` does with an index: compact, collect, repack

    def merged(self, root: Root, inputs: Sequence[SegmentRef], horizon: int) -> tuple[SegmentRef, ...]:
        """A `commit.repack.Merge`: the inputs as few new segments under the highest number among them."""
        made = self.of_ranges(root, partial(merged, self.spec, tuple(inputs), horizon))
        return _in_order(self.spread("compact", self.ranges(inputs, SEGMENT_TARGET), made))

    def mark(self, root: Root, keep: dt.timedelta) -> Marked:
        """What `commit.collect.mark` finds, without holding the index or the listing here."""
        store = self.committer.store
        terms = MarkTerms.now(store, root, keep)
        made = self.of_ranges(root, partial(object_claims, terms))
        claimed = named_frame(self.jobs.session, self.ranges(root.segments), made)
        at_hand: list[Named] = [(meta.key, meta.size, (meta.key, meta)) for meta in internal_objects(store)]
        at_hand += [(name, 0, (name, claim)) for name, claim in segments_live(root)]
        told = claimed.unionByName(self.listed(own_listed)).unionByName(frame_of(self.jobs.session, at_hand))
        tasks = tasks_for(root.files_at_most, SEGMENT_TARGET, least=self.jobs.parallelism)
        judged = told.repartition(tasks, "name").sortWithinPartitions("name")
        return terms.marked(self.values("mark", judged, JudgeObjects(terms)))

    def survey(self, root: Root, ages: Ages, keep: dt.timedelta) -> list[PackSurvey]:
        made = self.of_ranges(root, partial(survey, ages, keep))
        return self.spread("survey", self.ranges(root.segments), made)

    def move(self, root: Root, packs: Sequence[str]) -> list[tuple[Row, str]]:
        """Copies in tasks of some packs each; what a run may move at most is what the driver holds."""
        made = self.of_ranges(root, partial(entries_of, frozenset(packs)))
        rows = sorted(self.spread("repack", self.ranges(root.segments), made), key=lambda row: object_of(row.key))
        shares: list[list[Row]] = []
        size, name = 0, ""
        for row in rows:
            if not shares or (size >= TASK_BYTES and object_of(row.key) != name):
                shares.append([])
                size = 0
            shares[-1].append(row)
            size, name = size + row.size, object_of(row.key)
        moved = self.spread("repack", shares, CopySlices(self.spec, self.jobs.beacon))
        return sorted(moved, key=lambda move: (object_of(move[0].key), move[0].path))


def _in_order(refs: Iterable[SegmentRef]) -> tuple[SegmentRef, ...]:
    return tuple(sorted(refs, key=lambda ref: (ref.min_path, ref.key)))


def _told(value: Gatherer | View, *without: str) -> dict[str, Any]:
    """What a value was made of: what a task makes it of again, with its own connections."""
    return {f.name: getattr(value, f.name) for f in fields(value) if f.name not in without}


def _portions(files: Iterator[Path], problems: list[ScanProblem], most: int | None) -> Iterator[Gathered]:
    """What the ranges hold, put together: they were cut between units."""
    out = Gathered(problems=problems)
    for file in files:
        with file.open("rb") as body:
            end = file.stat().st_size
            while body.tell() < end:
                facts, hidden = pickle.load(body)
                if most is not None and out.facts and len(out.facts) + len(facts) > most:
                    yield out
                    out = Gathered(problems=problems)
                out.facts += facts
                out.hidden |= hidden
    yield out
