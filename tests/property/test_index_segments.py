"""Segments: what goes in comes out, whatever is damaged is said to be, and the highest number wins."""

import hashlib
import io
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from segments import read_segment
from swamp.errors import CorruptData, NotFound
from swamp.index import decode
from swamp.index.columns import BATCH, ROW_GROUP, check_segment, listed_paths
from swamp.index.entry import Entry, Tombstone, Unreferenced
from swamp.index.footer import Proven, Raw, read_footer
from swamp.index.lookup import (
    all_rows,
    forgettable,
    live_rows,
    lookup,
    merge_segments,
    rows_since,
    winner,
    winning_rows,
)
from swamp.index.root import EVERYTHING, Root, Span
from swamp.index.segment import write_segment

BIG = 2**63 - 1
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_paths = st.one_of(
    st.sampled_from(["a", "a/b", "a-b", "a0", "ä", "z/\U0001f98e", "a/b/c"]), _text.filter(lambda t: t != "")
)
_numbers = st.one_of(st.integers(0, 9), st.integers(0, BIG))
_hashes = st.one_of(st.none(), st.binary(max_size=4).map(lambda b: hashlib.sha256(b).hexdigest()))
_entries = st.builds(
    Entry, _paths, _text, _numbers, _hashes, _text, _numbers, st.booleans(), st.sampled_from(["", '{"new":1}'])
)
_tombs = st.builds(Tombstone, _paths, _text, _numbers, _hashes, _numbers)
_drops = st.builds(Unreferenced, _text, st.one_of(st.just(""), _paths), _numbers)
_rows = st.lists(st.one_of(_entries, _tombs, _drops), max_size=30)


def numbered(rows, seq):
    return [r if r.seq else r.at(seq) for r in rows]


@settings(deadline=None, max_examples=150)
@given(_rows)
@example([Entry("p", "k", BIG, None, "", BIG), Tombstone("ü~", "", 0, None, 1), Unreferenced("k", "", 0)])
@pytest.mark.inv("segment.added-seq")
def test_a_segment_gives_back_its_rows_sorted_and_numbered(rows):
    segment = write_segment(rows)
    back = list(read_segment(segment.data, BIG))
    assert sorted(map(repr, back)) == sorted(map(repr, numbered(rows, BIG)))
    assert [r.path for r in back] == sorted(r.path for r in rows)
    deciding = [r.path for r in rows if not isinstance(r, Unreferenced)]
    assert segment.rows == len(rows)
    assert (segment.min_path, segment.max_path) == (min(deciding, default=""), max(deciding, default=""))


@settings(deadline=None, max_examples=100)
@given(_rows, _paths, _paths)
def test_a_range_and_a_set_of_paths_read_exactly_those_rows(rows, one, other):
    segment = write_segment(rows)
    start, stop = sorted([one, other])
    whole = list(read_segment(segment.data, BIG))
    assert list(read_segment(segment.data, BIG, start=start, stop=stop)) == [r for r in whole if start <= r.path < stop]
    assert list(read_segment(segment.data, BIG, paths={one})) == [r for r in whole if r.path == one]
    assert list(read_segment(segment.data, BIG, dropped=False)) == [r for r in whole if not isinstance(r, Unreferenced)]


def many(count, seq=0):
    return [Entry(f"data/{i:08d}", f"k{i}", i, None, "", seq) for i in range(count)]


def test_row_groups_out_of_range_are_not_read():
    """The middle group's bytes are destroyed: reads beside it do not notice, a read of it does."""
    import pyarrow.parquet as pq

    rows = many(3 * ROW_GROUP)
    data = bytearray(write_segment(rows).data)
    column = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(1).column(2)
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = b"\xff" * (
        column.total_compressed_size
    )
    first, last = rows[0].path, rows[-1].path
    assert [r.path for r in read_segment(bytes(data), 7, start=first, stop=first + "\0")] == [first]
    assert [r.path for r in read_segment(bytes(data), 7, paths=[first, last])] == [first, last]
    with pytest.raises(CorruptData):
        list(read_segment(bytes(data), 7, start=rows[ROW_GROUP].path, stop=rows[ROW_GROUP + 1].path))


def test_reading_stays_a_batch_at_a_time_and_stops_when_nobody_asks():
    data = write_segment(many(8 * ROW_GROUP)).data
    tracemalloc.start()
    try:
        rows = read_segment(data, 1)
        for _ in range(BATCH + 1):
            next(rows)
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
        rows.close()
    finally:
        tracemalloc.stop()


def test_presorted_rows_are_written_without_sorting_and_unsorted_ones_are_noticed():
    rows = many(10)
    assert write_segment(iter(rows), presorted=True) == write_segment(reversed(rows))
    with pytest.raises(CorruptData, match="sorted"):
        list(read_segment(write_segment(reversed(rows), presorted=True).data, 1))


def test_an_empty_segment_is_readable():
    segment = write_segment([])
    assert segment.rows == 0 and list(read_segment(segment.data, 1)) == []


@pytest.mark.parametrize(
    "row", [Entry("p", "k", 2**63, None, ""), Entry("p", "k", 0, None, "", 2**63), Entry("\ud800", "k", 0, None, "")]
)
def test_a_row_that_fits_no_column_is_refused(row):
    with pytest.raises(CorruptData):
        write_segment([row])


# --- damage -----------------------------------------------------------------------------------------------------

GOOD = write_segment([Entry(f"p{i}", f"k{i}", i, "ab" * 32, "t", i) for i in range(1, 200)]).data


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_raise_corrupt_data_or_read_as_rows_but_never_anything_else(data):
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        # The footer is where lies are most dangerous: half of the hits go there.
        near_end = data.draw(st.booleans())
        at = data.draw(st.integers(max(0, len(GOOD) - 1200) if near_end else 0, len(GOOD) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(GOOD))))
    try:
        for row in read_segment(bytes(damaged[:cut]), BIG):
            assert isinstance(row, Entry | Tombstone | Unreferenced)
    except CorruptData as error:
        assert error.hint


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" * 100, b"\0" * 1000, GOOD[:-1], GOOD[: len(GOOD) // 2]])
def test_truncated_segments_are_corrupt(data):
    with pytest.raises(CorruptData):
        list(read_segment(data, 1))


def test_other_parquet_files_and_other_types_are_refused():
    import pyarrow as pa
    import pyarrow.parquet as pq

    def parquet(table):
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd")
        return out.getvalue()

    ours = pq.read_table(io.BytesIO(GOOD))
    strange = [
        parquet(pa.table({"path": ["x"]})),
        parquet(ours.drop_columns(["key"])),
        parquet(ours.select(ours.column_names[::-1])),
        parquet(ours.replace_schema_metadata({b"swamp.segment": b"2"})),
        parquet(ours.set_column(3, "size", pa.array(["1"] * len(ours)))),
        parquet(ours.set_column(1, "kind", pa.array(["other"] * len(ours)))),
        parquet(ours.set_column(3, "size", pa.array([-1] * len(ours), pa.int64()))),
        parquet(ours.set_column(0, "path", pa.array([None] * len(ours), pa.string()))),
    ]
    for data in strange:
        with pytest.raises(CorruptData):
            list(read_segment(data, BIG))


@settings(deadline=None, max_examples=150)
@given(
    rows=_rows,
    dictionary=st.booleans(),
    delta=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["zstd", "none"]),
    page=st.sampled_from([1, 200, 1 << 20]),
    group=st.sampled_from([1, 7, 1000]),
)
def test_what_pyarrow_writes_is_read_as_pyarrow_reads_it(rows, dictionary, delta, version, codec, page, group):
    """Segments and manifests of older versions were written by it: our reader knows all that it may have chosen."""
    import pyarrow.parquet as pq

    segment = write_segment(rows)
    table = pq.read_table(io.BytesIO(segment.data))
    out = io.BytesIO()
    more = {"column_encoding": dict.fromkeys(("path", "key"), "DELTA_BYTE_ARRAY")} if delta else {}
    plain = [name for name in table.column_names if name not in ("path", "key", "missing")]
    options = {"data_page_version": version, "data_page_size": page, "row_group_size": group, "compression": codec}
    pq.write_table(table, out, use_dictionary=plain if dictionary else False, write_batch_size=4, **options, **more)
    found = list(read_segment(out.getvalue(), BIG))
    assert found == list(read_segment(segment.data, BIG))
    read = zip(table["path"].to_pylist(), table["key"].to_pylist(), strict=True)
    assert [(row.path, row.key) for row in found] == list(read)


def test_a_row_may_not_be_younger_than_its_segment():
    data = write_segment([Entry("p", "k", 1, None, "", 50)]).data
    with pytest.raises(CorruptData):
        list(read_segment(data, 49))


def test_bytes_that_the_root_does_not_name_are_corrupt(tmp_path):
    segment = write_segment(many(3))
    ref = segment.ref("_index/x.parquet", 4)
    path = tmp_path / "segment"
    path.write_bytes(segment.data)
    check_segment(ref, segment.data)
    check_segment(ref, path)
    assert list(read_segment(path, 4)) == list(read_segment(segment.data, 4))
    check_segment(ref, Proven(segment.data))
    for wrong in (segment.data + b"x", segment.data[:-1] + b"x", b""):
        for source in (wrong, Proven(wrong)):
            with pytest.raises(CorruptData):
                check_segment(ref, source)
    with pytest.raises(NotFound):
        check_segment(ref, tmp_path / "gone")


def test_importing_the_index_does_not_import_pyarrow():
    code = "import sys, swamp.index.lookup, swamp.index.lookup; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- a whole index ------------------------------------------------------------------------------------------------


class Bucket:
    """Segments under keys; counts what is fetched."""

    def __init__(self):
        self.data = {}
        self.fetched = []

    def add(self, rows, added_seq):
        segment = write_segment(rows)
        ref = segment.ref(f"_index/{len(self.data)}.parquet", added_seq)
        self.data[ref.key] = segment.data
        return ref

    def fetch(self, ref):
        self.fetched.append(ref.key)
        return self.data[ref.key]


def root_of(seq, refs, layer=(), drops=()):
    return Root(
        "store", seq, "op", "prev", "", {}, segments=tuple(refs),
        entries={r.path: r for r in layer if isinstance(r, Entry)},
        deleted={r.path: r for r in layer if isinstance(r, Tombstone)},
        dropped={d.key: d for d in drops},
    )  # fmt: skip


_few = st.sampled_from(["a", "a-b", "a/b", "a/b/c", "a0", "b", "b/é", "c"])
_change = st.tuples(_few, st.booleans())
_history = st.lists(st.tuples(st.lists(_change, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=10)


def play(history):
    """A store's life: each commit changes paths; some flush the layer into a segment, numberless for their own rows."""
    bucket, refs, layer, truth, changed = Bucket(), [], {}, {}, {}
    for seq, (changes, flush) in enumerate(history, 1):
        own = {}
        for path, alive in changes:
            row = Entry(path, f"{path}~{seq}", seq, None, "") if alive else Tombstone(path, f"{path}~", 0, None)
            own[path] = row
            truth[path] = changed[path] = row.at(seq)
        if flush:
            kept = [row for path, row in layer.items() if path not in own]
            refs.append(bucket.add([*kept, *own.values()], seq))
            layer = {}
        else:
            layer |= {path: row.at(seq) for path, row in own.items()}
    return bucket, root_of(len(history), refs, layer.values()), truth


@settings(deadline=None, max_examples=150)
@given(_history)
@pytest.mark.inv("index.highest-seq")
def test_any_history_reads_as_its_newest_rows(history):
    bucket, root, truth = play(history)
    assert list(winning_rows(root, bucket.fetch)) == [truth[p] for p in sorted(truth)]
    assert list(live_rows(root, bucket.fetch)) == [truth[p] for p in sorted(truth) if isinstance(truth[p], Entry)]
    assert lookup(root, [*truth, "never"], bucket.fetch) == truth
    for prefix in ("a", "a/b", "b", "nothing"):
        below = sorted(p for p in truth if p == prefix or p.startswith(prefix + "/"))
        assert list(winning_rows(root, bucket.fetch, prefix)) == [truth[p] for p in below]


@settings(deadline=None, max_examples=150)
@given(_history, st.integers(0, 10))
@pytest.mark.inv("segment.added-seq")
def test_a_reader_at_any_number_learns_exactly_what_changed_later(history, seq):
    bucket, root, truth = play(history)
    assert list(rows_since(root, seq, bucket.fetch)) == [truth[p] for p in sorted(truth) if truth[p].seq > seq]
    assert set(bucket.fetched) == {ref.key for ref in root.segments if ref.added_seq > seq}


@settings(deadline=None, max_examples=200)
@given(_history, st.data())
@pytest.mark.inv("index.highest-seq")
def test_L50_compacting_any_segments_changes_no_answer_for_anyone(history, data):
    """Every partial compaction, every horizon: live files, tombstones that matter, and readers at every number."""
    bucket, root, truth = play(history)
    chosen = data.draw(st.lists(st.sampled_from(root.segments), unique=True)) if root.segments else []
    horizon = data.draw(st.integers(0, len(history)))
    rows = list(
        merge_segments(
            [(ref, read_segment(bucket.data[ref.key], ref.added_seq)) for ref in chosen],
            forgettable(root, chosen, horizon),
        )
    )
    if not chosen:
        assert rows == []
        return
    compacted = bucket.add(rows, max(ref.added_seq for ref in chosen))
    after = replace(root, segments=(*(r for r in root.segments if r not in chosen), compacted))
    live = [truth[p] for p in sorted(truth) if isinstance(truth[p], Entry)]
    assert list(live_rows(after, bucket.fetch)) == live
    left = {r.path: r for r in winning_rows(after, bucket.fetch)}
    gone = [truth[p] for p in truth if p not in left]
    assert all(isinstance(row, Tombstone) and row.seq <= horizon for row in gone)
    for seq in range(horizon, len(history) + 1):
        known = list(rows_since(after, seq, bucket.fetch))
        assert known == [truth[p] for p in sorted(truth) if truth[p].seq > seq]


def test_L50_a_partial_compaction_keeps_a_tombstone_that_an_older_segment_needs():
    bucket = Bucket()
    old = bucket.add([Entry("p", "k1", 1, None, "", 10)], 10)
    dead = bucket.add([Tombstone("p", "k1", 1, None, 40), Entry("q", "kq", 1, None, "", 38)], 40)
    new = bucket.add([Entry("r", "kr", 1, None, "")], 50)
    root = root_of(50, [old, dead, new])

    def compact(*refs):
        rows = merge_segments([(r, read_segment(bucket.data[r.key], r.added_seq)) for r in refs],
                              forgettable(root, refs, 45))  # fmt: skip
        return [r.path for r in rows if isinstance(r, Tombstone)]

    assert compact(dead, new) == ["p"]
    assert compact(old, dead, new) == []
    assert forgettable(root, [old, dead], 39)(Tombstone("p", "k1", 1, None, 40)) is False


def test_a_tombstone_stays_while_the_layer_holds_an_older_row():
    tomb = Tombstone("p", "k1", 1, None, 40)
    assert not forgettable(root_of(50, [], [Entry("p", "k0", 1, None, "", 30)]), [], 45)(tomb)
    assert forgettable(root_of(50, [], [Entry("p", "k2", 1, None, "", 46)]), [], 45)(tomb)


@pytest.mark.inv("segment.added-seq")
def test_a_numberless_row_takes_its_own_segments_number_in_a_compaction():
    bucket = Bucket()
    one = bucket.add([Entry("p", "old", 1, None, "")], 30)
    two = bucket.add([Entry("p", "new", 1, None, "", 60)], 90)
    unread = [(one, [Entry("p", "old", 1, None, "")]), (two, [Entry("p", "new", 1, None, "", 60)])]
    assert list(merge_segments(unread, lambda _: False)) == [Entry("p", "new", 1, None, "", 60)]


def test_L33_a_deleted_and_re_created_path_keeps_its_old_key_as_dropped_from_its_deletion():
    refs = [Bucket().add([], seq) for seq in (10, 20)]
    rows = merge_segments(
        [(refs[0], [Tombstone("p", "k1", 1, None, 10)]), (refs[1], [Entry("p", "k2", 1, None, "", 20)])],
        lambda _: True,
    )
    assert list(rows) == [Entry("p", "k2", 1, None, "", 20), Unreferenced("k1", "p", 10)]


def test_an_undeleted_key_is_no_longer_dropped():
    ref = Bucket().add([], 30)
    rows = [Tombstone("p", "k1", 1, None, 10), Unreferenced("k1", "p", 5), Unreferenced("k0", "p", 4),
            Unreferenced("k0", "p", 3), Entry("p", "k1", 1, None, "", 20)]  # fmt: skip
    assert list(merge_segments([(ref, rows)], lambda _: True)) == [
        Entry("p", "k1", 1, None, "", 20),
        Unreferenced("k0", "p", 4),
    ]


def test_lookup_fetches_only_segments_that_could_say_something_newer():
    bucket = Bucket()
    left = bucket.add(many(5, 1), 10)
    right = bucket.add([Entry("z", "kz", 1, None, "", 3)], 11)
    newer = bucket.add([Entry("data/00000001", "k", 1, None, "")], 12)
    root = root_of(20, [left, right, newer], [Entry("z", "kz2", 1, None, "", 15)])
    assert lookup(root, ["z"], bucket.fetch)["z"].key == "kz2" and bucket.fetched == []
    assert lookup(root, ["data/00000001"], bucket.fetch)["data/00000001"].seq == 12
    assert bucket.fetched == [newer.key]
    assert lookup(root, ["nothing"], bucket.fetch) == {}


def test_a_walk_opens_segments_one_after_the_other():
    bucket = Bucket()
    refs = [bucket.add([Entry(f"{letter}/x", "k", 1, None, "")], i) for i, letter in enumerate("abcd", 1)]
    walk = winning_rows(root_of(9, reversed(refs)), bucket.fetch)
    next(walk)
    assert bucket.fetched == [refs[0].key, refs[1].key]  # one ahead, to know that a path has no further row
    assert [r.path for r in walk] == ["b/x", "c/x", "d/x"]


def test_a_segment_with_another_hash_or_range_than_the_root_says_is_corrupt():
    bucket = Bucket()
    ref = bucket.add(many(5), 3)
    for lie in (replace(ref, sha256="0" * 64), replace(ref, bytes=1), replace(ref, min_path="data/00000002"),
                replace(ref, max_path="data/00000002")):  # fmt: skip
        with pytest.raises(CorruptData):
            list(winning_rows(root_of(3, [lie]), bucket.fetch))


def test_collection_sees_every_row_there_is():
    bucket = Bucket()
    rows = [Entry("p", "k1", 1, None, "", 1), Unreferenced("k0", "p", 1)]
    root = root_of(3, [bucket.add(rows, 1)], [Entry("p", "k2", 1, None, "", 2)], [Unreferenced("k1", "p", 2)])
    assert {r.key for r in all_rows(root, bucket.fetch)} == {"k0", "k1", "k2"}


@given(
    st.permutations([Entry("p", "a", 1, None, "", 1), Tombstone("p", "b", 1, None, 3), Entry("p", "c", 1, None, "", 2)])
)
def test_the_winner_does_not_depend_on_the_order(rows):
    assert winner(rows).seq == 3


_NAMED = st.lists(st.sampled_from(["a", "b", "ab", "a-b", "ba", "a.", "ä", "äb", "b b"]), min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(st.sets(_NAMED.map("/".join), min_size=1, max_size=40), st.sampled_from(["a", "ab", "b", "äb", "ä", "a."]))
@example({"x/ab", "x/ab-/1", "x/ab/1"}, "ab")
@example({"x/a/1", "x/ab/1", "y"}, "ab")
def test_who_looks_for_a_name_among_paths_misses_none(paths, name):
    """Paths share beginnings with the one before, so that a name may stand in a page in pieces."""
    rows = [Entry(f"data/{path}", "k", 1, None, "", 1) for path in sorted(paths)]
    segment = write_segment(rows)
    source = segment.data
    found = {p for some in listed_paths(segment.ref("k", 1), source, EVERYTHING, name) for p in some}
    wanted = {row.path for row in rows if f"/{name}/" in row.path}
    assert wanted <= found <= {row.path for row in rows}


def test_pages_without_the_name_are_passed_over():
    rows = [Entry(f"data/t/{number:06d}/result/1/raw", "k", 1, None, "", 1) for number in range(3 * ROW_GROUP)]
    rows[ROW_GROUP + 5] = replace(rows[ROW_GROUP + 5], path=rows[ROW_GROUP + 5].path.replace("result", "carts"))
    segment = write_segment(rows)
    some = list(listed_paths(segment.ref("k", 1), segment.data, Span.below("data"), "carts"))
    assert [len(paths) for paths in some] == [0, ROW_GROUP, 0]


def test_pages_with_other_names_that_end_alike_are_passed_over():
    """`/result/` stands in every page; of `/visit/` only one has a part, written behind a name that begins like it."""
    rows = [Entry(f"data/t/{number:06d}/result/1/raw", "k", 1, None, "", 1) for number in range(3 * ROW_GROUP)]
    for at, name in ((5, "visi"), (6, "visit")):
        rows[ROW_GROUP + at] = replace(rows[ROW_GROUP + at], path=f"data/t/{ROW_GROUP + 5:06d}/{name}/1/raw")
    segment = write_segment(rows)
    some = list(listed_paths(segment.ref("k", 1), segment.data, Span.below("data"), "visit"))
    assert [len(paths) for paths in some] == [0, ROW_GROUP, 0]


@settings(deadline=None, max_examples=100)
@given(st.sets(_NAMED.map("/".join), min_size=3, max_size=60), st.integers(0, 60), st.integers(1, 9))
def test_texts_that_are_skipped_change_nothing_in_those_that_follow(paths, skip, some):
    rows = [Entry(path, f"{path}~k", 1, None, "", 1) for path in sorted(paths)]
    raw = Raw(write_segment(rows).data)
    group = read_footer(raw).groups[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_TEXTS", some)
        found = [list(decode.values(raw, group, group.columns[at], min(skip, len(rows)))) for at in (0, 2)]
    assert found == [[row.path for row in rows][skip:], [row.key for row in rows][skip:]]


@given(st.sets(_NAMED.map("/".join), min_size=1, max_size=40), st.sampled_from(["", "a", "a-b", "b"]))
def test_paths_of_a_range_are_all_that_a_segment_has_there(paths, start):
    rows = [Entry(path, "k", 1, None, "", 1) for path in sorted(paths)]
    segment = write_segment(rows)
    for stop in (None, f"{start}0"):
        some = listed_paths(segment.ref("k", 1), segment.data, Span(start, stop), None)
        found = [path for paths in some for path in paths]
        assert found == [row.path for row in rows if start <= row.path and (stop is None or row.path < stop)]


def test_of_columns_only_what_belongs_to_the_wanted_paths_is_read(monkeypatch):
    """Ten rows out of the middle of a group whose other columns have pages of their own."""
    rows = [Entry(f"p/{number:06d}", f"k{number}", 1, f"{number:064x}", "", 1) for number in range(ROW_GROUP)]
    data, made = write_segment(rows).data, []
    real = decode._texts
    monkeypatch.setattr(decode, "_texts", lambda *a: (made.append(text) or text for text in real(*a)))
    found = list(read_segment(data, 1, start="p/009000", stop="p/009010"))
    assert found == rows[9000:9010]
    assert len(made) < 100
