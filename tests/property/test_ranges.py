"""Work that is cut into ranges of paths: whatever the cuts, the ranges together are the whole, and no unit is cut."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from segments import read_segment
from swamp.bulk.kernels import JudgeObjects
from swamp.bulk.shares import by_weight
from swamp.cache.files import fingerprint_of
from swamp.cache.rows import BaseRow
from swamp.cache.scan import ScanProblem, landmarks, names_below, scan
from swamp.cache.state import State
from swamp.commit.collect import Marked, MarkTerms, ObjectClaim, claims, segments_live
from swamp.commit.log import Ages
from swamp.commit.repack import PackSurvey, survey
from swamp.index.entry import Entry, Row, Tombstone, Unreferenced, object_of
from swamp.index.lookup import all_rows, merge_range, merge_segments, rows_between
from swamp.index.root import EVERYTHING, SegmentRef, Span, Writer, first_root
from swamp.index.segment import AnyRow, write_segment
from swamp.store.open import open_store
from swamp.store.port import ObjectMeta
from swamp.sync.gather import Gathered, Gatherer, Snapshot
from swamp.sync.units import cut_before, unit_of
from swamp.sync.view import View

PARTS = st.sampled_from(["a", "1", "22", "raw", "metadata.yaml", "a-b", "ü", "٣", "parts.parquet", "other"])
TOPS = st.sampled_from([(), ("data", "t", "m", "n")])
PATHS = st.builds(lambda top, parts: "/".join([*top, *parts]), TOPS, st.lists(PARTS, min_size=1, max_size=5))
CUTS = st.lists(PATHS | PATHS.map(lambda path: path + "/") | st.text(max_size=4), max_size=4)


def spans(cuts: list[str]) -> list[Span]:
    ordered = sorted({cut for cut in cuts if cut})
    return list(map(Span, ["", *ordered], [*ordered, None]))


@pytest.mark.inv("unit.whole")
@given(st.sets(PATHS, max_size=30), PATHS)
@example({"data/t/m/n/1/metadata.yaml", "data/t/m/n/1/raw"}, "data/t/m/n/1/other")
def test_no_unit_is_cut_in_two(paths: set[str], where: str) -> None:
    cut = cut_before(where)
    assert cut <= where
    before, after = ({unit_of(p) for p in paths if (p < cut) == side} for side in (True, False))
    assert not before & after


@given(st.lists(st.tuples(PATHS, st.integers(0, 9)), max_size=30), st.integers(1, 9))
@example([("a", 0), ("b", 0)], 1)
def test_ranges_follow_each_other_from_the_beginning_to_the_end(marks: list[tuple[str, int]], wanted: int) -> None:
    found = by_weight(marks, wanted)
    assert found[0].start == "" and found[-1].stop is None and 1 <= len(found) <= wanted
    assert all(one.stop == other.start for one, other in pairwise(found))
    assert [one.start for one in found] == sorted({one.start for one in found})


def made(tree: Path, paths: set[str]) -> None:
    """As many of the paths as can stand beside each other; what is called `22` leads nowhere, `a-b` cannot be read."""
    for path in sorted(paths):
        file = tree / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.name == "22":
                file.symlink_to("nowhere")
            elif file.name == "٣":
                file.symlink_to(tree)
            else:
                file.write_bytes(path.encode()[:3])
        except (NotADirectoryError, FileExistsError, IsADirectoryError, FileNotFoundError):
            continue


@pytest.mark.inv("scan.honest")
@settings(max_examples=150, deadline=None)
@given(st.sets(PATHS, max_size=12), CUTS)
def test_a_walk_in_ranges_is_the_walk(paths: set[str], cuts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        made(tree, paths)
        whole = list(scan(tree))
        inside, hiding = [], []
        for span in spans(cuts):
            for seen in scan(tree, lowest=span.start, end=span.stop):
                (hiding if isinstance(seen, ScanProblem) and seen.path < span.start else inside).append(seen)
        assert inside == whole
        assert set(hiding) <= {seen for seen in whole if isinstance(seen, ScanProblem)}
        marks = [path for path, _ in landmarks(tree, [""], 5)]
        assert len(marks) >= min(5, len(os.listdir(tree)))
        files = {seen.path for seen in whole if not isinstance(seen, ScanProblem)}
        assert files <= set(names_below(tree, "")) <= {seen.path for seen in whole}


def facts_of(found: list[Gathered]) -> tuple[list[object], dict[str, Row | None], set[ScanProblem]]:
    hidden: dict[str, Row | None] = {}
    for one in found:
        hidden |= one.hidden
    return [f for one in found for f in one.facts], hidden, {p for one in found for p in one.problems}


@pytest.mark.inv("decide.one-table")
@settings(max_examples=100, deadline=None)
@given(
    st.sets(PATHS, max_size=10),
    st.sets(PATHS, max_size=10),
    st.dictionaries(PATHS, st.booleans(), max_size=10),
    CUTS,
    st.booleans(),
    st.booleans(),
)
def test_ranges_gather_what_one_walk_gathers(
    files: set[str], known: set[str], named: dict[str, bool], cuts: list[str], full: bool, lazy: bool
) -> None:
    """Base, tree and root over the same few paths, with links that lead nowhere and links to directories."""
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        made(tree, files)
        state = State.open(Path(folder) / "state.db")
        with state.transaction() as tx:
            for path in known:
                file = tree / path
                hint = fingerprint_of(file.lstat()) if file.is_file() and not file.is_symlink() else None
                tx.put_base(BaseRow(path, f"{path}~1", hint.size if hint else 1, "h", 1, hint is not None, hint))
        rows: dict[str, Row] = {p: Tombstone(p, f"{p}~1", 1, "h", 1) for p, live in named.items() if not live}
        rows |= {p: Entry(p, f"{p}~1", len(p.encode()[:3]), "h", "", 1) for p, live in named.items() if live}
        root = first_root("store", "op", "2026-01-01T00:00:00.000Z", Writer("repo", "host", "user", 1, "0"))
        root.entries.update({p: r for p, r in rows.items() if isinstance(r, Entry)})
        root.deleted.update({p: r for p, r in rows.items() if isinstance(r, Tombstone)})
        view = View(root, open_store(f"file://{folder}"), full=full, in_history=True, delta={} if full else rows)
        snapshot = Snapshot((), 0)
        whole = Gatherer(state, tree, view, snapshot, (), True, lambda p, d: False, {}, lazy=lazy)
        truth = facts_of(list(whole.gathered(None)))
        ranges = [replace(whole, span=span) for span in spans([cut_before(cut) for cut in cuts])]
        found = [portion for one in ranges for portion in one.gathered(2)]
        state.close()
        assert facts_of(found) == truth


NUMBERS = st.integers(1, 4)
FEW = st.sampled_from(["", "a", "b", "b/c", "d", "ü"])
KEYS, HASHES = st.sampled_from(["k1", "k2"]), st.sampled_from([None, "h"])
ROWS = st.one_of(
    st.builds(Entry, FEW.filter(bool), KEYS, st.just(1), HASHES, st.just("t"), NUMBERS),
    st.builds(Tombstone, FEW.filter(bool), KEYS, st.just(1), HASHES, NUMBERS),
    st.builds(Unreferenced, KEYS, FEW, NUMBERS),
)


def newest_drops(rows: list[AnyRow]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        if isinstance(row, Unreferenced):
            found[row.path, row.key] = max(row.seq, found.get((row.path, row.key), 0))
    return found


@pytest.mark.inv("index.highest-seq")
@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(ROWS, max_size=6), min_size=1, max_size=4), st.lists(FEW, max_size=3), st.integers(0, 3))
def test_a_compaction_in_ranges_is_the_compaction(groups: list[list[AnyRow]], cuts: list[str], horizon: int) -> None:
    """Dropped keys outside of a segment's range may be told once more, by the range that has its first or last path."""
    segments = [write_segment(rows) for rows in groups]
    bodies = {f"_index/{n}.parquet": segment.data for n, segment in enumerate(segments)}
    refs = [s.ref(key, 4) for key, s in zip(bodies, segments, strict=True)]
    root = first_root("store", "op", "2026-01-01T00:00:00.000Z", Writer("repo", "host", "user", 1, "0"))
    root = replace(root, segments=tuple(refs))

    def merged(span: Span) -> list[AnyRow]:
        made = merge_range(root, refs, horizon, lambda ref: bodies[ref.key], span)
        return list(read_segment(made.data, 4)) if made.rows else []

    whole = merged(EVERYTHING)
    parts = [row for span in spans(cuts) for row in merged(span)]
    assert [r for r in parts if not isinstance(r, Unreferenced)] == [
        r for r in whole if not isinstance(r, Unreferenced)
    ]
    told, drops = newest_drops(parts), newest_drops(whole)
    assert {place: told[place] for place in drops} == drops


UPLOADS = st.sampled_from(["data/a~01JD0000000000000000000001", "data/a~01JD0000000000000000000002"])
PACKED = st.builds("_packs/01JD000000000000000000000{}@{}+3".format, st.integers(1, 2), st.integers(12, 14))
CLAIMED = UPLOADS | PACKED | st.sampled_from(["files/plain", "_index/01JD0000000000000000000003.parquet"])
CLAIMING = st.one_of(
    st.builds(Entry, FEW.filter(bool), CLAIMED, st.just(3), HASHES, st.just("t"), NUMBERS),
    st.builds(Tombstone, FEW.filter(bool), CLAIMED, st.just(3), HASHES, NUMBERS),
    st.builds(Unreferenced, CLAIMED, FEW, NUMBERS, st.just(3), HASHES),
)


@pytest.mark.inv("pack.live-if-any", "gc.objects")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(CLAIMING, max_size=6), min_size=1, max_size=4), st.lists(FEW, max_size=3), st.integers(0, 4))
def test_what_tasks_mark_by_range_and_by_object_is_what_one_process_marks(
    groups: list[list[AnyRow]], cuts: list[str], old: int
) -> None:
    """ObjectClaim of any ranges, sorted by object with the listing, as Spark brings them to a task."""
    segments = [write_segment(rows) for rows in groups]
    bodies = {f"_index/{n}.parquet": segment.data for n, segment in enumerate(segments)}
    refs = tuple(s.ref(key, 4) for key, s in zip(bodies, segments, strict=True))
    layer = groups[0] if len(groups) > 1 else []
    root = first_root("store", "op", "2026-01-01T00:00:00.000Z", Writer("repo", "host", "user", 1, "0"))
    root = replace(root, segments=refs, seq=4)
    root.entries.update({r.path: r for r in layer if isinstance(r, Entry)})
    root.dropped.update({r.key: r for r in layer if isinstance(r, Unreferenced)})
    now, week = dt.datetime(2026, 1, 9, tzinfo=dt.UTC), dt.timedelta(days=7)
    ages = Ages(now, (old, 4) if old < 4 else (4,), (now - week, now) if old < 4 else (now,))
    terms = MarkTerms(root, ages, week, now - week, ())
    objects = {object_of(row.key) for rows in groups for row in rows} | {"_packs/01JD0000000000000000000009", "data/x"}
    listed = [ObjectMeta(name, 3, "t", now - week) for name in objects]

    def fetch(ref: SegmentRef) -> bytes:
        return bodies[ref.key]

    def marked(ranges: list[Span]) -> Marked:
        told: list[tuple[str, ObjectMeta | ObjectClaim]] = [(meta.key, meta) for meta in listed]
        told += segments_live(root)
        for span in ranges:
            told += claims(terms, root, fetch, span)
        return terms.marked(found for _, _, found in JudgeObjects(terms)(sorted(told, key=lambda one: one[0])))

    live = {object_of(row.key) for row in rows_between(root, fetch) if isinstance(row, Entry)}
    gone = [row for row in all_rows(root, fetch) if not isinstance(row, Entry)]
    waiting = {object_of(row.key) for row in gone if not ages.older(row.seq, week)}
    expired = {object_of(row.key) for row in gone} - waiting - live
    known = {row.key for row in gone if row.sha256}
    truth = (objects - live - waiting - {"files/plain", "data/x"}) | ({"files/plain"} & expired & known)
    assert {meta.key for meta in marked([EVERYTHING]).garbage} == truth
    assert marked(spans(cuts)) == marked([EVERYTHING])
    whole = {one.pack: one for one in survey(ages, week, root, fetch)}
    parts: dict[str, PackSurvey] = {}
    for span in spans(cuts):
        for one in survey(ages, week, root, fetch, span):
            parts[one.pack] = parts[one.pack] + one if one.pack in parts else one
    assert parts == whole


@pytest.mark.inv("gc.plain-unchanged")
def test_of_two_rows_of_one_drop_the_one_that_knows_its_hash_stays() -> None:
    """A flush that was overtaken wrote the tombstone; who overtook it dropped its key under the same number."""
    live = Entry("p", "p~01JD0000000000000000000000", 1, "h9", "t", 3)
    tomb, drop = Tombstone("p", "p", 7, "h1", 2), Unreferenced("p", "p", 2)
    unknown = [Entry("q", "q~01JD0000000000000000000000", 1, "h9", "t", 3), Tombstone("q", "q", 7, None, 2)]
    kept = sorted([Unreferenced("p", "p", 2, 7, "h1"), Unreferenced("q", "q", 2), live, unknown[0]], key=repr)
    for rows in ([live, tomb, drop, *unknown], [live, drop, tomb, *unknown]):
        ref = SegmentRef("_index/1.parquet", 5, 1, "", "", "~", 9)
        assert sorted(merge_segments([(ref, rows)], lambda _: False), key=repr) == kept
