"""Which engine answers a query."""

import pytest

from swamp.errors import MissingTool
from swamp.sql import answer as choose
from swamp.sql.answer import Load, choose_sql_engine

SMALL = [Load("parquet", 10 << 20, True)]
LARGE = [Load("jsonl", 4 << 30, True)]


@pytest.fixture
def installed(monkeypatch):
    def have(*modules, java=True):
        monkeypatch.setattr(choose, "has", lambda module: module in modules)
        if not java:
            monkeypatch.setenv("JAVA_HOME", "/nowhere")
        else:
            monkeypatch.setattr(choose, "spark_obstacle", lambda: None if "pyspark" in modules else MissingTool("no"))

    return have


@pytest.mark.parametrize(
    ("modules", "loads", "engine"),
    [
        (("duckdb", "pyspark"), [], "duckdb"),
        (("duckdb", "pyspark"), SMALL, "duckdb"),
        (("duckdb", "pyspark"), LARGE, "spark"),
        (("duckdb",), LARGE, "duckdb"),
        (("pyspark",), SMALL, "spark"),
    ],
)
def test_auto_takes_what_is_there_and_worth_it(installed, modules, loads, engine):
    installed(*modules)
    choice = choose_sql_engine("auto", loads)
    assert choice.engine == engine and choice.reason


def test_what_has_to_be_fetched_first_counts(installed):
    installed("duckdb", "pyspark")
    here, away = Load("parquet", 3 << 30, True), Load("parquet", 3 << 30, False)
    assert choose.duck_seconds([away]) > choose.duck_seconds([here]) + 30


def test_asked_for_is_taken_and_with_nothing_installed_the_line_is_said(installed):
    installed("duckdb", "pyspark")
    assert choose_sql_engine("spark", []).engine == "spark"
    assert choose_sql_engine("duckdb", LARGE).engine == "duckdb"
    installed()
    with pytest.raises(MissingTool) as missing:
        choose_sql_engine("auto", SMALL)
    assert missing.value.hint == "pip install 'swamp[duckdb]'"


def test_large_without_java_stays_here_and_says_why(installed):
    installed("duckdb", "pyspark", java=False)
    choice = choose_sql_engine("auto", LARGE)
    assert choice.engine == "duckdb" and "Java" in choice.reason
