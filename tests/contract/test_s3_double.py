"""The S3 double is strict, speaks as Amazon does, differs where it is told to, and tells every lie that it knows."""

from __future__ import annotations

import http.client
import threading
import time
from typing import get_args

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from swamp.errors import ConditionFailed, ObjectMissing, OutcomeUnknown, SwampError, Unavailable
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.probe import probe
from swamp.store.retry import RetryPolicy
from swamp.testing.contract import StoreContract, Traits
from swamp.testing.s3_bucket import Manners
from swamp.testing.s3_double import HTML, S3Double
from swamp.testing.s3_lies import FOR_EVER, Lie, LieKind, RandomLies, fits

ONCE = RetryPolicy(seconds=0)
"""No second attempt: a lie is seen as it was told."""


def opened(double, **config):
    return open_store("s3://swamp-tests", {**double.config, **config}, environ=double.environ, policy=ONCE)


def asked(double, method, path, body=b"", headers=()):
    """A request without a client library."""
    connection = http.client.HTTPConnection("127.0.0.1", int(double.endpoint.rpartition(":")[2]), timeout=5)
    connection.request(method, path, body, dict(headers))
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


class TestIgnored(StoreContract):
    """All but the conditions."""

    traits = Traits(enforces_conditions=False, many=30)

    @pytest.fixture
    def store(self, lying):
        lying.manners = Manners(conditions="ignored", ranges=False, page=7)
        return lying.running().open("a/b")


class TestCeph(StoreContract):
    """Bare ETags, and 412 where Amazon says 404."""

    traits = Traits(many=30)

    @pytest.fixture
    def store(self, lying):
        lying.manners = Manners(if_match="bare", missing_match=412, delete_conditions=False, page=7)
        return lying.running().open("a/b")


@pytest.mark.parametrize(
    ("manners", "safe", "deletes"),
    [
        (Manners(), True, True),
        (Manners(conditions="ignored"), False, False),
        (Manners(if_match="bare"), True, True),
        (Manners(if_match="quoted", missing_match=412), True, True),
        (Manners(delete_conditions=False, multipart_conditions=False), True, False),
    ],
)
def test_the_probe_sees_the_manners(lying, manners, safe, deletes):
    lying.manners = manners
    seen = probe(lying.running().open("p")).capabilities
    assert (seen.safe, seen.conditional_delete) == (safe, deletes)


def test_a_form_that_another_thread_learns_meanwhile_refuses_nobody(lying):
    """The answer to a swap in the wrong form comes when the right one is known: it is sent again in that one."""
    lying.manners = Manners(if_match="bare")
    store = lying.running().open("p")
    tokens = {key: store.put(key, b"1").token for key in ("quick", "slow")}
    lying.add(Lie("delay", "PUT", "*/slow", seconds=1.0))
    swapped = []
    slow = threading.Thread(target=lambda: swapped.append(store.put("slow", b"2", Match(tokens["slow"]))))
    slow.start()
    time.sleep(0.3)
    store.put("quick", b"2", Match(tokens["quick"]))
    slow.join(60)
    assert swapped and store.get("slow").body == b"2"


@pytest.mark.parametrize(("manners", "status"), [(Manners(), 404), (Manners(missing_match=412), 412)])
def test_a_match_on_a_missing_key(lying, manners, status):
    lying.manners = manners
    assert asked(lying, "PUT", "/swamp-tests/none", b"x", {"If-Match": '"1"'})[0] == status
    assert lying.bucket().keys() == []


def test_another_client_speaks_to_it(lying, tmp_path):
    """boto3: signed chunks, uploads in parts, pages, conditions and their refusals."""
    client = boto3.client(
        "s3",
        endpoint_url=lying.endpoint,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
    )
    lying.manners = Manners(page=2)
    for name in ("a b/ö", "a b/2", "a b/3", "c"):
        client.put_object(Bucket="swamp-tests", Key=name, Body=name.encode(), IfNoneMatch="*")
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="swamp-tests", Prefix="a b/")
    assert [[o["Key"] for o in page["Contents"]] for page in pages] == [["a b/2", "a b/3"], ["a b/ö"]]
    folders = client.list_objects_v2(Bucket="swamp-tests", Delimiter="/")
    assert ([f["Prefix"] for f in folders["CommonPrefixes"]], folders["Contents"][0]["Key"]) == (["a b/"], "c")
    big = tmp_path / "big"
    big.write_bytes(bytes(range(256)) * 40_000)
    client.upload_file(str(big), "swamp-tests", "big")
    got = client.get_object(Bucket="swamp-tests", Key="big", Range="bytes=9000000-9000003")
    assert got["Body"].read() == big.read_bytes()[9000000:9000004] and got["ContentRange"].endswith("/10240000")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        client.put_object(Bucket="swamp-tests", Key="c", Body=b"x", IfMatch='"none"')
    client.delete_objects(Bucket="swamp-tests", Delete={"Objects": [{"Key": "c"}, {"Key": "big"}]})
    assert lying.bucket().keys() == ["a b/2", "a b/3", "a b/ö"]


# --- lies ----------------------------------------------------------------------------------------------------------

WRITES = {
    # kind: what the writer is told, what is there afterwards
    "refuse": (OutcomeUnknown, b"old"),
    "refuse after": (OutcomeUnknown, b"new"),
    "cut": (OutcomeUnknown, b"old"),
    "cut after": (OutcomeUnknown, b"new"),
    "delay": (OutcomeUnknown, b"new"),
    "late": (OutcomeUnknown, b"old"),
    "duplicate": (ConditionFailed, b"new"),
    "again": (None, b"new"),
    "html": (OutcomeUnknown, b"old"),
    "forget": (None, b"old"),
}
READS = {
    "refuse": Unavailable,
    "refuse after": Unavailable,
    "cut": Unavailable,
    "cut after": Unavailable,
    "delay": Unavailable,
    "late": Unavailable,
    "stale": b"old",
    "wrong": bytes(255 - b for b in b"new"),
    "truncate": Unavailable,
    "short": b"n",
}


def told_by(call):
    try:
        call()
    except SwampError as error:
        return type(error)
    return None


@pytest.mark.parametrize("kind", WRITES)
def test_a_conditional_write_meets_a_lie(lying, kind):
    lying.bucket().write("k", b"old")
    store = opened(lying, requestTimeoutMs=1000)
    token = store.head("k").token
    lying.add(Lie(kind, "PUT", "k", seconds=FOR_EVER if kind == "delay" else 2.0))
    assert told_by(lambda: store.put("k", b"new", Match(token))) is WRITES[kind][0]
    assert lying.bucket().body("k") == WRITES[kind][1]
    assert lying.told == [(kind, "PUT", "k")]


@pytest.mark.parametrize("kind", READS)
def test_a_read_meets_a_lie(lying, kind):
    lying.bucket().write("k", b"old")
    lying.bucket().write("k", b"new")
    store = opened(lying, requestTimeoutMs=1000)
    lying.add(Lie(kind, "GET", "k", seconds=3.0))
    if isinstance(READS[kind], bytes):
        assert store.get("k").body == READS[kind]
    else:
        assert told_by(lambda: store.get("k")) is READS[kind]
    assert store.get("k").body == b"new" and lying.told == [(kind, "GET", "k")]


def test_every_lie_is_tried_here():
    tried = {kind for kind in get_args(LieKind) if kind in WRITES or kind in READS}
    assert tried == set(get_args(LieKind))
    assert {k for k in get_args(LieKind) if fits(k, "PUT")} == set(WRITES)


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_page_of_html_is_no_listing(lying, skip):
    """obstore takes any 200 for a page, the last one. skip 2: the question whether that was all."""
    assert asked(lying, "GET", "/swamp-tests/k")[0] == 404
    lying.manners = Manners(page=2)
    for number in range(3):
        lying.bucket().write(f"a/{number}/x", b"1")
    lying.add(Lie("html", skip=skip))
    assert told_by(lambda: list(opened(lying).list("a/"))) is Unavailable
    assert [m.key for page in opened(lying).list("a/") for m in page] == ["a/0/x", "a/1/x", "a/2/x"]
    lying.add(Lie("html", skip=min(skip, 1)))
    assert told_by(lambda: opened(lying).level("a/")) is Unavailable
    assert opened(lying).level("a/").dirs == ("a/0", "a/1", "a/2")
    assert lying.counts() == {"html": 2} and asked(lying, "GET", "/swamp-tests/a/0/x")[2] != HTML


def test_a_late_write_and_a_repeated_one_land_when_nobody_waits_for_them(lying):
    store = opened(lying, requestTimeoutMs=600)
    lying.add(Lie("late", "PUT", "late", seconds=1.0), Lie("again", "PUT", "again", seconds=0.5))
    assert told_by(lambda: store.put("late", b"1", CREATE)) is OutcomeUnknown
    store.put("again", b"1")
    store.put("again", b"2")
    assert told_by(lambda: store.head("late")) is ObjectMissing and store.get("again").body == b"2"
    deadline = time.monotonic() + 10
    while lying.bucket().keys() != ["again", "late"] or lying.bucket().body("again") != b"1":
        assert time.monotonic() < deadline, "it never landed"
        time.sleep(0.05)


def test_a_stale_listing_hides_the_last_change(lying):
    """Its end is seen: the listing is asked for again."""
    store = open_store("s3://swamp-tests", lying.config, environ=lying.environ)
    for name in ("a/1", "a/2", "b"):
        store.put(name, b"x")
    lying.add(Lie("stale", "GET", "a/"))
    assert b"a/2" not in asked(lying, "GET", "/swamp-tests?list-type=2&prefix=a/")[2]
    lying.add(Lie("stale", "GET", "a/"))
    assert [m.key for page in store.list("a/") for m in page] == ["a/1", "a/2"]
    assert lying.counts() == {"stale": 2}


def test_which_request_is_lied_to(lying):
    lying.add(Lie("refuse", "PUT", "*.json", skip=1, times=1, status=403, code="AccessDenied"))
    codes = [asked(lying, "PUT", f"/swamp-tests/{name}", b"x")[0] for name in ("a.json", "b.txt", "c.json", "d.json")]
    assert codes == [200, 200, 403, 200]
    lying.add(Lie("refuse", times=None, when=lambda headers: "if-match" in headers))
    assert asked(lying, "PUT", "/swamp-tests/x", b"x", {"If-Match": "1"})[0] == 503
    assert lying.counts() == {"refuse": 2} and lying.requests("PUT", "x")[0].condition == "1"
    lying.calm()
    assert asked(lying, "PUT", "/swamp-tests/x", b"x", {"If-None-Match": "*"})[0] == 200


def test_lies_by_chance_are_the_same_for_the_same_seed():
    drawn = [
        [(lie.kind, lie.seconds) if lie else None for lie in map(r.draw, ["GET", "PUT"] * 500)] for r in _chances()
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 60 < sum(lie is not None for lie in drawn[0]) <= 130


def _chances():
    return [RandomLies(seed, 0.1) for seed in (7, 7, 8)]


def test_two_doubles_are_two_stores():
    with S3Double("x") as one, S3Double("x") as other:
        one.bucket().write("k", b"1")
        assert other.bucket().keys() == [] and one.endpoint != other.endpoint


@pytest.mark.inv("store.own-answer")
@pytest.mark.parametrize(
    "call",
    [lambda s: s.head("k"), lambda s: s.get("k"), lambda s: s.get_if_changed("k", "t")],
    ids=["head", "get", "get_if_changed"],
)
@pytest.mark.parametrize("there", [True, False])
def test_a_page_of_html_is_no_object(lying, call, there):
    """Believed, it made setup call a free prefix taken, and a push keep an object that was collected."""
    if there:
        opened(lying).put("k", b"x")
    lying.add(Lie("html", key="k"))
    with pytest.raises(Unavailable):
        call(opened(lying))
    assert lying.counts() == {"html": 1}
