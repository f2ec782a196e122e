"""Reads, listings and deletes are tried again, within bounds; writes never are."""

from __future__ import annotations

import datetime as dt
import hashlib
import random
import time
from dataclasses import dataclass, field

import pytest

from servers.proxy import FaultProxy, Rule
from swamp.commit.log import put_log
from swamp.env import Env
from swamp.errors import AccessDenied, ConditionFailed, ObjectMissing, OutcomeUnknown, Unavailable
from swamp.index.entry import pack_key
from swamp.index.pack import PackWriter
from swamp.index.root import Writer, encode, first_root
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match
from swamp.store.retry import RetryPolicy, RetryStore
from swamp.sync.bulk import Download, Upload
from swamp.sync.fetch import fetch_group, groups
from swamp.sync.inline import Inline
from swamp.sync.progress import IdleTimeout
from swamp.sync.transfer import download_one, upload_one
from swamp.testing.faulty import Chance, Fault, FaultyStore


@dataclass
class FakeClock:
    at: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self):
        return dt.datetime.fromtimestamp(1_800_000_000 + self.at, dt.UTC)

    def monotonic(self):
        return self.at

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.at += seconds


@pytest.fixture
def faulty(fresh_prefix):
    return FaultyStore(open_store(f"memory://{fresh_prefix()}"))


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def store(faulty, clock):
    return RetryStore(faulty, Env(clock, random.Random(7)))


READS = {
    "head": lambda s: s.head("k"),
    "get": lambda s: s.get("k"),
    "range": lambda s: s.get("k", start=1, length=1),
    "changed": lambda s: s.get_if_changed("k", "other"),
    "list": lambda s: list(s.list()),
    "level": lambda s: s.level(),
    "delete": lambda s: s.delete(["k"]),
    "open": lambda s: s.open("k").__enter__(),
}


@pytest.mark.parametrize("call", READS)
@pytest.mark.parametrize("kind", ["before", "after"])
def test_trouble_is_tried_again(store, faulty, clock, call, kind):
    store.put("k", b"body")
    faulty.add(Fault(kind, times=3))
    READS[call](store)
    assert len(faulty.fired) == 3 and len(clock.slept) == 3
    assert clock.slept[0] < clock.slept[1] < clock.slept[2], "it waits longer each time"


@pytest.mark.parametrize("call", READS)
def test_it_gives_up_after_its_time(store, faulty, clock, call):
    store.put("k", b"body")
    faulty.add(Fault("before", times=None))
    with pytest.raises(Unavailable):
        READS[call](store)
    assert 20 <= clock.at <= 30


@pytest.mark.inv("store.no-blind-retry")
@pytest.mark.parametrize("condition", [None, CREATE, Match("1")])
def test_a_write_is_sent_once(store, faulty, clock, condition, tmp_path):
    faulty.add(Fault("before", "put", times=None))
    with pytest.raises(OutcomeUnknown):
        store.put("k", b"x", condition)
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(OutcomeUnknown):
        store.put_file("k", tmp_path / "f")
    assert len(faulty.fired) == 2 and clock.slept == []


@pytest.mark.parametrize("error", [ObjectMissing("gone"), AccessDenied("no"), ConditionFailed("late")])
def test_a_definite_answer_is_believed(store, faulty, clock, error):
    faulty.add(Fault("refuse", "get", error=error, times=None))
    with pytest.raises(type(error)):
        store.get("k")
    assert len(faulty.fired) == 1 and clock.slept == []


def test_the_servers_wish_is_honoured(store, faulty, clock):
    store.put("k", b"x")
    wish = Unavailable("slow down", details={"status": 429, "retryAfter": 7.0})
    faulty.add(Fault("refuse", "get", error=wish))
    assert store.get("k").body == b"x"
    assert clock.slept == [7.0]


def test_a_wish_beyond_the_deadline_is_not_waited_for(store, faulty, clock):
    wish = Unavailable("come back tomorrow", details={"retryAfter": 86400.0})
    faulty.add(Fault("refuse", "get", error=wish, times=None))
    with pytest.raises(Unavailable):
        RetryStore(faulty, Env(clock, random.Random(1)), RetryPolicy(seconds=30)).get("k")
    assert clock.at <= 30, "one request is retried for at most its time"


@pytest.mark.parametrize("seed", range(5))
def test_under_a_short_limit_one_refusal_is_tried_again(store, faulty, clock, seed):
    """A busy store is left alone for one to two seconds: with a limit of 1.5 s that pause has to be shorter."""
    store.put("k", b"x")
    faulty.add(Fault("refuse", "get", error=Unavailable("busy", details={"status": 503})))
    patient = RetryStore(faulty, Env(clock, random.Random(seed)), RetryPolicy(seconds=1.5))
    assert patient.get("k").body == b"x"
    assert len(clock.slept) == 1 and clock.slept[0] <= 1.5


def test_retry_after_of_google_reaches_the_retry(gcs, fresh_prefix, clock):
    env = Env(clock, random.Random(3))
    slow = Rule("answer", "GET", "alt=media", 1, 429, b"slow down", {"Retry-After": "3"})
    prefix = fresh_prefix()
    gcs.open(prefix).put("k", b"x")
    with FaultProxy(gcs.endpoint, [slow]) as proxy:
        store = open_store(f"{gcs.url}/{prefix}", {"endpoint": proxy.endpoint}, env)
        assert store.get("k").body == b"x"
    assert clock.slept == [3.0] and proxy.fired


@pytest.mark.parametrize("server", ["moto", "azurite", "gcs"])
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("wish", [None, "1"])
def test_a_busy_store_is_left_alone_for_a_second_whether_its_wish_can_be_read_or_not(
    servers, server, status, wish, fresh_prefix
):
    """obstore shows no header of a refusal (docs/decisions/0005): a second at least, and each machine its own time."""
    running, prefix, waits = servers[server], fresh_prefix(), []
    running.open(prefix).put("k", b"x")
    headers = {} if wish is None else {"Retry-After": wish}
    for seed in range(3):
        clock = FakeClock()
        with FaultProxy(running.endpoint, [Rule("answer", "GET", "k", 2, status, b"busy", headers)]) as proxy:
            config = dict(running.config) | {"endpoint": proxy.endpoint}
            store = open_store(f"{running.url}/{prefix}", config, Env(clock, random.Random(seed)))
            assert store.get("k").body == b"x"
        assert len(proxy.fired) == len(clock.slept) == 2
        assert all(1.0 <= wait <= 2.0 for wait in clock.slept)
        waits += clock.slept
    assert len(set(waits)) == 6 or (wish and server == "gcs"), "a crowd spreads out"


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_store_gets_an_upload_again_only_after_a_second(moto, status, fresh_prefix, tmp_path, clock):
    (tmp_path / "raw").write_bytes(b"x")
    moto.open()
    with FaultProxy(moto.endpoint, [Rule("answer", "PUT", "raw", 2, status, b"busy")]) as proxy:
        config = dict(moto.config) | {"endpoint": proxy.endpoint}
        store = open_store(f"{moto.url}/{fresh_prefix()}", config, Env(clock, random.Random(5)))
        sent = upload_one(store, Upload("data/a/raw", str(tmp_path / "raw")), Env(clock, random.Random(5)))
    assert sent.error is None and len(proxy.fired) == 2
    assert len(clock.slept) == 2 and all(1.0 <= wait <= 2.0 for wait in clock.slept)


def test_a_busy_store_gets_a_commit_record_again_only_after_a_second(store, faulty, clock):
    busy = OutcomeUnknown("slow down", details={"status": 503})
    faulty.add(Fault("refuse", "put", error=busy, times=2))
    root = first_root("store", "OP", "2026-01-01T00:00:00Z", Writer("r", "h", "u", 1, "0"))
    put_log(store, Env(clock, random.Random(5)), root, encode(root))
    assert len(clock.slept) == 2 and all(wait >= 1.0 for wait in clock.slept)


def test_a_listing_goes_on_where_it_was(store, faulty):
    for number in range(2500):
        faulty.inner.put(f"k{number:04d}", b"")
    faulty.add(Fault("cut", "list", count=700), Fault("before", "list"), Fault("cut", "list", count=900))
    keys = [m.key for page in store.list("k") for m in page]
    assert keys == [f"k{n:04d}" for n in range(2500)]
    assert [f.kind for f in faulty.fired] == ["cut", "before", "cut"]


@pytest.mark.inv("store.pinned-read")
def test_a_body_goes_on_where_it_was(store, faulty):
    body = bytes(range(256)) * 20_000
    store.put("k", body)
    faulty.add(Fault("cut", "get", count=1_000_000), Fault("before", "get"), Fault("cut", "get", count=3_000_000))
    with store.open("k") as stream:
        assert b"".join(stream) == body
    assert [f.kind for f in faulty.fired] == ["cut", "before", "cut"]


@pytest.mark.inv("store.pinned-read")
def test_a_body_that_changed_is_not_continued(store, faulty):
    store.put("k", b"a" * 3_000_000)
    faulty.add(Fault("cut", "get", count=1_500_000))
    with store.open("k") as stream, pytest.raises(Unavailable, match="changed while it was read"):
        for _ in stream:
            faulty.inner.put("k", b"b" * 3_000_000)


def test_an_endpoint_that_takes_no_connection_is_not_waited_for_long(clock):
    calls = []

    class Nowhere:
        url = "s3://nowhere"

        def head(self, key):
            calls.append(key)
            raise Unavailable("cannot reach", details={"unreachable": True})

    with pytest.raises(Unavailable):
        RetryStore(Nowhere(), Env(clock, random.Random(1))).head("k")
    assert len(calls) == 4 and clock.at < 2


def test_a_request_that_has_used_up_its_time_is_not_made_again(clock):
    """It was made once more for as long again: a minute where half of one was promised."""
    calls = []

    class Silent:
        url = "s3://silent"

        def head(self, key):
            calls.append(key)
            clock.at += 30.0
            raise Unavailable("timed out")

    with pytest.raises(Unavailable):
        RetryStore(Silent(), Env(clock, random.Random(1))).head("k")
    assert len(calls) == 1 and clock.at == 30.0


@pytest.mark.parametrize("server", ["moto", "azurite", "gcs"])
@pytest.mark.parametrize("call", ["get", "list"])
def test_a_store_that_takes_requests_and_never_answers_is_asked_twice_within_the_limit(
    servers, server, call, fresh_prefix
):
    """Twice: it may be the connection that is dead. Within `requestTimeoutMs`: that is what it is said to mean."""
    running, limit = servers[server], 3.0
    with FaultProxy(running.endpoint, [Rule("freeze", times=None)]) as proxy:
        config = dict(running.config) | {"endpoint": proxy.endpoint, "requestTimeoutMs": int(limit * 1000)}
        store = open_store(f"{running.url}/{fresh_prefix()}", config)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="timed out"):
            READS[call](store)
        took = time.monotonic() - began
    assert len(proxy.fired) == 2 and limit - 0.5 <= took < limit + 2.0


def test_waits_are_spread_out(faulty):
    waits = []
    for seed in range(20):
        clock = FakeClock()
        faulty.inner.put("k", b"x")
        faulty.add(Fault("before", "get"))
        RetryStore(faulty, Env(clock, random.Random(seed))).get("k")
        waits.append(clock.slept[0])
    assert len(set(waits)) == 20 and all(0.05 <= w <= 0.1 for w in waits)


# -- the faulty store itself


def test_faults_happen_before_or_after_the_effect(faulty):
    faulty.add(Fault("before", "put", "a"), Fault("after", "put", "b"))
    for key in ("a", "b"):
        with pytest.raises(OutcomeUnknown):
            faulty.put(key, b"x")
    assert [m.key for page in faulty.list() for m in page] == ["b"]


def test_a_late_write_lands_when_it_is_let_go_and_its_condition_still_counts(faulty):
    token = faulty.put("k", b"first").token
    faulty.add(Fault("late", "put", "k", times=2))
    for body, condition in ((b"late", Match(token)), (b"later", CREATE)):
        with pytest.raises(OutcomeUnknown):
            faulty.put("k", body, condition)
    assert faulty.get("k").body == b"first"
    assert faulty.land() == 1 and faulty.land() == 0
    assert faulty.get("k").body == b"late"


def test_chance_is_the_same_for_the_same_seed(fresh_prefix):
    def run(seed):
        store = FaultyStore(open_store(f"memory://{fresh_prefix()}"), chance=Chance(random.Random(seed), 0.3))
        for number in range(200):
            try:
                store.put(f"k{number}", b"x")
            except OutcomeUnknown:
                continue
        return [(f.kind, f.key) for f in store.fired]

    assert run(1) == run(1) != run(2)
    assert 30 < len(run(1)) < 90


@pytest.mark.parametrize("kind", ["upload", "download"])
def test_a_transfer_is_not_tried_for_longer_than_anybody_waits(faulty, clock, tmp_path, kind):
    """Half a minute of retries once kept a command alive that had said `no progress for 4 s` long before."""
    env = Env(clock, random.Random(7))
    idle_timeout = IdleTimeout(env, 4.0)
    faulty.add(Fault("before", None, times=None))
    if kind == "upload":
        (tmp_path / "f").write_bytes(b"x")
        error = upload_one(faulty, Upload("f", str(tmp_path / "f"), 1), env, idle_timeout).error
    else:
        error = download_one(faulty, Download("f", "k", 1, None, str(tmp_path / "staging")), env, idle_timeout).error
    assert error is not None
    assert 4.0 <= clock.at < 12.0


def packed_jobs(store, env, staging, count):
    """Downloads of `count` files that lie in one pack."""
    writer, pack = PackWriter(), pack_key(env.ulid())
    files = [writer.add(f"files/{n}", b"%d" % n, hashlib.sha256(b"%d" % n).hexdigest()) for n in range(count)]
    store.put(pack, writer.seal())
    return [Download(f.path, f.key(pack), f.size, f.sha256, str(staging)) for f in files]


def test_C09_files_of_a_pack_that_never_comes_are_not_asked_for_one_after_another(store, faulty, clock, tmp_path):
    """Half a minute for each of them: a fresh sync of five files was over after nine minutes."""
    env = Env(clock, random.Random(7))
    [group] = groups(packed_jobs(store, env, tmp_path, 50))
    assert [got.error for got in fetch_group(store, group, env)] == [None] * 50
    faulty.add(Fault("before", "get", times=None))
    began = clock.at
    found = fetch_group(store, group, env, IdleTimeout(env, 300.0))
    assert [(got.path, got.cause) for got in found] == [(job.path, "away") for _, job in group]
    assert clock.at - began < 70, "the range, and one file by itself"


@pytest.mark.parametrize("kind", ["upload", "download"])
def test_C09_files_that_the_store_does_not_take_or_give_are_no_progress(store, faulty, clock, tmp_path, kind):
    env = Env(clock, random.Random(7))
    idle_timeout, inline = IdleTimeout(env, 100.0), Inline(store, env, threads=1)
    faulty.add(Fault("before", None, times=None))
    (tmp_path / "f").write_bytes(b"x" * (2 << 20))
    downloads = (Download(f"f{n}", f"k{n}", 1, None, str(tmp_path / "staging")) for n in range(100))
    uploads = (Upload(f"f{n}", str(tmp_path / "f"), 2 << 20) for n in range(100))
    with pytest.raises(Unavailable, match="no progress for 100 s"):
        list(inline.upload(uploads, idle_timeout) if kind == "upload" else inline.download(downloads, idle_timeout))
    assert 100 <= clock.at < 200
