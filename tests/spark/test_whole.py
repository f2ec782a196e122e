"""What Spark answers over our tables is what it answers over a plain DataFrame of the same rows.

Spark reuses a Python reader that has taken a filter for other scans of the relation: a source that drops rows in
`pushFilters` gives wrong answers to unions, self-joins and whatever comes after the first query.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spark_files import native_format
from test_datasets import load, put, table

import swamp.spark

pytestmark = pytest.mark.timeout(900)

NAMES = {"a": 5, "b": 2, "c": 1, "it's": 1}


@pytest.fixture(scope="module")
def repo(tmp_path_factory):
    from swamp.repo.config import init_repo

    made = tmp_path_factory.mktemp("whole") / "repo"
    init_repo(made)
    for name, count in NAMES.items():
        for number in range(count):
            put(made, "web" if number % 2 else "shop", name, b"x" * number, "text/plain")
    return made


@pytest.fixture(scope="module")
def both(spark, repo):
    """The table under two names: as the source gives it, and as a plain DataFrame. Pushing filters is allowed."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    ours = table(spark, repo, "versions")
    plain = spark.createDataFrame(ours.collect(), ours.schema)
    ours.createOrReplaceTempView("ours")
    plain.createOrReplaceTempView("plain")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def answers(spark, text, source):
    return sorted(map(str, spark.sql(text.replace("$T", source)).collect()))


@pytest.mark.inv("source.whole")
def test_a_union_of_filtered_counts_counts_each_for_itself(both):
    text = """
        select 'a' k, count(*) n from ours where name = 'a' union all
        select 'b', count(*) from ours where name = 'b' union all
        select 'all', count(*) from ours"""
    found = {row.k: row.n for row in both.sql(text).collect()}
    assert found == {"a": 5, "b": 2, "all": sum(NAMES.values())}


@pytest.mark.inv("source.whole")
def test_a_filtered_count_does_not_reach_into_the_next_one(both, repo):
    versions = table(both, repo, "versions")
    assert versions.where("name = 'c'").count() == 1
    assert versions.count() == sum(NAMES.values())
    kept = versions.where("name = 'a'").cache()
    try:
        assert (kept.count(), versions.count(), kept.count()) == (5, sum(NAMES.values()), 5)
    finally:
        kept.unpersist()


PREDICATES = st.sampled_from(
    [
        "name = 'a'",
        "name <> 'b'",
        "name in ('a', 'it''s')",
        "name like '%a%'",
        "name is null",
        "version > 1",
        "version between 2 and 3",
        "isLatest",
        "not isLatest",
        "size = 0",
        "modelName = 'web'",
        "tags['modelName'] = 'shop'",
        "workflowName <=> null",
        "source is not null",
        "1 = 1",
    ]
)
SHAPES = st.sampled_from(
    [
        "select name, version from $T where {0} union all select name, version from $T where {1}",
        "select l.name, r.version from (select * from $T where {0}) l join (select * from $T where {1}) r using (name)",
        "select l.name, r.version from (select * from $T where {0}) l left join (select * from $T where {1}) r "
        "on l.name = r.name and l.version = r.version",
        "select count(*), (select count(*) from $T where {1}) from $T where {0}",
        "select name, count(*), sum(size) from $T where {0} or {1} group by name",
        "select name, version from $T where {0} except select name, version from $T where {1}",
        "select name from $T where name in (select name from $T where {0}) and {1}",
        "with w as (select * from $T where {0}) select name, version from w intersect select name, version from $T",
    ]
)


@pytest.mark.inv("source.whole")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shape=SHAPES, first=PREDICATES, second=PREDICATES)
def test_every_query_has_the_answer_of_a_plain_dataframe(both, shape, first, second):
    text = shape.format(first, second)
    assert answers(both, text, "ours") == answers(both, text, "plain")


@pytest.fixture(scope="module")
def contents(spark, tmp_path_factory):
    """A dataset by the Python source, by the format over Spark's own reader, by that reader, and as a plain DataFrame
    of the same rows."""
    from swamp.repo.config import init_repo

    made = tmp_path_factory.mktemp("contents") / "repo"
    init_repo(made)
    rows = [(f"n{n % 4}" if n % 5 else None, n % 7, n / 2 if n % 3 else None) for n in range(60)]
    plain = spark.createDataFrame(rows, "name string, version bigint, size double")
    swamp.spark.write(plain.repartition(3), "web", "events", repo=made)
    load(spark, made).createOrReplaceTempView("by_source")
    with native_format(spark):
        load(spark, made).createOrReplaceTempView("by_format")
    swamp.spark.read(spark, "web", "events", repo=made).createOrReplaceTempView("by_native")
    plain.createOrReplaceTempView("by_hand")
    return spark


OF_CONTENT = st.sampled_from(
    [
        "name = 'n1'",
        "name is null",
        "not name <=> 'n2'",
        "version > 3",
        "version in (0, 6)",
        "size < 9.5",
        "size is null",
    ]
)


@pytest.mark.inv("source.whole")
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shape=SHAPES, first=OF_CONTENT, second=OF_CONTENT, kept=st.booleans())
def test_every_query_of_content_has_the_answer_of_a_plain_dataframe(contents, shape, first, second, kept):
    text = shape.format(first, second)
    if kept:
        contents.catalog.cacheTable("by_source")
        contents.catalog.cacheTable("by_format")
    try:
        found = {view: answers(contents, text, view) for view in ("by_source", "by_format", "by_native", "by_hand")}
    finally:
        if kept:
            contents.catalog.uncacheTable("by_source")
            contents.catalog.uncacheTable("by_format")
    assert found["by_source"] == found["by_format"] == found["by_native"] == found["by_hand"]
