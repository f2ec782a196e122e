"""Parts of a dataset: how rows are laid out in files, and which columns a version may have. Without Spark."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swamp.datasets import parts
from swamp.datasets.options import Layout, check_schema
from swamp.datasets.parts import _files
from swamp.errors import UsageError

SCHEMA = pa.schema([("day", pa.string()), ("n", pa.int64())])


def batch(rows):
    return pa.RecordBatch.from_pylist([{"day": day, "n": n} for day, n in rows], schema=SCHEMA)


def written(folder, batches, layout, even_empty=False):
    files = _files(folder, iter(batches), SCHEMA, layout, even_empty)
    return [[(row["day"], row["n"]) for row in pq.read_table(file).to_pylist()] for file in files]


def test_each_part_holds_one_combination_and_no_row_is_lost(tmp_path):
    rows = [(f"d{n % 5}" if n % 7 else None, n) for n in range(1_000)]
    found = written(tmp_path, [batch(rows[at : at + 100]) for at in range(0, 1_000, 100)], Layout(("day",)))
    assert len(found) == 6
    assert all(len({day for day, _ in part}) == 1 for part in found)
    assert sorted(n for part in found for _, n in part) == list(range(1_000))


def test_more_combinations_than_a_task_keeps_open_only_make_more_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MOST_OPEN", 3)
    rows = [(f"d{n % 10}", n) for n in range(200)]
    found = written(tmp_path, [batch(rows[:100]), batch(rows[100:])], Layout(("day",)))
    assert all(len({day for day, _ in part}) == 1 for part in found) and len(found) > 10
    assert sorted(n for part in found for _, n in part) == list(range(200))


def test_parts_are_cut_by_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "GROUP_ROWS", 100)
    batches = [batch([("d", at + n) for n in range(100)]) for at in range(0, 1_000, 100)]
    found = written(tmp_path, batches, Layout(part_bytes=1))
    assert [len(part) for part in found] == [100] * 10
    (tmp_path / "whole").mkdir()
    assert [len(part) for part in written(tmp_path / "whole", batches, Layout())] == [1_000]


def test_no_rows_are_an_empty_part_only_where_one_is_wanted(tmp_path):
    assert written(tmp_path, [], Layout()) == []
    assert written(tmp_path, [], Layout(), even_empty=True) == [[]]


def columns(**kinds):
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


@pytest.mark.parametrize(("merge", "after", "wrong"), [
    (None, {"other": "string"}, None),
    ("true", {"id": "integer", "text": "string"}, None),
    ("true", {"id": "long", "text": "string", "new": "date"}, None),
    ("true", {"id": "short", "text": "string"}, "as short, which was integer"),
    ("true", {"id": "integer"}, "has lost the column 'text'"),
    ("false", {"id": "integer", "text": "string"}, None),
    ("false", {"id": "long", "text": "string"}, "as long, which was integer"),
    ("false", {"id": "integer", "text": "string", "new": "date"}, "has a new column 'new'"),
])  # fmt: skip
def test_columns_are_compared_with_the_version_before_when_asked(merge, after, wrong):
    options = {} if merge is None else {"mergeSchema": merge}
    before = columns(id="integer", text="string")
    check_schema(options, None, columns(**after), "orders")
    if wrong is None:
        check_schema(options, before, columns(**after), "orders")
        return
    with pytest.raises(UsageError, match=wrong):
        check_schema(options, before, columns(**after), "orders")


def test_a_layout_that_cannot_be_is_told_before_any_work():
    schema = columns(id="integer", text="string")
    schema["fields"].append({"name": "list", "type": {"type": "array"}})
    for options in (
        {"partitionBy": "day"},
        {"partitionBy": "id,list"},
        {"maxPartBytes": "many"},
        {"maxPartBytes": "0"},
    ):
        with pytest.raises(UsageError):
            Layout.of(options, schema)
    assert Layout.of({"partitionBy": "id, text", "maxPartBytes": "10"}, schema) == Layout(("id", "text"), 10)


def test_only_values_that_repeat_get_a_dictionary_and_all_read_back(tmp_path):
    """A dictionary that is begun and given up in every row group costs more than the writing itself."""
    kinds = pa.schema(
        [
            ("id", pa.int64()),
            ("kind", pa.string()),
            ("many", pa.list_(pa.int64())),
            ("pair", pa.struct([("x", pa.string())])),
            ("none", pa.string()),
        ]
    )
    rows = [
        {"id": n, "kind": f"k{n % 3}", "many": [n, n + 1], "pair": {"x": f"{n}"}, "none": None} for n in range(1_000)
    ]
    batches = [pa.RecordBatch.from_pylist(rows, schema=kinds)]
    (file,) = _files(tmp_path, iter(batches), kinds, Layout(), False)
    assert pq.read_table(file).to_pylist() == rows
    group = pq.read_metadata(file).row_group(0)
    by_dictionary = {
        group.column(at).path_in_schema: group.column(at).has_dictionary_page for at in range(group.num_columns)
    }
    assert by_dictionary == {
        "id": False,
        "kind": True,
        "many.list.element": True,
        "pair.x": True,
        "none": True,
    }
