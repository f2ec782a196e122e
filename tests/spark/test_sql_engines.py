"""DuckDB and Spark answer alike: metadata tables, datasets of every format, and the documented subset of SQL."""

import datetime as dt
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs import require_java
from swamp.datasets.sql import query, register_dataset
from swamp.repo.config import init_repo
from swamp.sql.answer import answered, prepare
from swamp.sql.relations import written
from swamp.wiring import open_repo

pytestmark = pytest.mark.timeout(900)

WORDS = ["a", "ab", "B", "ü ", "it's", 'q"q', "%", "", None]
DAYS = [dt.datetime(2026, 11, day, 6 * day % 24, 30, tzinfo=dt.UTC) for day in (1, 2, 3)]


def left_rows():
    for number in range(40):
        yield {
            "id": number,
            "k": WORDS[number % len(WORDS)],
            "n": None if number % 7 == 3 else (number * 5) % 11 - 4,
            "x": [1.5, -2.25, None, math.nan, 0.5][number % 5],
            "t": [*DAYS, None][number % 4],
            "b": [True, False, None][number % 3],
        }


def right_rows():
    for number in range(25):
        row = {"id": number * 2, "k": WORDS[(number * 2) % 9], "n": number % 6, "nested": {"deep": [number, None]}}
        yield {name: value for name, value in row.items() if value is not None}


@pytest.fixture(scope="module")
def repo(tmp_path_factory, spark):
    """`web.left` is Parquet, `web."right-hand"` JSON lines, `web.third` CSV with dates and times."""
    require_java()
    place = tmp_path_factory.mktemp("engines") / "repo"
    init_repo(place)
    left, parts = list(left_rows()), place / "parts"
    parts.mkdir()
    schema = pa.schema(
        [
            *(("id", pa.int64()), ("k", pa.string()), ("n", pa.int64()), ("x", pa.float64())),
            *(("t", pa.timestamp("us", "UTC")), ("b", pa.bool_())),
        ]
    )
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(left[number * 20 : number * 20 + 20], schema), parts / f"{number}.parquet")
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in right_rows())
    csv = (
        "id,day,at,price,code\n1,2026-11-01,2026-11-01T10:00:00Z,1.50,007\n2,,,,x\n3,2026-11-03,2026-11-03 11:00,2,8\n"
    )
    with open_repo(place) as opened:
        opened.data.put("web", "left", parts, content_type="application/vnd.apache.parquet")
        opened.data.put("web", "right-hand", b'{"id": 1}\n', content_type="application/x-ndjson")
        opened.data.put("web", "right-hand", lines.encode(), content_type="application/x-ndjson")
        opened.data.put("web", "third", csv.encode(), content_type="text/csv")
        opened.data.put("web", "note", b"one\ntwo\n", content_type="text/plain")
        yield opened


def ask(repo, text, engine):
    with answered(repo, text, engine=engine) as answer:
        return answer.columns, [tuple(map(told, row)) for row in answer.rows()]


def told(value):
    """A value that can be compared: sums of fractions differ in their last digit by the order of their terms."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else float(f"{value:.9g}")
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, dict):
        return sorted((key, told(inner)) for key, inner in value.items())
    return [told(item) for item in value] if isinstance(value, list) else value


def alike(repo, text, *, ordered, asked=ask):
    ours, theirs = ask(repo, text, "duckdb"), asked(repo, text, "spark")
    assert ours[0] == theirs[0], text
    rows = [found if ordered else sorted(found, key=repr) for _, found in (ours, theirs)]
    assert rows[0] == rows[1], text
    return rows[0]


@pytest.mark.parametrize("table", ["data", "versions", "outputs", "runs", "commits"])
def test_metadata_tables_are_the_same_rows_with_the_same_columns(repo, table):
    rows = alike(repo, f"SELECT * FROM {table}", ordered=False)
    assert len(rows) == {"data": 4, "versions": 5}.get(table, 0)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SELECT * FROM web.left ORDER BY id", 40),
        ('SELECT * FROM web."right-hand" ORDER BY id', 25),
        ("SELECT * FROM web.`right-hand` FOR VERSION AS OF 1", 1),
        ('SELECT l.id FROM web.left l JOIN web."right-hand" for version 1 r ON l.id = r.id', 1),
        ("SELECT * FROM web.third ORDER BY id", 3),
        ("SELECT third.id, \"at\" < TIMESTAMP '2026-11-02 00:00:00' AS early FROM web.third ORDER BY id", 3),
        ("SELECT value, length(value) AS n FROM web.note ORDER BY value", 2),
        ("SELECT tags['modelName'] AS m, size FROM versions WHERE name = 'left'", 1),
        ("WITH t AS (SELECT n, count(*) AS c FROM web.left GROUP BY n) SELECT * FROM t ORDER BY n", 12),
        ("SELECT id FROM web.left WHERE k = 'it''s' AND k <> 'a\\b' ORDER BY id", 4),
    ],
)
def test_datasets_have_the_same_types_and_rows(repo, text, count):
    assert len(alike(repo, text, ordered=True)) == count


# -- generated queries

texts = st.sampled_from(["'a'", "'ab'", "'it''s'", "''", "'ü '"])
columns = st.sampled_from(["id", "k", "n", "x", "t", "b"])
numbers = st.integers(-5, 12).map(str)


def conditions(alias, *, whole=True):
    n, k = f"{alias}.n", f"{alias}.k"
    plain = [
        numbers.map(lambda c: f"{n} > {c}"),
        st.tuples(numbers, numbers).map(lambda c: f"{n} IN ({c[0]}, {c[1]})"),
        texts.map(lambda c: f"{k} = {c}"),
        texts.map(lambda c: f"{k} >= {c}"),
        st.sampled_from([f"{k} LIKE 'a%'", f"{k} IS NULL", f"{n} IS NOT NULL", f"{n} BETWEEN 0 AND 5"]),
    ]
    if whole:
        x, t, b = f"{alias}.x", f"{alias}.t", f"{alias}.b"
        plain += [
            st.sampled_from([f"{x} > 0.5", f"{x} <= 1.5", f"{b}", f"NOT {b}", f"{x} IS NULL"]),
            st.sampled_from([f"{t} {sign} TIMESTAMP '2026-11-02 12:30:00'" for sign in ("<", ">=", "=")]),
        ]
    simple = st.one_of(*plain)
    return st.recursive(
        simple,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda c: f"({c[0]} AND {c[1]})"),
            st.tuples(inner, inner).map(lambda c: f"({c[0]} OR {c[1]})"),
            inner.map(lambda c: f"NOT ({c})"),
        ),
        max_leaves=4,
    )


values = st.sampled_from(
    [
        "coalesce(l.n, 0) + 1 AS v",
        "l.n / 4 AS v",
        "l.k || '!' AS v",
        "upper(l.k) AS v",
        "CASE WHEN l.n > 2 THEN 'big' WHEN l.n IS NULL THEN 'none' ELSE 'small' END AS v",
        "cast(l.n AS string) AS v",
        "nullif(l.n, 3) AS v",
        "abs(l.n) AS v",
        "l.x * 2 AS v",
    ]
)
totals = st.lists(
    st.sampled_from(
        [
            *("count(*) AS c", "count(l.n) AS cn", "count(DISTINCT l.k) AS ck", "sum(l.n) AS s", "avg(l.n) AS a"),
            *("min(l.t) AS low", "max(l.x) AS high", "min(l.k) AS first_k", "sum(l.x) AS sx", "max(l.b) AS any_b"),
        ]
    ),
    min_size=1,
    max_size=4,
    unique=True,
).map(", ".join)
RIGHT = 'web."right-hand"'


@st.composite
def queries(draw):
    """(text, whether its order is fixed)"""
    shape = draw(st.sampled_from(["rows", "join", "group", "set", "top"]))
    where = draw(conditions("l"))
    if shape == "rows":
        return f"SELECT l.id, l.{draw(columns)} AS w, {draw(values)} FROM web.left l WHERE {where}", False
    if shape == "join":
        kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "FULL OUTER JOIN", "RIGHT JOIN"]))
        on = draw(st.sampled_from(["l.id = r.id", "l.k = r.k AND l.n = r.n", "l.n = r.n"]))
        more = draw(conditions("r", whole=False))
        return (
            f"SELECT l.id AS a, r.id AS b, l.t FROM web.left l {kind} {RIGHT} r ON {on} WHERE {where} OR {more}",
            False,
        )
    if shape == "group":
        by = draw(st.sampled_from(["k", "n", "b", "t", "x"]))
        having = draw(st.sampled_from(["", " HAVING count(*) > 2", " HAVING sum(l.n) IS NOT NULL"]))
        return f"SELECT l.{by} AS g, {draw(totals)} FROM web.left l WHERE {where} GROUP BY l.{by}{having}", False
    if shape == "set":
        word = draw(st.sampled_from(["UNION", "UNION ALL", "INTERSECT", "EXCEPT"]))
        more = draw(conditions("r", whole=False))
        return (
            f"SELECT l.k, l.n FROM web.left l WHERE {where} {word} SELECT r.k, r.n FROM {RIGHT} r WHERE {more}",
            False,
        )
    by, way = draw(columns), draw(st.sampled_from(["", " DESC", " NULLS LAST", " DESC NULLS FIRST"]))
    return f"SELECT l.id, l.{by} AS w FROM web.left l WHERE {where} ORDER BY l.{by}{way}, l.id LIMIT 12", True


@pytest.fixture(scope="module")
def asked_spark(repo, spark):
    """Spark's answer with the datasets held in memory: inferring their columns anew for each query is most of it."""
    prepared = prepare(repo, f"SELECT 1 FROM web.left, {RIGHT}")
    for view, version in prepared.by_view.items():
        register_dataset(spark, repo.path, view, version.ref)
        spark.catalog.cacheTable(view)

    def asked(repo, text, engine):
        del engine
        found = prepare(repo, text)
        assert found.by_view.items() <= prepared.by_view.items()
        frame = query(spark, written(found.query, found.views, "spark").text, str)
        rows = [row for batch in frame.toArrow().to_batches() for row in zip(*batch.to_pydict().values(), strict=True)]
        return frame.columns, [tuple(map(told, row)) for row in rows]

    yield asked
    spark.catalog.clearCache()


@pytest.mark.inv("sql.alike")
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(generated=queries())
def test_both_engines_answer_generated_queries_alike(repo, asked_spark, generated):
    text, ordered = generated
    alike(repo, text, ordered=ordered, asked=asked_spark)
