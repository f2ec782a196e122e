"""A datastore from another package, through the command line: found by its entry point, shared, and open to Spark."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs import require_java
from kills import assert_no_help_needed
from machines import Machine, Place, Team

SHELF = Path(__file__).parents[1] / "fixtures" / "shelf"
KIND = "@example/shelf"
TROUBLE = """
import os
import pathlib
from swamp_shelf import Shelf, open_shelf

class Troubled(Shelf):
    def put(self, key, body, condition=None):
        done = super().put(key, body, condition)
        left = pathlib.Path(os.environ["TROUBLE"])
        if key.endswith(".datastore-index.json") and left.exists():
            left.unlink()
            raise ConnectionResetError("after it was done")
        return done

def make(config, env):
    found = open_shelf(config, env)
    return Troubled(found.file, found.journal, found.timeout, found.env)

make.config_schema = open_shelf.config_schema
"""


@dataclass(frozen=True)
class Shelf(Place):
    """A place that only the plug-in can open."""

    @property
    def setup_args(self):
        return (KIND, "--config", json.dumps(self.config))


@pytest.fixture
def team(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SHELF))
    return Team(tmp_path, Shelf(KIND, {"file": str(tmp_path / "shelf.db")}, {"PYTHONPATH": str(SHELF)}))


def test_machines_share_it(team):
    a = team.machine("a", joined=False)
    done = a.setup(*team.place.setup_args)
    assert done["type"] == KIND and done["capabilities"]["compareAndSwap"] and done["warnings"] == []
    a.put("m", "n", "1")
    b = team.machine("b", "--hydrate", "lazy")
    b.put("m", "n", "2")
    a.sync()
    assert a.versions("m", "n") == [2, 1] and a.get("m", "n")["content"] == "2"
    a("data", "delete", "m", "n", "--version", "1", "--yes").ok()
    b.sync("--full")
    assert b.versions("m", "n") == [2] and b.status()["healthy"]
    assert_no_help_needed(b)
    text = (a.repo / ".swamp.yaml").read_text()
    assert KIND in text and "shelf.db" in text


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"file": "x", "journal": "off"}, ("journal", "off", "wal, delete")),
        ({"fiel": "x"}, ("fiel", "file, journal")),
        ({}, ("file", "file, journal")),
    ],
)
def test_a_bad_configuration_is_exit_2_with_the_key_and_what_is_allowed(team, config, said):
    a = team.machine("a", joined=False)
    before = (a.repo / ".swamp.yaml").read_text()
    told = a("datastore", "setup", KIND, "--config", json.dumps(config)).failed(2)
    assert all(word in f"{told['error']} {told['hint']}" for word in said), told
    assert (a.repo / ".swamp.yaml").read_text() == before


def test_without_the_package_the_next_step_is_said(team):
    a = team.machine("a")
    a.put("m", "n", "1")
    bare = Machine(a.home, a.repo)
    told = bare("datastore", "sync").failed(2)
    assert KIND in told["error"] and "install the package" in told["hint"]
    told = bare("datastore", "setup", "@no/one", "--config", "{}").failed(2)
    assert "@no/one" in told["error"]


def test_a_lost_answer_of_a_plugin_is_looked_up(team, tmp_path):
    """A foreign error after the effect: the commit is found, told once, and not repeated."""
    site = tmp_path / "site"
    (site / "trouble-1.dist-info").mkdir(parents=True)
    (site / "trouble.py").write_text(TROUBLE)
    (site / "trouble-1.dist-info" / "METADATA").write_text("Name: trouble\nVersion: 1\n")
    (site / "trouble-1.dist-info" / "entry_points.txt").write_text(
        "[swamp.datastores]\n@example/trouble = trouble:make\n"
    )
    mark = tmp_path / "once"
    a = team.machine("a", joined=False)
    a.env.update(PYTHONPATH=f"{site}:{SHELF}", TROUBLE=str(mark))
    a.setup("@example/trouble", "--config", json.dumps(team.place.config))
    mark.touch()
    a.put("m", "n", "1")
    assert not mark.exists(), "nothing went wrong"
    b = team.machine("b")
    assert b.versions("m", "n") == [1] and b.get("m", "n")["content"] == "1"


@pytest.mark.timeout(600)
def test_spark_opens_it_too(team, tmp_path):
    """Bulk work, SQL and datasets: the executors of local mode have what is installed here."""
    require_java()
    a = team.machine("a")
    rows = tmp_path / "rows.csv"
    rows.write_text("x,y\n1,2\n3,4\n")
    a("data", "put", "m", "rows", str(rows)).ok()
    checked = a("datastore", "verify", "--engine", "spark", timeout=400).ok()
    assert checked["missing"] == [] and checked["checked"] >= 2
    found = a("sql", "SELECT name, version FROM data", timeout=400).ok()
    assert {(row["name"], row["version"]) for row in found} == {("rows", 1)}
