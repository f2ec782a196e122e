"""SQL in this process: what it sees, what it may not, and its bounds."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swamp.datasets.tables import VERSIONS
from swamp.errors import Failed, UsageError
from swamp.repo.config import init_repo
from swamp.sql.answer import answered
from swamp.sql.duck import Duck
from swamp.sql.relations import EngineQuery
from swamp.wiring import open_repo


@pytest.fixture
def repo(tmp_path):
    init_repo(tmp_path / "repo")
    with open_repo(tmp_path / "repo") as opened:
        yield opened


def ask(repo, text):
    with answered(repo, text, engine="duckdb") as answer:
        return list(answer.rows())


@pytest.fixture
def parquet(tmp_path):
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": [1, 2, None]}), file)
    return file


@pytest.mark.inv("sql.sealed")
@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_parquet('{parquet}')",
        "SELECT * FROM '{parquet}'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM repo",  # a variable of this test
        "SELECT getenv('HOME')",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/stolen.csv'",
        "COPY (SELECT 1) TO '{folder}/stolen.csv'",
        "ATTACH '{folder}/stolen.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '{folder}/stolen'",
        "PRAGMA database_list",
        "SET enable_external_access = true",
        "SELECT 1; SET enable_external_access = true",
        "FROM web.orders INSERT INTO x SELECT *",
    ],
)
def test_a_query_reads_no_file_and_changes_nothing(repo, parquet, tmp_path, text):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError) as refused:
        ask(repo, text.format(parquet=parquet, folder=tmp_path))
    assert refused.value.exit_code == 2 and refused.value.hint
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.inv("sql.sealed")
def test_only_the_parts_of_datasets_that_the_query_names_can_be_opened(repo, parquet):
    repo.data.put("web", "mine", parquet, content_type="application/vnd.apache.parquet")
    repo.data.put("web", "other", parquet, content_type="application/vnd.apache.parquet")
    other = repo.artifacts.raw(repo.data.get("web", "other"))
    assert ask(repo, "SELECT sum(n) FROM web.mine") == [(3,)]
    with pytest.raises(UsageError):
        ask(repo, f"SELECT * FROM web.mine, read_parquet('{other}')")


def test_settings_are_locked_even_for_who_holds_the_connection():
    import duckdb

    with Duck(seconds=60) as duck, pytest.raises(duckdb.Error, match="locked"):
        duck._db.execute("SET enable_external_access = true")


def test_a_query_that_takes_too_long_is_ended():
    endless = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range % 7 = b.range"
    with Duck(seconds=0.2) as duck, pytest.raises(Failed, match=r"longer than 0\.2 s"):
        duck.run(EngineQuery(endless, ()), endless, lambda: ())


def test_a_query_that_needs_too_much_memory_is_ended():
    greedy = "SELECT list(range) FROM range(100000000)"
    with Duck(seconds=60, memory=64 << 20) as duck, pytest.raises(Failed, match="memory") as failed:
        duck.run(EngineQuery(greedy, ()), greedy, lambda: ())
    assert "spark" in failed.value.hint


def test_versions_of_a_dataset_side_by_side_and_by_time(repo):
    for number in (1, 2, 3):
        repo.data.put("web", "orders", json.dumps({"n": number}).encode(), content_type="application/json")
    assert ask(repo, "SELECT n FROM web.orders") == [(3,)]
    text = "SELECT a.n, b.n, orders.n FROM web.orders FOR VERSION 1 a, web.orders FOR VERSION AS OF 2 b, web.orders"
    assert ask(repo, text) == [(1, 2, 3)]
    made = repo.data.versions("web", "orders")[1].fields["createdAt"]
    assert ask(repo, f"SELECT n FROM web.orders FOR TIMESTAMP AS OF '{made}'") == [(2,)]
    with pytest.raises(UsageError, match=r"no version 9 \(at line 1, column 15\)"):
        ask(repo, "SELECT n FROM web.orders FOR VERSION 9")
    with pytest.raises(UsageError, match="had no version at 2001-01-01"):
        ask(repo, "SELECT n FROM web.orders FOR TIMESTAMP AS OF '2001-01-01'")


def test_parquet_under_a_name_that_looks_like_a_pattern_is_read_too(repo, parquet, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    parquet.rename(folder / "part[1]*.parquet")
    repo.data.put("web site", "a-b", folder, content_type="application/vnd.apache.parquet")
    assert ask(repo, 'SELECT count(n) FROM "web site"."a-b"') == [(2,)]


def test_a_lazy_cache_fetches_the_parts_it_reads(repo, parquet, tmp_path, monkeypatch):
    from swamp.repo.config import write_config

    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    (tmp_path / "bucket").mkdir()
    where = {"datastore": {"type": "file", "url": (tmp_path / "bucket").as_uri()}}
    for name in ("one", "two"):
        init_repo(tmp_path / name)
        write_config(tmp_path / name, where)
    with open_repo(tmp_path / "one") as one:
        one.data.put("web", "orders", parquet, content_type="application/vnd.apache.parquet")
    write_config(tmp_path / "two", {"datastore": {**where["datastore"], "hydrate": "lazy"}})
    with open_repo(tmp_path / "two") as two:
        assert ask(two, "SELECT name, size > 0 FROM versions") == [("orders", True)]
        assert list(two.tree.remote_only("data")) != []
        assert ask(two, "SELECT count(*) FROM web.orders") == [(3,)]


def test_tables_are_what_data_query_says(repo):
    for number in range(3):
        repo.data.put("web", "r", b"x" * number, tags={"team": "a'b"}, content_type="text/plain")
    said = repo.data.query("version > 0").results
    names = [name for name, _ in VERSIONS.columns if name in said[0]]
    asked = ask(repo, f"SELECT {', '.join(names)} FROM versions ORDER BY version")
    assert [dict(zip(names, row, strict=True)) for row in asked] == [{n: one[n] for n in names} for one in said]
    assert ask(repo, "SELECT version FROM data WHERE tags['team'] = 'a''b'") == [(3,)]
