"""Adoption: what others wrote becomes entries, or is refused; nothing foreign, internal or hostile gets through."""

import datetime as dt
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swamp.cache.paths import is_internal, is_safe
from swamp.errors import CorruptData, ObjectMissing, StoreError
from swamp.index.adopt import (
    META_KEY,
    adopt_listing,
    adopt_v1,
    adopt_v2,
    commit_seq,
    own_objects,
    shard_keys,
)
from swamp.index.entry import Entry
from swamp.store.port import ObjectMeta

NOW = dt.datetime(2026, 11, 15, 19, 48, 40, 123000, tzinfo=dt.UTC)
STAMP = "2026-11-15T19:48:40.123Z"
SHA = "ab" * 32
ULID = "01JD0000000000000000000000"
LATER = "01JE0000000000000000000000"


def meta(key, size=1):
    return ObjectMeta(key, size, "t", NOW)


def pages(*keys, size=2):
    metas = [meta(k) for k in sorted(keys)]
    return [metas[i : i + size] for i in range(0, len(metas), size)]


def v1(entries):
    return json.dumps({"version": 1, "lastPulled": "x", "entries": entries}).encode()


def old(key, **more):
    return {"key": key, "size": 3, "lastModified": STAMP, **more}


def test_a_version_1_index_becomes_entries():
    body = v1({"data/a": old("data/a", sha256=SHA, localMtime=5), "files/é": old("files/é")})
    assert list(adopt_v1(body)) == [
        Entry("data/a", "data/a", 3, SHA, STAMP),
        Entry("files/é", "files/é", 3, None, STAMP),
    ]


def test_an_old_key_that_carries_the_prefix_is_made_relative():
    assert [e.key for e in adopt_v1(v1({"data/a": old("team/ns/data/a"), "data/b": old("files/other")}))] == [
        "data/a",
        "files/other",
    ]


def test_a_version_2_index_is_read_shard_by_shard():
    meta_body = json.dumps({"version": 2, "partitions": ["p0", "deep/p1", "p0"], "commitSeq": 7}).encode()
    shards = {"_index/p0.json": v1({"data/a": old("data/a")}), "_index/deep/p1.json": v1({"data/b": old("data/b")})}
    asked = []

    def shard(key):
        asked.append(key)
        return shards[key]

    found = adopt_v2(meta_body, shard)
    assert next(found).path == "data/a" and asked == ["_index/p0.json"]
    assert [e.path for e in found] == ["data/b"]
    assert commit_seq(meta_body) == 7 and META_KEY == "_index/_meta.json"


def test_a_missing_shard_stops_the_adoption():
    def shard(key):
        raise ObjectMissing(key)

    with pytest.raises(CorruptData) as caught:
        list(adopt_v2(json.dumps({"version": 2, "partitions": ["p"]}).encode(), shard))
    assert "doctor --repair" in caught.value.hint


@pytest.mark.parametrize("partitions", [None, "p", [1], ["../../x"], ["/etc"], [""]])
def test_hostile_partitions_are_refused(partitions):
    with pytest.raises(CorruptData):
        shard_keys(json.dumps({"version": 2, "partitions": partitions}).encode())


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff", b'{"version":1}', b'{"version":1,"entries":[]}', b'{"version":9}']
)
def test_a_damaged_old_index_is_corrupt(body):
    with pytest.raises(CorruptData):
        list(adopt_v1(body))


def test_S16_hostile_entries_are_reported_and_the_rest_is_adopted():
    bad = {
        "../evil": old("../evil"),
        "/etc/passwd": old("x"),
        "data/nul\0": old("x"),
        "data/not-an-object": 7,
        "data/size": old("data/size", size=-1),
        "data/size2": old("data/size2", size=True),
        "data/size3": old("data/size3", size=2**63),
        "data/key": old("../../other"),
        "data/key2": old(7),
        "data/key3": old(".datastore-index.json"),
        f"data/x~{ULID}": old("x"),
    }
    refused = []
    good = list(adopt_v1(v1({**bad, "data/good": old("data/good")}), refused=refused.append))
    assert [e.path for e in good] == ["data/good"]
    assert sorted(r.path for r in refused) == sorted(bad)
    assert all(str(r).isprintable() for r in refused)


def test_L22_lock_files_and_other_internal_names_in_an_old_index_are_left_out_quietly():
    refused = []
    body = v1({p: old(p) for p in ("data/t/id/.lock", ".datastore.lock", "data/t/id/n/latest", "data/_catalog.db-wal")})
    assert list(adopt_v1(body, refused=refused.append)) == [] and refused == []


def test_a_hash_that_is_none_is_unknown():
    strange = [None, "", "xyz", SHA[:-1], 7, "zz" * 32]
    body = v1(
        {f"data/{i}": old(f"data/{i}", sha256=s) for i, s in enumerate(strange)}
        | {"data/u": old("data/u", sha256=SHA.upper())}
    )
    assert [e.sha256 for e in adopt_v1(body)] == [None] * len(strange) + [SHA]


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=3), c, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=8),
        _json | st.fixed_dictionaries({"key": _json, "size": _json, "sha256": _json, "lastModified": _json}),
    )
)
def test_any_json_is_adopted_refused_or_corrupt(entries):
    refused = []
    for entry in adopt_v1(v1(entries), refused=refused.append):
        assert is_safe(entry.path) and is_safe(entry.key) and not is_internal(entry.path)
        assert 0 <= entry.size < 2**63
    assert {r.path for r in refused} <= set(entries)


# --- listings -----------------------------------------------------------------------------------------------------


def listed(*keys, **kwargs):
    return [e.path for e in adopt_listing(pages(*keys), **kwargs)]


def test_a_bucket_filled_by_something_else_becomes_entries_without_hashes():
    assert list(adopt_listing([[meta("data/a", 5)], [], [meta("data/b c", 0)]])) == [
        Entry("data/a", "data/a", 5, None, STAMP),
        Entry("data/b c", "data/b c", 0, None, STAMP),
    ]


def test_only_tier_directories_and_no_internal_names_are_adopted():
    keys = ["data/a", "data/t/id/.lock", "data/t/id/n/latest", "files/dir/", "data/_catalog.db", "other/x", "top"]
    assert listed(*keys) == ["data/a"]


@pytest.mark.parametrize("marker", [".datastore-index.json", ".namespace.json"])
def test_L34_a_store_inside_this_one_is_left_out_also_what_is_listed_before_its_marker(marker):
    theirs = [
        "files/team/!first",
        "files/team/-x/y",
        "files/team/-x/deep/z",
        "files/team/data/a",
        f"files/team/b~{ULID}",
    ]
    ours = ["files/team-b", "files/team0", "files/!own", "files/tea", "logs/team/x"]
    assert listed(f"files/team/{marker}", *theirs, *ours) == sorted(ours)


def test_a_store_inside_this_one_may_hold_payload_keys_before_its_marker():
    assert listed(f"files/team/!x~{ULID}", "files/team/.namespace.json", "files/x") == ["files/x"]


def test_L48_one_payload_key_means_a_lost_root_and_nothing_may_be_published():
    with pytest.raises(CorruptData) as caught:
        listed("data/a", f"data/b~{ULID}", "data/c")
    assert caught.value.hint == "run: swamp datastore doctor --repair --from-listing" and caught.value.exit_code == 65


def test_S16_hostile_keys_in_a_listing_are_reported():
    refused = []
    keys = ["data/../../etc/passwd", "data//x", "data/good", "data/nul\0", "data/slash/"]
    found = [e.path for e in adopt_listing([[meta(k) for k in keys]], refused=refused.append)]
    assert found == ["data/good"] and [r.path for r in refused] == [k for k in keys if k != "data/good"]


def test_a_listing_streams_and_is_not_collected():
    def endless():
        for i in range(10**9):
            yield [meta(f"data/{i:012d}")]

    found = adopt_listing(endless())
    assert [next(found).path for _ in range(3)] == [f"data/{i:012d}" for i in range(3)]


def test_a_listing_out_of_order_is_an_error_and_another_tier_is_not():
    with pytest.raises(StoreError, match="order"):
        list(adopt_listing([[meta("data/b"), meta("data/a")]]))
    assert [e.path for e in adopt_listing([[meta("logs/b"), meta("data/a")]])] == ["logs/b", "data/a"]


_part = st.sampled_from(["!", "-a", "a", "b", ".datastore-index.json", ".namespace.json", ".x", "#"])
_keys = st.sets(st.lists(_part, min_size=1, max_size=4).map(lambda p: "/".join(["files", *p])), max_size=25)


@settings(max_examples=300)
@given(_keys, st.integers(1, 5))
def test_one_pass_finds_the_same_foreign_stores_as_two(keys, size):
    foreign = [k.rpartition("/")[0] + "/" for k in keys if k.endswith((".datastore-index.json", ".namespace.json"))]
    ours = sorted(k for k in keys if not any(k.startswith(f) for f in foreign))
    assert [m.key for m in own_objects(pages(*keys, size=size))] == ours
