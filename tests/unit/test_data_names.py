"""Types, names, lifetimes and metadata as values."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.data import document
from swamp.data.lifetimes import Lifetime, Retention, parse_duration
from swamp.data.metadata import Draft, Metadata, Owner, decode, encode
from swamp.data.names import DataName, auto_id, check_name, name_of_directory, normalise_type, version_of
from swamp.data.parts import Part
from swamp.errors import CorruptData, UsageError


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("AWS::EC2::VPC", "aws/ec2/vpc"),
        ("@org/Thing", "@org/thing"),
        ("  command.shell ", "command/shell"),
        ("a  b//c", "a/b/c"),
        ("a::::b", "a/b"),
        ("/lead/", "lead"),
    ],
)
def test_a_type_has_one_spelling(written, normal):
    assert normalise_type(written) == normal
    assert normalise_type(normal) == normal


@pytest.mark.parametrize("bad", ["", "  ", "::", "..", "a\\b", "a\0b"])
def test_what_is_no_type_is_refused(bad):
    with pytest.raises(UsageError):
        normalise_type(bad)


@pytest.mark.parametrize(
    "bad", ["", "latest", "a/b", "a\\b", "..", "a..b", "a\0", ".lock", "_catalog.db", ".", "x" * 256]
)
def test_what_is_no_data_name_is_refused_with_what_is_allowed(bad):
    with pytest.raises(UsageError):
        check_name(bad)


@pytest.mark.parametrize("good", ["result", "2024", "raw", "1", "ünï", "a b", ".env", "metadata.yaml", "x%+#"])
def test_ordinary_names_are_kept_as_they_are(good):
    assert check_name(good) == good


def test_two_machines_agree_on_the_id_of_an_auto_definition():
    assert auto_id("Manual::Data", "box") == auto_id("manual/data", "box")
    assert auto_id("manual/data", "box") != auto_id("manual/data", "box2")
    assert auto_id("manual/data", "box") == "a41d14f1-ac90-514d-82bd-7d53f8af478c"  # in buckets: it may never change


@pytest.mark.parametrize("name", ["result", "7", "raw", "metadata.yaml"])
@pytest.mark.parametrize("kind", ["manual", "aws/ec2/vpc"])
def test_every_file_of_a_version_leads_back_to_it(name, kind):
    ref = DataName.of(kind, "id-1", name).at(3)
    for file in ("metadata.yaml", "raw", "raw/part-0", "raw/5/metadata.yaml"):
        assert version_of(f"{ref.path}/{file}") == ref
    assert name_of_directory(ref.data.path) == ref.data


@pytest.mark.parametrize("path", ["data/t/i/n/latest", "data/t/i/n/0/raw", "data/t/i/n/01/raw", "outputs/t/i/n/1/raw"])
def test_what_is_no_file_of_a_version_is_not_taken_for_one(path):
    assert version_of(path) is None


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("1m", dt.timedelta(minutes=1)),
        ("2h", dt.timedelta(hours=2)),
        ("30d", dt.timedelta(days=30)),
        ("1w", dt.timedelta(days=7)),
        ("2mo", dt.timedelta(days=60)),
        ("1y", dt.timedelta(days=365)),
        ("999999999y", dt.timedelta.max),
        ("0d", None),
        ("1", None),
        ("1s", None),
        ("-1d", None),
    ],
)
def test_durations(text, span):
    assert parse_duration(text) == span


@pytest.mark.parametrize("bad", ["forever", "", "10", "0d", "1 d"])
def test_a_bad_lifetime_says_what_is_allowed(bad):
    with pytest.raises(UsageError) as caught:
        Lifetime.parse(bad)
    assert "infinite, ephemeral, job, workflow" in caught.value.hint


@pytest.mark.parametrize("bad", [0, -1, True, None, "0", "x", 1.5, []], ids=repr)
def test_a_bad_garbage_collection_value_is_refused(bad):
    with pytest.raises(UsageError):
        Retention.parse(bad)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
OPTIONAL = st.none() | TEXT
OWNERS = st.builds(Owner, st.sampled_from(["model-method", "workflow-step", "manual"]), TEXT, *([OPTIONAL] * 6))
DRAFTS = st.builds(
    Draft,
    OWNERS,
    TEXT,
    st.sampled_from(["infinite", "ephemeral", "job", "workflow", "3d", "1mo"]).map(Lifetime.parse),
    st.sampled_from([1, 7, "2w"]).map(Retention.parse),
    st.dictionaries(TEXT, TEXT, max_size=4),
    st.booleans(),
    OPTIONAL,
)
METADATA = st.builds(
    Metadata,
    TEXT,
    TEXT,
    st.integers(1, 2**53),
    DRAFTS,
    st.just("2026-05-01T12:00:00.123Z"),
    st.integers(0, 2**62),
    TEXT,
    st.lists(st.builds(Part, TEXT, st.integers(0, 2**40), TEXT), max_size=3).map(tuple),
    st.sampled_from(["active", "deleted", "renamed"]),
    OPTIONAL,
    st.dictionaries(TEXT.map(lambda t: "x-" + t), TEXT | st.integers(-9, 9) | st.booleans(), max_size=2),
)


@settings(deadline=None)
@given(METADATA)
def test_metadata_round_trips_with_unknown_keys_kept(meta):
    assert decode(encode(meta), "m") == meta


def test_metadata_written_by_hand_is_read_with_loose_scalars():
    raw = b"""
id: 7
name: 2026
version: 3
createdAt: 2026-05-01T14:00:00+02:00
size: 4
ownerDefinition: {ownerType: manual, ownerRef: box}
tags: {n: 1, on: true, none: null, when: 2026-05-01}
"""
    meta = decode(raw, "m")
    assert (meta.id, meta.name, meta.version, meta.created_at) == ("7", "2026", 3, "2026-05-01T12:00:00.000Z")
    assert meta.tags == {"n": "1", "True": "true", "none": "", "when": "2026-05-01"}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"just text",
        b"\xff\xfe",
        b"a: [",
        b"!!python/object/apply:os.system [id]",
        b"name: x",
        b"id: i\nname: n\nversion: -1\ncreatedAt: x\nsize: 1",
        b"id: i\nname: n\nversion: 1\ncreatedAt: never\nsize: 1\nownerDefinition: {ownerType: manual, ownerRef: x}",
        b"id: i\nname: n\nversion: 1\ncreatedAt: 2026-01-01\nsize: 1\nownerDefinition: {ownerType: king, ownerRef: x}",
    ],
)
def test_damage_is_an_error_that_names_file_and_repair(raw):
    with pytest.raises(CorruptData) as caught:
        decode(raw, "data/t/i/n/1/metadata.yaml")
    assert caught.value.exit_code == 65
    assert "data/t/i/n/1/metadata.yaml" in caught.value.message
    assert "swamp datastore verify --repair" in caught.value.hint


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c + 1, c + 1, b",".join([b"*%c" % c] * 9)) for c in range(ord("a"), ord("j"))
)


@pytest.mark.parametrize(
    "raw",
    [
        BOMB,
        b"[" * 100_000 + b"]" * 100_000,
        b"{a: " * 100_000 + b"1" + b"}" * 100_000,
        b"- " * 100_000 + b"x",
        b"".join(b" " * i + b"a:\n" for i in range(3000)),
        b"? " * 50_000 + b"x",
        b"a: " + b"x" * (17 << 20),
        b"\n".join(b" " * i + b"- a:" for i in range(0, 4000, 3)),
    ],
    ids=["aliases", "flow lists", "flow maps", "dashes", "indents", "keys", "huge", "dashes and keys"],
)
def test_hostile_yaml_is_refused_and_neither_hangs_nor_kills(raw):
    with pytest.raises(CorruptData):
        document.load(raw, "m")


def test_texts_that_look_like_something_else_stay_texts():
    value = {
        "a": "true",
        "b": "1",
        "c": "2026-01-01",
        "d": "~",
        "e": "*x",
        "f": "- a",
        "g": "",
        "h": "1:30",
        "i": "a\nb",
    }
    assert document.load(document.dump(value), "m") == value
