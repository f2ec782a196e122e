"""JSON, CSV and options behave as a Spark user expects: columns and values are those of Spark's own readers."""

import datetime as dt
import json
import re

import pytest
from test_datasets import load, put, save

import swamp.spark

pytestmark = pytest.mark.timeout(900)


def put_parts(repo, folder, content_type, parts, name="events"):
    """An artifact of several parts, as `swamp data put` of a directory makes it."""
    folder.mkdir()
    for number, body in enumerate(parts):
        (folder / f"part-{number}").write_bytes(body)
    put(repo, "web", name, folder, content_type)
    return folder


def rows(frame):
    return sorted((row.asDict(recursive=True) for row in frame.collect()), key=repr)


def columns(frame):
    """Names and types; how wide a decimal is does not matter."""
    return [(f.name, re.sub(r"decimal\(\d+,0\)", "decimal", f.dataType.simpleString())) for f in frame.schema]


LATE = [b'{"a": 1}\n' * 9000 + b'{"a": 2.5, "late": "x"}\n', b'{"a": null, "second": [1, 2.5]}\n']
JSON_PARTS = [
    pytest.param(LATE, id="a column that appears late or only in the second part"),
    pytest.param([b'{"a": 1}\n{"a": 2.5}\n', b'{"a": 3}\n'], id="int then float"),
    pytest.param([b'{"a": null}\n', b'{"a": "x"}\n{"a": "y"}\n'], id="null then text"),
    pytest.param([b'{"a": 1}\n', b'{"a": "x"}\n'], id="number then text"),
    pytest.param([b'{"a": true}\n{"a": 1}\n'], id="boolean and number"),
    pytest.param([b'{"a": {"b": 1}}\n', b'{"a": {"c": "x"}}\n{"a": null}\n'], id="objects"),
    pytest.param([b'{"a":{"b":1}}\n', b'{"a":[1]}\n'], id="object and list"),
    pytest.param([b'{"a": []}\n{"a": [1, null]}\n', b'{"a": [2.5]}\n'], id="lists"),
    pytest.param([b'{"a": []}\n{"b": null}\n'], id="nothing but nulls"),
    pytest.param([b'{"b": 1, "a": 2}\n{"a": 9007199254740993}\n'], id="order of columns, large numbers"),
    pytest.param([b'{"a": 123456789012345678901234567890}\n'], id="beyond a long"),
    pytest.param(['{"ä ö": "naïve"}\n\n  \n'.encode()], id="names and blank lines"),
]


@pytest.mark.parametrize("parts", JSON_PARTS)
def test_json_lines_have_the_columns_and_values_that_sparks_reader_gives(spark, plain_repo, tmp_path, parts):
    folder = put_parts(plain_repo, tmp_path / "parts", "application/x-ndjson", parts)
    ours, theirs = load(spark, plain_repo), spark.read.json(str(folder))
    assert columns(ours) == columns(theirs)
    assert rows(ours) == rows(theirs)


CSV_PARTS = [
    pytest.param([b"a,b\n1,x\n2,y\n", b"a,b\n3.5,z\n"], id="int then float in the second part"),
    pytest.param([b"a,b\n,x\n,\n", b"a,b\n7,\n"], id="null then number"),
    pytest.param([b"a,b\n1,x\n" * 1 + b"2,y\n" * 9000 + b"late,z\n"], id="text after nine thousand numbers"),
    pytest.param([b"a,b\n3000000000,true\n1,FALSE\n"], id="long and boolean"),
    pytest.param([b"a,b\n2026-11-15,2026-11-15 10:20:30\n2026-11-16,2026-11-16 00:00:00\n"], id="dates and times"),
    pytest.param([b'a,b\n"x, y",1e3\n"",-2\n'], id="quotes and exponents"),
    pytest.param(["a,b\nnaïve,1\n".encode()], id="not ascii"),
]


@pytest.mark.parametrize("parts", CSV_PARTS)
def test_csv_has_the_columns_and_values_that_sparks_reader_gives(spark, plain_repo, tmp_path, parts):
    folder = put_parts(plain_repo, tmp_path / "parts", "text/csv", parts)
    ours, theirs = load(spark, plain_repo), spark.read.csv(str(folder), header=True, inferSchema=True)
    assert columns(ours) == columns(theirs)
    assert rows(ours) == rows(theirs)


def test_columns_of_csv_go_by_their_names_and_may_come_with_the_second_part(spark, plain_repo, tmp_path):
    """Spark's own reader goes by their places there, and would lose the new one."""
    put_parts(plain_repo, tmp_path / "parts", "text/csv", [b"a\n1\n", b"late,a\nx,2.5\n"])
    for ours in (load(spark, plain_repo), swamp.spark.read(spark, "web", "events", repo=plain_repo)):
        assert columns(ours) == [("a", "double"), ("late", "string")]
        assert rows(ours) == [{"a": 1.0, "late": None}, {"a": 2.5, "late": "x"}]


def test_options_of_a_reader_mean_what_they_mean_to_spark(spark, plain_repo, tmp_path):
    body = "1;'a;b';-\n2;'it\\'s';x\n".encode("latin-1")
    folder = put_parts(plain_repo, tmp_path / "parts", "text/csv", [body])
    given = {"sep": ";", "quote": "'", "escape": "\\", "header": "false", "nullValue": "-"}
    ours = load(spark, plain_repo, **given)
    assert rows(ours) == rows(spark.read.csv(str(folder), inferSchema=True, **given))
    assert ours.columns == ["_c0", "_c1", "_c2"]
    as_text = load(spark, plain_repo, **given, inferSchema="false")
    assert rows(as_text) == rows(spark.read.csv(str(folder), **given))


def test_the_schema_of_the_user_wins_and_what_does_not_fit_is_null(spark, plain_repo, tmp_path):
    parts = [b'{"a": 1, "b": "2026-11-15", "c": {"d": "x"}}\n{"a": "no", "b": 3}\n', b'{"a": 5000000000}\n']
    folder = put_parts(plain_repo, tmp_path / "parts", "application/x-ndjson", parts)
    schema = "a int, b date, c struct<d:string,e:int>, missing array<int>"
    reader = spark.read.format("swamp").schema(schema).option("repo", str(plain_repo))
    ours = reader.option("model", "web").option("name", "events").load()
    assert rows(ours) == rows(spark.read.schema(schema).json(str(folder)))


@pytest.mark.parametrize("name", ["lines.jsonl", "lines.ndjson"])
def test_a_file_called_jsonl_is_json_lines(spark, plain_repo, tmp_path, name):
    from swamp.repo.put import guess_type

    file = tmp_path / name
    file.write_text('{"a": 1}\n{"a": 2}\n')
    assert guess_type(file) == "application/x-ndjson"
    put(plain_repo, "web", "events", file.read_bytes(), guess_type(file))
    assert rows(load(spark, plain_repo)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"verison": "3"}, "did you mean 'version'"),
        ({"sep": ";"}, "jsonl content has no option 'sep'"),
        ({"colums": "a"}, "did you mean 'columns'"),
        ({"version": "1", "versionAsOf": "1"}, "both say which version"),
        ({"versionAsOf": "zero"}, "is not a version"),
        ({"timestampAsOf": "yesterday"}, "is not a time"),
        ({"timestampAsOf": "1999-01-01"}, "had no version at 1999"),
        ({"multiLine": "perhaps"}, "use true or false"),
    ],
)
def test_an_option_that_means_nothing_is_an_error_that_says_what_was_meant(spark, plain_repo, options, said):
    put(plain_repo, "web", "events", b'{"a": 1}\n', "application/x-ndjson")
    with pytest.raises(Exception) as refused:
        load(spark, plain_repo, **options).collect()
    assert said in str(refused.value)


def test_unknown_options_of_tables_streams_and_writes_are_errors(spark, shared_repo):
    reader = spark.read.format("swamp").option("repo", str(shared_repo))
    with pytest.raises(Exception, match="a table has no option 'limit'"):
        reader.option("table", "versions").option("limit", "3").load()
    with pytest.raises(Exception, match="did you mean 'writeId'"):
        save(spark.range(1), shared_repo, writeid2="x")
    with pytest.raises(Exception, match="did you mean 'startingFrom'"):
        stream = spark.readStream.format("swamp").option("repo", str(shared_repo)).option("startFrom", "latest").load()
        stream.writeStream.format("noop").start().awaitTermination(300)


def test_version_and_timestamp_as_of_are_those_of_delta(spark, shared_repo):
    save(spark.range(1), shared_repo)
    between = dt.datetime.now(dt.UTC)
    save(spark.range(2), shared_repo)
    assert load(spark, shared_repo, versionAsOf=1).count() == 1
    assert load(spark, shared_repo, version=2).count() == 2
    assert load(spark, shared_repo, timestampAsOf=between.isoformat()).count() == 1
    assert load(spark, shared_repo, timestampAsOf=(between + dt.timedelta(days=1)).date()).count() == 2


@pytest.mark.inv("read.snapshot")
def test_a_relation_stays_at_the_state_in_which_it_was_loaded(spark, shared_repo):
    """Schema, content and every later scan: a commit in between changes none of them."""
    save(spark.range(3), shared_repo)
    content = load(spark, shared_repo)
    versions = spark.read.format("swamp").option("repo", str(shared_repo)).option("table", "versions").load()
    save(spark.range(5).selectExpr("id", "'x' more"), shared_repo)
    assert (content.columns, content.count(), versions.count()) == (["id"], 3, 1)
    assert content.union(content).count() == 6
    assert load(spark, shared_repo).columns == ["id", "more"]


def test_small_parts_share_a_task_and_keep_their_order(spark, plain_repo, tmp_path):
    parts = [json.dumps({"n": number}).encode() + b"\n" for number in range(200)]
    put_parts(plain_repo, tmp_path / "parts", "application/x-ndjson", parts)
    frame = load(spark, plain_repo)
    assert frame.rdd.getNumPartitions() <= 8
    assert sorted(row.n for row in frame.collect()) == list(range(200))
