"""`data show`, `data diff`, `data undelete` and the short forms, as a user types them."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from machines import Machine, Team
from swamp.cli.render import say


def parquet(machine: Machine, name: str, rows: dict[str, list[object]], *, parts: int = 0) -> None:
    target = machine.home / f"{name}.parquet"
    table = pa.table(rows)
    if not parts:
        pq.write_table(table, target)
    else:
        target.mkdir(exist_ok=True)
        size = -(-table.num_rows // parts)
        for n in range(parts):
            pq.write_table(table.slice(n * size, size), target / f"part-{n}.parquet")
        (target / "_SUCCESS").write_text("")
    machine("data", "put", "web", name, str(target), "--content-type", "application/vnd.apache.parquet").ok()


@pytest.mark.parametrize("parts", [0, 3])
def test_a_parquet_table_is_shown_with_schema_rows_and_statistics(a: Machine, parts: int):
    parquet(a, "orders", {"n": [*range(99), None], "who": [f"w{n % 7}" for n in range(100)]}, parts=parts)
    seen = a("data", "show", "web", "orders", "-n", "4").ok()
    assert (seen["kind"], seen["format"], seen["rowCount"], len(seen["rows"])) == ("table", "parquet", 100, 4)
    assert seen["rows"][2] == {"n": 2, "who": "w2"} and seen["truncated"] is True
    assert seen["schema"][0] == {"name": "n", "type": "int64", "nulls": 1, "min": 0, "max": 98}
    assert seen["schema"][1]["max"] == "w6"
    text = a("data", "show", "web", "orders", json=False).out
    assert "100 rows" in text and "COLUMN\tTYPE" in text and "w2" in text


def test_csv_json_lines_text_and_bytes_are_shown(a: Machine):
    def put(name: str, content: str | bytes, kind: str) -> None:
        a.put("web", name, content, "--content-type", kind)

    put("table", "id,score,word\n1,2.5,x\n20,,ü\n3,1e2,z\n", "text/csv")
    seen = a("data", "show", "web", "table").ok()
    assert [(c["name"], c["type"], c["nulls"], c["min"], c["max"]) for c in seen["schema"]] == [
        ("id", "integer", 0, 1, 20),
        ("score", "number", 1, 2.5, 100.0),
        ("word", "text", 0, "x", "ü"),
    ]
    assert seen["rowCount"] == 3 and seen["rows"][1] == {"id": "20", "score": "", "word": "ü"}
    put("doc", json.dumps({"b": [1, 2], "a": {"c": None}}), "application/json")
    assert a("data", "show", "web", "doc").ok()["value"] == {"b": [1, 2], "a": {"c": None}}
    assert '  "b": [\n    1,' in a("data", "show", "web", "doc", json=False).out
    put("events", '{"n": 1}\n{"n": 2, "x": "y"}\n', "application/x-ndjson")
    seen = a("data", "show", "web", "events").ok()
    assert seen["rowCount"] == 2 and [c["name"] for c in seen["schema"]] == ["n", "x"]
    put("log", "".join(f"line {n}\n" for n in range(50)), "text/plain")
    seen = a("data", "show", "web", "log", "-n", "3").ok()
    assert seen["text"] == "line 0\nline 1\nline 2\n" and seen["truncated"]
    put("blob", b"\x00\x01\x02", "application/octet-stream")
    assert a("data", "show", "web", "blob").ok()["kind"] == "binary"
    put("wrong", "{not json", "application/json")
    assert a("data", "show", "web", "wrong").ok()["kind"] == "text"


def test_texts_are_compared_by_lines(a: Machine):
    a.put("web", "page", "one\ntwo\nthree\n")
    assert "only one version" in a("data", "diff", "web", "page").failed(1)["error"]
    a.put("web", "page", "one\n2\nthree\nfour\n")
    a.put("web", "page", "one\n2\nthree\nfour\n")
    found = a("data", "diff", "web", "page", "1").ok()
    assert (found["from"], found["to"], found["equal"], found["kind"]) == (1, 3, False, "text")
    assert found["summary"] == {"linesAdded": 2, "linesRemoved": 1}
    assert a("data", "diff", "web", "page").ok()["equal"] is True
    assert a("data", "diff", "web", "page", "--exit-code").code == 0
    assert a("data", "diff", "web", "page", "1", "2", "--exit-code").code == 1
    text = a("data", "diff", "web", "page", "1", "2", json=False).out
    assert "-two\n+2\n" in text and text.startswith("--- page version 1\n")


def test_documents_are_compared_by_their_values(a: Machine):
    before = {"a": 1, "b": {"c": [1, 2, 3]}, "gone": True, "odd key": 1}
    after = {"a": "1", "b": {"c": [1, 5]}, "new": None, "odd key": 2}
    for value in (before, after):
        a.put("web", "doc", json.dumps(value), "--content-type", "application/json")
    found = a("data", "diff", "web", "doc").ok()
    assert found["kind"] == "json" and found["summary"] == {"added": 1, "removed": 2, "changed": 3}
    changes = {change["path"]: change for change in found["changes"]}
    assert changes["$.a"] == {"path": "$.a", "change": "changed", "before": 1, "after": "1"}
    assert changes["$.b.c[2]"]["change"] == "removed" and changes["$.new"]["change"] == "added"
    assert changes["$['odd key']"]["after"] == 2


@pytest.mark.parametrize("parts", [0, 2])
def test_tables_are_compared_by_columns_and_rows_whatever_their_order(a: Machine, parts: int):
    parquet(a, "orders", {"n": [1, 2, 3, 3], "x": ["a", "b", "c", "c"]}, parts=parts)
    parquet(a, "orders", {"x": ["c", "a", "z"], "n": [3, 1, 9]}, parts=parts)
    found = a("data", "diff", "web", "orders").ok()
    assert found["kind"] == "table"
    summary = found["summary"]
    assert (summary["rowsBefore"], summary["rowsAfter"]) == (4, 3)
    assert (summary["rowsAdded"], summary["rowsRemoved"], summary["columnsChanged"]) == (1, 2, 0)
    assert {"change": "added", "row": {"n": 9, "x": "z"}} in found["changes"]
    parquet(a, "orders", {"x": ["c"], "n": ["3"], "y": [1.5]}, parts=parts)
    found = a("data", "diff", "web", "orders").ok()
    assert {"column": "n", "change": "changed", "before": "int64", "after": "string"} in found["changes"]
    assert found["summary"]["columnsAdded"] == 1


def test_csv_is_compared_by_rows_and_a_directory_by_parts(a: Machine):
    a.put("web", "t", "id,v\n1,x\n2,y\n", "--content-type", "text/csv")
    a.put("web", "t", "id,v\n2,y\n1,z\n", "--content-type", "text/csv")
    found = a("data", "diff", "web", "t").ok()
    assert found["changes"] == [
        {"change": "removed", "row": {"id": "1", "v": "x"}},
        {"change": "added", "row": {"id": "1", "v": "z"}},
    ]
    folder = a.home / "site"
    folder.mkdir()
    for name, text in (("index.html", "a"), ("old.html", "b"), ("same.html", "c")):
        (folder / name).write_text(text)
    a("data", "put", "web", "site", str(folder)).ok()
    (folder / "index.html").write_text("changed")
    (folder / "old.html").rename(folder / "new.html")
    a("data", "put", "web", "site", str(folder)).ok()
    found = a("data", "diff", "web", "site").ok()
    assert found["kind"] == "directory"
    assert [(c["part"], c["change"]) for c in found["changes"]] == [
        ("index.html", "changed"),
        ("new.html", "added"),
        ("old.html", "removed"),
    ]


def test_a_lazy_machine_shows_and_compares_what_it_has_not_fetched(a: Machine, local_team: Team):
    a.put("web", "page", "one\n")
    a.put("web", "page", "two\n")
    b = local_team.machine("b", "--hydrate", "lazy")
    assert b("data", "diff", "web", "page").ok()["summary"] == {"linesAdded": 1, "linesRemoved": 1}
    assert b("data", "show", "web", "page").ok()["text"] == "two\n"
    assert b("data", "cat", "web", "page", json=False).out == "two\n"


def test_deleted_data_comes_back_by_its_name(a: Machine, local_team: Team):
    a.put("web", "page", "one")
    a.put("web", "page", "two")
    assert "nothing of it was deleted" in a("data", "undelete", "web", "page").failed(1)["error"]
    a("data", "delete", "web", "page", "--yes").ok()
    assert a("data", "get", "web", "page").code == 1
    done = a("data", "undelete", "web", "page").ok()
    assert len(done["restored"]) >= 4 and done["gone"] == []
    assert a.get("web", "page")["content"] == "two" and a.versions("web", "page") == [2, 1]
    assert local_team.machine("b").get("web", "page")["content"] == "two"
    assert a("data", "undelete", "web", "never").failed(1)["code"] == "not-found"


def test_short_forms_are_the_commands_they_stand_for(a: Machine):
    a.put("web", "page", "x")
    assert a("sync").ok()["mode"] == "sync"
    assert a("sync", "--pull").ok()["mode"] == "pull"
    assert a("status").ok()["healthy"] is True
    assert a("log", "--limit", "1").ok()["items"][0]["seq"] >= 1
    assert a("run", "nothing").failed(1)["code"] == "not-found"
    assert "Short for `datastore sync`" in a("--help", json=False).out


def test_every_list_has_items(a: Machine):
    a.put("web", "page", "x")
    for words, old in (
        (("data", "list"), None),
        (("data", "versions", "web", "page"), "versions"),
        (("data", "query", "true"), "results"),
        (("data", "search"), None),
        (("model", "type", "list"), "types"),
        (("model", "list"), None),
        (("model", "output", "list"), None),
        (("workflow", "list"), None),
        (("workflow", "run", "search"), "results"),
        (("datastore", "log"), "commits"),
        (("datastore", "namespace", "list"), "namespaces"),
    ):
        found = a(*words).ok()
        assert isinstance(found["items"], list) and found["total"] == len(found["items"]), words
        assert old is None or found[old] == found["items"]


@pytest.mark.parametrize(
    ("ago", "said"),
    [
        (dt.timedelta(seconds=5), "just now"),
        (dt.timedelta(minutes=1, seconds=30), "1 minute ago"),
        (dt.timedelta(minutes=59), "59 minutes ago"),
        (dt.timedelta(hours=3), "3 hours ago"),
        (dt.timedelta(hours=20), "yesterday 18:30"),
        (dt.timedelta(days=9), "8 Nov 14:30"),
        (dt.timedelta(days=400), "13 Oct 2025"),
        (dt.timedelta(hours=-5), "17 Nov 19:30"),
    ],
)
def test_times_as_people_say_them(ago: dt.timedelta, said: str):
    now = dt.datetime(2026, 11, 17, 14, 30, tzinfo=dt.UTC)
    assert say(now - ago, now) == said
