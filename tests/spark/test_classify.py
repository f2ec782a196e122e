"""The Spark stage and the planner in process decide alike: same labels, same verbs, same plan, for random facts."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from swamp.bulk import classify, stages
from swamp.bulk.indexing import _ODD, index_row, row_from
from swamp.bulk.kernels import hint_row
from swamp.bulk.schemas import BASE, INDEX, JOURNAL, LOCAL
from swamp.cache.files import StatFingerprint
from swamp.cache.rows import BaseRow
from swamp.cache.scan import Observed
from swamp.index.entry import Entry, Tombstone, Unreferenced
from swamp.index.merge import merge_segments
from swamp.index.root import SegmentRef
from swamp.sync.decide import TABLE
from swamp.sync.facts import Facts
from swamp.sync.units import unit_of
from swamp.sync.view import usable

pytestmark = pytest.mark.timeout(900)

SIZES, HASHES, KEYS = st.sampled_from([1, 2]), st.sampled_from(["h1", "h2"]), st.sampled_from(["k1", "k2"])
MAYBE = st.one_of(st.none(), HASHES)
NUMBERS = st.sampled_from([1, 2])
HINTS = st.builds(StatFingerprint, SIZES, NUMBERS, st.just(1), st.just(1))


@st.composite
def facts(draw, path="p"):
    base = draw(
        st.one_of(
            st.none(),
            st.builds(
                BaseRow, st.just(path), KEYS, SIZES, MAYBE, st.sampled_from([1, 2]), st.booleans(), HINTS | st.none()
            ),
        )
    )
    local = draw(st.one_of(st.none(), st.builds(Observed, st.just(path), HINTS)))
    remote = draw(
        st.one_of(
            st.none(),
            st.builds(Entry, st.just(path), KEYS, SIZES, MAYBE, st.just(""), st.sampled_from([1, 2])),
            st.builds(Tombstone, st.just(path), KEYS, SIZES, MAYBE, st.sampled_from([1, 2])),
        )
    )
    learned = draw(MAYBE) if local is not None else None
    flags = {name: draw(st.booleans()) for name in ("edited", "deleted", "owed")}
    return Facts(path, base, local, remote, sha256=learned, **flags)


def base_row(row):
    return {name: getattr(row, name) for name in BASE.columns[:6]} | hint_row(row.hint)


def local_row(found):
    assert found.local is not None
    return {"path": found.path, "directory": False, "sha256": found.sha256, **hint_row(found.local.hint)}


def classified(spark, batch, in_history, lazy=False):
    base = stages.frame_of(spark, BASE, [base_row(f.base) for f in batch if f.base])
    local = stages.frame_of(spark, LOCAL, [local_row(f) for f in batch if f.local])
    remote = stages.frame_of(spark, INDEX, [index_row(f.remote) for f in batch if f.remote])
    told = [{"path": f.path, "kind": k} for f in batch for k in ("delete", "owed") if getattr(f, FLAGS[k])]
    marks = stages.frame_of(spark, JOURNAL, told)
    joined = classify.join(base, local, remote, marks, whole_index=True, parts=2)
    writes = [f.path for f in batch if f.edited]
    frame = stages.frame_of(spark, JOURNAL, [{"path": path} for path in writes])
    edited = classify.announced(joined, frame, [path.count("/") + 1 for path in writes])
    return classify.classify(edited, in_history=in_history, lazy=lazy)


FLAGS = {"delete": "deleted", "owed": "owed"}


@pytest.mark.parametrize("in_history", [True, False])
@settings(
    max_examples=3,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_labels_and_verbs_are_those_of_the_planner(spark, in_history, data):
    """A few hundred random paths at a time, because a Spark job costs as much for one."""
    made = data.draw(st.lists(facts(), min_size=250, max_size=250))
    batch = [_named(f, f"files/d{i % 3}/{i} ü") for i, f in enumerate(made)]
    batch = [replace(f, in_history=in_history) for f in batch if f.base or f.local or f.remote]
    rows = {row["path"]: row for row in classified(spark, batch, in_history).toArrow().to_pylist()}
    assert set(rows) == {f.path for f in batch}
    for f in batch:
        row = rows[f.path]
        assert row["local_label"] == f.local_label, f
        assert row["remote_label"] == f.remote_label, f
        assert row["equal"] == f.equal, f
        assert row["needs_hash"] == f.needs_hash, f
        assert row["needs_remote_hash"] == f.needs_remote_hash, f
        assert row["trivial"] == f.trivial, f
        if not (f.needs_hash or f.needs_remote_hash):
            assert row["verb"] == f.decision().verb, f
        else:
            assert row["verb"] is None


LEAVES = ("raw", "raw/part 1", "metadata.yaml", "other")


@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(facts(), min_size=250, max_size=250))
def test_what_a_lazy_cache_left_in_the_bucket_is_trivial(spark, made):
    batch = [_named(f, f"data/t/m/n/{i}/{LEAVES[i % 4]}") for i, f in enumerate(made)]
    left = "data/t/m/n/999/raw"
    known = Facts(left, BaseRow(left, "k", 1, "h", 1, present=False), None, Entry(left, "k", 1, "h", "", 1))
    batch = [known, *(f for f in batch if f.base or f.local or f.remote)]
    rows = {row["path"]: row["trivial"] for row in classified(spark, batch, True, lazy=True).toArrow().to_pylist()}
    assert rows == {f.path: f.trivial or f.resting for f in batch}
    assert rows[left] and not known.trivial


def _named(found, path):
    def moved(part):
        return None if part is None else replace(part, path=path)

    return replace(found, path=path, base=moved(found.base), local=moved(found.local), remote=moved(found.remote))


def test_every_row_of_the_table_is_in_the_expression(spark):
    text = str(classify.case_when(TABLE))
    for row in TABLE:
        assert f"THEN '{row.verb}'" in text


PATHS = st.sampled_from(["a", "b", "c d", "ü"])
SEQS = st.integers(1, 4)
ROWS = st.one_of(
    st.builds(Entry, PATHS, KEYS, SIZES, MAYBE, st.just("t"), SEQS),
    st.builds(Tombstone, PATHS, KEYS, SIZES, MAYBE, SEQS),
    st.builds(Unreferenced, KEYS, PATHS, SEQS),
    st.builds(Unreferenced, KEYS, PATHS, SEQS, SIZES, HASHES),
)


@pytest.mark.inv("index.highest-seq")
@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(ROWS, max_size=6), min_size=60, max_size=60), st.integers(0, 3))
def test_a_compaction_on_spark_keeps_what_the_merge_in_process_keeps(spark, groups, horizon):
    """Sixty small indexes at once, told apart by their paths. A row is known by its path, key and number."""
    rows = [
        replace(r, path=f"{n:02d}/{r.path}", key=f"{n}-{r.key}") for n, g in enumerate(groups) for r in _distinct(g)
    ]
    ref = SegmentRef("_index/1.parquet", len(rows), 1, "", "", "~", 9)
    ordered = sorted(rows, key=lambda r: (r.path, isinstance(r, Unreferenced), r.seq, r.key))
    truth = merge_segments([(ref, ordered)], lambda tomb: tomb.seq <= horizon)
    frame = stages.frame_of(spark, INDEX, map(index_row, rows))
    none = stages.frame_of(spark, INDEX, [])
    found = [row_from(r) for r in stages.merge(frame, none, horizon).toArrow().to_pylist()]
    assert sorted(map(repr, found)) == sorted(map(repr, truth))


@pytest.mark.inv("gc.plain-unchanged")
def test_of_two_rows_of_one_drop_the_one_that_knows_its_hash_stays(spark):
    """A flush that was overtaken wrote the tombstone; who overtook it dropped its key under the same number."""
    live = Entry("p", "p~01JD0000000000000000000000", 1, "h9", "t", 3)
    tomb, drop = Tombstone("p", "p", 7, "h1", 2), Unreferenced("p", "p", 2)
    unknown = [Entry("q", "q~01JD0000000000000000000000", 1, "h9", "t", 3), Tombstone("q", "q", 7, None, 2)]
    kept = sorted([Unreferenced("p", "p", 2, 7, "h1"), Unreferenced("q", "q", 2), live, unknown[0]], key=repr)
    for rows in ([live, tomb, drop, *unknown], [live, drop, tomb, *unknown]):
        ref = SegmentRef("_index/1.parquet", 5, 1, "", "", "~", 9)
        assert sorted(merge_segments([(ref, rows)], lambda _: False), key=repr) == kept
        frame = stages.frame_of(spark, INDEX, map(index_row, rows))
        found = stages.merge(frame, stages.frame_of(spark, INDEX, []), 0).toArrow().to_pylist()
        assert sorted(map(row_from, found), key=repr) == kept


def _apart(row, number):
    return replace(row, path=f"{number:02d}/{row.path}", key=f"{number}-{row.key}")


def _distinct(rows):
    """One commit says one thing of a path: no two deciding rows of a path have the same number."""
    seen = {}
    for row in rows:
        kind = (row.path, row.seq) if not isinstance(row, Unreferenced) else (row.path, row.key, row.seq)
        seen.setdefault(kind, row)
    return list(seen.values())


PARTS = st.sampled_from(["a", "1", "22", "raw", "metadata.yaml", "x y", "ü", "٣"])


@settings(max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(PARTS, min_size=1, max_size=9), min_size=300, max_size=300))
def test_a_unit_is_a_unit(spark, lists):
    paths = sorted({"/".join(["data", *parts]) for parts in lists} | {"/".join(parts) for parts in lists})
    frame = stages.frame_of(spark, JOURNAL, [{"path": p} for p in paths]).withColumn("unit", classify.unit())
    assert {r["path"]: r["unit"] for r in frame.toArrow().to_pylist()} == {p: unit_of(p) for p in paths}


@given(st.text(max_size=12) | st.lists(PARTS | st.sampled_from([".", "..", "latest", ".lock"])).map("/".join))
def test_only_odd_names_are_looked_at_and_no_bad_one_is_missed(text):
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        odd = pc.match_substring_regex(pa.array([text]), _ODD)[0].as_py()
    except UnicodeEncodeError:
        return  # not valid Unicode: Arrow could not have brought it here
    if not usable(text):
        assert odd
