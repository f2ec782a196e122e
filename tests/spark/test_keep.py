"""`swamp spark serve`: a warm Spark for one user, found by commands that fit and by nobody else."""

import json
import os
import stat
import subprocess
import sys

import pytest

import swamp
from jobs import require_java
from swamp.bulk import keep
from swamp.bulk.keep import WarmServer, environment_of, find_server, last_activity, noted, stop_server, with_server
from swamp.bulk.settings import SparkSettings, resolve_settings
from swamp.repo.config import init_repo, write_config

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setattr(keep, "reachable", lambda *args, **more: True)
    return {"SWAMP_HOME": str(tmp_path / "home"), "AWS_PROFILE": "mine"}


def kept_for(environ, **changed):
    (keep.swamp_home(environ)).mkdir(parents=True, exist_ok=True)
    told = {"port": 1, "token": "secret", "pid": os.getpid(), "version": swamp.__version__}
    return WarmServer(**{**told, "environment": environment_of(environ), **changed})


def test_a_server_is_found_by_who_fits_while_it_lives(environ):
    assert find_server(environ) is None and not stop_server(environ)
    with noted(environ, kept_for(environ)):
        found = find_server(environ)
        assert found is not None and found.url == "sc://localhost:1/;token=secret"
        assert find_server({**environ, "AWS_PROFILE": "another"}) is None, "its workers have other credentials"
        note = keep._note(environ)
        assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert find_server(environ) is None


def test_a_note_of_a_server_that_died_is_nothing(environ):
    kept_for(environ)
    keep._note(environ).write_text(json.dumps({"port": 1, "token": "t", "pid": 1, "version": "0", "environment": ""}))
    assert find_server(environ) is None
    assert not stop_server(environ), "and nobody's process is ended for it"
    keep._note(environ).write_text("{")
    assert find_server(environ) is None


def test_another_version_of_swamp_does_not_use_it(environ):
    with noted(environ, kept_for(environ, version="0.0.1")):
        assert find_server(environ) is None


def test_only_who_has_asked_for_nothing_else_gets_it(environ):
    with noted(environ, kept_for(environ)):
        served = with_server(resolve_settings({}, {}), environ)
        assert served.served and served.sees_cache and not served.is_local
        assert "secret" not in served.where
        for asked in (SparkSettings("spark://h:7077"), SparkSettings("local[2]"), SparkSettings(remote="sc://h")):
            assert with_server(asked, environ) == asked


def test_it_is_idle_when_nothing_has_run_for_a_while(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(type(keep.SYSTEM.clock), "monotonic", lambda self: now[0])
    told = ["Left(1)"]
    seconds = last_activity(lambda: told[0])
    assert seconds() == 0
    now[0] = 50.0
    assert seconds() == 50
    told[0] = "Right(List(ExecuteInfo))"
    assert seconds() == 0
    now[0] = 400.0
    assert seconds() == 0, "a job of hours is no idleness"
    told[0] = "Left(2)"
    assert seconds() == 0
    now[0] = 430.0
    assert seconds() == 30


CAPTURED = {"capture_output": True, "text": True, "timeout": 600, "check": False}
NOTEBOOK = """
import contextlib, io, json, os, sys
import swamp.spark

spark, repo = swamp.spark.session(), sys.argv[1]
swamp.spark.write(spark.range(0, 1000, 1, 2), "web", "events", repo=repo)
events = swamp.spark.read(spark, "web", "events", repo=repo)
with contextlib.redirect_stdout(io.StringIO()) as plan:
    events.explain()
found = events.selectExpr("count(*) rows", "sum(id) sum").collect()[0].asDict()
from pathlib import Path
from swamp.datasets import native
from swamp.env import SYSTEM

native._path_of = lambda *_: ""  # as if the server had no connector for the bucket
shelf, kinds = Path(os.environ["SWAMP_HOME"], "parts"), []
for _ in range(2):
    events = swamp.spark.read(spark, "web", "events", repo=repo)
    kinds += sorted({path.partition(":")[0] for path in events.inputFiles()})
    assert events.selectExpr("sum(id)").collect()[0][0] == found["sum"]
    until = SYSTEM.clock.monotonic() + 120
    while len(list(shelf.glob("?" * 64))) < 2 and SYSTEM.clock.monotonic() < until:
        SYSTEM.clock.sleep(0.01)
print(json.dumps({**found, "native": "FileScan parquet" in plan.getvalue(), "then": kinds}))
"""


def test_commands_use_the_server_and_it_can_be_stopped(tmp_path):
    """The whole way, as a user goes it: serve, put, pull elsewhere, stop."""
    require_java()
    (tmp_path / "bucket").mkdir()
    environ = {**os.environ, "SWAMP_HOME": str(tmp_path / "home")}
    environ.pop("SWAMP_SPARK_MASTER", None)

    def run(*args, code=0):
        command = [str(os.path.join(os.path.dirname(sys.executable), "swamp")), *args, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environ)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    for name in ("a", "b"):
        init_repo(tmp_path / name)
        write_config(tmp_path / name, {"datastore": {"type": "file", "url": (tmp_path / "bucket").as_uri()}})
    try:
        first = run("spark", "serve")
        assert first["running"] and run("spark", "serve")["pid"] == first["pid"], "there is one, not two"
        (tmp_path / "note.txt").write_text("hello")
        run("data", "put", "web", "note", str(tmp_path / "note.txt"), "--repo-dir", str(tmp_path / "a"))
        pulled = run("datastore", "sync", "--pull", "--engine", "spark", "--repo-dir", str(tmp_path / "b"))
        assert (pulled["engine"], pulled["filesPulled"] > 0) == ("spark", True)
        assert not pulled["spark"]["applicationId"].startswith("local-"), "no Java of its own was started"
        question = "SELECT name, version FROM versions UNION ALL SELECT 'all', count(*) FROM versions"
        asked = ("sql", question, "--repo-dir", str(tmp_path / "b"))
        assert run(*asked, "--engine", "spark") == run(*asked, "--engine", "duckdb")
        noted = sorted((tmp_path / "home").rglob("spark-*.log"))
        assert [file.name for file in noted if file.stem != "spark-server"] in ([], [f"spark-{first['pid']}.log"])
        done = subprocess.run([sys.executable, "-c", NOTEBOOK, str(tmp_path / "a")], env=environ, **CAPTURED)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {
            "rows": 1000,
            "sum": 499500,
            "native": True,
            "then": ["webhdfs", "file"],
        }
    finally:
        stopped = run("spark", "serve", "--stop")
    assert stopped == {"running": False, "stopped": True}
    assert run("spark", "serve", "--stop")["stopped"] is False
