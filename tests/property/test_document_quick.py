"""The quick way to read what we write never disagrees with YAML."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.data import document
from swamp.data.document import read_simple
from swamp.data.metadata import Draft, Metadata, Owner, encode

WORD = st.sampled_from(
    [
        *(
            "a",
            "true",
            "No",
            "on",
            "~",
            "null",
            "1",
            "007",
            "1e5",
            "0x1f",
            "0b01",
            "1_0",
            "1:30",
            ".5",
            "-",
            "a b",
            "y",
        ),
        *("a: b", "a #b", "'q'", '"d"', "", " ", "@x", "/x", "é", "x\ny", "{}", "[]", "&a", "*a", "!t", "=", "<<"),
        *("2026-01-01", "2026-05-01T12:00:00.000Z", "0b" + "01" * 31, "ab" * 32, "12" * 32),
        *("3f2504e0-4f89-41d3-9a0c-0305e82c3301", "12345678-1234-1234-1234-123456789012"),
    ]
)
SCALAR = WORD | st.integers(-(10**20), 10**20) | st.booleans() | st.none() | st.floats(allow_nan=False)
KEY = WORD | st.text(st.characters(codec="ascii"), max_size=4)
DOCUMENT = st.dictionaries(KEY, SCALAR | st.dictionaries(KEY, SCALAR, max_size=3), min_size=1, max_size=5)
PIECE = st.sampled_from(
    [
        *(
            "a:",
            "a: ",
            "b: 1\n",
            "\n",
            "  ",
            " ",
            "c: x\n",
            "a:\n",
            "  d: y\n",
            "  e:\n",
            "{}",
            "'",
            "''",
            "# z\n",
            "\t",
        ),
        *("- 1\n", ": ", "yes: 1\n", "f: 'it''s'\n", "g: True\n", "h: null\n", "---\n", "...\n", "i: 0o7\n", "j: 08\n"),
        *(
            "k: +1\n",
            "l: a\r\n",
            "m: a/b.c\n",
            "  n: {}\n",
            "  o: null\n",
            "<<: {}\n",
            "p: ~\n",
            "  q: 'a'\n",
            "r: NULL\n",
        ),
    ]
)


def by_yaml(raw: bytes):
    try:
        return yaml.load(raw.decode(), Loader=document._loader())
    except yaml.YAMLError:
        return "not YAML"


def same(quick, slow) -> bool:
    return repr(quick) == repr(slow)  # 1 and True are equal and not the same


@settings(max_examples=400, deadline=None)
@given(DOCUMENT)
def test_what_we_write_is_read_the_same_in_both_ways(value):
    raw = document.dump(value)
    quick = read_simple(raw)
    assert quick is None or same(quick, by_yaml(raw))


@settings(max_examples=800, deadline=None)
@given(st.lists(PIECE, max_size=8).map("".join))
def test_what_anybody_writes_is_read_the_same_or_left_to_yaml(text):
    quick = read_simple(text.encode())
    assert quick is None or same(quick, by_yaml(text.encode()))


def test_ordinary_metadata_takes_the_quick_way():
    draft = Draft(Owner.manual("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), "application/json", tags={"modelName": "box"})
    raw = encode(
        Metadata("12345678-1234-1234-1234-123456789012", "result", 3, draft, "2026-05-01T12:00:00.000Z", 5, "ab" * 32)
    )
    assert same(read_simple(raw), by_yaml(raw))
    assert read_simple(raw) is not None
