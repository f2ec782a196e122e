"""`swamp.spark`: Spark's own readers wherever the JVM can open the parts, the Python source everywhere else."""

import logging
import shutil

import pytest
from test_datasets import load, put, save
from test_like_spark import put_parts, rows

import swamp.spark
from swamp.cache.layout import CacheDir
from swamp.index.entry import is_pack, object_of
from swamp.index.root import Writer
from swamp.repo.config import write_config
from swamp.sync.engine import Engine, Policy

pytestmark = pytest.mark.timeout(900)


def plan(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize("kind", ["shared_repo", "plain_repo"])
def test_parquet_parts_are_read_by_sparks_own_reader(spark, request, kind):
    repo = request.getfixturevalue(kind)
    frame = spark.range(0, 1000, 1, 3).selectExpr("id", "cast(id as string) text", "id % 7 n")
    swamp.spark.write(frame, "web", "odd {name} [1]*?", repo=repo, tags={"team": "x"})
    found = swamp.spark.read(spark, "web", "odd {name} [1]*?", repo=repo)
    assert "FileScan parquet" in plan(found) and "PushedFilters: [IsNotNull(n)" in plan(found.where("n = 3"))
    assert rows(found) == rows(frame) == rows(load(spark, repo, name="odd {name} [1]*?"))
    narrow = swamp.spark.read(spark, "web", "odd {name} [1]*?", repo=repo, columns="text")
    assert narrow.columns == ["text"] and narrow.count() == 1000
    assert found.schema == load(spark, repo, name="odd {name} [1]*?").schema


def test_what_nobody_published_is_not_read(spark, shared_repo, bucket):
    """Parts of a task attempt that lost lie in the same directory: only the keys of the version are read."""
    from pathlib import Path
    from urllib.parse import urlsplit

    save(spark.range(10), shared_repo)
    part = next(Path(urlsplit(bucket.url).path).rglob("part-*"))
    (part.parent / "part-99999.parquet~01JD0000000000000000000000").write_bytes(part.read_bytes())
    assert swamp.spark.read(spark, "web", "events", repo=shared_repo).count() == 10


def test_parts_hold_one_combination_and_columns_grow_only_when_they_may(spark, shared_repo):
    """`partition_by` and `mergeSchema` through a session: the units of both are in test_parts."""
    frame = spark.range(0, 90, 1, 3).selectExpr("id", "id % 3 day")
    swamp.spark.write(frame, "web", "events", repo=shared_repo, partition_by=["day"])
    found = swamp.spark.read(spark, "web", "events", repo=shared_repo)
    by_part = found.selectExpr("input_file_name() part", "day").groupBy("part").agg({"day": "collect_set"}).collect()
    assert sorted(day for row in by_part for day in row[1]) == [0, 1, 2], "a part for each, and no day in two"
    assert rows(found) == rows(frame)
    wider = frame.selectExpr("id", "day", "'x' text")
    with pytest.raises(Exception, match="has a new column 'text'"):
        swamp.spark.write(wider, "web", "events", repo=shared_repo, mergeSchema="false")
    assert swamp.spark.read(spark, "web", "events", repo=shared_repo).columns == ["id", "day"]
    swamp.spark.write(wider, "web", "events", repo=shared_repo, mergeSchema="true")
    assert rows(swamp.spark.read(spark, "web", "events", repo=shared_repo)) == rows(wider)
    with pytest.raises(Exception, match="has lost the column 'text'"):
        swamp.spark.write(frame, "web", "events", repo=shared_repo, mergeSchema="true")


def test_versions_times_and_history(spark, shared_repo):
    for count in (1, 2, 3):
        swamp.spark.write(spark.range(count), "web", "events", repo=shared_repo, write_id=f"job-{count}")
    swamp.spark.write(spark.range(99), "web", "events", repo=shared_repo, write_id="job-2")  # a restarted job
    assert swamp.spark.read(spark, "web", "events", repo=shared_repo).count() == 3
    assert swamp.spark.read(spark, "web", "events", version=1, repo=shared_repo).count() == 1
    told = swamp.spark.history(spark, "web", "events", repo=shared_repo).collect()
    assert [(row.version, row.isLatest, row.modelName) for row in told] == [
        (3, True, "web"),
        (2, False, "web"),
        (1, False, "web"),
    ]
    at = swamp.spark.read(spark, "web", "events", timestamp=told[1].createdAt, repo=shared_repo)
    assert at.count() == 2
    with pytest.raises(Exception, match="did you mean 'columns'"):
        swamp.spark.read(spark, "web", "events", repo=shared_repo, colums="id")


def test_a_version_that_is_read_again_is_not_looked_at_again(spark, shared_repo, monkeypatch):
    """What is kept of it are files and columns: rows of two reads are told apart, and a new version is another one."""
    frame = spark.range(0, 100, 1, 3).selectExpr("id", "id % 7 n")
    swamp.spark.write(frame, "web", "events", repo=shared_repo)
    first = swamp.spark.read(spark, "web", "events", repo=shared_repo)
    with monkeypatch.context() as patched:
        patched.setattr("swamp.datasets.native._frame", lambda *_: pytest.fail("it was listed again"))
        second = swamp.spark.read(spark, "web", "events", repo=shared_repo)
        narrow = swamp.spark.read(spark, "web", "events", repo=shared_repo, columns="n")
    assert second.schema == first.schema and narrow.columns == ["n"] and "FileScan parquet" in plan(second)
    assert rows(first.where("n = 3")) == rows(frame.where("n = 3")) and rows(second) == rows(frame)
    joined = first.join(second, first.id == second.n).where(second.id > 50).select(first.id, second.id)
    plain = frame.alias("a").join(frame.alias("b"), on=None).where("a.id = b.n and b.id > 50").select("a.id", "b.id")
    assert sorted(joined.collect()) == sorted(plain.collect())
    swamp.spark.write(frame.where("id < 5"), "web", "events", repo=shared_repo)
    assert swamp.spark.read(spark, "web", "events", repo=shared_repo).count() == 5
    assert swamp.spark.read(spark, "web", "events", version=1, repo=shared_repo).count() == 100 == first.count()


def test_a_copy_of_a_bucket_is_read_where_it_lies(spark, shared_repo, tmp_path):
    """It has the same names and ids: a restored backup, while the first one is still there, or is gone."""
    swamp.spark.write(spark.range(7), "web", "events", repo=shared_repo)
    assert swamp.spark.read(spark, "web", "events", repo=shared_repo).count() == 7
    shutil.copytree(tmp_path / "bucket", tmp_path / "copy")
    shutil.rmtree(tmp_path / "bucket")
    write_config(shared_repo, {"datastore": {"type": "file", "url": (tmp_path / "copy").as_uri()}})
    found = swamp.spark.read(spark, "web", "events", repo=shared_repo)
    assert "/copy/" in found.inputFiles()[0] and found.count() == 7


def test_of_many_relations_the_last_ones_are_kept(spark, shared_repo, monkeypatch):
    from swamp.datasets import reuse

    monkeypatch.setattr(reuse, "MOST_KEPT", 2)
    for count in (1, 2, 3):
        swamp.spark.write(spark.range(count), "web", "events", repo=shared_repo)
        assert swamp.spark.read(spark, "web", "events", repo=shared_repo).count() == count
    assert len(reuse._kept[spark]) == 2
    assert swamp.spark.read(spark, "web", "events", version=1, repo=shared_repo).count() == 1


CONTENTS = [
    ("application/x-ndjson", [b'{"a": 1}\n', b'{"b": "x", "a": 2.5}\n']),
    ("application/json", [b'[{"a": 1}, {"a": 2}]']),
    ("text/csv", [b"a,b\n1,x\n,y\n"]),
    ("text/csv", [b"a,b\n1,x\n", b"b,a\ny,2\n"]),
    ("text/plain", [b"one\ntwo\n"]),
]


@pytest.mark.parametrize(("content_type", "parts"), CONTENTS)
def test_both_ways_of_reading_give_the_same(spark, plain_repo, tmp_path, content_type, parts):
    put_parts(plain_repo, tmp_path / "parts", content_type, parts)
    native = swamp.spark.read(spark, "web", "events", repo=plain_repo)
    python = load(spark, plain_repo)
    assert (native.schema, rows(native)) == (python.schema, rows(python))


def test_where_the_jvm_cannot_look_the_python_source_reads_and_the_log_says_why(spark, plain_repo, caplog, monkeypatch):
    put(plain_repo, "web", "events", b'{"a": 1}\n', "application/x-ndjson")
    monkeypatch.setattr(
        "swamp.datasets.native._obstacle", lambda *_: "the JVM cannot open it: No FileSystem for scheme"
    )
    with caplog.at_level(logging.INFO, "swamp.spark"):
        found = swamp.spark.read(spark, "web", "events", repo=plain_repo)
    assert rows(found) == [{"a": 1}]
    assert "swamp" in plan(found) and "FileScan" not in plan(found)
    assert "read by the Python source: the JVM cannot open it" in caplog.text


def test_a_store_that_the_jvm_has_no_connector_for_is_found_out_by_asking(spark, plain_repo):
    from swamp.datasets.native import _refusal

    assert "s3a" in (_refusal(spark, "s3a://bucket/key", 1) or "").lower()


def test_a_restarted_job_finds_its_version_without_reading_the_others(spark, shared_repo, bucket):
    """Names of parts carry a mark of the `writeId`: of 6 versions one is read, and none for a new job."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from swamp.bulk.spread import opened
    from swamp.datasets.dataset import _perhaps_mine
    from swamp.datasets.place import Bucket, current_root
    from swamp.datasets.source import SwampDataSource

    for number in range(6):
        swamp.spark.write(spark.range(1), "web", "events", repo=shared_repo, write_id=f"job-{number}")

    def read_for(write_id):
        options = {"repo": str(shared_repo), "model": "web", "name": "events", "writeId": write_id}
        target = SwampDataSource(CaseInsensitiveDict(options)).writer(spark.range(1).schema, False).target
        files = list(Bucket(bucket, current_root(opened(bucket))).files(target.data.path))
        return [file.path.split("/")[-2] for file in _perhaps_mine(target, files)]

    assert (read_for("job-3"), read_for("job-7")) == (["4"], [])


def test_a_dataset_with_a_part_in_a_pack_is_lent_to_sparks_reader(spark, tmp_path, bucket, plain_repo, caplog):
    """The first part is an object that the JVM can open, the second a slice of a pack, which is a file to nobody."""
    large = b'{"a": 1, "b": "%s"}\n' % (b"x" * 100) * 3000
    put_parts(plain_repo, tmp_path / "parts", "application/x-ndjson", [large, b'{"a": 2, "b": "y"}\n'])
    cache = CacheDir(tmp_path / "cache").ensure()
    shutil.copytree(plain_repo / ".swamp" / "data", cache.tree / "data")
    writer = Writer("repo", "host", "user", 1, "0")
    engine = Engine.open(bucket.open(), cache, writer=writer, policy=Policy(packs=True))
    engine.push(full=True)
    keys = {row.path.rpartition("/")[2]: row.key for row in engine.committer.read().root.entries.values()}
    engine.close()
    assert object_of(keys["part-0"]) == keys["part-0"] and is_pack(object_of(keys["part-1"]))
    write_config(plain_repo, {"datastore": {"type": "file", "url": bucket.url}})
    with caplog.at_level(logging.INFO, "swamp.spark"):
        found = swamp.spark.read(spark, "web", "events", repo=plain_repo)
    assert found.count() == 3001 and found.where("a = 2").count() == 1
    assert "lent by this process: parts of it lie in packs" in caplog.text and "FileScan json" in plan(found)
