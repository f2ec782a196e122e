"""What S3 servers do differently ends in the adapter."""

from __future__ import annotations

import hashlib
import os
import urllib.request

import boto3
import obstore
import pytest

from servers.proxy import FaultProxy, Rule
from servers.start import BUCKET
from swamp.errors import AccessDenied, ConditionFailed, ObjectMissing, OutcomeUnknown, StoreError, UsageError
from swamp.locks.decide import MAX_LEASE
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.probe import probe
from swamp.store.upload import HashedFile

SIZE = 40 * 1024 * 1024


def is_quoted(headers):
    return any(k.lower() == "if-match" and v.startswith('"') for k, v in headers.items())


def is_bare(headers):
    return any(k.lower() == "if-match" and not v.startswith('"') for k, v in headers.items())


@pytest.fixture
def raw(moto):
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
    return boto3.client("s3", endpoint_url=moto.endpoint, region_name="us-east-1", **keys)


@pytest.mark.parametrize("refused", [is_quoted, is_bare], ids=["ceph wants no quotes", "others want them"])
def test_the_accepted_form_of_a_match_is_found(moto, fresh_prefix, refused):
    moto.open()
    with FaultProxy(moto.endpoint, [Rule("answer", "PUT", times=None, status=412, when=refused)]) as proxy:
        store = open_store(f"{moto.url}/{fresh_prefix()}", {"endpoint": proxy.endpoint})
        token = store.put("k", b"0").token
        for number in range(1, 4):
            token = store.put("k", str(number).encode(), Match(token)).token
        assert store.get("k").body == b"3"
        with pytest.raises(ConditionFailed):
            store.put("k", b"stale", Match("0" * 32))
        before = len(proxy.seen)
        store.put("k", b"4", Match(token))
        assert len(proxy.seen) == before + 1, "once found, the form is remembered"
        assert probe(store).capabilities.safe


def test_before_a_form_is_proven_a_stale_match_is_still_refused(moto, fresh_prefix):
    moto.open()
    with FaultProxy(moto.endpoint, [Rule("answer", "PUT", times=None, status=412, when=is_quoted)]) as proxy:
        store = open_store(f"{moto.url}/{fresh_prefix()}", {"endpoint": proxy.endpoint})
        old = store.put("k", b"first").token
        store.put("k", b"second")
        with pytest.raises(ConditionFailed):
            store.put("k", b"third", Match(old))
        with pytest.raises(ConditionFailed):
            store.put("nothing", b"x", Match(old))
        assert store.get("k").body == b"second"


@pytest.fixture
def large(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20))
    return path


def orphans(raw):
    return raw.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])


def upload(moto, prefix, path, *rules):
    moto.open()
    with FaultProxy(moto.endpoint, rules) as proxy:
        store = open_store(f"{moto.url}/{prefix}", {"endpoint": proxy.endpoint})
        try:
            return proxy, store.put_file("k", path)
        except StoreError as error:
            return proxy, error


@pytest.mark.inv("store.hash-of-sent")
@pytest.mark.parametrize(
    "fault",
    [
        Rule("answer", "PUT", "partNumber=2", 2, 503),
        Rule("drop", "PUT", "partNumber=3", 2),
        Rule("lose", "PUT", "partNumber=5", 1),
        Rule("answer", "POST", "uploads", 1, 500),
    ],
    ids=["503", "reset", "lost answer", "creation"],
)
def test_a_part_that_fails_is_sent_again(moto, raw, fresh_prefix, large, fault):
    prefix, times = fresh_prefix(), fault.times
    proxy, done = upload(moto, prefix, large, fault)
    assert len(proxy.fired) == times
    assert done.sha256 == hashlib.sha256(large.read_bytes()).hexdigest()
    assert moto.open(prefix).get("k").body == large.read_bytes()
    assert orphans(raw) == []


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Rule("answer", "PUT", "partNumber=2", None, 403), AccessDenied),
        (Rule("answer", "PUT", "partNumber=3", None, 400), StoreError),
        (Rule("answer", "POST", "uploadId", None, 500), OutcomeUnknown),
    ],
    ids=["denied", "refused", "completion"],
)
def test_a_failed_upload_leaves_no_parts_and_no_object(moto, raw, fresh_prefix, large, fault, kind):
    prefix = fresh_prefix()
    proxy, error = upload(moto, prefix, large, fault)
    # Parts travel side by side: one that arrives after obstore gave the upload up may be told first (NoSuchUpload).
    assert proxy.fired and (type(error) is kind or "NoSuchUpload" in str(error))
    assert orphans(raw) == []
    with pytest.raises(ObjectMissing):
        moto.open(prefix).head("k")


def test_a_source_that_breaks_off_leaves_no_parts(moto, raw, fresh_prefix, large, monkeypatch):
    pieces = HashedFile.__iter__

    def broken(self):
        for number, piece in enumerate(pieces(self)):
            if number == 2:
                raise OSError(5, "Input/output error")
            yield piece

    monkeypatch.setattr(HashedFile, "__iter__", broken)
    with pytest.raises(OSError, match="Input/output error"):
        moto.open(fresh_prefix()).put_file("k", large)
    assert orphans(raw) == []


def test_a_source_that_is_gone_is_no_missing_object(moto, fresh_prefix, tmp_path):
    with pytest.raises(FileNotFoundError):
        moto.open(fresh_prefix()).put_file("k", tmp_path / "none")


def test_directory_markers_are_not_objects(moto, raw, fresh_prefix):
    """Consoles make empty objects `dir/`; taken for `dir` they would be entries that nobody can read."""
    prefix = fresh_prefix()
    for key in ("a/", "a/b/", "a/b/file", "empty", "c/"):
        raw.put_object(Bucket=BUCKET, Key=f"{prefix}/{key}", Body=b"")
    store = moto.open(prefix)
    assert [m.key for page in store.list() for m in page] == ["a/b/file", "empty"]
    assert (store.level().dirs, [m.key for m in store.level().objects]) == (("a", "c"), ["empty"])


def test_azure_backslashes_are_refused_instead_of_becoming_slashes(azurite, moto, fresh_prefix):
    with pytest.raises(UsageError, match="backslash"):
        azurite.open(fresh_prefix()).put("a\\b", b"x")
    store = moto.open(fresh_prefix())
    store.put("a\\b", b"x")
    assert [m.key for page in store.list() for m in page] == ["a\\b"]


@pytest.mark.parametrize("style", [True, None])
def test_path_style_is_used_for_endpoints(moto, fresh_prefix, style):
    moto.open()
    config = {"endpoint": moto.endpoint} | ({} if style is None else {"forcePathStyle": style})
    store = open_store(f"{moto.url}/{fresh_prefix()}", config)
    store.put("k", b"x", CREATE)
    assert store.get("k").body == b"x"


def test_virtual_hosts_put_the_bucket_into_the_name(moto, fresh_prefix):
    moto.open()
    with FaultProxy(moto.endpoint) as proxy:
        local = proxy.endpoint.replace("127.0.0.1", "localhost")
        store = open_store(f"{moto.url}/{fresh_prefix()}", {"endpoint": local, "forcePathStyle": False})
        inner = store._inner._inner._inner._clients.quick
        assert f"{BUCKET}.localhost" in str(inner.config.get("endpoint"))


def test_the_listing_is_what_the_server_has(moto, fresh_prefix):
    """Against a second, independent client."""
    prefix = fresh_prefix()
    store = moto.open(prefix)
    for number in range(30):
        store.put(f"d/{number}", b"x" * number)
    url = f"{moto.endpoint}/{BUCKET}?list-type=2&prefix={prefix}/"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
        text = answer.read().decode()
    assert text.count("<Key>") == 30 == sum(len(page) for page in store.list())


@pytest.mark.parametrize("size", [10, MAX_LEASE, 2 * MAX_LEASE])
def test_a_lease_is_one_request_also_where_a_range_over_all_of_it_is_refused(rclone, fresh_prefix, monkeypatch, size):
    """`rclone serve s3` answers every range with 200, which obstore takes for an error: that was two requests."""
    store = open_store(f"{rclone.url}/{fresh_prefix()}", rclone.config)
    store.put("lease", b"x" * size)
    asked: list[object] = []
    get = obstore.get
    monkeypatch.setattr(obstore, "get", lambda *args, **options: (asked.append(options), get(*args, **options))[1])
    assert store.get("lease", length=MAX_LEASE).body == b"x" * min(size, MAX_LEASE)
    assert len(asked) == 1 or size > MAX_LEASE
