"""`swamp sql` on either engine, and `--engine spark`, as a user runs them.

One test of each starts a process of its own, and Spark in it; the others run the command here, in the session that all
of these tests share: what they show does not depend on who started the JVM.
"""

import csv
import io
import json
import os
import subprocess
import sys
import time

import pytest

from jobs import require_java
from swamp.errors import UsageError

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def repo(plain_repo, tmp_path):
    require_java()
    from test_datasets import put

    for name, body in (("report", b'{"a": 1}'), ("report", b'{"a": 2}'), ("log", b"x")):
        put(plain_repo, "web", name, body, "application/json" if name == "report" else "text/plain")
    return plain_repo


def swamp(repo, *args, **environ):
    environment = {**os.environ, "SWAMP_SPARK_MASTER": "local[1]", "NO_COLOR": "1", **environ}
    return subprocess.run(
        [sys.executable, "-m", "swamp", *args, "--repo-dir", str(repo)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )


@pytest.fixture
def swamp_here(spark, monkeypatch, capsys):
    """The same command in this process: its exit code and stdout. An error is raised, as it is to `main`."""

    def run(repo, *args, **environ):
        from swamp.cli.program import build

        for name, value in {"NO_COLOR": "1", **environ}.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = build().main([*args, "--repo-dir", str(repo)], prog_name="swamp", standalone_mode=False)
        return code or 0, capsys.readouterr().out

    return run


QUERY = """
    SELECT name, version, isLatest, size, tags, cast(map() AS map<string,string>) AS none, double('NaN') AS nan
    FROM versions WHERE modelName = 'web' ORDER BY name, version
"""


def test_json_is_an_array_of_row_objects_and_nothing_else_is_on_stdout(repo):
    done = swamp(repo, "sql", QUERY, "--json", "--engine", "spark")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(r["name"], r["version"], r["isLatest"]) for r in rows] == [
        ("log", 1, True),
        ("report", 1, False),
        ("report", 2, True),
    ]
    assert rows[0]["tags"] == {"modelName": "web"}
    assert (rows[0]["none"], rows[0]["nan"]) == ({}, None)
    assert "WARN" not in done.stderr and "Spark" not in done.stderr  # its noise is in a log file


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_csv_and_parquet_go_to_files(repo, swamp_here, tmp_path, engine):
    import pyarrow.parquet as pq

    text = "SELECT name, sum(version - version + 1) n FROM versions GROUP BY name ORDER BY name"
    _, out = swamp_here(repo, "sql", text, "--format", "csv", "--engine", engine)
    assert list(csv.reader(io.StringIO(out))) == [["name", "n"], ["log", "1"], ["report", "2"]]
    target = tmp_path / "out.parquet"
    assert swamp_here(repo, "sql", text, "--format", "parquet", "--output", str(target), "--engine", engine) == (0, "")
    assert str(pq.read_schema(target).field("n").type) == "int64"
    assert pq.read_table(target).to_pylist() == [{"name": "log", "n": 1}, {"name": "report", "n": 2}]


@pytest.mark.parametrize(
    ("asked", "written"),
    [(("--format", "parquet"), "parquet"), (("--format", "csv"), "csv"), (("--format", "table"), "csv"), ((), "json")],
)
def test_a_file_has_the_format_that_was_asked_for_also_with_json(repo, swamp_here, tmp_path, asked, written):
    """`--json` is about stdout: there it says what was written, and where."""
    import pyarrow.parquet as pq

    target = tmp_path / "out"
    text = "SELECT name, version FROM data WHERE name = 'log'"
    code, out = swamp_here(repo, "sql", text, *asked, "--output", str(target), "--json")
    said = json.loads(out)
    assert said.pop("reason") and (code, said) == (
        0,
        {"output": str(target), "format": written, "rows": 1, "engine": "duckdb"},
    )
    rows = {
        "parquet": lambda: pq.read_table(target).to_pylist(),
        "csv": lambda: [
            {**row, "version": int(row["version"])} for row in csv.DictReader(target.read_text().splitlines())
        ],
        "json": lambda: json.loads(target.read_text()),
    }[written]()
    assert rows == [{"name": "log", "version": 1}]


@pytest.mark.parametrize("asked", ["csv", "table"])
def test_stdout_is_json_or_something_else_but_not_both(repo, swamp_here, asked):
    with pytest.raises(UsageError) as wrong:
        swamp_here(repo, "sql", "SELECT 1", "--json", "--format", asked)
    assert "--json" in wrong.value.message and f"--format {asked}" in wrong.value.message
    assert "--output" in wrong.value.hint
    assert json.loads(swamp_here(repo, "sql", "SELECT 1 AS n", "--json", "--format", "json")[1]) == [{"n": 1}]


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_the_commits_of_sql_are_those_of_the_log(plain_repo, swamp_here, tmp_path, monkeypatch, engine):
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("swamp.commit.commit.LAYER_ROWS", 4)  # one of them lies in a segment
    (tmp_path / "bucket").mkdir()
    swamp_here(plain_repo, "datastore", "setup", (tmp_path / "bucket").as_uri(), "--json")
    note = tmp_path / "note"
    note.write_text("1")
    for name in ("report", "report", "log"):
        swamp_here(plain_repo, "data", "put", "web", name, str(note), "--json")
    swamp_here(plain_repo, "data", "delete", "web", "log", "--yes", "--json")
    logged = json.loads(swamp_here(plain_repo, "datastore", "log", "--json")[1])["commits"]
    text = "SELECT seq, op, added, changed, deleted FROM commits ORDER BY seq DESC"
    asked = json.loads(swamp_here(plain_repo, "sql", text, "--json", "--engine", engine)[1])
    assert asked == [{name: commit[name] for name in ("seq", "op", "added", "changed", "deleted")} for commit in logged]
    assert any(commit["changed"] for commit in logged) and any(commit["deleted"] for commit in logged)


@pytest.mark.parametrize("namespace", ["", "team"])
def test_the_namespace_of_sql_is_that_of_data_query(plain_repo, swamp_here, tmp_path, monkeypatch, namespace):
    monkeypatch.setenv("SWAMP_HOME", str(tmp_path / "home"))
    (tmp_path / "bucket").mkdir()
    wanted = ("--namespace", namespace) if namespace else ()
    swamp_here(plain_repo, "datastore", "setup", (tmp_path / "bucket").as_uri(), *wanted, "--json")
    note = tmp_path / "note"
    note.write_text("1")
    swamp_here(plain_repo, "data", "put", "web", "report", str(note), "--json")
    [found] = json.loads(swamp_here(plain_repo, "data", "query", "true", "--json")[1])["results"]
    for table, engine in (("data", "duckdb"), ("versions", "duckdb"), ("data", "spark"), ("versions", "spark")):
        text = f"SELECT ns FROM {table} WHERE ns = '{namespace}'"
        asked = swamp_here(plain_repo, "sql", text, "--json", "--engine", engine)[1]
        assert json.loads(asked) == [{"ns": found["ns"]}]


def test_a_plain_directory_has_no_namespace_for_sql_either(repo, swamp_here):
    [found] = json.loads(swamp_here(repo, "data", "query", "name == 'log'", "--json")[1])["results"]
    assert json.loads(swamp_here(repo, "sql", "SELECT DISTINCT ns FROM data", "--json")[1]) == [{"ns": found["ns"]}]


def test_an_answer_is_whole_before_its_first_row_and_only_then_becomes_values(jobs):
    """Columns are held, a fifth of what the same rows take as Python values."""
    from swamp.datasets.sql import rows_of
    from swamp.env import SYSTEM
    from swamp.sync.progress import IdleTimeout

    rows = rows_of(jobs.session.range(3), jobs, IdleTimeout(SYSTEM, 300))
    until = time.monotonic() + 30
    while jobs.stages == 0 and time.monotonic() < until:  # Spark tells its listeners of a stage some time after it
        time.sleep(0.05)
    assert jobs.stages == 1
    assert iter(rows) is rows and next(rows) == (0,)


def test_an_answer_that_is_too_large_says_so():
    from swamp.bulk.jobs import translated

    said = (
        "Total size of serialized results of 9 tasks (513.0 MiB) is bigger than spark.driver.maxResultSize (512.0 MiB)"
    )
    error = translated(RuntimeError(said), "sql")
    assert error.kind == "failed" and "larger than what the driver takes" in error.message
    assert "spark.conf" in error.hint


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_mistakes_are_exit_2_with_their_place_and_what_was_meant(repo, swamp_here, engine):
    with pytest.raises(UsageError) as wrong:
        swamp_here(repo, "sql", "SELECT nmae\nFROM data", "--json", "--engine", engine)
    assert wrong.value.exit_code == 2
    assert "nmae" in wrong.value.message and "(at line 1, column 8)" in wrong.value.message
    assert "name" in wrong.value.message + wrong.value.hint
    with pytest.raises(UsageError) as wrong:
        swamp_here(repo, "sql", "SELECT *\nFROM web.report r, web.repport", "--json", "--engine", engine)
    assert "web has no data named repport (at line 2, column 20)" in wrong.value.message
    assert "`report`" in wrong.value.hint


def test_formats_that_cannot_be_are_exit_2(repo):
    assert swamp(repo, "sql", "SELECT 1", "--format", "parquet").returncode == 2
    assert swamp(repo, "sql", "SELECT 1", "--format", "xml", "--json").returncode == 2
    assert swamp(repo, "sql", "SELECT 1", "--engine", "oracle").returncode == 2


def test_the_java_stack_of_a_mistake_is_for_those_who_ask(repo):
    """Spark logs what it also raises, as 8 kB of JSON on stderr. Processes of their own: only there it is heard."""
    spark = ("--engine", "spark")
    done = swamp(repo, "sql", "SELECT nope FROM data", *spark)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == ["Error", "Hint"]
    told = swamp(repo, "sql", "SELECT nope FROM data", "--json", "-v", *spark)
    assert told.returncode == 2 and told.stdout == ""
    assert "SQLQueryContextLogger" in told.stderr
    assert json.loads(told.stderr.splitlines()[-1])["code"] == "usage"


def test_without_java_the_message_says_how_to_get_it(repo, tmp_path):
    done = swamp(repo, "sql", "SELECT 1", "--engine", "spark", JAVA_HOME=str(tmp_path))
    assert done.returncode == 1
    assert "Java" in done.stderr and "apt install" in done.stderr


def test_in_process_it_says_who_answered_and_nothing_else_is_on_stderr(repo):
    """A process of its own: what DuckDB says when an interpreter ends is heard only there."""
    done = swamp(repo, "sql", "SELECT count(*) AS n FROM versions", "--json")
    assert (json.loads(done.stdout), done.stderr, done.returncode) == ([{"n": 3}], "", 0)
    told = swamp(repo, "sql", "SELECT count(*) AS n FROM versions", "-v")
    assert told.stderr.startswith("duckdb: about 0.0 s of reading")


@pytest.mark.usefixtures("one_object_each")
def test_sync_and_verify_on_spark_from_the_command_line(plain_repo, swamp_here, tmp_path):
    """`--engine spark` says which application did the work; a rotten object is exit 65."""
    home = {"SWAMP_HOME": str(tmp_path / "home")}
    (tmp_path / "bucket").mkdir()
    done = swamp(plain_repo, "datastore", "setup", (tmp_path / "bucket").as_uri(), "--json", **home)
    assert done.returncode == 0, done.stderr
    status = json.loads(swamp(plain_repo, "datastore", "status", "--json", **home).stdout)
    for number in range(40):
        file = os.path.join(status["cache"]["path"], "files", f"{number} ü")
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "w") as out:
            out.write(str(number))
    done = swamp(plain_repo, "datastore", "sync", "--push", "--full", "--engine", "spark", "--json", **home)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["filesPushed"], result["engine"], result["failed"]) == (40, "spark", [])
    assert set(result["spark"]) == {"applicationId", "stages", "tasks"}
    assert result["spark"]["tasks"] > 0
    payload = next(p for p in (tmp_path / "bucket").rglob("7 *~*") if p.is_file())
    payload.chmod(0o644)
    payload.write_bytes(b"!")
    for file in (tmp_path / "home").rglob("7 ü"):
        file.unlink()
    code, out = swamp_here(plain_repo, "datastore", "verify", "--engine", "spark", "--json", **home)
    assert code == 65
    found = json.loads(out)
    assert (found["checked"], found["corrupt"], found["missing"]) == (40, ["files/7 ü"], [])
