"""What a user types after `--input` becomes the value that was meant, or an error that says how to write it."""

from __future__ import annotations

import pytest

from swamp.errors import UsageError
from swamp.models.inputs import check_inputs, parse_inputs, parse_pair, parse_tags


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("k=v", ("k", "v")),
        ("k=", ("k", "")),
        ("k=a=b", ("k", "a=b")),
        ("k=3", ("k", "3")),
        ("k:json=3", ("k", 3)),
        ('k:json={"a": [1, null]}', ("k", {"a": [1, None]})),
        ("url=http://x:80/", ("url", "http://x:80/")),
    ],
)
def test_forms(pair, expected):
    assert parse_pair(pair) == expected


def test_text_and_json_from_a_file(tmp_path):
    file = tmp_path / "f"
    file.write_text('{"n": 1}')
    assert parse_pair(f"k=@{file}") == ("k", '{"n": 1}')
    assert parse_pair(f"k:json=@{file}") == ("k", {"n": 1})


def test_dotted_keys_nest_and_options_beat_the_file(tmp_path):
    file = tmp_path / "inputs.yaml"
    file.write_text("a: {b: 1, c: 2}\nx: y\n")
    assert parse_inputs(["a.b=9", "d.e.f:json=true"], file) == {
        "a": {"b": "9", "c": 2},
        "x": "y",
        "d": {"e": {"f": True}},
    }


@pytest.mark.parametrize("bad", ["k", "=v", "k:int=3", "k:json={", "a..b=1", "k=@/does/not/exist"])
def test_what_is_not_an_input_is_an_error_with_a_next_step(bad):
    with pytest.raises(UsageError) as caught:
        parse_inputs([bad])
    assert caught.value.hint


def test_a_key_cannot_be_a_value_and_a_mapping():
    with pytest.raises(UsageError, match="already has the value"):
        parse_inputs(["a=1", "a.b=2"])


def test_tags():
    assert parse_tags(["a=b", "c="]) == {"a": "b", "c": ""}
    with pytest.raises(UsageError):
        parse_tags(["a"])


SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "hosts": {"type": "array", "items": {"type": "string"}},
        "who": {"type": "string", "default": "world"},
        "dry": {"type": "boolean"},
    },
    "required": ["count"],
}


def test_text_becomes_what_the_schema_asks_for_and_defaults_are_filled_in():
    found = check_inputs({"count": "3", "dry": "true", "hosts": '["a"]'}, SCHEMA, "w")
    assert found == {"count": 3, "dry": True, "hosts": ["a"], "who": "world"}


def test_a_text_that_only_looks_like_a_number_stays_text_where_text_is_asked_for():
    assert check_inputs({"count": 1, "who": "42"}, SCHEMA, "w")["who"] == "42"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "`count` is missing"),
        ({"count": "x"}, "`count`"),
        ({"count": 1, "hosts": [1]}, "`hosts.0`"),
        ({"count": 1, "hots": []}, "did you mean `hosts`"),
    ],
)
def test_mistakes_are_named(values, said):
    with pytest.raises(UsageError) as caught:
        check_inputs(values, SCHEMA, "workflow w")
    assert said in caught.value.message
    assert "workflow w" in caught.value.message
