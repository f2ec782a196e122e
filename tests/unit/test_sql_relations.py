"""Where tables stand in a query, and the query as each engine gets it."""

import pytest

from swamp.errors import UsageError
from swamp.sql.relations import parse, place_in, written


def found(text):
    return [(one.label, one.version, one.moment, one.alias) for one in parse(text).relations]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM web.orders", [("web.orders", None, None, True)]),
        ("select * from web.orders for version 3;", [("web.orders", 3, None, True)]),
        ("SELECT * FROM web.orders FOR VERSION AS OF 3 o", [("web.orders", 3, None, False)]),
        ("SELECT * FROM web.orders VERSION AS OF '3' AS o", [("web.orders", 3, None, False)]),
        (
            "SELECT * FROM web.orders TIMESTAMP AS OF '2026-11-15' WHERE true",
            [("web.orders", None, "2026-11-15", True)],
        ),
        (
            'SELECT a.b FROM data, `my web`."or""ders" x',
            [("data", None, None, True), ('my web.or"ders', None, None, False)],
        ),
        (
            "SELECT o.a FROM x.y o JOIN (SELECT * FROM z.w) v ON o.a = v.a, q.r",
            [("x.y", None, None, False), ("z.w", None, None, True), ("q.r", None, None, True)],
        ),
        ("SELECT extract(year FROM o.day), a IS NOT DISTINCT FROM o.b FROM x.y o", [("x.y", None, None, False)]),
        ("SELECT 'FROM a.b' -- FROM c.d\n FROM e.f /* , g.h */", [("e.f", None, None, True)]),
        (
            "WITH t AS (SELECT 1 FROM m.n) SELECT t.a, t.b FROM t ORDER BY t.a, t.b",
            [("m.n", None, None, True), ("t", None, None, True)],
        ),
        ("SELECT * FROM range(3) r, m.n", [("m.n", None, None, True)]),
        ("SELECT a FROM m.n UNION SELECT b FROM m.o LIMIT 3", [("m.n", None, None, True), ("m.o", None, None, True)]),
        ("SELECT version FROM versions", [("versions", None, None, True)]),
        ("DESCRIBE web.orders", [("web.orders", None, None, False)]),
        ("SELECT * FROM a.b LEFT JOIN c.d USING (x)", [("a.b", None, None, True), ("c.d", None, None, True)]),
        ("SELECT count(DISTINCT k) FROM a.b", [("a.b", None, None, True)]),
    ],
)
def test_tables_are_found_where_tables_stand(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DROP TABLE data", "begins with DROP"),
        ("INSTALL httpfs", "begins with INSTALL"),
        ("ATTACH 'x'", "begins with ATTACH"),
        ("SET memory_limit = '9GB'", "begins with SET"),
        ("SELECT 1; DROP TABLE data", "one statement at a time: another one begins at line 1, column 9"),
        ("WITH a AS (SELECT 1)\nINSERT INTO b SELECT * FROM a", "INSERT is not run at line 2, column 1"),
        (" -- nothing\n", "there is no query"),
        ("SELECT * FROM web.orders FOR VERSION 0", "0 is not a version at line 1, column 38"),
        ("SELECT * FROM web.orders FOR VERSION AS OF", "nothing is not a version"),
        ("SELECT * FROM versions FOR VERSION 3", "only datasets have versions"),
    ],
)
def test_what_does_not_read_is_refused_with_its_place(text, said):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert said in refused.value.message and refused.value.hint


def test_each_engine_gets_its_own_quotes_and_errors_are_found_again():
    text = "SELECT \"a b\", 'it''s', 'x\\y', tags[\"k\"]\nFROM web.orders FOR VERSION 3 WHERE oops"
    query = parse(text)
    views = {query.relations[0]: "swamp_1"}
    duck, spark = written(query, views, "duckdb"), written(query, views, "spark")
    assert duck.text == 'SELECT "a b", \'it\'\'s\', \'x\\y\', tags["k"]\nFROM "swamp_1" AS "orders" WHERE oops'
    assert spark.text == "SELECT `a b`, 'it\\'s', 'x\\\\y', tags[`k`]\nFROM `swamp_1` AS `orders` WHERE oops"
    for made in (duck, spark):
        assert made.origin(made.text.index("oops")) == text.index("oops")
    assert place_in(text, text.index("oops")) == "at line 2, column 37"
