"""Datasets between Spark and a bucket: one new version per job, whole or not at all, read where it lies."""

import datetime as dt
import decimal
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from swamp.bulk.spread import opened
from swamp.data.metadata import decode
from swamp.datasets.dataset import Target, landed
from swamp.datasets.place import Bucket, current_root
from swamp.index.entry import is_payload_key

pytestmark = pytest.mark.timeout(900)


def save(frame, repo, name="events", model="web", **options):
    writer = frame.write.format("swamp").mode("append").option("repo", str(repo))
    writer = writer.option("model", model).option("name", name)
    for key, value in options.items():
        writer = writer.option(key, value)
    writer.save()


def load(spark, repo, name="events", model="web", **options):
    reader = spark.read.format("swamp").option("repo", str(repo)).option("model", model).option("name", name)
    for key, value in options.items():
        reader = reader.option(key, str(value))
    return reader.load()


def table(spark, repo, name, **options):
    reader = spark.read.format("swamp").option("repo", str(repo)).option("table", name)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def paths_in(bucket):
    root = current_root(opened(bucket))
    return {file.path: file for file in Bucket(bucket, root).files("")}


def metadata(bucket, number=1):
    found = paths_in(bucket)
    path = next(p for p in found if p.endswith(f"/{number}/metadata.yaml"))
    return decode(opened(bucket).get(found[path].key).body, path)


@pytest.mark.inv("spark.publish-once")
def test_a_job_of_four_tasks_is_one_new_version_that_reads_back_equal(spark, shared_repo, bucket):
    frame = spark.range(0, 100_000, 1, 4).selectExpr(
        "id", "concat('naïve ', id) text", "case when id % 7 = 0 then null else id / 3 end part", "id % 2 = 0 even"
    )
    save(frame, shared_repo)
    meta = metadata(bucket)
    assert meta.version == 1
    assert len(meta.parts) == 4
    assert meta.extra["statistics"]["rows"] == 100_000
    assert meta.extra["statistics"]["columns"]["id"] == {"nulls": 0, "min": 0, "max": 99_999}
    assert meta.extra["statistics"]["columns"]["part"]["nulls"] == 14_286
    back = load(spark, shared_repo)
    assert back.count() == 100_000
    assert back.exceptAll(frame).count() == 0
    files = paths_in(bucket)
    assert sum(p.endswith(".parquet") for p in files) == 4
    assert all(is_payload_key(f.key) for f in files.values())
    assert current_root(opened(bucket)).seq == 2  # the empty root, and one commit


def test_types_survive_the_way_through_the_bucket(spark, shared_repo):
    from pyspark.sql import Row

    rows = [
        Row(
            n=1,
            x=1.5,
            s="ä b",
            b=bytearray(b"\x00\xff"),
            d=dt.date(2026, 11, 15),
            t=dt.datetime(2026, 11, 15, 1, 2, 3, 456000),
            dec=decimal.Decimal("12.340"),
            a=["x", None],
            m={"k": 1},
            r=Row(inner="y"),
        ),
        Row(n=None, x=None, s=None, b=None, d=None, t=None, dec=None, a=None, m=None, r=None),
    ]
    schema = (
        "n bigint, x double, s string, b binary, d date, t timestamp, dec decimal(10,3), a array<string>, "
        "m map<string,int>, r struct<inner:string>"
    )
    frame = spark.createDataFrame(rows, schema)
    save(frame, shared_repo)
    back = load(spark, shared_repo)
    assert back.schema == frame.schema
    assert sorted(map(str, back.collect())) == sorted(map(str, frame.collect()))


def test_every_write_is_the_next_version_and_older_ones_stay_readable(spark, shared_repo):
    save(spark.range(3), shared_repo)
    save(spark.range(5), shared_repo)
    assert load(spark, shared_repo).count() == 5
    assert load(spark, shared_repo, version=1).count() == 3
    versions = table(spark, shared_repo, "versions").orderBy("version").collect()
    assert [(v.version, v.isLatest, v.modelName, v.name) for v in versions] == [
        (1, False, "web", "events"),
        (2, True, "web", "events"),
    ]
    assert [row.version for row in table(spark, shared_repo, "data").collect()] == [2]
    commits = table(spark, shared_repo, "commits").orderBy("seq").collect()
    assert [row.seq for row in commits] == [1, 2, 3]


def test_a_store_that_nothing_was_pushed_to_has_empty_tables_and_no_content(spark, shared_repo):
    assert [table(spark, shared_repo, name).count() for name in ("versions", "commits")] == [0, 0]
    with pytest.raises(Exception, match="no index yet"):
        load(spark, shared_repo)


def test_a_dataset_without_rows_has_its_columns(spark, shared_repo):
    save(spark.range(0).selectExpr("id", "'x' text"), shared_repo)
    back = load(spark, shared_repo)
    assert back.columns == ["id", "text"]
    assert back.count() == 0


@pytest.mark.inv("spark.publish-once")
def test_a_failing_job_leaves_no_version(spark, shared_repo, bucket):
    def explode(batches):
        for number, batch in enumerate(batches):
            if number == 0:
                yield batch
            raise RuntimeError("broken on purpose")

    save(spark.range(1), shared_repo)
    before = current_root(opened(bucket))
    broken = spark.range(0, 10_000, 1, 2).mapInArrow(explode, "id bigint")
    with pytest.raises(Exception, match="broken on purpose"):
        save(broken, shared_repo)
    after = current_root(opened(bucket))
    assert (after.seq, after.op) == (before.seq, before.op)
    assert [v.version for v in table(spark, shared_repo, "versions").collect()] == [1]


@pytest.mark.inv("spark.publish-once")
def test_a_task_that_runs_twice_is_published_once(spark, shared_repo, bucket, tmp_path):
    """The first attempt of each task uploads its part and then dies; the second one's part is the one that counts."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def once(batches):
        from pyspark import TaskContext

        task = TaskContext.get()
        yield from batches
        mark = Path(marks) / str(task.partitionId())
        if not mark.exists():
            mark.touch()
            os._exit(7)  # the worker is gone after its rows were produced

    frame = spark.range(0, 1000, 1, 2).mapInArrow(once, "id bigint")
    save(frame, shared_repo)
    assert len(list(marks.iterdir())) == 2
    back = load(spark, shared_repo)
    assert back.count() == 1000
    assert back.distinct().count() == 1000
    assert len(metadata(bucket).parts) == 2


def test_L54_a_restarted_job_with_a_write_id_makes_one_version(spark, shared_repo):
    save(spark.range(10), shared_repo, writeId="nightly-2026-11-15")
    save(spark.range(10), shared_repo, writeId="nightly-2026-11-15")
    assert load(spark, shared_repo).count() == 10
    assert [v.version for v in table(spark, shared_repo, "versions").collect()] == [1]
    save(spark.range(10), shared_repo, writeId="nightly-2026-11-16")
    assert table(spark, shared_repo, "versions").count() == 2


@pytest.mark.parametrize(
    ("mode", "message"),
    [("ignore", "append"), ("errorifexists", "Append")],
)
def test_modes_without_a_meaning_are_refused_with_the_way_out(spark, shared_repo, mode, message):
    with pytest.raises(Exception, match=f"(?is){message}"):
        spark.range(1).write.format("swamp").mode(mode).option("repo", str(shared_repo)).option("model", "web").option(
            "name", "events"
        ).save()


def test_overwrite_is_a_version_that_replaces_and_the_one_before_stays(spark, shared_repo):
    save(spark.range(10), shared_repo)
    options = {"repo": str(shared_repo), "model": "web", "name": "events"}
    spark.range(3).write.format("swamp").mode("overwrite").options(**options).save()
    assert load(spark, shared_repo).count() == 3
    assert load(spark, shared_repo, version=1).count() == 10


def test_somebody_elses_name_is_refused(spark, shared_repo):
    save(spark.range(1), shared_repo, ownerType="model-method", ownerRef="another")
    with pytest.raises(Exception, match="belongs to model-method another"):
        save(spark.range(1), shared_repo)


def counted(spark, repo):
    """The rows, by a read of none of the columns: of Parquet that opens footers and nothing else."""
    from pyspark.sql.types import StructType

    options = {"repo": str(repo), "model": "web", "name": "events"}
    return spark.read.format("swamp").schema(StructType([])).options(**options).load().count()


def test_only_the_columns_asked_for_are_read(spark, shared_repo):
    save(spark.range(10).selectExpr("id", "id * 2 twice", "'x' text"), shared_repo)
    narrow = load(spark, shared_repo, columns="twice,id")
    assert narrow.columns == ["twice", "id"]
    assert sorted(narrow.collect()) == [(2 * n, n) for n in range(10)]
    by_schema = (
        spark.read.format("swamp")
        .schema("text string, missing int")
        .option("repo", str(shared_repo))
        .option("model", "web")
        .option("name", "events")
        .load()
    )
    assert set(by_schema.collect()) == {("x", None)}
    assert counted(spark, shared_repo) == 10


def test_the_plain_datastore_takes_and_gives_datasets_too(spark, plain_repo):
    frame = spark.range(0, 500, 1, 3).selectExpr("id", "cast(id as string) text")
    save(frame, plain_repo)
    save(frame, plain_repo)
    assert load(spark, plain_repo).exceptAll(frame).count() == 0
    assert table(spark, plain_repo, "versions").count() == 2
    tree = plain_repo / ".swamp"
    assert not list(tree.glob(".swamp-tmp-*"))
    assert len(list(tree.glob("data/**/2/raw/part-*.parquet"))) == 3
    with pytest.raises(Exception, match="no commits to follow"):
        spark.readStream.format("swamp").option("repo", str(plain_repo)).load().writeStream.format(
            "noop"
        ).start().awaitTermination(300)


def put(repo, model, name, body, content_type):
    """Data as another program would put it: through the repository, not through Spark."""
    from swamp.data.artifacts import DataRepository
    from swamp.data.metadata import Draft, Owner
    from swamp.data.names import DataName
    from swamp.data.records import auto_definition
    from swamp.sync.port import PlainTree

    made = auto_definition("manual/data", model)
    data = DataName.of(made.type, made.id, name)
    draft = Draft(Owner.manual(made.id), content_type).tagged(modelName=model)
    return DataRepository(PlainTree(repo / ".swamp")).save(data, draft, body)


@pytest.mark.parametrize(
    ("content_type", "body", "rows"),
    [
        ("text/csv", b"a,b\n1,x\n2,\n", [{"a": 1, "b": "x"}, {"a": 2, "b": None}]),
        ("application/x-ndjson", b'{"a": 1}\n\n{"a": 2, "b": "x"}\n', [{"a": 1, "b": None}, {"a": 2, "b": "x"}]),
        ("application/json", b'[{"a": 1}, {"a": 2}]', [{"a": 1}, {"a": 2}]),
        ("application/json", b'{"a": {"b": 1}}', [{"a": {"b": 1}}]),
        ("text/plain", "eins\nzwö\n".encode(), [{"value": "eins"}, {"value": "zwö"}]),
    ],
)
def test_other_contents_are_read_as_rows(spark, plain_repo, content_type, body, rows):
    put(plain_repo, "web", "events", body, content_type)
    found = [row.asDict(recursive=True) for row in load(spark, plain_repo).collect()]
    assert found == rows
    assert counted(spark, plain_repo) == len(rows)


def test_what_is_not_rows_says_what_to_do(spark, plain_repo):
    put(plain_repo, "web", "events", b"\x00\x01", "application/octet-stream")
    with pytest.raises(Exception, match="not something to read as rows"):
        load(spark, plain_repo).collect()
    with pytest.raises(Exception, match="no data named nothing"):
        load(spark, plain_repo, name="nothing").collect()


def test_abort_deletes_nothing_and_says_when_the_commit_has_landed(spark, shared_repo, bucket):
    from pyspark.sql.datasource import CaseInsensitiveDict

    from swamp.datasets.source import SwampDataSource
    from swamp.errors import Failed

    source = SwampDataSource(CaseInsensitiveDict({"repo": str(shared_repo), "model": "web", "name": "events"}))
    writer = source.writer(spark.range(1).schema, False)
    message = writer.write(iter(spark.range(5).toArrow().to_batches()))
    writer.abort([message])
    before = {m.key for page in opened(bucket).list("data/") for m in page}
    assert len(before) == 1  # the part is still there: garbage that gc finds
    assert isinstance(writer.target, Target)
    assert not landed(writer.target)
    writer.commit([message])
    writer.commit([message])  # asked again, as after a lost answer
    assert table(spark, shared_repo, "versions").count() == 1
    with pytest.raises(Failed, match="has been committed"):
        writer.abort([message])
    assert load(spark, shared_repo).count() == 5


def test_readstream_sees_ten_versions_of_another_process_exactly_once_over_a_restart(
    spark, shared_repo, bucket, tmp_path
):
    script = tmp_path / "writer.py"
    script.write_text(WRITER)

    def write(first, last):
        done = subprocess.run(
            [sys.executable, str(script), str(shared_repo), str(first), str(last)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def follow():
        stream = (
            spark.readStream.format("swamp")
            .option("repo", str(shared_repo))
            .option("model", "web")
            .option("name", "events")
            .load()
        )
        query = (
            stream.writeStream.format("json")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "seen"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    write(1, 4)
    follow()
    write(5, 7)
    follow()
    heal(bucket)
    write(8, 10)
    follow()
    follow()
    seen = sorted(row.n for row in spark.read.json(str(tmp_path / "seen")).collect())
    assert seen == list(range(1, 11))


@pytest.mark.inv("stream.once")
def test_a_stream_is_written_as_versions_each_batch_once_over_a_restart(spark, shared_repo, tmp_path):
    """Ten versions, three a trigger, through a sink; the second run repeats a batch whose end Spark has forgotten."""
    for number in range(10):
        save(spark.range(number, number + 1), shared_repo)

    def follow():
        stream = spark.readStream.format("swamp").option("maxVersionsPerTrigger", 3)
        stream = stream.options(repo=str(shared_repo), model="web", name="events").load()
        sink = stream.writeStream.format("swamp").options(repo=str(shared_repo), model="web", name="copy")
        query = sink.option("checkpointLocation", str(tmp_path / "point")).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        return query

    follow()
    versions = table(spark, shared_repo, "versions").where("name = 'copy'")
    assert versions.count() == 4
    for name in ("3", ".3.crc"):
        (tmp_path / "point" / "commits" / name).unlink(missing_ok=True)
    follow()
    assert table(spark, shared_repo, "versions").where("name = 'copy'").count() == 4
    seen = [row.id for n in range(1, 5) for row in load(spark, shared_repo, name="copy", version=n).collect()]
    assert sorted(seen) == list(range(10))


WRITER = """
import sys
from pyspark.sql.types import StructType
import pyarrow as pa
from swamp.datasets.source import SwampDataSource

repo, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
schema = StructType().add("n", "long")
for number in range(first, last + 1):
    source = SwampDataSource({"repo": repo, "model": "web", "name": "events"})
    writer = source.writer(schema, False)
    message = writer.write(iter([pa.RecordBatch.from_pydict({"n": [number]})]))
    writer.commit([message])
"""


def heal(bucket):
    """What `verify` does for a payload that was lost: the same path under a new key. It is no new version."""
    from dataclasses import replace

    from swamp.commit.commit import Changes
    from swamp.datasets.publish import committer_for, pace_for
    from swamp.index.entry import payload_key
    from swamp.index.lookup import live_rows

    committer = committer_for(bucket)
    store = opened(bucket)

    def propose(root):
        row = next(r for r in live_rows(root, committer.fetch) if r.path.endswith("/2/metadata.yaml"))
        key = payload_key(row.path, committer.env.ulid())
        store.put(key, store.get(row.key).body)
        return Changes(puts=(replace(row, key=key),))

    assert committer.commit(propose, pace_for()) is not None


def test_a_catalog_is_rebuilt_on_spark_as_it_is_in_process(jobs, plain_repo, tmp_path):
    from swamp.catalog.catalog import Catalog
    from swamp.data.versions import parse_on_spark
    from swamp.env import SYSTEM
    from swamp.sync.port import PlainTree
    from swamp.sync.progress import IdleTimeout

    for number in range(30):
        put(plain_repo, f"m{number % 3}", f"n{number % 7}", b"x" * number, "text/plain")
    tree = PlainTree(plain_repo / ".swamp")
    broken = next(tree.root.glob("data/**/metadata.yaml"))
    broken.write_bytes(b"{")
    inline, spark = Catalog(tmp_path / "a.db", tree), Catalog(tmp_path / "b.db", tree)
    inline.rebuild()
    spark.rebuild(partial(parse_on_spark, jobs, tree.root, IdleTimeout(SYSTEM, 120)))
    assert spark.damaged() == inline.damaged() != []
    everything = [list(catalog.select("1 = 1")) for catalog in (inline, spark)]
    assert len(everything[0]) == 29
    assert sorted(map(repr, everything[1])) == sorted(map(repr, everything[0]))


def test_another_machine_hydrates_a_dataset_lazily_and_reads_it_equal(spark, shared_repo, bucket, tmp_path):
    import pyarrow.parquet as pq

    from swamp.cache.layout import CacheDir
    from swamp.index.root import Writer
    from swamp.sync.engine import Engine, Policy

    frame = spark.range(0, 100_000, 1, 4).selectExpr("id", "id * 3 thrice")
    save(frame, shared_repo)
    policy = Policy(hydrate="lazy")
    cache = CacheDir(tmp_path / "other")
    engine = Engine.open(bucket.open(), cache, writer=Writer("other", "h", "u", 1, "0"), policy=policy)
    try:
        engine.pull()
        parts = [file.path for file in engine.remote_only("data")]
        assert len(parts) == 4 and all("/1/raw/part-" in path for path in parts)
        raw = engine.materialize(os.path.dirname(parts[0]))
        table = pq.read_table(raw)
        assert table.num_rows == 100_000
        assert table.to_pandas().sort_values("id").equals(frame.toPandas().sort_values("id"))
    finally:
        engine.close()
