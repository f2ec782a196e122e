"""Content that is empty, or not what it is called: told as such by every command, never as an unexpected error."""

from __future__ import annotations

import struct

import pytest

import swamp
from machines import Machine, Team, be
from swamp.errors import UsageError

GARBLED = {
    "no bytes": b"",
    "no Parquet": b"not Parquet, whatever its name says",
    "no footer": b"PAR1garbagePAR1",
    "no thrift": b"PAR1" + b"\xff" * 40 + struct.pack("<I", 40) + b"PAR1",
}


def put(machine: Machine, name: str, content: bytes, ending: str) -> None:
    file = machine.home / f"input.{ending}"
    file.write_bytes(content)
    machine("data", "put", "web", name, str(file)).ok()


@pytest.mark.parametrize("garbled", list(GARBLED))
def test_what_is_called_parquet_and_is_none_is_shown_as_bytes(local_team: Team, garbled: str):
    a = local_team.machine("a")
    put(a, "table", GARBLED[garbled], "parquet")
    shown = a("data", "show", "web", "table").ok()
    assert (shown["kind"], shown["size"]) == ("binary", len(GARBLED[garbled]))
    error = a("sql", "SELECT * FROM web.table").failed(65)
    assert "is not Parquet" in error["error"] and "data cat" in error["hint"]
    put(a, "table", GARBLED[garbled] + b"more", "parquet")
    assert a("data", "diff", "web", "table").ok()["kind"] == "binary"


@pytest.mark.parametrize(
    ("ending", "content", "rows", "columns"),
    [
        ("csv", b"a,b\n", 0, ["a", "b"]),
        ("json", b"[]", 0, ["value"]),
        ("json", b"[{}, {}]", 2, ["value"]),
        ("jsonl", b"{}\n{}\n{}\n", 3, ["value"]),
        ("jsonl", b"", 0, ["value"]),
    ],
)
def test_a_table_without_rows_or_columns_can_be_asked(
    local_team: Team, ending: str, content: bytes, rows: int, columns: list[str]
):
    a = local_team.machine("a")
    put(a, "table", content, ending)
    assert a("sql", "SELECT count(*) AS n FROM web.table").ok() == [{"n": rows}]
    assert a("sql", "SELECT * FROM web.table").ok() == [dict.fromkeys(columns)] * rows
    printed = a("sql", "SELECT * FROM web.table", "--format", "csv", json=False)
    assert printed.out.splitlines()[0] == ",".join(columns)


@pytest.mark.parametrize(
    ("ending", "content"),
    [("jsonl", b"{bad\n"), ("json", b"{bad"), ("csv", b"a,b\n1\n"), *(("parquet", text) for text in GARBLED.values())],
    ids=["jsonl", "json", "csv", *GARBLED],
)
def test_a_program_gets_an_error_of_swamp_for_what_is_no_table(
    local_team: Team, monkeypatch: pytest.MonkeyPatch, ending: str, content: bytes
):
    a = local_team.machine("a")
    put(a, "table", content, ending)
    be(a, monkeypatch)
    with swamp.open(a.repo) as repo, pytest.raises(UsageError, match="is no table"):
        repo.read("web", "table").to_arrow()


def test_a_program_reads_an_empty_table_and_is_told_what_cannot_be_saved(
    local_team: Team, monkeypatch: pytest.MonkeyPatch
):
    a = local_team.machine("a")
    put(a, "table", b"", "csv")
    be(a, monkeypatch)
    with swamp.open(a.repo) as repo:
        assert repo.read("web", "table").to_arrow().num_rows == 0
        for value in ("\ud800", {"a": "\ud800"}):
            with pytest.raises(UsageError, match="cannot be saved"):
                repo.write("web", "text", value)
