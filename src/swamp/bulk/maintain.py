"""Bulk work on a store as visible lists of stages: discover, verify, mark, compact, copy, re-index.

Push, pull and hydrate are the engine's own, with their transfers on Spark (`transfer`). What becomes true becomes true
on the driver, once, through `commit/`. inv[spark.publish-once]
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from swamp.bulk import stages
from swamp.bulk.balance import ALONE, MOST_TASKS, bins_for, tasks_for
from swamp.bulk.copying import CopyObjects
from swamp.bulk.indexing import (
    ENTRY,
    LOST,
    REFUSED,
    UPLOADED,
    MergeRanges,
    ReadSegments,
    adopted_rows,
    layer_rows,
    object_from,
    object_row,
    proposed,
    ref_from,
    ref_row,
    row_from,
)
from swamp.bulk.jobs import Jobs
from swamp.bulk.ranges import by_weight, cut
from swamp.bulk.schemas import FINDINGS, INDEX, OBJECTS, PATHS, RANGES, SEGMENTS
from swamp.commit.bootstrap import Bootstrapped, LeftOut
from swamp.commit.build import survive
from swamp.commit.collect import internal_objects
from swamp.commit.commit import Changes, Committer, RootRead
from swamp.commit.compact import horizon_of
from swamp.commit.log import names
from swamp.env import rfc3339
from swamp.errors import CorruptData, Failed, Unavailable
from swamp.index.entry import Entry, Unreferenced
from swamp.index.keys import PACK_PREFIX, is_pack
from swamp.index.read import row_groups
from swamp.index.root import REPAIR_HINT, SEGMENT_PREFIX, Root, SegmentRef
from swamp.index.segment import AnyRow
from swamp.locks.acquire import store_now
from swamp.store.port import ObjectMeta
from swamp.sync.progress import IdleTimeout
from swamp.sync.verify import Finding
from swamp.sync.view import usable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from swamp.commit.collect import Marked
    from swamp.store.open import StoreSpec

SEGMENT_TARGET: Final = 250_000
REPORTED: Final = 10_000
_NOTHING: Final = Bootstrapped(RootRead(None, None))


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification saw: how much, and every entry that is not what it must be."""

    checked: int
    bytes: int
    bad: tuple[Finding, ...]


@dataclass(frozen=True)
class OnStore:
    """Bulk commands on one store, with one session."""

    jobs: Jobs
    spec: StoreSpec
    committer: Committer
    idle_timeout: IdleTimeout

    # -- the index as a table

    def index(
        self, root: Root, segments: tuple[SegmentRef, ...] | None = None, *, usable_only: bool = False
    ) -> DataFrame:
        """All rows of the index; with `segments` only those, without the newest layer.

        `usable_only` leaves out hostile and internal names, as everyone must who acts on files.
        """
        chosen = root.segments if segments is None else segments
        layer = layer_rows(root) if segments is None else []
        if usable_only:
            layer = [row for row in layer if usable(row["path"])]
        refs = stages.frame_of(self.jobs.session, SEGMENTS, map(ref_row, chosen))
        newest = self._layer(layer)
        kernel = ReadSegments(self.spec, usable_only)
        return stages.read_index(refs, newest, kernel, min(len(chosen), self.jobs.parallelism * 4))

    def _layer(self, rows: list[dict[str, Any]]) -> DataFrame:
        """The newest layer as a table. JSON can hold text that is no Unicode; a table cannot."""
        try:
            return stages.frame_of(self.jobs.session, INDEX, rows)
        except UnicodeEncodeError as error:
            raise CorruptData("the index root holds text that is not Unicode", hint=REPAIR_HINT) from error

    def entries(self, root: Root) -> DataFrame:
        """The files that exist."""
        return stages.winners(self.index(root)).where(f"kind = '{ENTRY}'")

    # -- verify: read_index, winners, balance, verify

    def verify(self, root: Root) -> Verified:
        """Reads every payload and compares it with the index. Reports; changes nothing."""
        from pyspark.sql import functions as sf

        with self.kept(self.entries(root)) as entries:
            total = self.total(entries)
            bins = bins_for(total["files"], total["size"], self.jobs.parallelism)
            shared = stages.balanced(entries, bins, total["large"])
            findings = stages.verify(shared, self.spec, self.jobs.beacon)
            bad = findings.where(sf.col("problem").isNotNull())
            found = self.jobs.run("verify", bad.toArrow, self.idle_timeout, files=total["files"]).to_pylist()
        unread = [row for row in found if row["problem"] == "unread"]
        if unread:
            raise Unavailable(
                f"{len(unread)} payloads could not be read, the first: {unread[0]['path']}: {unread[0]['detail']}",
                hint="what was not read is not known to be bad: run it again",
            )
        ordered = sorted(found, key=lambda row: str(row["path"]))
        return Verified(total["files"], total["size"], tuple(map(_finding, ordered)))

    @contextmanager
    def kept(self, rows: DataFrame) -> Iterator[DataFrame]:
        """Rows that are looked at more than once: computed by the first who looks, kept for the others."""
        kept = rows.persist()
        try:
            yield kept
        finally:
            kept.unpersist()

    def total(self, entries: DataFrame) -> dict[str, int]:
        from pyspark.sql import functions as sf

        large = sf.coalesce(sf.sum((sf.col("size") >= ALONE).cast("int")), sf.lit(0))
        size = sf.coalesce(sf.sum(sf.col("size").cast("decimal(38,0)")), sf.lit(0))  # sizes that lie may overflow
        frame = entries.agg(sf.count("*").alias("files"), size.alias("size"), large.alias("large"))
        row = self.jobs.run("count", frame.toArrow, self.idle_timeout).to_pylist()[0]
        return {"files": row["files"], "size": int(row["size"]), "large": min(row["large"], MOST_TASKS)}

    # -- discover: cut, adopt, ranged, ordered, write_segments, publish

    def discover(self) -> Bootstrapped:
        """Publishes a first root over the objects of a bucket without one; none when it is empty. Create-only.

        The caller has made sure that there is neither a root nor a log nor an older format (`commit.bootstrap`).
        """
        pieces = cut(self.committer.store, self.jobs.parallelism * 4)
        ranges = stages.frame_of(self.jobs.session, RANGES, (found.row() for found in pieces.ranges))
        adopted = stages.adopt(ranges, self.spec, min(len(pieces.ranges), self.jobs.parallelism * 8))
        met = stages.frame_of(self.jobs.session, INDEX, self._met(pieces.objects))
        with self.kept(adopted.unionByName(met)) as entries:
            counts = self._kinds(entries)
            refused = self._refused(entries) if counts.get(REFUSED) else LeftOut()
            files = counts.get(ENTRY, 0)
            done = self._published(entries.where(f"kind = '{ENTRY}'"), files) if files else _NOTHING
        return refused.told(done)

    def _met(self, objects: list[ObjectMeta]) -> Iterator[dict[str, Any]]:
        return adopted_rows([[meta] for meta in sorted(objects, key=lambda meta: meta.key)])

    def _kinds(self, entries: DataFrame) -> dict[str, int]:
        """How many rows of which kind. One `~ulid` name means that a root has been lost: publish nothing (L48)."""
        table = self.jobs.run("discover", entries.groupBy("kind").count().toArrow, self.idle_timeout)
        counts = {row["kind"]: row["count"] for row in table.to_pylist()}
        if counts.get(LOST):
            raise CorruptData(
                "there is no index, but payloads that one wrote: its root has been lost", hint=REPAIR_HINT
            )
        return counts

    def _refused(self, entries: DataFrame) -> LeftOut:
        """What all ranges left out, as one listing would have told it."""
        left = LeftOut()
        rows = entries.where(f"kind = '{REFUSED}'").orderBy("key")
        for row in self.jobs.run("discover", rows.toArrow, self.idle_timeout).to_pylist():
            left.add(row["size"], json.loads(row["key"]))
        return left

    def _published(self, entries: DataFrame, files: int) -> Bootstrapped:
        root = self.committer.first_root()
        refs = self._segments(entries, files, root.seq)
        read = self.committer.create(replace(root, segments=tuple(refs)), self.idle_timeout.check)
        return Bootstrapped(read, discovered=read.root is not None and read.root.knows_op(root.op))

    def _segments(self, rows: DataFrame, count: int, added_seq: int) -> list[SegmentRef]:
        """New segments in path order, written by executors; they are nothing until they are published."""
        ordered = stages.ordered(stages.ranged(rows, tasks_for(count, SEGMENT_TARGET)))
        written = stages.write_segments(ordered, self.spec, added_seq)
        table = self.jobs.run("write segments", written.toArrow, self.idle_timeout)
        return sorted((ref_from(row) for row in table.to_pylist()), key=lambda ref: (ref.min_path, ref.key))

    # -- re-index: cut, propose, newest_uploads, ranged, ordered, write_segments; the caller publishes

    @contextmanager
    def proposal(self) -> Iterator[tuple[int, Callable[[int], list[SegmentRef]]]]:
        """What a listing says the lost index was: how many files, and a way to write that as segments (L48).

        As `repo.repair`, which holds it in memory: the newest upload of each path. A guess, so a person agrees first.
        """
        pieces = cut(self.committer.store, self.jobs.parallelism * 4)
        ranges = stages.frame_of(self.jobs.session, RANGES, (found.row() for found in pieces.ranges))
        listed = stages.propose(ranges, self.spec, min(len(pieces.ranges), self.jobs.parallelism * 8))
        met = stages.frame_of(self.jobs.session, INDEX, proposed(pieces.objects))
        packs = [object_row(meta) for meta in internal_objects(self.committer.store) if is_pack(meta.key)]
        frame = stages.frame_of(self.jobs.session, OBJECTS, packs)
        packed = stages.propose_packed(frame, self.spec, min(len(packs), self.jobs.parallelism * 8))
        with self.kept(stages.newest_uploads(listed.unionByName(met).unionByName(packed))) as newest:
            files = self.jobs.run("list", newest.count, self.idle_timeout)
            yield files, lambda seq: self._segments(newest, files, seq) if files else []

    # -- compact: ranges of paths, merged by tasks as in process; publish

    def merged(self, root: Root, inputs: tuple[SegmentRef, ...], horizon_seq: int) -> list[SegmentRef]:
        """The inputs as few new segments under the highest number among them: no reader takes them for news."""
        rows = sum(ref.rows for ref in inputs)
        wanted = tasks_for(rows, SEGMENT_TARGET)
        step = max(1, rows // (wanted * 8))
        marks = [mark for ref in inputs for mark in row_groups(self.committer.store, ref, step)]
        batches = [PATHS.batch([{"start": start, "stop": stop}]) for start, stop in by_weight(marks, wanted)]
        kernel = MergeRanges(self.spec, root, inputs, horizon_seq, self.jobs.beacon)
        table = self.jobs.run("compact", lambda: self.jobs.spread(batches, kernel, SEGMENTS), self.idle_timeout)
        return sorted((ref_from(row) for row in table.to_pylist()), key=lambda ref: (ref.min_path, ref.key))

    def compact(self) -> tuple[int, int, int]:
        """Segments before and after, and rows; starts over when an input is no longer listed."""
        horizon_seq = horizon_of(self.committer)
        while True:
            root = self._root()
            inputs = root.segments
            if len(inputs) < 2:
                return len(inputs), len(inputs), sum(ref.rows for ref in inputs)
            refs = self.merged(root, inputs, horizon_seq)
            taken = frozenset(ref.key for ref in inputs)

            def propose(
                now: Root, taken: frozenset[str] = taken, refs: list[SegmentRef] = refs, epoch: int = root.gc_epoch
            ) -> Changes | None:
                if not taken <= {ref.key for ref in now.segments}:
                    return None
                if not survive(self.committer.store, now, [ref.key for ref in refs], epoch):
                    return None
                gone = tuple(Unreferenced(key, "") for key in sorted(taken))
                return Changes(segments=tuple(refs), unlisted=taken, dropped=gone, horizon_seq=horizon_seq)

            done = self.committer.commit(propose, self.idle_timeout.check)
            if done is not None:
                return len(inputs), len(done.root.segments), sum(ref.rows for ref in refs)

    def _root(self) -> Root:
        root = self.committer.read().root
        if root is None:
            raise Failed("the store has no index yet", hint="run: swamp datastore sync")
        return root

    # -- collect: inventory_remote, read_index, anti-join; condemning and deleting is commit/collect's

    def mark(self, root: Root, keep: dt.timedelta) -> Marked:
        """What may go: the same answer as `commit.collect.mark`, without holding the index or the listing here."""
        from pyspark.sql import functions as sf

        from swamp.commit.collect import Ages, Marked, held_by, may_hold, old_records, orphans_until
        from swamp.commit.sweep import is_own_key, may_condemn

        records = list(names(self.committer.store))
        ages = Ages.of(records, store_now(self.committer.store))
        index = self.index(root)
        # Rows name slices, listings objects. inv[gc.objects] inv[pack.live-if-any]
        live = stages.winners(index).where(f"kind = '{ENTRY}'").select(stages.object_of_column("key").alias("key"))
        live = live.unionByName(self._keys([{"key": ref.key} for ref in root.segments]))
        given_up = index.where(sf.col("kind") != ENTRY).withColumn("key", stages.object_of_column("key"))
        waiting = given_up.where(within("seq", ages.young(keep))).select("key").distinct()
        expired = given_up.select("key").distinct().withColumn("expired", sf.lit(True))
        found = self._objects().join(live, "key", "left_anti").join(waiting, "key", "left_anti")
        orphan = sf.col("key").rlike(UPLOADED) | sf.col("key").startswith(SEGMENT_PREFIX)
        orphan |= sf.col("key").startswith(PACK_PREFIX)
        until = orphans_until(root, ages, keep)
        old = sf.lit(False) if until is None else sf.col("last_modified") <= sf.lit(rfc3339(until))
        garbage = found.join(expired, "key", "left").where(sf.coalesce("expired", sf.lit(False)) | (orphan & old))
        table = self.jobs.run("mark", OBJECTS.select(garbage).toArrow, self.idle_timeout)
        listed = sorted((object_from(row) for row in table.to_pylist()), key=lambda meta: meta.key)
        metas = [meta for meta in listed if may_condemn(meta.key)]
        plain = [meta.key for meta in metas if not is_own_key(meta.key)]
        held = held_by(self._dropped_at(given_up, plain))
        metas = [meta for meta in metas if is_own_key(meta.key) or may_hold(meta, held)]
        return Marked(root, tuple(metas), tuple(old_records(records, ages)), held)

    def _dropped_at(self, given_up: DataFrame, plain: list[str]) -> list[AnyRow]:
        """The rows with which commits of ours dropped these plain keys: what they held then."""
        if not plain:
            return []
        rows = given_up.join(self._keys([{"key": key} for key in plain]), "key", "left_semi")
        return [
            row_from(row) for row in self.jobs.run("mark", INDEX.select(rows).toArrow, self.idle_timeout).to_pylist()
        ]

    def _keys(self, rows: list[dict[str, Any]]) -> DataFrame:
        return stages.frame_of(self.jobs.session, OBJECTS, rows).select("key")

    def _objects(self) -> DataFrame:
        """Everything that could be collected: tier directories and segments, never the log."""
        pieces = cut(self.committer.store, self.jobs.parallelism * 4)
        ranges = stages.frame_of(self.jobs.session, RANGES, (found.row() for found in pieces.ranges))
        listed = stages.inventory_remote(ranges, self.spec, min(len(pieces.ranges), self.jobs.parallelism * 8))
        own = [*map(object_row, pieces.objects), *map(object_row, internal_objects(self.committer.store))]
        return listed.unionByName(stages.frame_of(self.jobs.session, OBJECTS, own))

    # -- copy: read_index, balance, copy, publish there

    def copy_to(self, target: StoreSpec, there: Committer) -> tuple[int, int]:
        """Another store with the same content: payloads and segments first, its root last, create-only."""
        root = self._root()
        if there.read().root is not None:
            raise Failed("the target store has an index already", hint="copy into an empty prefix")
        with self.kept(self.entries(root)) as entries:
            total = self.total(entries)
            self._copied(entries, total, target)
            self._publish_copy(entries, root, target, there)
        return total["files"], total["size"]

    def _copied(self, entries: DataFrame, total: dict[str, int], target: StoreSpec) -> None:
        """Every payload is at the target, or Failed."""
        from pyspark.sql import functions as sf

        bins = bins_for(total["files"], total["size"], self.jobs.parallelism)
        kernel = CopyObjects(self.spec, target, self.jobs.beacon)
        copied = stages.balanced(entries, bins, total["large"]).mapInArrow(kernel, FINDINGS.ddl)
        bad = copied.where(sf.col("problem").isNotNull()).limit(REPORTED)
        failed = self.jobs.run("copy", bad.toArrow, self.idle_timeout, files=total["files"]).to_pylist()
        if failed:
            raise Failed(
                f"{len(failed)} objects were not copied, the first: {failed[0]['key']}: {failed[0]['detail']}",
                hint="run it again: what is there is not copied twice",
            )

    def _publish_copy(self, entries: DataFrame, root: Root, target: StoreSpec, there: Committer) -> None:
        """A store of its own: another identity, the same files, no deleted ones."""
        fresh = there.first_root()
        live = entries.withColumns({"seq": _null_number(), "id_seq": _null_number()})
        refs = replace(self, spec=target)._segments(live, sum(r.rows for r in root.segments), fresh.seq)
        there.create(replace(fresh, segments=tuple(refs)), self.idle_timeout.check)


def _null_number() -> Any:
    from pyspark.sql import functions as sf

    return sf.lit(None).cast("bigint")


def _finding(row: dict[str, Any]) -> Finding:
    entry = row_from({**row, "kind": ENTRY})
    assert isinstance(entry, Entry)
    return Finding(entry, "missing" if row["problem"] == "missing" else "corrupt")


def within(column: str, spans: list[tuple[int, int | None]]) -> Column:
    """Whether a number lies in one of the spans; a row without a number is in none that begins above 0."""
    from pyspark.sql import functions as sf

    value = sf.coalesce(sf.col(column), sf.lit(0))
    found = sf.lit(False)
    for low, high in spans:
        found = found | ((value >= low) & (value <= high) if high is not None else value >= low)
    return found
