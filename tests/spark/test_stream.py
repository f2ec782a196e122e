"""Following commits without holding them: a batch is cut into parts that tasks look through by themselves."""

from dataclasses import replace

import pytest

from swamp.commit.log import log_key
from swamp.data import metadata
from swamp.datasets.place import Bucket
from swamp.datasets.stream import BEGINNING, StreamStep, admitted, finished, offset_of, step_between
from swamp.env import SYSTEM
from swamp.index.entry import Entry, Tombstone
from swamp.index.root import ROOT_KEY, Writer, encode, first_root
from swamp.index.segment import write_segment

NAMES = 40
VERSIONS = 6
OWNER = metadata.Owner.manual("m")
CREATED = "2026-01-01T00:00:00.000Z"


def path_of(name, version, leaf="metadata.yaml"):
    return f"data/t/m/n{name:03d}/{version}/{leaf}"


def rows_of(versions, seq):
    """Metadata and content of some versions of every name."""
    both = ("metadata.yaml", "raw")
    paths = [path_of(name, version, leaf) for name in range(NAMES) for version in versions for leaf in both]
    return [Entry(path, f"{path}~1", 1, None, "", seq) for path in paths]


def segment(spec, name, rows, seq):
    made = write_segment(rows)
    ref = made.ref(f"_index/{name}.parquet", seq)
    spec.open().put(ref.key, made.data)
    return ref


@pytest.fixture
def roots(bucket):
    """A root with versions 1 to 3 of every name, and a later one with all of them, some healed, some undeleted."""
    old = segment(bucket, "old", rows_of((1, 2, 3), 1), 1)
    gone = Tombstone(path_of(7, 4), "k~0", 1, None, 2)
    first = replace(
        first_root("s", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "2026-01-01T00:00:00.000Z", Writer("r", "h", "u", 1, "0")),
        seq=2,
        segments=(old,),
        deleted={gone.path: gone},
    )
    healed = [replace(row, key=f"{row.path}~2", seq=5) for row in rows_of((2,), 5)]
    new = segment(bucket, "new", [*healed, *rows_of((4, 5), 5)], 5)
    layer = {row.path: row for row in rows_of((6,), 6)}
    second = replace(first, seq=6, op="01ARZ3NDEKTSV4RRFFQ69G5FAW", segments=(old, new), entries=layer, deleted={})
    return first, second


def brought(steps):
    return sorted((v.ref.data.name, v.ref.version) for step in steps for v in step.versions())


@pytest.mark.parametrize("length", [1, 7, 500])
def test_the_parts_of_a_step_bring_each_new_version_once(bucket, roots, length):
    """Heals are not new, nor is what comes back from the dead: a tombstone said that it has been seen."""
    first, second = roots
    step = StreamStep(Bucket(bucket, second), first, first.seq)
    expected = sorted((f"n{n:03d}", v) for n in range(NAMES) for v in (4, 5, 6) if (n, v) != (7, 4))
    assert brought([step]) == expected
    parts = list(step.parts(length))
    assert brought(parts) == expected
    looked_through = NAMES * 4  # with the healed ones
    assert len(parts) == -(-looked_through // length)


def test_from_the_beginning_everything_is_new(bucket, roots):
    _, second = roots
    step = StreamStep(Bucket(bucket, second), None, 0)
    assert brought(step.parts(50)) == sorted((f"n{n:03d}", v) for n in range(NAMES) for v in range(1, VERSIONS + 1))


def test_a_part_carries_what_it_needs_and_no_more(bucket, roots):
    first, second = roots
    parts = list(StreamStep(Bucket(bucket, second), first, first.seq).parts(20))
    assert max(len(part.after.root.entries) for part in parts) < len(second.entries) / 3
    assert all(part.before is not None and part.before.recent_ops == () for part in parts)


def test_an_empty_store_has_no_step(bucket):
    first = first_root("s", "op", "2026-01-01T00:00:00.000Z", Writer("r", "h", "u", 1, "0"))
    assert step_between(Bucket(bucket, first), BEGINNING, BEGINNING) is None


def test_a_stream_of_versions_reads_what_its_parts_name(bucket, roots, shared_repo, monkeypatch):
    """The source itself, with the rows that Spark would get of it."""
    from pyspark.sql.types import StructType

    from swamp.datasets.follow import CommitStream

    monkeypatch.setattr("swamp.datasets.follow.VERSIONS_PER_TASK", 30)
    _, second = roots
    store = bucket.open()
    store.put(ROOT_KEY, encode(second))
    for row in rows_of(range(1, 7), 6):
        name, version = row.path.split("/")[3:5]
        body = metadata.encode(
            metadata.Metadata(SYSTEM.uuid(), name, int(version), metadata.Draft(OWNER), CREATED, 1, "0" * 64)
        )
        for key in {row.key, f"{row.path}~2"}:
            store.put(key, body)
    schema = StructType().add("name", "string").add("version", "long")
    stream = CommitStream({"repo": str(shared_repo), "name": "n003"}, schema)
    parts = stream.partitions(dict(BEGINNING), offset_of(second))
    rows = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    assert len(parts) == 8
    assert sorted((row["name"], row["version"]) for row in rows) == [("n003", v) for v in range(1, 7)]


def anything(ref):
    return True


def followed(bucket, newest, most, start=None):
    """What each trigger brings, from `start` to the newest commit."""
    at, brought_by = start or dict(BEGINNING), []
    while True:
        end = admitted(Bucket(bucket, newest), at, most, anything)
        if end == at:
            return brought_by
        found = [(v.ref.data.name, v.ref.version) for v in step_between(Bucket(bucket, newest), at, end).versions()]
        assert len(found) <= most
        brought_by.append(found)
        at = end


@pytest.fixture
def logged(bucket, roots):
    """The two roots as the log and the root object keep them."""
    first, second = roots
    for root in roots:
        bucket.open().put(log_key(root.seq, root.op), encode(root))
    bucket.open().put(ROOT_KEY, encode(second))
    return first, second


@pytest.mark.inv("stream.once")
@pytest.mark.parametrize("most", [1, 7, 119, 120, 1000])
def test_triggers_that_take_few_bring_each_version_once(bucket, logged, most):
    _, second = logged
    triggers = followed(bucket, second, most)
    everything = sorted(found for trigger in triggers for found in trigger)
    # Version 4 of n007 was deleted at the first commit and came back: a stream that read on from there has seen it.
    expected = {(f"n{n:03d}", v) for n in range(NAMES) for v in range(1, VERSIONS + 1)}
    assert len(everything) == len(set(everything)) and set(everything) >= expected - {("n007", 4)}
    assert len(triggers) >= -(-len(everything) // most)


def test_commits_come_in_their_order_as_long_as_they_fit(bucket, logged):
    first, second = logged
    assert admitted(Bucket(bucket, second), dict(BEGINNING), 150, anything) == offset_of(first)
    inside = admitted(Bucket(bucket, second), dict(BEGINNING), 50, anything)
    assert (inside["seq"], inside["op"]) == (first.seq, first.op) and inside["path"]
    assert finished(Bucket(bucket, second), inside) == offset_of(first), "a commit read in parts is read to its end"


def test_without_its_record_a_commit_is_read_in_parts_of_the_next_one(bucket, logged):
    first, second = logged
    bucket.open().delete([log_key(first.seq, first.op)])
    found = [v for trigger in followed(bucket, second, 30) for v in trigger]
    assert sorted(found) == sorted((f"n{n:03d}", v) for n in range(NAMES) for v in range(1, VERSIONS + 1))


def test_a_stream_of_what_is_available_now_ends_where_it_began(bucket, logged, shared_repo):
    from pyspark.sql.streaming.datasource import ReadAllAvailable
    from pyspark.sql.types import StructType

    from swamp.datasets.follow import CommitStream

    first, second = logged
    stream = CommitStream({"repo": str(shared_repo), "maxversionspertrigger": "50"}, StructType().add("name", "string"))
    bucket.open().put(ROOT_KEY, encode(first))
    stream.prepareForTriggerAvailableNow()
    bucket.open().put(ROOT_KEY, encode(second))
    at, triggers = stream.initialOffset(), 0
    while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        at, triggers = end, triggers + 1
    assert at == offset_of(first) and triggers == 3
    assert stream.latestOffset(at, ReadAllAvailable()) == at
    assert stream.reportLatestOffset() == offset_of(second)


@pytest.mark.parametrize("text", ["0", "many", "-1"])
def test_a_limit_that_is_no_number_is_told(shared_repo, text):
    from pyspark.sql.types import StructType

    from swamp.datasets.follow import CommitStream
    from swamp.errors import UsageError

    with pytest.raises(UsageError, match="maxVersionsPerTrigger"):
        CommitStream({"repo": str(shared_repo), "maxversionspertrigger": text}, StructType())
