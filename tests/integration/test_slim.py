"""`swamp` without its extras: what it does, and what it says of the rest.

One process in which the packages of the extras cannot be imported runs all commands.
"""

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from arro3.io import write_parquet
from packaging.requirements import Requirement

from swamp.extras import EXTRAS

SCRIPT = """
import contextlib, io, json, sys

refused, commands = json.loads(sys.argv[1]), json.loads(sys.argv[2])

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from swamp.cli.main import main

told = []
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command)
    told.append([code, out.getvalue(), err.getvalue()])
loaded = sorted({name.split(".")[0] for name in sys.modules} & set(refused))
print(json.dumps({"told": told, "loaded": loaded}))
"""
REFUSED = sorted({name for names in EXTRAS.values() for name in names} | {"polars", "boto3", "azure"})


def run(folder, *commands):
    where = ["--repo-dir", str(folder / "repo")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(REFUSED), json.dumps([[*one, *where] for one in commands])],
        capture_output=True,
        text=True,
        timeout=250,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "SWAMP_HOME": str(folder / "home"), "NO_COLOR": "1"},
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["loaded"] == []
    return found["told"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "repo").mkdir()
    (tmp_path / "bucket").mkdir()
    (tmp_path / "note.json").write_text('{"n": 1}')
    write_parquet(Table.from_pydict({"n": Array([1], type=DataType.int64())}), tmp_path / "table.parquet")
    return tmp_path


def test_without_extras_it_syncs_runs_and_queries(folder):
    note = str(folder / "note.json")
    told = run(
        folder,
        ["repo", "init"],
        ["data", "put", "web", "report", note],
        ["datastore", "setup", (folder / "bucket").as_uri()],
        ["data", "put", "web", "report", note],
        ["datastore", "sync", "--json"],
        ["data", "list", "--json"],
        ["data", "query", "attributes.n == 1", "--json"],
        ["data", "show", "web", "report"],
        ["model", "create", "command/shell", "hello"],
        ["model", "method", "run", "hello", "execute", "--input", "run=echo hi", "--json"],
        ["datastore", "verify", "--json"],
        ["datastore", "gc", "--dry-run", "--json"],
        ["datastore", "doctor"],
    )
    assert [(code, err) for code, _, err in told if code] == []
    assert json.loads(told[5][1])["items"][0]["version"] == 2
    assert json.loads(told[6][1])["total"] == 1


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("duckdb", ["sql", "SELECT 1"]),
        ("duckdb", ["sql", "SELECT 1", "--engine", "duckdb"]),
        ("spark", ["sql", "SELECT 1", "--engine", "spark"]),
        ("spark", ["datastore", "verify", "--engine", "spark"]),
        ("gcs", ["datastore", "setup", "gs://bucket/prefix"]),
        ("serve", ["serve", "--port", "0"]),
        ("arrow", ["data", "show", "a", "table"]),
    ],
)
def test_what_needs_an_extra_names_its_line_in_one_error(folder, extra, command):
    bucket = (folder / "bucket").as_uri()
    told = run(
        folder,
        ["repo", "init"],
        ["datastore", "setup", bucket],
        ["data", "put", "a", "b", "note.json"],
        ["data", "put", "a", "table", "table.parquet"],
        command,
    )
    code, out, err = told[-1]
    assert (code, out) == (2, "")
    first, hint = err.strip().splitlines()[-2:]
    assert first.startswith("Error: ") and hint == f"Hint: pip install 'swamp[{extra}]'"


def test_every_extra_that_can_be_missing_is_one_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) | {"azure", "all"} == set(project["optional-dependencies"])
    names = {one.split("[")[0].split(">")[0].split("<")[0] for one in project["dependencies"]}
    assert names.isdisjoint({"pyspark", "pandas", "duckdb", "fastapi", "google-cloud-storage", "requests"})


def installed_with(*extras: str) -> dict[str, int]:
    """The packages that `pip install swamp[extras]` brings, and the bytes of each, as they are installed here."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    found: dict[str, int] = {}
    waiting = [(Requirement(text), "") for text in project["dependencies"]]
    waiting += [(Requirement(text), "") for name in extras for text in project["optional-dependencies"][name]]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted, extra = waiting.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        if wanted.name == "swamp":
            waiting += [(Requirement(t), "") for e in wanted.extras for t in project["optional-dependencies"][e]]
            continue
        for asked in {"", *wanted.extras}:
            if (wanted.name, asked) not in seen:
                seen.add((wanted.name, asked))
                package = metadata.distribution(wanted.name)
                paths = {str(file.locate()) for file in package.files or [] if not str(file).endswith(".pyc")}
                found[wanted.name.lower()] = sum(Path(path).stat().st_size for path in paths if Path(path).is_file())
                waiting += [(Requirement(text), asked) for text in package.requires or []]
    return found


def test_a_slim_install_is_at_most_a_tenth_of_the_full_one():
    slim, full = installed_with(), installed_with("all")
    assert slim.keys() < full.keys() and {"pyspark", "pyarrow", "duckdb"} <= full.keys() - slim.keys()
    assert sum(slim.values()) * 10 <= sum(full.values()), (slim, full)
