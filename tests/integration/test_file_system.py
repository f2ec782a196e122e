"""`swamp://model/name[@version][/part]`: what others write and read through fsspec is what the command line sees."""

from __future__ import annotations

import tomllib
from pathlib import Path

import fsspec
import pandas as pd
import pytest

import swamp
from machines import Machine, Team, be, place_on
from swamp.api.files import RangedFile, SwampFileSystem

REPO = Path(__file__).parents[2]
# pyarrow, with which pandas and Dask read, closes no file of Python: it lets go of it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

FRAME = pd.DataFrame({"id": range(1000), "who": [f"w{n}" for n in range(1000)]})


@pytest.fixture(autouse=True)
def registered():
    fsspec.register_implementation("swamp", SwampFileSystem, clobber=True)
    SwampFileSystem.clear_instance_cache()


@pytest.fixture(params=["file", "moto"])
def team(request, servers, tmp_path, fresh_prefix) -> Team:
    return Team(tmp_path, place_on(request.param, servers, tmp_path, fresh_prefix))


def test_it_is_registered_when_the_package_is_installed():
    config = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert config["entry-points"]["fsspec.specs"] == {"swamp": "swamp.api.files:SwampFileSystem"}


def test_what_is_written_is_read_on_another_machine_by_ranges(team: Team, monkeypatch):
    big = pd.DataFrame({"n": range(300_000), "s": [f"{n:032x}" for n in range(300_000)]})
    a, b = team.machine("a"), team.machine("b", "--hydrate", "lazy")
    be(a, monkeypatch)
    FRAME.to_parquet("swamp://web/small")
    big.to_parquet("swamp://web/big", row_group_size=30_000)
    assert a.get("web", "small")["contentType"] == "application/vnd.apache.parquet"
    be(b, monkeypatch)
    SwampFileSystem.clear_instance_cache()
    options = {"repo": str(b.repo)}
    pd.testing.assert_frame_equal(pd.read_parquet("swamp://web/small", storage_options=options), FRAME)
    fs = fsspec.filesystem("swamp", **options)
    size, local = fs.size("web/big"), b.tree / "data"
    with fs.open("swamp://web/big") as file:
        assert isinstance(file, RangedFile)
        file.seek(size - 4)
        assert file.read() == b"PAR1"
    pd.testing.assert_frame_equal(
        pd.read_parquet("swamp://web/big", columns=["n"], storage_options=options), big[["n"]]
    )
    assert max(p.stat().st_size for p in local.rglob("*") if p.is_file()) < size  # it stayed in the store
    pd.testing.assert_frame_equal(pd.read_parquet("swamp://web/big@1", storage_options=options), big)


def test_a_write_is_one_version_when_it_closes(alone: Machine):
    fs = fsspec.filesystem("swamp")
    with fs.open("web/note.txt", "wb", tags={"by": "fs"}) as file:
        file.write(b"one ")
        file.write(b"two")
        assert alone.names() == []
    with fsspec.open("swamp://web/note.txt", "w") as text:
        text.write("three")
    assert alone.versions("web", "note.txt") == [2, 1]
    assert alone.get("web", "note.txt", "--version", "1")["tags"]["by"] == "fs"
    assert fs.cat("web/note.txt") == b"three" and fs.cat("swamp://web/note.txt@1") == b"one two"
    with pytest.raises(RuntimeError), fs.open("web/note.txt", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert alone.versions("web", "note.txt") == [2, 1]
    fs.pipe_file("web/piped", b"123")
    assert fs.cat_file("web/piped", start=1, end=2) == b"2"


def test_parts_are_one_version_in_a_transaction(alone: Machine):
    import pyarrow.dataset as ds

    fs = fsspec.filesystem("swamp")
    with pytest.raises(ValueError, match="transaction"):
        fs.open("web/days/day=1/part.parquet", "wb")
    with fs.transaction:
        for day in (1, 2):
            with fs.open(f"web/days/day={day}/part.parquet", "wb") as file:
                pd.DataFrame({"n": [day * 10]}).to_parquet(file)
        assert not fs.exists("web/days")
    assert alone.versions("web", "days") == [1]
    assert sorted(fs.find("web/days")) == ["web/days/day=1/part.parquet", "web/days/day=2/part.parquet"]
    assert fs.ls("web/days", detail=False) == ["web/days/day=1", "web/days/day=2"]
    assert fs.glob("web/days/*/*.parquet") == sorted(fs.find("web/days"))
    assert fs.isdir("web/days") and fs.isdir("web/days/day=1") and fs.isfile("web/days/day=1/part.parquet")
    table = ds.dataset("web/days", filesystem=fs, partitioning="hive").to_table()
    assert sorted(table.to_pylist(), key=lambda row: row["n"]) == [{"n": 10, "day": 1}, {"n": 20, "day": 2}]
    assert pd.read_parquet("swamp://web/days@1").n.tolist() == [10, 20]
    with pytest.raises(IsADirectoryError):
        fs.open("web/days")


def test_listing_and_errors_are_those_of_file_systems(alone: Machine):
    fs = fsspec.filesystem("swamp")
    fs.pipe_file("web/a", b"12345")
    fs.pipe_file("db/b", b"1")
    assert fs.ls("", detail=False) == ["db", "web"] and fs.ls("swamp://web", detail=False) == ["web/a"]
    assert fs.info("web/a")["size"] == 5 and fs.info("web/a")["version"] == 1 and fs.info("web")["type"] == "directory"
    assert fs.glob("*/*") == ["db/b", "web/a"] and fs.created("web/a").year >= 2026
    before = fs.ukey("web/a")
    fs.pipe_file("web/a", b"54321")
    assert fs.ukey("web/a") != before
    for missing in ("web/nothing", "nobody/a", "web/a@9", "web/a/part", "nobody"):
        assert not fs.exists(missing)
        with pytest.raises(FileNotFoundError):
            fs.info(missing)
    with pytest.raises(FileNotFoundError):
        pd.read_parquet("swamp://web/nothing")
    for mode in ("ab", "r+b"):
        with pytest.raises(ValueError):
            fs.open("web/a", mode)
    with pytest.raises(ValueError):
        fs.open("web/a@3", "wb")
    with pytest.raises(FileExistsError):
        fs.open("web/a", "xb")
    fs.rm("web/a@1")
    assert alone.versions("web", "a") == [2]


def test_polars_dask_and_duckdb_read_and_write_it(alone: Machine):
    dask = pytest.importorskip("dask.dataframe")
    duckdb = pytest.importorskip("duckdb")
    polars = pytest.importorskip("polars")
    FRAME.to_parquet("swamp://web/orders")
    fs = fsspec.filesystem("swamp")
    with fsspec.open("swamp://web/orders") as file:
        assert polars.read_parquet(file).height == 1000
    with fsspec.open("swamp://web/polars", "wb") as file:
        polars.DataFrame({"n": [1]}).write_parquet(file)
    assert dask.read_parquet("swamp://web/orders").id.sum().compute() == FRAME.id.sum()
    with duckdb.connect() as db:
        db.register_filesystem(fs)
        assert db.sql("select count(*), sum(id) from read_parquet('swamp://web/orders')").fetchall() == [(1000, 499500)]
    assert pd.read_parquet("swamp://web/polars").n.tolist() == [1]


def test_reading_and_writing_is_lineage(alone: Machine):
    FRAME.to_parquet("swamp://web/orders")
    pd.read_parquet("swamp://web/orders").head(1).to_parquet("swamp://web/first")
    with swamp.open() as repo:
        assert [node.title for node in repo.lineage("web", "first").inputs] == ["web/orders version 1"]
