"""`format("swamp")` over Spark's own Parquet reader: the same rows as the Python source, and nothing else changed."""

import json
import logging
import os
import threading

import pytest
from test_datasets import load, save, table
from test_like_spark import put_parts, rows

import swamp.spark
from swamp.datasets.compile import ContentPlanner, make_native

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def native(spark):
    """A session of its own in which the format is native; the others of this JVM keep the Python source."""
    from swamp.models.builtin import _of_its_own

    session = _of_its_own(spark)
    yield session
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(spark._jsparkSession)


@pytest.fixture
def parts(tmp_path):
    """The committed Parquet parts of a bucket, with their bytes: nothing may write to them."""

    def seen():
        return {str(file): file.read_bytes() for file in sorted((tmp_path / "bucket").rglob("part-*"))}

    return seen


def plan(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def is_native(frame):
    return "NativeParquetScan" in plan(frame)


FRAME = ("id", "cast(id as string) text", "id % 7 n", "array(struct(id x)) deep", "if(id % 5 = 0, null, id) part")


def make(session, count=1000):
    return session.range(0, count, 1, 3).selectExpr(*FRAME)


def test_columns_and_filters_reach_sparks_reader_and_rows_are_the_same(spark, native, shared_repo):
    save(make(native), shared_repo)
    found, python = load(native, shared_repo), load(spark, shared_repo)
    assert is_native(found) and not is_native(python) and found.columns == python.columns
    assert rows(found) == rows(python) == rows(make(native))
    narrow = plan(found.where("n = 3").select("id"))
    assert (
        "ReadSchema: struct<id:bigint,n:bigint>" in narrow and "PushedFilters: [IsNotNull(n), EqualTo(n,3)]" in narrow
    )
    chosen = load(native, shared_repo, columns="text, id")
    assert (
        chosen.columns == ["text", "id"]
        and is_native(chosen)
        and rows(chosen) == rows(make(native).select("text", "id"))
    )
    assert load(native, shared_repo).where("part is null").count() == 200
    assert native.read.format("SWAMP").options(repo=str(shared_repo), model="web", name="events").load().count() == 1000


@pytest.mark.inv("source.whole")
def test_no_scan_of_a_relation_sees_the_filters_of_another(native, shared_repo):
    """The query that was wrong with filters in a Python source, and others of its kind."""
    save(make(native), shared_repo)
    frames = {"v": load(native, shared_repo), "w": make(native)}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    queries = (
        "select 'a' k, count(*) n from {v} where n = 1 union all select 'b', count(*) from {v} where n = 2 "
        "union all select 'all', count(*) from {v}",
        "select count(*) from {v} a join {v} b on a.id = b.n where b.id > 50",
        "select a.id, b.text from (select * from {v} where n = 1) a left join (select * from {v} where n = 2) b "
        "on a.id = b.id - 1",
        "select count(*), count(part), min(id), max(text), sum(deep[0].x) from {v}",
        "select (select count(*) from {v} where n = 1), (select sum(id) from {v} where n = 2), "
        "(select max(id) from {v})",
        "select n, count(*) from {v} where id not in (select id from {v} where n = 3 limit 10000) group by n",
    )
    for query in queries:
        assert sorted(native.sql(query.format(v="v")).collect()) == sorted(native.sql(query.format(v="w")).collect())
    found = frames["v"]
    assert (found.where("n = 1").count(), found.count()) == (143, 1000)
    found.cache()
    try:
        assert (found.where("n = 2").count(), found.count(), load(native, shared_repo).count()) == (143, 1000, 1000)
    finally:
        found.unpersist()


def test_a_write_never_reaches_the_parts_that_are_read(native, shared_repo, parts):
    """Whatever writes to what was read makes a version, or is refused."""
    save(make(native, 10), shared_repo)
    before = parts()
    found = load(native, shared_repo)
    assert is_native(found) and len(before) == 3
    found.createOrReplaceTempView("v")
    for number, mode in enumerate(("append", "overwrite"), 2):
        again = found.where("id < 5").write.format("swamp").mode(mode)
        again.options(repo=str(shared_repo), model="web", name="events").save()
        assert load(native, shared_repo).count() == 5 and load(native, shared_repo, version=number).count() == 5
    for verb in ("into", "overwrite"):
        native.sql(f"insert {verb} v select id, text, n, deep, part from v limit 2")
        assert load(native, shared_repo).count() == 2 and found.count() == 10
    for refused in (
        "delete from v where id = 1",
        "update v set id = 1",
        "merge into v using v s on v.id = s.id when matched then delete",
        "truncate table v",
    ):
        with pytest.raises(Exception, match=r"not support|NOT_VIEW"):
            native.sql(refused).collect()
    for mode in ("ignore", "error"):
        with pytest.raises(Exception, match="swamp"):
            found.write.format("swamp").mode(mode).options(repo=str(shared_repo), model="web", name="events").save()
    after = parts()
    assert {name: after[name] for name in before} == before and load(native, shared_repo, version=1).count() == 10


@pytest.mark.inv("read.snapshot")
def test_one_snapshot_for_all_scans_of_a_read(native, shared_repo):
    save(make(native, 10), shared_repo)
    latest = load(native, shared_repo)
    chosen = native.read.format("swamp").schema("text string, id bigint")
    chosen = chosen.options(repo=str(shared_repo), model="web", name="events").load()
    assert chosen.count() == 10 and is_native(chosen) and chosen.columns == ["text", "id"]
    save(make(native, 20), shared_repo)
    assert latest.count() == 10 and latest.where("id > 3").count() == 6 and chosen.count() == 10
    assert load(native, shared_repo).count() == 20
    assert load(native, shared_repo, versionAsOf=1).count() == load(native, shared_repo, version=1).count() == 10
    at = table(native, shared_repo, "versions").where("version = 1").collect()[0].createdAt
    assert load(native, shared_repo, timestampAsOf=at).count() == 10


def test_parts_that_the_jvm_cannot_open_are_lent_to_the_format_too(native, shared_repo, monkeypatch):
    save(make(native), shared_repo)
    monkeypatch.setattr("swamp.datasets.native._path_of", lambda *_: "")
    found = load(native, shared_repo)
    assert is_native(found) and "webhdfs:" in plan(found)
    assert rows(found.where("n = 3")) == rows(make(native).where("n = 3")) and found.count() == 1000
    monkeypatch.setattr("swamp.datasets.native._may_lend", lambda *_: False)
    save(make(native, 20), shared_repo)
    python = load(native, shared_repo)
    assert not is_native(python) and python.count() == 20


def test_what_is_no_plain_read_is_left_to_the_python_source(native, shared_repo, plain_repo, tmp_path):
    save(make(native, 10), shared_repo)
    assert [row.version for row in table(native, shared_repo, "versions").collect()] == [1]
    put_parts(plain_repo, tmp_path / "parts", "application/x-ndjson", [b'{"a": 1}\n', b'{"a": 2.5}\n'])
    lines = load(native, plain_repo)
    assert not is_native(lines) and rows(lines) == [{"a": 1.0}, {"a": 2.5}]
    wider = native.read.format("swamp").schema("id string, missing int")  # columns that have to be converted
    wider = wider.options(repo=str(shared_repo), model="web", name="events").load()
    assert not is_native(wider) and rows(wider)[3] == {"id": "3", "missing": None}


def test_errors_say_what_they_have_said(native, shared_repo):
    save(make(native, 10), shared_repo)
    for options, said in (
        ({"verison": "3"}, "did you mean 'version'"),
        ({"columns": "idd"}, "there is no column 'idd'"),
        ({"version": "7"}, "7"),
        ({"version": "1", "versionAsOf": "1"}, "both say which version"),
        ({"timestampAsOf": "yesterday"}, "is not a time"),
    ):
        with pytest.raises(Exception, match=said):
            load(native, shared_repo, **options)


def test_streams_follow_and_deliver_as_before(native, shared_repo, tmp_path):
    save(make(native, 10), shared_repo)
    save(make(native, 20), shared_repo)
    options = {"repo": str(shared_repo), "model": "web", "name": "events"}
    reader = native.readStream.format("swamp").options(**options).load()
    still = load(native, shared_repo, version=1).selectExpr("id i")
    seen = []

    def each(batch, number):
        of_format = batch.sparkSession.read.format("swamp").options(**options, version="2").load()
        seen.append((batch.count(), of_format.count()))

    reader.writeStream.foreachBatch(each).trigger(availableNow=True).start().awaitTermination()
    assert seen == [(30, 20)]
    joined = reader.join(still, reader.id == still.i).writeStream.format("memory").queryName("joined")
    joined.trigger(availableNow=True).start().awaitTermination()
    assert native.table("joined").count() == 20
    sink = reader.writeStream.format("swamp").options(repo=str(shared_repo), model="web", name="copy")
    sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()
    assert load(native, shared_repo, name="copy").count() == 30


def test_sessions_threads_and_settings_are_told_apart(spark, native, shared_repo):
    save(make(native, 10), shared_repo)
    assert is_native(load(native, shared_repo)) and not is_native(load(spark, shared_repo))
    other = native.newSession()
    with pytest.raises(Exception, match="swamp"):
        load(other, shared_repo)
    found = []
    thread = threading.Thread(target=lambda: found.append(load(native, shared_repo).count()))
    thread.start()
    thread.join()
    assert found == [10]
    native.conf.set("spark.swamp.nativeFormat", "false")
    assert not is_native(load(native, shared_repo)) and make_native(native) is False
    native.conf.unset("spark.swamp.nativeFormat")
    assert is_native(load(native, shared_repo)) and swamp.spark.register(native) is native
    assert is_native(load(native, shared_repo))


def test_what_java_has_of_it_is_made_once(native, monkeypatch):
    monkeypatch.setattr("swamp.datasets.compile.SOURCE", None)
    assert make_native(native)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"SOURCE": "class {"}, "its class cannot be made"),
        ({"KNOWN_SPARK": "3."}, "it was tried with 3.x"),
    ],
)
def test_where_it_cannot_be_made_the_python_source_reads(native, monkeypatch, tmp_path, caplog, broken, said):
    from swamp.datasets import compile as compiling

    if "SOURCE" in broken:
        (tmp_path / "Broken.java").write_text(broken["SOURCE"])
        broken = {"SOURCE": tmp_path / "Broken.java", "CLASS": "swamp.Unknown"}
    for name, value in broken.items():
        monkeypatch.setattr(compiling, name, value)
    with caplog.at_level(logging.INFO, "swamp.spark"):
        assert make_native(native) is False
    assert said in caplog.text


def test_a_repository_that_is_named_by_a_relative_path_is_the_one_java_would_find(
    native, shared_repo, monkeypatch, tmp_path
):
    save(make(native, 10), shared_repo)
    relative = os.path.relpath(shared_repo, str(native._jvm.java.lang.System.getProperty("user.dir")))
    monkeypatch.chdir(tmp_path)
    assert is_native(load(native, relative)) and load(native, relative).count() == 10


def test_a_failure_of_the_planner_costs_speed_and_no_rows(native, shared_repo, monkeypatch, caplog):
    save(make(native, 10), shared_repo)
    monkeypatch.setattr("swamp.datasets.compile.native_table", lambda *_: 1 / 0)
    assert not is_native(load(native, shared_repo)) and load(native, shared_repo).count() == 10
    assert "left to the Python source" in caplog.text


def test_only_java_is_told_what_a_read_opens(native, shared_repo):
    """py4j's port, once something has opened it, takes questions from whoever finds it."""
    save(make(native, 10), shared_repo)
    read = json.dumps({"options": {"repo": str(shared_repo), "model": "web", "name": "events"}, "columns": None})
    planner = ContentPlanner(native, "secret")
    assert planner.apply("guess", read) is None and planner.apply("secret", read) is not None


def test_a_thread_without_a_session_finds_all_other_formats(spark, native, tmp_path):
    """Spark asks every class that is a format for its name, ours too, in whatever thread it looks for one."""
    java = type(native)._get_j_spark_session_class(native._jvm)
    found = []

    def look():
        java.clearActiveSession()
        lookup = native._jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
        found.append(lookup("parquet", native._jsparkSession.sessionState().conf()).getName())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert len(found) == 1 and "parquet" in found[0]
