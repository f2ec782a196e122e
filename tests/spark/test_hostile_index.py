"""An index that lies, read on Spark: refused as it is in process, by the same words and the same exit code."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from swamp.bulk.kernels import OfRanges
from swamp.bulk.maintain import OnStore
from swamp.cli.main import main
from swamp.datasets.publish import committer_for
from swamp.env import SYSTEM
from swamp.errors import CorruptData
from swamp.index.columns import segment_schema as schema_of_segments
from swamp.index.entry import Entry, Tombstone, Unreferenced
from swamp.index.lookup import all_rows
from swamp.index.root import ROOT_KEY, Root, Span, Writer, decode, encode, first_root
from swamp.index.segment import Segment, write_segment
from swamp.sync.progress import IdleTimeout


def segment_schema():
    import pyarrow as pa

    return pa.schema(schema_of_segments())


pytestmark = pytest.mark.timeout(900)

WRITER = Writer("repo", "host", "user", 1, "0")
ROWS = [
    Entry("data/a", "data/a~1", 1, "h", "t", 3),
    Tombstone("data/b", "data/b~1", 2, None, 2),
    Unreferenced("data/b~0", "data/b", 1),
    Entry("data/c", "data/c~1", 3, None, "", 3),
]


def on_spark(spec, ref):
    """What a task makes of a segment."""
    return list(OfRanges(spec, rooted(ref), all_rows)([Span()]))


def in_process(spec, ref):
    store = spec.open()
    return list(all_rows(rooted(ref), lambda named: store.get(named.key).body))


def rooted(*refs) -> Root:
    return replace(first_root(SYSTEM.uuid(), SYSTEM.ulid(), "2025-01-01T00:00:00Z", WRITER), segments=refs)


READERS = [in_process, on_spark]


def columns_of(rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(write_segment(rows).data)).to_pydict()


def packed(columns, schema=None):
    """Any columns as a file that says it is a segment."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table(columns, schema=schema or segment_schema()), out, compression="zstd")
    return out.getvalue()


def ref_of(spec, data, *, rows=4, low="data/a", high="data/c", seq=3):
    ref = Segment(data, rows, low, high).ref("_index/1.parquet", seq)
    spec.open().put(ref.key, data)
    return ref


@pytest.mark.parametrize("reader", READERS)
def test_an_honest_segment_is_read(bucket, reader):
    assert sorted(map(repr, reader(bucket, ref_of(bucket, packed(columns_of(ROWS)))))) == sorted(map(repr, ROWS))


def with_(**cells):
    """The honest columns with one value replaced: `column=(row, value)`."""
    columns = columns_of(ROWS)
    for name, (row, value) in cells.items():
        columns[name][row] = value
    return columns


LIES = {
    "a kind that is none": lambda: with_(kind=(0, "folder")),
    "an entry without a size": lambda: with_(size=(0, None)),
    "a negative size": lambda: with_(size=(1, -1)),
    "a number from the future": lambda: with_(seq=(0, 4)),
    "a number before the first": lambda: with_(seq=(2, 0)),
    "rows that are not sorted": lambda: with_(path=(0, "data/bb")),
    "a path outside of the range": lambda: with_(path=(3, "data/d")),
    "a path before the range": lambda: with_(path=(0, "../../etc/passwd")),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("lie", LIES)
def test_rows_that_cannot_be_are_refused_by_both_engines(bucket, lie, reader):
    ref = ref_of(bucket, packed(LIES[lie]()))
    with pytest.raises(CorruptData) as refused:
        reader(bucket, ref)
    assert refused.value.hint and "\n" not in refused.value.message


def without_text():
    """Bytes in the place of text: Arrow passes them on unread."""
    import pyarrow as pa

    columns = {name: pa.array(cells, segment_schema().field(name).type) for name, cells in columns_of(ROWS).items()}
    columns["key"] = pa.array([b"data/a~1", b"\xff\xfe", b"k", b"l"]).cast(pa.binary()).view(pa.string())
    return packed(columns)


def without_path():
    import pyarrow as pa

    loose = pa.schema([field.with_nullable(True) for field in segment_schema()], metadata=segment_schema().metadata)
    return packed(with_(path=(0, None)), loose)


def other_table():
    import pyarrow as pa

    return packed({"path": ["data/a"]}, pa.schema([("path", pa.string())]))


FILES = {
    "bytes that are no text": without_text,
    "a row without a path": without_path,
    "not Parquet": lambda: b"PAR1" + b"?" * 400 + b"PAR1",
    "nothing": lambda: b"",
    "a part of a file": lambda: packed(columns_of(ROWS))[:-40],
    "another table": other_table,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("lie", FILES)
def test_files_that_are_no_segments_are_refused_by_both_engines(bucket, lie, reader):
    ref = ref_of(bucket, FILES[lie]())
    with pytest.raises(CorruptData) as refused:
        reader(bucket, ref)
    assert refused.value.hint


@pytest.mark.parametrize("reader", READERS)
def test_a_segment_has_as_many_rows_as_the_root_says(bucket, reader):
    """The number decides how many tasks there are: it is not taken on trust."""
    with pytest.raises(CorruptData, match="rows"):
        reader(bucket, ref_of(bucket, packed(columns_of(ROWS)), rows=10**15))


@pytest.mark.parametrize("number", [2**63, 10**30])
def test_a_root_with_numbers_that_no_machine_counts_is_damaged(number):
    body = json.loads(encode(rooted()))
    body["entries"] = {"data/a": {"key": "k", "size": number, "lastModified": "", "seq": 1}}
    with pytest.raises(CorruptData):
        decode(json.dumps(body).encode())


# -- with a session


def on_store(jobs, spec):
    return OnStore(jobs, spec, committer_for(spec), IdleTimeout(SYSTEM, 300))


def publish(spec, *refs, **fields):
    root = replace(rooted(*refs), seq=3, **fields)
    spec.open().put(ROOT_KEY, encode(root))
    return root


@pytest.mark.parametrize("lie", ["bytes that are no text", "a kind that is none"])
def test_a_job_over_a_lying_segment_is_one_clear_error(jobs, bucket, lie):
    root = publish(bucket, ref_of(bucket, FILES[lie]() if lie in FILES else packed(LIES[lie]())))
    with pytest.raises(CorruptData, match="an index segment cannot be read") as refused:
        on_store(jobs, bucket).verify(root)
    assert refused.value.hint == "run: swamp datastore doctor --repair"


def test_a_root_that_promises_too_many_rows_commands_no_tasks(jobs, bucket):
    """A thousand million million rows would be a thousand million tasks."""
    ref = ref_of(bucket, write_segment(ROWS).data, rows=10**15)
    other = replace(ref, key="_index/2.parquet")
    bucket.open().put(other.key, write_segment(ROWS).data)
    with pytest.raises(CorruptData, match="rows where the root names"):
        on_store(jobs, bucket).merged(publish(bucket, ref, other), (ref, other), 0)


def test_sizes_that_lie_are_findings(jobs, bucket):
    """Together they are more than a machine counts to."""
    huge = [replace(row, size=2**63 - 1) for row in ROWS if isinstance(row, Entry)]
    for row in huge:
        bucket.open().put(row.key, b"x")
    root = publish(bucket, ref_of(bucket, write_segment(huge).data, rows=2))
    seen = on_store(jobs, bucket).verify(root)
    assert [(found.entry.path, found.verdict) for found in seen.bad] == [("data/a", "corrupt"), ("data/c", "corrupt")]


def test_a_layer_that_is_no_unicode_is_damage(jobs, bucket):
    root = publish(bucket, entries={"data/a": Entry("data/a", "\ud800", 1, None, "", 3)})
    with pytest.raises(CorruptData, match="Unicode"):
        on_store(jobs, bucket).verify(root)


OUTSIDE = ["../../escaped", "/tmp/swamp-escaped", "data/../../../escaped", "data/c\\..\\x", ".swamp-tmp-x", "_index/x"]


@pytest.mark.parametrize("command", ["sync", "verify"])
def test_the_command_refuses_a_hostile_segment_on_spark(
    spark, shared_repo, bucket, tmp_path, capfd, monkeypatch, command
):
    """From the command line, with the session that is live: exit code 65, a message and a next step, no file made."""
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    rows = [Entry(path, "data/k~1", 1, None, "", 3) for path in sorted(OUTSIDE)]
    publish(bucket, ref_of(bucket, write_segment(rows).data, rows=len(rows), low="data/a", high="data/c"))
    code = main(["datastore", command, "--engine", "spark", "--repo-dir", str(shared_repo)])
    said = capfd.readouterr()
    assert code == 65, said
    assert "outside of the range" in said.err and "doctor --repair" in said.err
    assert "Traceback" not in said.out + said.err and len(said.err.splitlines()) < 6
    assert not [path for path in tmp_path.rglob("*") if path.name in ("escaped", "fine", "x")]
    assert not Path("/tmp/swamp-escaped").exists()
