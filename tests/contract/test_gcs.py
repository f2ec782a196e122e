"""Google Cloud Storage: generations as tokens, and trouble on the wire."""

from __future__ import annotations

import hashlib
import os

import pytest

from servers.gcs_double import GcsDouble
from servers.proxy import FaultProxy, Rule
from swamp.errors import AccessDenied, ConditionFailed, ObjectMissing, OutcomeUnknown, Unavailable
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.retry import RetryPolicy

BODY = os.urandom(1 << 20) * 20


@pytest.fixture
def double():
    with GcsDouble("bucket") as running:
        yield running


def through(proxy, timeout_ms=1500, policy=None):
    config = {"endpoint": proxy.endpoint, "requestTimeoutMs": timeout_ms}
    return open_store("gs://bucket/p", config, policy=policy or RetryPolicy(seconds=30))


def test_the_token_is_the_generation(double):
    store = open_store("gs://bucket", {"endpoint": double.endpoint})
    token = store.put("k", b"x").token
    assert token == str(double.buckets.blobs["bucket"]["k"].generation) == store.head("k").token


def test_a_token_of_another_kind_of_store_matches_nothing(double):
    store = open_store("gs://bucket", {"endpoint": double.endpoint})
    store.put("k", b"x")
    with pytest.raises(ConditionFailed):
        store.put("k", b"y", Match("d41d8cd98f00b204e9800998ecf8427e"))


def test_a_rewrite_of_the_same_bytes_is_a_new_version(double):
    store = open_store("gs://bucket", {"endpoint": double.endpoint})
    old = store.put("k", b"same").token
    store.put("k", b"same")
    with pytest.raises(ConditionFailed):
        store.put("k", b"x", Match(old))


@pytest.mark.inv("store.no-blind-retry")
@pytest.mark.parametrize(("action", "lands"), [("lose", True), ("drop", False), ("stall", True)])
def test_a_write_whose_answer_is_lost_is_reported_and_sent_once(double, action, lands):
    with FaultProxy(double.endpoint, [Rule(action, "POST", "upload", None, seconds=6)]) as proxy:
        with pytest.raises(OutcomeUnknown):
            through(proxy, 1000).put("k", b"x", CREATE)
        assert len(proxy.seen) == 1
    assert ("p/k" in double.buckets.blobs["bucket"]) == lands


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_reads_are_tried_again(double, status):
    open_store("gs://bucket/p", {"endpoint": double.endpoint}).put("k", b"x")
    with FaultProxy(double.endpoint, [Rule("answer", "GET", times=2, status=status)]) as proxy:
        assert through(proxy).get("k").body == b"x"
        assert len(proxy.fired) == 2


@pytest.mark.inv("store.pinned-read")
@pytest.mark.parametrize("action", ["cut", "stall", "drop"])
def test_a_download_cut_short_goes_on_where_it_was(double, action):
    open_store("gs://bucket/p", {"endpoint": double.endpoint}).put("big", BODY)
    rules = [Rule("pass", "GET", "media", 1), Rule(action, "GET", "media", 2, seconds=20)]
    patient = RetryPolicy(seconds=30)
    with FaultProxy(double.endpoint, rules) as proxy, through(proxy, 3000, patient).open("big") as stream:
        assert hashlib.sha256(b"".join(stream)).digest() == hashlib.sha256(BODY).digest()
        assert len(proxy.fired) == 2


@pytest.mark.inv("store.pinned-read")
def test_a_download_never_joins_two_generations(double):
    direct = open_store("gs://bucket/p", {"endpoint": double.endpoint})
    direct.put("big", BODY)
    refused = pytest.raises(Unavailable, match="changed while it was read")
    with direct.open("big") as stream, refused:
        for _ in stream:
            direct.put("big", BODY[::-1])


@pytest.mark.inv("store.hash-of-sent")
def test_a_chunk_that_fails_is_sent_again_and_hashed_once(double, tmp_path):
    (tmp_path / "f").write_bytes(BODY)
    rules = [Rule("pass", "PUT", times=1), Rule("answer", "PUT", times=1, status=503)]
    with FaultProxy(double.endpoint, rules) as proxy:
        done = through(proxy, 5000).put_file("big", tmp_path / "f")
        assert [f[1] for f in proxy.fired] == ["PUT"]
        assert done.sha256 == hashlib.sha256(BODY).hexdigest()
    assert double.buckets.blobs["bucket"]["p/big"].body == BODY


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_login_starts_with_what_to_do(double, status):
    said = b'{"error": {"code": 401, "message": "denied", "errors": [{"reason": "authError"}]}}'
    with FaultProxy(double.endpoint, [Rule("answer", times=None, status=status, body=said)]) as proxy:
        store = through(proxy)
        for call in (
            lambda: store.get("k"),
            lambda: store.put("k", b""),
            lambda: list(store.list()),
            lambda: store.head("k"),
        ):
            with pytest.raises(AccessDenied) as caught:
                call()
            login = caught.value.message.startswith("run `gcloud auth application-default login`")
            assert login == (status != 403) and (login or " was refused with HTTP 403" in caught.value.message)
            # Without credentials there is nothing to renew: the client answers a 401 itself.
            assert caught.value.details.get("status") == (status if status == 403 else None)


def test_without_any_login_it_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(AccessDenied, match=r"^run `gcloud auth application-default login`: no credentials"):
        open_store("gs://bucket").get("k")


def test_deletes_of_what_is_not_there_are_no_error_but_a_missing_bucket_is(double):
    store = open_store("gs://bucket", {"endpoint": double.endpoint})
    store.put("a", b"x")
    store.delete(["a", "b", "c"])
    with pytest.raises(ObjectMissing):
        store.head("a")
