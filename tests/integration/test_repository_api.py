"""`swamp.open` on a bucket in a directory and on S3: what a notebook does is what the command line does."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import swamp
from machines import Machine, Team, be, place_on
from swamp.errors import Failed, MissingTool, NotFound, Unavailable, UsageError


@pytest.fixture(params=["file", "moto"])
def team(request, servers, tmp_path, fresh_prefix) -> Team:
    return Team(tmp_path, place_on(request.param, servers, tmp_path, fresh_prefix))


FRAME = pd.DataFrame(
    {"id": [3, 1, 2], "who": ["ana", None, "Łukasz"], "at": pd.to_datetime(["2026-11-15", "2026-11-16", None])},
    index=pd.Index(["x", "y", "z"], name="key"),
)


def test_what_one_machine_writes_another_reads(team: Team, monkeypatch):
    a, b = team.machine("a"), team.machine("b")
    be(a, monkeypatch)
    with swamp.open(a.repo) as repo:
        made = repo.write("web", "orders", FRAME, tags={"by": "test"}, lifetime="30d", keep=3)
        assert (made.model, made.name, made.version) == ("web", "orders", 1)
        repo.write("web", "orders", FRAME.iloc[:1])
    be(b, monkeypatch)
    with swamp.open(b.repo) as repo:
        pd.testing.assert_frame_equal(repo.read("web", "orders", version=1).to_pandas(), FRAME)
        assert len(repo.read("web", "orders").to_arrow()) == 1
        first = repo.read("web", "orders", 1)
        assert first.tags["by"] == "test" and first.content_type == "application/vnd.apache.parquet"
        assert list(first.to_pandas(columns=["id"]).columns) == ["id"]
    shown = b("data", "get", "web", "orders", "--version", "1").ok()
    assert shown["lifetime"] == "30d" and shown["retention"] == 3


@pytest.mark.parametrize(
    ("value", "kind", "back"),
    [
        ({"a": [1, None, "é"]}, "application/json", lambda v: v.json()),
        ([{"a": 1}, {"a": 2}], "application/json", lambda v: v.to_arrow().to_pylist()),
        ("ein Wörtchen\n", "text/plain", lambda v: v.text()),
        (b"\0\1\2", "application/octet-stream", lambda v: v.bytes()),
    ],
)
def test_values_come_back_as_they_were_written(alone: Machine, value, kind, back):
    with swamp.open() as repo:
        made = repo.write("web", "thing", value)
        assert made.content_type == kind and back(made) == value
        assert back(repo.read("web", "thing")) == value
        assert made.path().read_bytes() == made.bytes()


def test_tables_of_other_libraries(alone: Machine):
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    import pyarrow as pa

    frame = polars.DataFrame({"n": [1, 2, 3], "s": ["a", "b", None]})
    with swamp.open() as repo:
        assert repo.write("web", "polars", frame).to_polars().equals(frame)
        table = pa.table({"n": [1, 2], "l": [[1], []]})
        assert repo.write("web", "arrow", table).to_arrow().equals(table)
        repo.write("web", "duck", duckdb.sql("select 42 as answer"))
        assert repo.read("web", "duck").to_pandas().answer.tolist() == [42]


def test_files_directories_csv_and_json_lines(alone: Machine, tmp_path: Path):
    folder = tmp_path / "parts"
    for day in (1, 2):
        (folder / f"day={day}").mkdir(parents=True)
        pd.DataFrame({"n": [day * 10]}).to_parquet(folder / f"day={day}" / "part.parquet")
    lines = tmp_path / "events.jsonl"
    lines.write_text('{"n": 1}\n{"n": 2}\n')
    table = tmp_path / "table.csv"
    table.write_text("n,s\n1,a\n2,b\n")
    with swamp.open() as repo:
        parted = repo.write("web", "parts", folder)
        assert sorted(parted.parts) == ["day=1/part.parquet", "day=2/part.parquet"]
        assert parted.to_pandas()[["n", "day"]].values.tolist() == [[10, 1], [20, 2]]
        assert (parted.path() / "day=1" / "part.parquet").is_file()
        assert parted.bytes("day=1/part.parquet")[:4] == b"PAR1"
        with pytest.raises(UsageError, match="parts"):
            parted.bytes()
        assert repo.write("web", "events", lines).json() == [{"n": 1}, {"n": 2}]
        assert repo.read("web", "events").to_pandas().n.tolist() == [1, 2]
        assert repo.write("web", "table", table).to_pandas().s.tolist() == ["a", "b"]


def test_what_cannot_be_saved_or_read_so_is_said_and_nothing_is_made(alone: Machine):
    with swamp.open() as repo:
        for wrong in (object(), {"a": object()}, float("nan"), pd.DataFrame({"a": [1, "x"]})):
            with pytest.raises(UsageError) as error:
                repo.write("web", "thing", wrong)
            assert error.value.hint
        assert list(repo.list()) == []
        text = repo.write("web", "text", "no table")
        for wrong_way in (text.to_pandas, text.json):
            with pytest.raises(UsageError):
                wrong_way()
        with pytest.raises(UsageError):
            repo.write("web", "raw", b"\xff\0").text()
        with pytest.raises(NotFound, match="no data named"):
            repo.read("web", "txet")


def test_lists_versions_queries_and_differences(alone: Machine):
    with swamp.open() as repo:
        for n in (1, 2, 3):
            repo.write("web", "report", {"n": n}, tags={"env": "prod"})
        repo.write("db", "dump", "x")
        assert [(row["modelName"], row["name"], row["version"]) for row in repo.list()] == [
            ("db", "dump", 1),
            ("web", "report", 3),
        ]
        assert len(repo.list("web")) == 1
        assert [row["version"] for row in repo.versions("web", "report")] == [3, 2, 1]
        assert [row["name"] for row in repo.query("tags.env == 'prod'")] == ["report"]
        assert repo.query("modelName == 'web' && version > 0", select="attributes.n") == [1, 2, 3]
        found = repo.diff("web", "report")
        assert found.changes[0]["before"] == 2 and not repo.diff("web", "report", 1, 2).equal
        assert repo.list().to_pandas().name.tolist() == ["dump", "report"]
        with pytest.raises(UsageError):
            repo.query("nonsense ==")


def test_everything_shows_itself_in_a_few_words(alone: Machine):
    with swamp.open() as repo:
        for n in range(25):
            repo.write("web", f"<b>{n}", "x") if n == 0 else repo.write("web", f"r{n:02}", "x")
        things = [repo, repo.list(), repo.read("web", "r01"), repo.versions("web", "r01"), repo.workflow("nightly")]
        for thing in things:
            assert len(repr(thing)) < 4000 and " object at 0x" not in repr(thing)
        listed = repo.list()
        assert "and 5 more" in repr(listed) and len(repr(listed).splitlines()) == 22
        assert "&lt;b&gt;0" in listed._repr_html_() and "<b>0" not in listed._repr_html_()
        assert "web/r01 version 1" in repo.read("web", "r01")._repr_html_()
        assert str(alone.repo) in repo._repr_html_()
        assert listed[:2][1]["name"] == listed[1]["name"]


def test_reads_are_fresh_unless_told_otherwise(local_team: Team, monkeypatch):
    a, b = local_team.machine("a"), local_team.machine("b")
    be(a, monkeypatch)
    with swamp.open(a.repo, fresh=False) as repo:
        assert list(repo.list()) == []
        b.put("web", "report", "1")
        assert list(repo.list()) == []
        assert [row["name"] for row in repo.list(fresh=True)] == ["report"]
        assert repo.freshness is not None and repo.freshness.fresh


def test_with_the_store_away_reads_go_on_and_a_write_is_kept(local_team: Team, monkeypatch, caplog):
    a, b = local_team.machine("a"), local_team.machine("b")
    be(a, monkeypatch)
    bucket = Path(local_team.place.url.removeprefix("file://"))
    with swamp.open(a.repo) as repo:
        repo.write("web", "report", "1")
        os.rename(bucket, bucket.with_name("away"))
        with caplog.at_level(logging.WARNING, "swamp"):
            assert repo.read("web", "report", fresh=True).text() == "1"
        assert "the store did not answer" in caplog.text
        with pytest.raises(Unavailable, match="kept here"):
            repo.write("web", "report", {"n": 2}, tags={"k": "v"})
        os.rename(bucket.with_name("away"), bucket)
        repo.write("web", "other", "3")  # delivers what was kept first
        assert repo.read("web", "report").json() == {"n": 2}
    assert b.get("web", "report")["tags"]["k"] == "v"


def test_a_method_runs_in_the_background(alone: Machine):
    alone("model", "create", "command/shell", "disk").ok()
    with swamp.open() as repo:
        run = repo.run("disk", "execute", run="echo hello; sleep 0.2; echo bye").wait()
        assert run.status == "succeeded" and run.id and "hello" in run.logs() and "bye" in run.logs()
        result = next(one for one in run.outputs() if one.name == "result")
        assert result.json()["exitCode"] == 0
        assert "succeeded" in repr(run) and "hello" in run._repr_html_()
        with pytest.raises(Failed):
            repo.run("disk", "execute", run="exit 3").wait()
        with pytest.raises(NotFound):
            repo.run("dsik", "execute")
        with pytest.raises((UsageError, NotFound)):
            repo.run("disk", "exceute")
    assert [row["status"] for row in alone("model", "output", "list").ok()["items"]].count("succeeded") == 1


WORKFLOW = """
id: 2f1c8a52-6f0e-4a53-9d1e-5b0f6f1f3a11
name: nightly
inputs: {type: object, properties: {day: {type: string}}, required: [day]}
jobs:
  - name: all
    steps:
      - name: say
        task: {type: model_method, modelType: command/shell, modelName: say, methodName: execute,
               inputs: {run: "echo day ${{ inputs.day }}; test ${{ inputs.day }} != bad"}}
"""


def test_a_workflow_runs_in_the_background(alone: Machine):
    (alone.repo / "workflows").mkdir(exist_ok=True)
    (alone.repo / "workflows" / "workflow-nightly.yaml").write_text(WORKFLOW)
    with swamp.open() as repo:
        run = repo.workflow("nightly").run(day="monday")
        assert {v.name for v in run.outputs()} >= {"result"}
        assert run.status == "succeeded" and "day monday" in run.logs()
        history = alone("workflow", "history", "get", run.id).ok()
        assert history["status"] == "succeeded" and history["inputs"] == {"day": "monday"}
        with pytest.raises(Failed, match="say"):
            repo.workflow("nightly").run(day="bad").wait()
        with pytest.raises(UsageError):
            repo.workflow("nightly").run(dya="monday")
        with pytest.raises(NotFound):
            repo.workflow("nigthly").run()


def test_a_run_can_be_cancelled(alone: Machine):
    alone("model", "create", "command/shell", "disk").ok()
    with swamp.open() as repo:
        run = repo.run("disk", "execute", run="echo begun; sleep 60")
        while "begun" not in run.logs() and run.status == "running":
            run.wait(0.05)
        run.cancel()
        with pytest.raises(swamp.errors.Interrupted):
            run.wait()
        assert run.status == "cancelled"


def test_reading_text_loads_no_table_library(alone: Machine):
    alone.put("web", "note", "hello")
    script = (
        "import swamp, sys\nrepo = swamp.open()\nassert repo.read('web', 'note').text() == 'hello'\nrepo.list()\n"
        "print([m for m in ('pandas', 'pyarrow', 'polars', 'pyspark', 'pydantic', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=alone.environment(), cwd=alone.repo, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_polars_that_is_not_installed_is_named(alone: Machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with swamp.open() as repo, pytest.raises(MissingTool, match="polars"):
        repo.write("web", "rows", [{"a": 1}]).to_polars()


def test_a_program_is_named_in_the_log_of_the_store(alone: Machine):
    with swamp.open() as repo:
        repo.write("web", "note", "hello")
    assert "data put" in json.dumps(alone("datastore", "log").ok())
