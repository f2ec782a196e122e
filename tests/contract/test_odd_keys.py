"""Keys of other tools that cannot be a file's path: named, left out, and nothing beside them is missed."""

from __future__ import annotations

import datetime as dt

import boto3
import pytest

from peers import Peer, settled
from servers.proxy import FaultProxy, Rule
from servers.start import BUCKET
from swamp.commit.collect import collect
from swamp.env import SYSTEM
from swamp.errors import AccessDenied, StoreError
from swamp.index.entry import payload_key
from swamp.store.explain import Endpoint
from swamp.store.open import open_store
from swamp.store.s3_listing import Keys, RawListing
from swamp.testing.running import ACCESS, SECRET

ODD = ("a//b", "a/./b", "a/../b", "/a", "tab\there", "bell\x07", "delete\x7f", "dir/")
PLAIN = ("a/b", "a b+c", "100%", "a%2Fb", "é", "zz/last")


@pytest.fixture
def raw(moto):
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    return boto3.client("s3", endpoint_url=moto.endpoint, region_name="us-east-1", **keys)


def fill(raw, top, names):
    for name in names:
        raw.put_object(Bucket=BUCKET, Key=f"{top}/{name}", Body=b"1" if not name.endswith("/") else b"")


def listed(store, prefix="", **more):
    return [m.key for page in store.list(prefix, **more) for m in page]


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_key_hides_no_other(moto, raw, fresh_prefix, odd):
    top = fresh_prefix()
    fill(raw, f"{top}/files", [*PLAIN, odd])
    store = moto.open(top)
    wanted = sorted(f"files/{name}" for name in PLAIN)
    assert [k for k in listed(store, "files/") if k in wanted] == wanted
    assert [k for k in listed(store, "files/", start_after=wanted[2]) if k in wanted] == wanted[3:]
    level = store.level("files/")
    assert [m.key for m in level.objects] == sorted(f"files/{name}" for name in PLAIN if "/" not in name)
    assert {"files/a", "files/zz"} <= set(level.dirs) and all(not d.endswith("/") for d in level.dirs)


def test_many_pages_with_an_odd_key_in_the_middle_are_listed_once_each_and_in_order(moto, raw, fresh_prefix):
    top = fresh_prefix()
    store = moto.open(top)
    for number in range(2200):
        store.put(f"files/{number:05d}", b"1")
    fill(raw, f"{top}/files", ["01500//x"])
    keys = listed(store, "files/")
    assert keys == sorted(keys) and len(set(keys)) == len(keys) == 2201


def test_a_listing_of_odd_keys_is_tried_again_too(moto, raw, fresh_prefix):
    top = fresh_prefix()
    fill(raw, f"{top}/files", [*PLAIN, "a//b"])
    moto.open()
    busy = [Rule("answer", "GET", "encoding-type=url&list-type", 1, 500), Rule("cut", "GET", "encoding-type", 1)]
    with FaultProxy(moto.endpoint, busy) as proxy:
        store = open_store(f"{moto.url}/{top}", {**moto.config, "endpoint": proxy.endpoint})
        assert len(listed(store, "files/")) == len(PLAIN) + 1
    assert proxy.fired


def test_discovery_leaves_them_out_and_says_so(moto, raw, fresh_prefix, tmp_path):
    top = fresh_prefix()
    fill(raw, f"{top}/files", [*PLAIN, *ODD])
    store = moto.open(top)
    a, b = Peer(store, tmp_path, "a"), Peer(store, tmp_path, "b")
    result = a.pull()
    assert result.discovered and not result.failed
    assert set(a.files()) == {f"files/{name}" for name in PLAIN}
    (told,) = (w for w in result.warnings if "left out" in w)
    assert "7 objects" in told and "files/a//b" in told and told.isprintable()
    assert b.pull().ok
    settled(a, b)


def test_collection_leaves_them_alone(moto, raw, fresh_prefix, tmp_path):
    """Also one that looks like an upload of ours."""
    top = fresh_prefix()
    store = moto.open(top)
    a = Peer(store, tmp_path, "a")
    a.write("files/x", "x")
    a.push()
    odd = [*ODD, payload_key("a//b", SYSTEM.ulid())]
    fill(raw, f"{top}/files", odd)
    orphan = payload_key("files/gone", SYSTEM.ulid())
    store.put(orphan, b"nobody's")
    done = collect(a.engine.committer, a.pace, keep=dt.timedelta(0))
    assert done.deleted == 1
    there = {o["Key"] for o in raw.list_objects_v2(Bucket=BUCKET, Prefix=top)["Contents"]}
    assert {f"{top}/files/{name}" for name in odd} <= there and f"{top}/{orphan}" not in there


def test_the_listing_by_hand_is_signed(rclone):
    """rclone checks signatures, moto does not."""
    store = rclone.open()
    store.put("signed/a b+c", b"1")

    def listing(secret):
        place = Endpoint("s3", rclone.url)
        return RawListing(place, f"{rclone.endpoint}/{BUCKET}", "us-east-1", lambda: Keys(ACCESS, secret), SYSTEM, 10)

    assert [m.key for page in listing(SECRET).pages("signed/", None) for m in page] == ["signed/a b+c"]
    with pytest.raises(AccessDenied):
        list(listing("wrong").pages("signed/", None))


def test_where_no_keys_are_known_the_odd_key_is_named(moto, raw, fresh_prefix, monkeypatch):
    top = fresh_prefix()
    fill(raw, f"{top}/files", ["a//b", "ok"])
    store = moto.open(top)
    monkeypatch.setattr("swamp.store.s3_listing.keys_of", lambda *_: None)
    with pytest.raises(StoreError, match="a//b") as told:
        listed(store, "files/")
    assert "rename or remove" in told.value.hint
