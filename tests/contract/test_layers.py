"""Layers speak the protocol on both sides and add exactly one thing."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from swamp.env import SYSTEM
from swamp.errors import ConditionFailed, ObjectMissing, Unavailable, UsageError
from swamp.store.keys import check_key, check_prefix
from swamp.store.layers import LimitStore, MeterStore, PrefixStore, SerializedMkdirStore
from swamp.store.open import open_store
from swamp.store.port import CREATE, Match, ObjectMeta
from swamp.store.retry import RetryStore
from swamp.store.upload import ByteBudget, part_bytes, read_whole
from swamp.testing.contract import BAD_KEYS, ODD_KEYS, StoreContract


@pytest.fixture
def bucket(fresh_prefix):
    return open_store(f"memory://{fresh_prefix()}")


class TestAllLayersTogether(StoreContract):
    """Stacked, they still keep the contract."""

    @pytest.fixture
    def store(self, bucket):
        inner = RetryStore(
            LimitStore(SerializedMkdirStore(MeterStore(PrefixStore(PrefixStore(bucket, "a b/é"), "#%?"))))
        )
        return LimitStore(inner, uploads=4, downloads=4)


@pytest.mark.inv("store.prefix-closed")
def test_nothing_outside_the_prefix_can_be_named(bucket):
    bucket.put("other/secret", b"theirs")
    bucket.put("mine/k", b"ours")
    bucket.put("mine2/k", b"theirs")
    mine = PrefixStore(bucket, "mine")
    for key in ("../other/secret", "/other/secret", "../mine2/k", "", "x/../../other/secret"):
        for call in (mine.get, mine.head, lambda k: mine.put(k, b"x"), lambda k: mine.delete([k])):
            with pytest.raises(UsageError):
                call(key)
    assert [m.key for page in mine.list() for m in page] == ["k"]
    assert [m.key for m in mine.level().objects] == ["k"]
    mine.delete([m.key for page in mine.list() for m in page])
    assert [m.key for page in bucket.list() for m in page] == ["mine2/k", "other/secret"]


@pytest.mark.inv("store.prefix-closed")
@pytest.mark.parametrize("prefix", ["..", "a/../b", "", "/", "a//b", "./x"])
def test_a_prefix_that_leaves_is_refused(bucket, prefix):
    with pytest.raises(UsageError):
        PrefixStore(bucket, prefix)


def test_a_prefixed_address_opens_the_same_place_again(fresh_prefix, tmp_path):
    for base in (f"memory://{fresh_prefix()}", (tmp_path / "b").as_uri()):
        store = PrefixStore(open_store(base), "a b/é#?%25")
        store.put("k", b"x")
        if base.startswith("memory"):
            assert open_store(store.url).get("k").body == b"x"
        assert open_store(base).get("a b/é#?%25/k").body == b"x"


@pytest.mark.inv("store.key-safe")
@pytest.mark.parametrize("key", [*BAD_KEYS, "a/\x7f", "tab\there", "\ud800", "é" * 513, ".", "..", "a/.."])
def test_unusable_keys_are_refused(key):
    with pytest.raises(UsageError) as caught:
        check_key(key)
    assert caught.value.hint


@pytest.mark.inv("store.key-safe")
@pytest.mark.parametrize("key", [*ODD_KEYS, "...", "a/...", "é" * 512, "x" * 1024, "\u2028", "con", "aux.txt"])
def test_usable_keys_are_taken_as_they_are(key):
    assert check_key(key) == key == check_prefix(key) == check_prefix(key + "/")[:-1]


def test_the_meter_counts_requests_and_bytes(bucket, tmp_path):
    store = MeterStore(bucket)
    (tmp_path / "f").write_bytes(b"12345")
    token = store.put("k", b"123", CREATE).token
    store.put_file("f", tmp_path / "f")
    store.get("k"), store.head("k"), store.get_if_changed("k", token), store.level(), list(store.list())
    with store.open("f") as body:
        assert b"".join(body) == b"12345"
    with pytest.raises(ConditionFailed):
        store.put("k", b"4567", CREATE)
    with pytest.raises(ObjectMissing):
        store.get("none")
    store.delete(["k", "f"])
    assert dict(store.meter.calls) == {"put": 3, "get": 4, "head": 1, "list": 2, "delete": 1}
    assert (store.requests, store.meter.sent, store.meter.received) == (11, 12, 8)


def test_the_meter_counts_from_many_threads(bucket):
    store = MeterStore(bucket)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.put(f"k{n}", b"ab"), range(500)))
    assert (store.requests, store.meter.sent) == (500, 1000)


def test_a_listing_costs_its_pages(bucket):
    store = MeterStore(bucket)
    for number in range(2001):
        bucket.put(f"k{number:04d}", b"")
    assert sum(len(page) for page in store.list()) == 2001
    assert store.requests == 3


class Counting:
    """How many calls are inside at once."""

    url = "memory://counting"

    def __init__(self):
        self.inside = self.most = 0
        self.lock = threading.Lock()

    def put(self, key, body, condition=None):
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        time.sleep(0.005)
        with self.lock:
            self.inside -= 1

    get = put


def test_the_limit_holds():
    inner = Counting()
    store = LimitStore(inner, uploads=3, downloads=5)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.put(f"k{n}", b""), range(60)))
    assert inner.most == 3


def test_a_listing_does_not_hold_a_place(bucket):
    """One download at a time, and each listed object is read while the listing goes on."""
    for number in range(20):
        bucket.put(f"k{number}", b"x")
    store = LimitStore(bucket, uploads=1, downloads=1)
    assert sum(len(store.get(m.key).body) for page in store.list() for m in page) == 20


@pytest.mark.inv("store.bounded-memory")
def test_the_budget_holds_and_lets_a_giant_in_alone():
    budget, used, most, lock = ByteBudget(100), [0], [0], threading.Lock()

    def work(size):
        with budget.hold(size):
            with lock:
                used[0] += min(size, 100)
                most[0] = max(most[0], used[0])
            time.sleep(0.001)
            with lock:
                used[0] -= min(size, 100)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, [30, 50, 100, 7, 1000, 60, 1] * 20))
    assert 60 < most[0] <= 100


def test_parts_stay_below_ten_thousand():
    for size in (1, 8 << 20, 5 << 30, 100 << 30, 5 << 40):
        assert -(-size // part_bytes(size)) <= 10_000
    assert part_bytes(5 << 30) == 8 << 20


@pytest.mark.parametrize("size", [0, 1, 1000, 128 * 1024, 5_000_000])
def test_a_file_is_read_whole_even_if_it_shrank_or_grew(tmp_path, size):
    path = tmp_path / "f"
    body = bytes(range(256)) * (size // 256 + 1)
    path.write_bytes(body[:size])
    assert bytes(read_whole(path, size)) == body[:size]
    assert bytes(read_whole(path, size + 1000)) == body[:size], "it shrank after it was measured"
    assert bytes(read_whole(path, size // 2)) == body[: size // 2], "it grew: what was granted is what is read"


def test_match_is_by_token_only(bucket):
    token = bucket.put("k", b"x").token
    assert Match(token) == Match(token) != Match("other")


class _Directories:
    """A server that keeps objects in directories: notes when two requests make the same one at once."""

    url = "memory://directories"

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.making: list[str] = []
        self.twins: list[str] = []
        self.together = 0
        self.most = 0
        self._lock = threading.Lock()

    def put(self, key, body, condition=None):
        parents = [key.rsplit("/", n)[0] for n in range(1, key.count("/") + 1)]
        with self._lock:
            new = [p for p in parents if p not in self.made]
            self.twins += [p for p in new if p in self.making]
            self.making += new
            self.together += 1
            self.most = max(self.most, self.together)
        time.sleep(0.002)
        if body == b"refused":
            with self._lock:
                self.making, self.together = [p for p in self.making if p not in new], self.together - 1
            raise Unavailable("500")
        with self._lock:
            self.made |= set(new)
            self.making = [p for p in self.making if p not in new]
            self.together -= 1
        return ObjectMeta(key, len(body), "t", SYSTEM.clock.now())


def test_no_directory_is_made_by_two_uploads_at_once():
    server = _Directories()
    store = SerializedMkdirStore(server)
    keys = [f"a/b{n // 20}/c{n // 10}/{n}" for n in range(200)]
    with ThreadPoolExecutor(16) as crew:
        list(crew.map(lambda key: store.put(key, b"x"), keys))
    assert server.twins == []
    assert server.most > 4  # they went together wherever the directory was there


def test_a_directory_whose_first_upload_failed_is_made_by_the_next():
    server = _Directories()
    store = SerializedMkdirStore(server)
    with pytest.raises(Unavailable):
        store.put("a/b/1", b"refused")
    with ThreadPoolExecutor(8) as crew:
        list(crew.map(lambda n: store.put(f"a/b/{n}", b"x"), range(40)))
    assert server.twins == []
    assert server.made == {"a", "a/b"}
