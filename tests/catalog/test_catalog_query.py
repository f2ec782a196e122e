"""`data query`: what SQL answers, what CEL answers, and that nobody can tell the difference."""

from __future__ import annotations

import json

import pytest

from swamp.catalog.query import plan_query, query
from swamp.catalog.schema import FIELDS
from swamp.data.metadata import Draft, Owner
from swamp.data.names import DataName
from swamp.errors import UsageError


@pytest.fixture
def filled(shelf):
    shelf.save("alpha", json.dumps({"size": 1, "nested": {"ok": True}}).encode(), env="prod")
    shelf.save("alpha", json.dumps({"size": 2, "nested": {"ok": False}}).encode(), env="prod")
    shelf.save("beta", json.dumps([1, 2, 3]).encode(), env="dev", weird='k"e.y')
    shelf.save("gamma", b"{not json", model="crate")
    shelf.repo.save(
        DataName.of("manual/data", "box", "log"), Draft(Owner.manual("box"), "text/plain"), b"two errors\nfound\n"
    )
    return shelf


def found(shelf, predicate: str, **options) -> list[tuple[str, int]]:
    results = query(shelf.catalog, shelf.repo, predicate, **options).results
    return [(r["name"], r["version"]) for r in results]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("true", ["alpha", "beta", "gamma", "log"]),
        ('name == "alpha"', ["alpha"]),
        ('modelName == "crate" || name == "log"', ["log", "gamma"]),
        ('tags.env == "prod"', ["alpha"]),
        ('tags["weird"] == "k\\"e.y"', ["beta"]),
        ('tags.env != "prod"', ["beta"]),
        ('!(tags.env == "prod")', ["beta"]),
        ("has(tags.env)", ["alpha", "beta"]),
        ('!("env" in tags)', ["gamma", "log"]),
        ("attributes.size == 2", ["alpha"]),
        ("attributes.nested.ok == false", ["alpha"]),
        ("attributes[0] == 1", ["beta"]),
        ("attributes == null", ["gamma", "log"]),
        ('content.contains("errors")', ["log"]),
        ('name.startsWith("a") || name.endsWith("ta")', ["alpha", "beta"]),
        ('name in ["beta", "log"] && size > 10', ["log"]),
        ("modelName == null", ["log"]),
        ('modelName != "box"', ["gamma", "log"]),
        ('modelName < "c"', ["alpha", "beta"]),
        ('contentType.matches("^text/")', ["log"]),
        ('createdAt > timestamp("2020-01-01T00:00:00Z") && createdAt < timestamp("2999-01-01T00:00:00Z")', None),
        ('createdAt > "2020" && createdAt < "2999"', None),
        ("timestamp(createdAt).getFullYear() > 2020", None),
        ("createdAt.getFullYear() > 2020", None),
        ("size / 0 == 1", []),
        ('ownerType == "manual" && !streaming && isLatest', None),
    ],
)
def test_predicates(filled, predicate, expected):
    names = [name for name, _ in found(filled, predicate)]
    assert sorted(names) == sorted(expected if expected is not None else ["alpha", "beta", "gamma", "log"])


def test_latest_is_implied_unless_versions_are_mentioned(filled):
    assert found(filled, 'name == "alpha"') == [("alpha", 2)]
    assert found(filled, 'name == "alpha" && version >= 1') == [("alpha", 1), ("alpha", 2)]
    assert found(filled, 'name == "alpha" && (isLatest || !isLatest)') == [("alpha", 1), ("alpha", 2)]
    assert found(filled, "!isLatest") == [("alpha", 1)]


@pytest.mark.parametrize(
    ("predicate", "where", "params"),
    [
        ('name == "a"', "isLatest = 1 AND ((name = ?))", ("a",)),
        ('"a" == name', "isLatest = 1 AND ((name = ?))", ("a",)),
        ("3 < version", "(version > ?)", (3,)),
        ("version >= -1", "(version >= ?)", (-1,)),
        ("isLatest == true", "(isLatest = ?)", (1,)),
        ('modelName != "m"', "isLatest = 1 AND ((modelName IS NOT ?))", ("m",)),
        (
            'createdAt >= timestamp("2026-01-01T01:00:00+01:00")',
            "isLatest = 1 AND ((createdAt >= ?))",
            ("2026-01-01T00:00:00.000Z",),
        ),
        ('name in ["a", "b"]', "isLatest = 1 AND ((name IN (?, ?)))", ("a", "b")),
        (
            '!(size > 1 && name.startsWith("x"))',
            "isLatest = 1 AND ((NOT ((size > ?) AND (instr(name, ?) = 1))))",
            (1, "x"),
        ),
    ],
)
def test_a_predicate_on_plain_columns_is_a_sql_query_and_nothing_is_left(predicate, where, params):
    plan = plan_query(predicate)
    assert (plan.where.text, plan.where.params, plan.rest) == (where, params, None)


def test_the_statement_that_runs_is_that_query_with_its_limit(filled):
    filled.listed()
    filled.statements.clear()
    query(filled.catalog, filled.repo, 'name == "alpha" && size > 3', limit=5)
    statement = filled.reads_of_data()[-1]
    assert (
        "WHERE ns = '' AND lifecycle = 'active' AND (isLatest = 1 AND ((name = 'alpha') AND (size > 3)))" in statement
    )
    assert statement.endswith("LIMIT 6")


def test_what_sql_cannot_say_stays_in_cel_and_the_rest_is_still_pushed():
    plan = plan_query(
        'name == "a" && attributes.x > 1 && (size < 3 || content.contains("q")) && (version > 1 || attributes.y)'
    )
    assert plan.where.text == "(name = ?)"
    assert (
        plan.rest.source
        == '(attributes.x > 1) && ((size < 3 || content.contains("q"))) && ((version > 1 || attributes.y))'
    )
    either = plan_query('(name == "a" && attributes.x == 1) || (name == "b" && attributes.x == 2)')
    assert either.where.text == "isLatest = 1 AND ((((name = ?)) OR ((name = ?))))"
    assert either.where.params == ("a", "b")


@pytest.mark.parametrize(
    "predicate",
    [
        "version == 3.0",
        'version == "3"',
        "name == 3",
        "name > specName",
        "name in []",
        'createdAt > timestamp("2026-01-01T00:00:00.0001Z")',
    ],
)
def test_what_could_differ_is_not_pushed(predicate):
    assert plan_query(predicate).rest.source == f"({predicate})"


def test_content_is_opened_only_for_rows_that_need_it(filled, monkeypatch):
    opened = []
    real = filled.repo.content
    monkeypatch.setattr(
        filled.repo, "content", lambda version, limit=None: opened.append(version.name) or real(version, limit)
    )
    found(filled, 'name == "alpha"')
    assert opened == []
    found(filled, 'name == "alpha" && attributes.size == 2')
    assert opened == ["alpha"]
    opened.clear()
    found(filled, 'name.matches("^(beta|log)$") && content.contains("e")')
    assert sorted(opened) == ["beta", "log"]


def test_select_gives_bare_values_and_a_row_without_one_gives_null(filled):
    result = query(filled.catalog, filled.repo, 'name in ["alpha", "beta"]', select="attributes.size")
    assert result.to_json() == {"items": [2, None], "results": [2, None], "total": 2, "limited": False}
    result = query(filled.catalog, filled.repo, 'name == "alpha"', select='{"n": name, "t": createdAt, "v": [version]}')
    (row,) = result.results
    assert (row["n"], row["v"]) == ("alpha", [2])
    assert row["t"].endswith("Z")


def test_a_row_shows_every_plain_field_and_content_only_when_mentioned(filled):
    (row,) = query(filled.catalog, filled.repo, 'name == "alpha"').results
    assert set(row) == set(FIELDS) - {"attributes", "content"}
    (row,) = query(filled.catalog, filled.repo, "attributes.size == 2").results
    assert row["attributes"] == {"size": 2, "nested": {"ok": False}}
    assert "content" not in row


@pytest.mark.parametrize("predicate", ['name != ""', 'content != "" || attributes != 1'])
def test_a_limit_is_kept_and_said(filled, predicate):
    result = query(filled.catalog, filled.repo, predicate, limit=2)
    assert (len(result.results), result.limited) == (2, True)
    result = query(filled.catalog, filled.repo, predicate, limit=4)
    assert (len(result.results), result.limited) == (4, False)
    assert query(filled.catalog, filled.repo, predicate, limit=0).results == []


def test_an_unknown_field_is_an_error_that_lists_the_fields(filled):
    for predicate, select in (("nmae == 1", None), ("true", "nmae")):
        with pytest.raises(UsageError, match="no field `nmae`") as caught:
            query(filled.catalog, filled.repo, predicate, select=select)
        assert caught.value.exit_code == 2
        assert all(name in caught.value.hint for name in FIELDS)


def test_a_syntax_error_has_a_position(filled):
    with pytest.raises(UsageError, match="line 1, column 8") as caught:
        query(filled.catalog, filled.repo, "name ==")
    assert (caught.value.details["line"], caught.value.details["column"]) == (1, 8)


def test_a_predicate_that_is_no_condition_is_refused(filled):
    with pytest.raises(UsageError, match="not a condition"):
        query(filled.catalog, filled.repo, "name")


def test_damaged_content_is_a_warning_and_its_row_does_not_match(filled):
    version = filled.repo.get(DataName.of("manual/data", "box", "alpha"))
    (filled.tree.root / version.ref.raw_path).write_bytes(b'{"size": 9, "nested": {}}')
    result = query(filled.catalog, filled.repo, "attributes.size > 0")
    assert result.results == []
    assert len(result.warnings) == 1
